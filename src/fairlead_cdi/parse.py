"""Reads CDI documents: accepts what engines accept, refuses what they refuse, and makes frozen specs of them.

The Go library decodes every file as YAML into JSON into structs. Three effects are visible to spec authors and are
kept, because a reader that disagrees with the engine is worse than a lax one: keys match without regard to case,
numbers and booleans become text where a field is text, whole floats become integers. Unknown and duplicate keys are
refused, as there. The tables at the end of the module have every field; `validate` applies CDI's rules.

`decode_json` needs only the standard library; `directory.decode_yaml` loads PyYAML with the first document.
Source: CDI pkg/cdi/spec.go ParseSpec; sigs.k8s.io/yaml UnmarshalStrict.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn

from fairlead_cdi import errors, validate
from fairlead_cdi import spec as cdi

Decoder = Callable[[bytes], object]
"""Turns bytes into plain values (dict, list, str, int, float, bool, None); raises DocumentError."""
_Reader = Callable[[Any, str], Any]
_Fields = Mapping[str, tuple[str, _Reader]]

_UINT32_MAX: Final = 2**32 - 1
_INT64_MAX: Final = 2**63 - 1
_EXACT_FLOAT: Final = 2.0**53
_GO_EXPONENT: Final = 6


def decode_json(data: bytes) -> object:
    """Decode one JSON document.

    Raises: DocumentError: not JSON, not UTF-8, nested too deeply, or a key given twice in one object.
    """
    try:
        return json.loads(data, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        message = f"not a JSON document: {error}"
        raise errors.DocumentError(message, reason="SpecUndecodable") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f'key "{twice}" is given twice')
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def parse_spec(data: bytes, *, decode: Decoder = decode_json) -> cdi.Spec:
    """Read the bytes of one spec file into a spec that engines would load.

    Args:    data: the whole file.   decode: the format's decoder.
    Raises:  DocumentError: undecodable, an unknown or mistyped field, or a rule of `validate` broken; the message
             starts with the field's place in the document and ends with the value.
    """
    spec = build_spec(decode(data))
    validate.assert_valid(spec)
    return spec


def build_spec(document: object) -> cdi.Spec:
    """Turn a decoded document into a spec; checks types, and not the rules of `validate`.

    Raises: DocumentError: an unknown or mistyped field.
    """
    spec: cdi.Spec = _build(cdi.Spec, _SPEC, document, "")
    return spec


def build_edits(document: object) -> cdi.ContainerEdits:
    """Turn a decoded `containerEdits` object into edits; checks types only. Raises: DocumentError."""
    return _edits(document, "containerEdits")


def _refuse(where: str, value: object, expected: str) -> NoReturn:
    message = f"{where or 'the document'} must be {expected}, not {reprlib.repr(value)}"
    raise errors.DocumentError(message, reason="SpecFieldInvalid", field=where)


def _build(kind: Callable[..., Any], fields: _Fields, value: object, where: str) -> Any:
    if not isinstance(value, dict):
        _refuse(where, value, "an object")
    prefix = f"{where}." if where else ""
    found: dict[str, Any] = {}
    for key, item in _in_order(value, fields):
        entry = fields.get(key) or fields.get(_FOLDED.get(key.casefold(), ""))
        if entry is None:
            message = f"{prefix}{key} is not a field of CDI (offered: {', '.join(fields)})"
            raise errors.DocumentError(message, reason="SpecFieldUnknown", field=f"{prefix}{key}")
        name, read = entry
        found[name] = read(item, f"{prefix}{key}")
    for name in _REQUIRED.get(kind, ()):
        found.setdefault(name, "")
    return kind(**found)


def _in_order(value: dict[Any, Any], fields: _Fields) -> Iterable[tuple[str, Any]]:
    """Yield items; with inexact keys among them in byte order, so that of two spellings the same one wins as in Go."""
    if value.keys() <= fields.keys():
        return value.items()
    return sorted(((scalar_text(key, "key"), item) for key, item in value.items()), key=lambda pair: pair[0])


def scalar_text(value: object, where: str) -> str:
    """Turn a scalar into the text that the engines' decoder makes of it. Raises: DocumentError: not a scalar."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float_text(value)
    _refuse(where, value, "text")


def _float_text(value: float) -> str:
    """Return the shortest text that reads back the same, with an exponent as Go's format 'g' has it."""
    plain = repr(value).removesuffix(".0")
    if not math.isfinite(value):
        return plain
    exponent = int(f"{value:.17e}".partition("e")[2]) if value else 0
    if -4 <= exponent < _GO_EXPONENT:
        return plain
    digits = plain.partition("e")[0].replace(".", "").lstrip("-0").rstrip("0")
    sign, tail = "-" * (value < 0), f".{digits[1:]}" * (len(digits) > 1)
    return f"{sign}{digits[0]}{tail}e{exponent:+03d}"


def _bool(value: Any, where: str) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    _refuse(where, value, "true or false")


def _integer(low: int, high: int) -> _Reader:
    def read(value: Any, where: str) -> int:
        if value is None:
            return 0
        if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOAT:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            _refuse(where, value, f"an integer from {low} to {high}")
        return value

    return read


def _optional(reader: _Reader) -> _Reader:
    return lambda value, where: None if value is None else reader(value, where)


def _list(reader: _Reader) -> _Reader:
    def read(value: Any, where: str) -> tuple[Any, ...]:
        if value is None:
            return ()
        if not isinstance(value, list):
            _refuse(where, value, "a list")
        return tuple(reader(item, f"{where}[{position}]") for position, item in enumerate(value))

    return read


def _object(kind: Callable[..., Any], fields: _Fields) -> _Reader:
    return lambda value, where: _build(kind, fields, value, where)


def _mapping(value: Any, where: str) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        _refuse(where, value, "an object")
    return {scalar_text(key, where): scalar_text(item, f"{where}.{key}") for key, item in value.items()}


def _edits(value: Any, where: str) -> cdi.ContainerEdits:
    if value is None:
        return cdi.ContainerEdits()
    edits: cdi.ContainerEdits = _build(cdi.ContainerEdits, _EDITS, value, where)
    return edits


_int64: Final = _integer(-_INT64_MAX - 1, _INT64_MAX)
_uint32: Final = _integer(0, _UINT32_MAX)
_texts: Final = _list(scalar_text)

_NODE: Final[_Fields] = {
    "path": ("path", scalar_text),
    "hostPath": ("host_path", scalar_text),
    "type": ("type", scalar_text),
    "major": ("major", _int64),
    "minor": ("minor", _int64),
    "fileMode": ("file_mode", _optional(_uint32)),
    "permissions": ("permissions", scalar_text),
    "uid": ("uid", _optional(_uint32)),
    "gid": ("gid", _optional(_uint32)),
}
_NET_DEVICE: Final[_Fields] = {
    "hostInterfaceName": ("host_interface_name", scalar_text),
    "name": ("name", scalar_text),
}
_HOOK: Final[_Fields] = {
    "hookName": ("hook_name", scalar_text),
    "path": ("path", scalar_text),
    "args": ("args", _texts),
    "env": ("env", _texts),
    "timeout": ("timeout", _optional(_int64)),
}
_MOUNT: Final[_Fields] = {
    "hostPath": ("host_path", scalar_text),
    "containerPath": ("container_path", scalar_text),
    "type": ("type", scalar_text),
    "options": ("options", _texts),
}
_RDT: Final[_Fields] = {
    "closID": ("clos_id", scalar_text),
    "l3CacheSchema": ("l3_cache_schema", scalar_text),
    "memBwSchema": ("mem_bw_schema", scalar_text),
    "schemata": ("schemata", _optional(_texts)),
    "enableMonitoring": ("enable_monitoring", _bool),
}
_EDITS: Final[_Fields] = {
    "env": ("env", _texts),
    "deviceNodes": ("device_nodes", _list(_object(cdi.DeviceNode, _NODE))),
    "netDevices": ("net_devices", _list(_object(cdi.NetDevice, _NET_DEVICE))),
    "hooks": ("hooks", _list(_object(cdi.Hook, _HOOK))),
    "mounts": ("mounts", _list(_object(cdi.Mount, _MOUNT))),
    "intelRdt": ("intel_rdt", _optional(_object(cdi.IntelRdt, _RDT))),
    "additionalGids": ("additional_gids", _list(_uint32)),
}
_DEVICE: Final[_Fields] = {
    "name": ("name", scalar_text),
    "annotations": ("annotations", _mapping),
    "containerEdits": ("edits", _edits),
}
_SPEC: Final[_Fields] = {
    "cdiVersion": ("cdi_version", scalar_text),
    "kind": ("kind", scalar_text),
    "annotations": ("annotations", _mapping),
    "devices": ("devices", _list(_object(cdi.Device, _DEVICE))),
    "containerEdits": ("edits", _edits),
}
_TABLES: Final = (_NODE, _NET_DEVICE, _HOOK, _MOUNT, _RDT, _EDITS, _DEVICE, _SPEC)
_FOLDED: Final = {key.casefold(): key for table in _TABLES for key in table}
_REQUIRED: Final[Mapping[Any, tuple[str, ...]]] = {
    cdi.DeviceNode: ("path",),
    cdi.NetDevice: ("host_interface_name", "name"),
    cdi.Hook: ("hook_name", "path"),
    cdi.Mount: ("host_path", "container_path"),
    cdi.Device: ("name",),
    cdi.Spec: ("cdi_version", "kind"),
}
