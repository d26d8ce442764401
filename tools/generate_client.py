"""Write the Python client's types from the API's own description: `answers.py` and `runoptions.py` of the client.

`python tools/generate_client.py` rewrites the modules; a unit test fails while a committed one differs. What the
service answers becomes frozen structs, what is sent to it dictionaries with types. Enumerations become `str`, so that a
client reads the words of a newer service.
"""

from __future__ import annotations

import keyword
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from litestar import types

from fairlead.serve.api import app as base
from fairlead.serve.v1 import app as v1
from fairlead.serve.v1 import permissions

FOLDER = Path(__file__).parent.parent / "src" / "fairlead" / "client"
ANSWERS = (
    "CapacityList",
    "ClaimList",
    "ContainerList",
    "EventList",
    "Explanation",
    "GPUListing",
    "GPUMetricsList",
    "ImageList",
    "MetricsView",
    "NodeList",
    "ProcessTable",
    "QuotaList",
    "ReservationList",
    "WebhookList",
    "NewWebhook",
    "SecretList",
    "Self",
    "Status",
    "TenancyList",
    "TraceView",
    "UsageReport",
    "UsageView",
    "VolumeList",
)
"""What the client reads, with all that these refer to."""
PARTS = ("CostView", "Held", "PhaseView", "ProofView", "Waiting")
"""Of the answers: those of a container's life, which refer to none but each other, in a module of their own."""
REQUEST = "ContainerRequest"
GIVEN_APART = ("image", "container-url", "command", "args")
"""Of the request: the client has its own parameters for these."""
_SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_EMPTY = {"str": '""', "int": "0", "float": "0.0", "bool": "False"}
_HEAD = '''"""Declares the types of what the API {what}.

Made by tools/generate_client.py from the API's description; edit what it describes, then run that program.
"""

from __future__ import annotations

'''
_ANSWERS = """from collections.abc import Mapping
from typing import Any
{imports}
from fairlead.client.record import Record
"""
_REQUESTS = """from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict
"""


def describe() -> Mapping[str, Any]:
    """Return the schemas of the API's OpenAPI document, by name."""

    async def given(scope: types.Scope) -> Any:
        raise NotImplementedError(scope)

    app = base.create_app(v1.ROUTES, given, guard=permissions.judge)
    found: dict[str, Any] = app.openapi_schema.to_schema()["components"]["schemas"]
    return found


def modules() -> dict[str, str]:
    """Return each module's text by its file name."""
    schemas = describe()
    names = sorted(_closure(schemas, ANSWERS))
    structs = {name: "\n".join(_struct(name, schemas)) for name in names if "properties" in schemas[name]}
    lives = "\n\n".join(text for name, text in structs.items() if name in PARTS)
    answers = "\n\n".join(text for name, text in structs.items() if name not in PARTS)
    others = str([schemas[name] for name in structs if name not in PARTS])
    used = ", ".join(name for name in PARTS if f"/{name}'" in others)
    parts = sorted(_closure(schemas, [REQUEST]) - {REQUEST})
    requests = ["\n".join(_dictionary(name, name, schemas)) for name in parts]
    requests.append("\n".join(_dictionary("RunOptions", REQUEST, schemas)))
    imports = "\nimport msgspec\n" if "msgspec." in answers else ""
    own = f"from fairlead.client.lifeanswers import {used}\n"
    head = _ANSWERS.format(imports=imports).replace("from fairlead.client.record", f"{own}from fairlead.client.record")
    life = "from fairlead.client.record import Record\n"
    return {
        "answers.py": _formatted(_HEAD.format(what="answers") + head + "\n\n" + answers),
        "lifeanswers.py": _formatted(_HEAD.format(what="answers of containers' lives") + life + "\n\n" + lives),
        "runoptions.py": _formatted(_HEAD.format(what="takes") + _REQUESTS + "\n\n" + "\n\n".join(requests)),
    }


def _formatted(text: str) -> str:
    argv = (Path(sys.executable).parent / "ruff", "format", "--stdin-filename", FOLDER / "answers.py", "-")
    return subprocess.run(argv, input=text, capture_output=True, text=True, check=True).stdout


def _closure(schemas: Mapping[str, Any], roots: Any) -> set[str]:
    """Return names with all that they refer to."""
    found: set[str] = set()
    left = list(roots)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += re.findall(r"#/components/schemas/(\w+)", str(schemas[name]))
    return found


def _struct(name: str, schemas: Mapping[str, Any]) -> Iterator[str]:
    schema = schemas[name]
    yield f"class {name}(Record, frozen=True, kw_only=True):"
    yield f'    """{schema.get("description") or f"`{name}` of the API."}"""'
    yield ""
    for key, field in schema["properties"].items():
        kind = _kind(field, schemas, "tuple[{}, ...]")
        is_optional = key not in schema["required"]
        if is_optional and kind not in _EMPTY and not kind.startswith(("tuple", "Mapping")) and "None" not in kind:
            kind += " | None"
        yield f"    {_identifier(key)}: {kind}{_default(key, field, kind, is_optional=is_optional)}"
        yield from _words(field)


def _default(key: str, field: Mapping[str, Any], kind: str, *, is_optional: bool) -> str:
    name = f'name="{key}"' if _identifier(key) != key else ""
    if not is_optional:
        return f" = msgspec.field({name})" if name else ""
    if kind.startswith("Mapping"):
        return f" = msgspec.field({', '.join(filter(None, ['default_factory=dict', name]))})"
    if "None" in kind:
        value = "None"
    elif kind.startswith("tuple"):
        value = "()"
    else:
        value = repr(field["default"]) if "default" in field else _EMPTY[kind]
    return f" = msgspec.field(default={value}, {name})" if name else f" = {value}"


def _dictionary(name: str, source: str, schemas: Mapping[str, Any]) -> Iterator[str]:
    schema = schemas[source]
    yield f"class {name}(TypedDict{', total=False' if not schema['required'] else ''}):"
    yield f'    """{schema.get("description") or f"`{source}` of the API."}"""'
    yield ""
    for key, field in schema["properties"].items():
        if key in GIVEN_APART:
            continue
        kind = _kind(field, schemas, "Sequence[{}]")
        is_optional = bool(schema["required"]) and key not in schema["required"]
        yield f"    {key}: {f'NotRequired[{kind}]' if is_optional else kind}"
        yield from _words(field)


def _words(field: Mapping[str, Any]) -> Iterator[str]:
    if words := field.get("description"):
        yield textwrap.fill(
            f'"""{words[0].upper()}{words[1:]}."""',
            width=116,
            initial_indent="    ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def _identifier(key: str) -> str:
    name = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", key).lower().replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


def _kind(field: Mapping[str, Any], schemas: Mapping[str, Any], many: str) -> str:
    """Return the annotation of a schema."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return name if "properties" in schemas[name] else "str"
    for word in ("oneOf", "anyOf", "allOf"):
        if word in field:
            return " | ".join(dict.fromkeys(_kind(one, schemas, many) for one in field[word]))
    if "prefixItems" in field:
        return f"tuple[{', '.join(_kind(one, schemas, many) for one in field['prefixItems'])}]"
    if field.get("type") == "array":
        return many.format(_kind(field["items"], schemas, many))
    if field.get("type") == "object":
        return f"Mapping[str, {_kind(field.get('additionalProperties') or {}, schemas, many)}]"
    return _SIMPLE.get(field.get("type", ""), "Any")


if __name__ == "__main__":
    for file, text in modules().items():
        (FOLDER / file).write_text(text)
