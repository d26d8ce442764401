"""A helm chart rendered without helm: the same templates and values, the same objects.

A chart is a folder: `Chart.yaml`, `values.yaml`, `values.schema.json`, `templates/` and `crds/`. Values are laid over
the chart's own as helm does (maps are merged, anything else replaces, null removes), held against the schema, and given
to `gotemplate`. Objects come in an order in which they can be created one after another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairlead import errors
from fairlead.wire.chart import valueschema
from fairlead.wire.gotemplate import render as gotemplate
from fairlead_cdi import yamlfile

_NOTES: Final = "NOTES.txt"
_SEPARATOR: Final = re.compile(r"^---\s*$", re.MULTILINE)
_ORDER: Final = (
    "Namespace",
    "CustomResourceDefinition",
    "PriorityClass",
    "RuntimeClass",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "PodDisruptionBudget",
    "DaemonSet",
    "Deployment",
)
"""Kinds that are not named come last."""
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)")
_WORDS: Final[Mapping[str, object]] = {"true": True, "false": False, "null": None}
_DOT, _COMMA = re.compile(r"(?<!\\)\."), re.compile(r"(?<!\\),(?![^{]*\})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart as read from its folder."""

    about: Mapping[str, Any]
    """`Chart.yaml`."""
    values: Mapping[str, Any]
    schema: Mapping[str, Any]
    templates: Mapping[str, str]
    """By path within the chart."""
    crds: tuple[str, ...]


def load(folder: Path) -> Chart:
    """Read a chart. Raises: Unavailable: a file cannot be read; ProtocolError: it is not YAML or JSON."""
    try:
        files = sorted(path for path in (folder / "templates").iterdir() if path.name != _NOTES)
        return Chart(
            about=_map(folder / "Chart.yaml"),
            values=_map(folder / "values.yaml"),
            schema=json.loads((folder / "values.schema.json").read_text("utf-8")),
            templates={str(path.relative_to(folder)): path.read_text("utf-8") for path in files},
            crds=tuple(path.read_text("utf-8") for path in sorted((folder / "crds").glob("*.yaml"))),
        )
    except OSError as error:
        message = f"cannot read the chart in {folder}: {error.strerror}"
        raise errors.Unavailable(message, reason="ChartUnreadable", hint="install fairlead anew") from error


def _map(path: Path) -> dict[str, Any]:
    return parse_values(path.read_bytes(), name=str(path))


def parse_values(data: bytes, *, name: str) -> dict[str, Any]:
    """Read a values file; an empty one has none. Raises: ProtocolError: not YAML; Invalid: not a map."""
    found = yamlfile.decode_yaml(data)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise errors.Invalid(f"{name} holds no map of values", reason="ValuesInvalid", hint="write `key: value` lines")
    return found


def parse_setting(text: str, *, is_text: bool = False) -> dict[str, Any]:
    r"""Read `a.b=1,c={x,y}` as helm's --set does; `\.` and `\,` stand for themselves.

    Args:   is_text: every value is text, as with --set-string.
    Raises: Invalid: no `=`, or an index (`a[0]=x`), which is for a values file.
    """
    found: dict[str, Any] = {}
    for part in _COMMA.split(text):
        path, equals, value = part.partition("=")
        names = [name.replace("\\.", ".") for name in _DOT.split(path)]
        if not equals or not all(names) or "[" in path:
            message = f'"{part}" sets no value'
            raise errors.Invalid(
                message, reason="ValuesInvalid", hint="write --set a.b=value, or lists in a file for -f"
            )
        laid: object = _typed(value, is_text=is_text)
        for name in reversed(names):
            laid = {name: laid}
        found = merge(found, laid if isinstance(laid, dict) else {}, keeps_null=True)
    return found


def _typed(value: str, *, is_text: bool) -> object:
    if value.startswith("{") and value.endswith("}"):
        items = re.split(r"(?<!\\),", value[1:-1])
        return [_typed(item, is_text=is_text) for item in items]
    plain = value.replace("\\,", ",")
    if is_text:
        return plain
    if plain in _WORDS:
        return _WORDS[plain]
    return int(plain) if _NUMBER.fullmatch(plain) else plain


def merge(base: Mapping[str, Any], over: Mapping[str, Any], *, keeps_null: bool = False) -> dict[str, Any]:
    """Lay values over others: maps are merged, anything else replaces, null removes what is there.

    Args: keeps_null: null stays, to remove something later.
    """
    found = dict(base)
    for key, value in over.items():
        below = found.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            found[key] = merge(below, value, keeps_null=keeps_null)
        elif value is None and key in base and not keeps_null:
            del found[key]
        else:
            found[key] = value
    return found


def render(
    chart: Chart,
    given: Iterable[Mapping[str, Any]] = (),
    *,
    name: str,
    namespace: str,
    crds: bool = True,
    hooks: bool = False,
) -> tuple[dict[str, Any], ...]:
    """Return the objects of a chart, in the order in which to create them.

    Args:    given: values, later ones over earlier ones.   name: of the release.
             hooks: also what helm makes at moments of a release's life; only helm knows when.
    Raises:  Invalid: a value breaks the schema; ProtocolError: a template is outside the known subset, with its line.
    """
    over: dict[str, Any] = {}
    for one in given:
        over = merge(over, one, keeps_null=True)
    values = merge(chart.values, over)
    valueschema.check(chart.schema, values)
    about = {key[:1].upper() + key[1:]: value for key, value in chart.about.items()}
    root = {"Values": values, "Chart": about, "Release": {"Name": name, "Namespace": namespace}}
    templates = gotemplate.Templates(chart.templates)
    rendered = [templates.render(file, root) for file in chart.templates]
    texts = (*(chart.crds if crds else ()), *rendered)
    found = [item for text in texts for item in parse_objects(text) if hooks or not _is_hook(item)]
    rank = {kind: place for place, kind in enumerate(_ORDER)}
    return tuple(sorted(found, key=lambda item: rank.get(item["kind"], len(_ORDER))))


def _is_hook(item: Mapping[str, Any]) -> bool:
    return "helm.sh/hook" in (item["metadata"].get("annotations") or {})


def parse_objects(text: str) -> list[dict[str, Any]]:
    """Return the objects of a text of YAML documents; empty ones are left out.

    Raises: ProtocolError: not YAML, or no Kubernetes object.
    """
    found = [yamlfile.decode_yaml(part.encode()) for part in _SEPARATOR.split(text)]
    objects = [item for item in found if item is not None]
    for item in objects:
        if not isinstance(item, dict) or not {"apiVersion", "kind", "metadata"} <= item.keys():
            message = f"a template wrote no Kubernetes object: {str(item)[:80]}"
            raise errors.ProtocolError(message, reason="ObjectInvalid")
    return [item for item in objects if isinstance(item, dict)]


def emit(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return objects as YAML documents."""
    return "".join(f"---\n{yamlfile.dump(item)}" for item in objects)
