"""Write what the chart's schema says of the agent's settings, from the registry of settings.

`python -m tools.render_schema` rewrites `agent.settings` in values.schema.json, as `tools.render_chart` does before
helm reads it; the unit tests compare both. So helm refuses, by its name, a setting that no agent has, and a value that
is not of the setting's type, before a node's agent ends with it.
Source: JSON Schema draft 7, "additionalProperties"; Helm documentation, "Schema Files".
"""

from __future__ import annotations

import json
import types
import typing
from pathlib import Path
from typing import Any, Final

from fairlead import settings
from fairlead.cli.admin import manifests
from fairlead.cli.process import agent

_WRITTEN: Final[dict[type, dict[str, Any]]] = {
    bool: {"type": ["boolean", "string"], "pattern": "^(1|0|true|false|yes|no|on|off)$"},
    int: {"type": ["integer", "string"], "pattern": "^-?[0-9]+$"},
    float: {"type": ["number", "string"], "pattern": r"^-?[0-9]+(\.[0-9]+)?$"},
    Path: {"type": "string"},
    str: {"type": ["string", "integer"]},
}
"""What values may hold for a setting of a type. A text may be written as a whole number, a list of one XID for example;
of 580.10 YAML would make another version."""


def path() -> Path:
    """Return the schema's path."""
    return manifests.CHART / "values.schema.json"


def rows() -> tuple[settings.Row, ...]:
    """Return the settings that the agent takes."""
    options = {word for option in agent.agent.params for word in option.opts}
    return tuple(row for row in settings.rows() if row.flag in options)


def text() -> str:
    """Return the schema as it is, with the agent's settings as they are in the registry."""
    schema = json.loads(path().read_text("utf-8"))
    schema["properties"]["agent"]["properties"]["settings"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {row.key: _schema(row) for row in rows()},
    }
    return json.dumps(schema, indent=2) + "\n"


def _schema(row: settings.Row) -> dict[str, Any]:
    if row.choices:
        return {"enum": list(row.choices)}
    kinds = typing.get_args(row.type) if isinstance(row.type, types.UnionType) else (row.type,)
    return _WRITTEN[next(kind for kind in kinds if kind is not types.NoneType)]


if __name__ == "__main__":
    path().write_text(text(), "utf-8")
