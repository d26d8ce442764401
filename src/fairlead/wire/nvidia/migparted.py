"""Parses and emits mig-parted's configuration files: named configurations, each a list of entries for chosen GPUs.

An unknown field is an error that names its path, as in mig-parted. What this program does not carry out (hooks live in
a file of their own there) is not part of the format.
Source: NVIDIA mig-parted, api/spec/v1: `version`, `mig-configs`, `device-filter`, `devices`, `mig-enabled`,
`mig-devices`.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead import errors
from fairlead_cdi import errors as cdi_errors

VERSION: Final = "v1"
ALL: Final = "all"
LARGEST_BYTES: Final = 1 << 20
_FIELDS: Final = ("device-filter", "devices", "mig-enabled", "mig-devices")
_FILTER: Final = re.compile(r"0[xX][0-9a-fA-F]{1,8}(:0[xX][0-9a-fA-F]{1,8})?")
_MOST: Final = 64
_LONGEST_SHOWN: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """MIG layout wanted of some GPUs."""

    filters: tuple[str, ...] = ()
    """PCI device and vendor, `0x233010DE`, or with the subsystem, `0x233010DE:0x16C110DE`; empty: any model."""
    indexes: tuple[int, ...] | None = None
    """None: all GPUs of these models."""
    is_enabled: bool
    devices: Mapping[str, int] = field(default_factory=dict)
    """MIG devices by profile name."""

    def matches(self, index: int, device_filter: str) -> bool:
        """Return whether the entry speaks for a GPU. Args: device_filter: of the GPU, with its subsystem if known."""
        is_model = not self.filters or any(_is_same(one, device_filter) for one in self.filters)
        return is_model and (self.indexes is None or index in self.indexes)


_BOOLEANS: Final = {"off": "false", "no": "false", "on": "true", "yes": "true"}
"""What YAML makes of these words where they are not quoted, as the names of configurations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One file."""

    configs: Mapping[str, tuple[Entry, ...]]

    def find(self, name: str) -> tuple[Entry, ...] | None:
        """Return a configuration's entries, None where there is none of that name.

        One that the file calls `off` without quotes is called `false` by YAML, as mig-parted knows it: both find it.
        """
        return self.configs.get(name, self.configs.get(_BOOLEANS.get(name.lower(), "")))


def _is_same(wanted: str, have: str) -> bool:
    """Return whether two ids are the same numbers; a filter without a subsystem fits every subsystem."""
    ours, theirs = ([int(part, 16) for part in text.split(":")] for text in (wanted, have))
    return ours[0] == theirs[0] and (len(ours) == 1 or ours == theirs)


def parse_config(data: bytes, *, source: str) -> Config:
    """Read a file of mig-parted's.

    Args:   source: where it is from, for messages.
    Raises: Invalid: not YAML, an unknown field or a wrong value; the message has the path of what is wrong.
    """
    if len(data) > LARGEST_BYTES:
        raise _invalid(source, "", f"is larger than {LARGEST_BYTES} bytes")
    from fairlead_cdi import yamlfile  # PyYAML, which most agents never need

    try:
        document = yamlfile.decode_yaml(data)
    except cdi_errors.DocumentError as error:
        raise _invalid(source, "", f"is {error}") from error
    top = _table(document, source, "", ("version", "mig-configs"))
    version = top.get("version")
    if version != VERSION:
        raise _invalid(source, "version", f'is {_shown(version)}, known is "{VERSION}"')
    configs = top.get("mig-configs") or {}
    if not isinstance(configs, dict):
        raise _invalid(source, "mig-configs", "is not a table of configurations")
    return Config(configs={_name(name, source): _entries(rows, source, str(name)) for name, rows in configs.items()})


def _invalid(source: str, path: str, problem: str) -> errors.Invalid:
    where = f"{source}: {path}" if path else source
    hint = "compare with mig-parted's own: version: v1, mig-configs: {NAME: [{devices: all, mig-enabled: true}]}"
    return errors.Invalid(f"{where} {problem}", reason="MIGConfigInvalid", hint=hint)


def _shown(value: object) -> str:
    """Return the beginning of a value; YAML's references make small files of values too large to be written out."""
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxother = _LONGEST_SHOWN
    return shortener.repr(value)[:_LONGEST_SHOWN]


def _table(value: Any, source: str, path: str, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _invalid(source, path, "is not a table")
    for key in value:
        if key not in known:
            raise _invalid(source, f"{path}.{key}".lstrip("."), f"is not a field (known: {', '.join(known)})")
    return value


def _name(name: Any, source: str) -> str:
    if not isinstance(name, str) or not name or not name.isprintable() or len(name) > _MOST * 4:
        raise _invalid(source, "mig-configs", f"has a configuration named {_shown(name)}")
    return name


def _entries(rows: Any, source: str, name: str) -> tuple[Entry, ...]:
    path = f"mig-configs.{name}"
    if not isinstance(rows, list):
        raise _invalid(source, path, "is not a list of entries")
    return tuple(_entry(row, source, f"{path}[{place}]") for place, row in enumerate(rows))


def _entry(row: Any, source: str, path: str) -> Entry:
    table = _table(row, source, path, _FIELDS)
    is_enabled = table.get("mig-enabled", False)
    if not isinstance(is_enabled, bool):
        raise _invalid(source, f"{path}.mig-enabled", f"is {_shown(is_enabled)}, not true or false")
    devices = _devices(table.get("mig-devices"), source, f"{path}.mig-devices")
    if devices and not is_enabled:
        raise _invalid(source, f"{path}.mig-devices", "has devices while mig-enabled is false")
    if "devices" not in table:
        raise _invalid(source, path, 'has no devices: "all" or a list of indexes')
    return Entry(
        filters=_filters(table.get("device-filter"), source, f"{path}.device-filter"),
        indexes=_indexes(table["devices"], source, f"{path}.devices"),
        is_enabled=is_enabled,
        devices=devices,
    )


def _filters(value: Any, source: str, path: str) -> tuple[str, ...]:
    found = [] if value in (None, "") else value if isinstance(value, list) else [value]
    for one in found:
        if not isinstance(one, str) or _FILTER.fullmatch(one) is None:
            raise _invalid(source, path, f'is {_shown(one)}, not PCI numbers as in "0x233010DE"')
    return tuple(found)


def _indexes(value: Any, source: str, path: str) -> tuple[int, ...] | None:
    if value == ALL:
        return None
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < 1 << 16 for one in value):
        raise _invalid(source, path, f'is {_shown(value)}, not "all" or a list of indexes')
    return tuple(value)


def _devices(value: Any, source: str, path: str) -> dict[str, int]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _invalid(source, path, "is not a table of profiles")
    for name, count in value.items():
        if not isinstance(name, str) or not name.isprintable():
            raise _invalid(source, path, f"has a profile named {_shown(name)}")
        if type(count) is not int or not 0 <= count <= _MOST:
            raise _invalid(source, f"{path}.{name}", f"is {_shown(count)}, not a number from 0 to {_MOST}")
    return {name: count for name, count in value.items() if count}


def emit_config(config: Config) -> dict[str, Any]:
    """Return the document of a file, ready for YAML or JSON."""
    return {
        "version": VERSION,
        "mig-configs": {name: [_emit_entry(one) for one in entries] for name, entries in config.configs.items()},
    }


def _emit_entry(entry: Entry) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if entry.filters:
        found["device-filter"] = list(entry.filters) if len(entry.filters) > 1 else entry.filters[0]
    found["devices"] = ALL if entry.indexes is None else list(entry.indexes)
    found["mig-enabled"] = entry.is_enabled
    if entry.is_enabled:
        found["mig-devices"] = dict(entry.devices)
    return found
