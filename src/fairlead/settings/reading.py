"""Merges the settings of one process: flag over environment over file over default, unknown names refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fairlead import errors
from fairlead.settings.groups import Settings, groups, rows
from fairlead.settings.row import PREFIX, Row
from fairlead.settings.value import coerce

_LARGEST_BYTES: Final = 1 << 17
DEFAULT_FILE: Final = Path("/etc/fairlead/config.toml")
# Read by the client, the shell or the test suite, not by a group of settings.
RESERVED: Final = frozenset(
    {
        *("FAIRLEAD_URL", "FAIRLEAD_CONFIG", "FAIRLEAD_CONTEXT", "FAIRLEAD_COMPLETE"),
        *("FAIRLEAD_TEST_NVML", "FAIRLEAD_TEST_NVML_ROOT"),
    }
)


def load(*, flags: Mapping[str, Any], env: Mapping[str, str], file: Path | None) -> Settings:
    """Merge defaults, file, environment and flags into one frozen value.

    Args:    flags: by file key (`group.name`), only those given.   env: the process environment.
             file: a TOML file; None means no file. A missing default file is not an error; a missing named one is.
    Raises:  Invalid: an unknown key or variable, or a value of the wrong type, by name.
    """
    known = {item.key: item for item in rows()}
    for key in flags:
        if key not in known:
            raise _unknown(f'flag for "{key}"', key, known)
    stated = {**_read_env(env, known), **flags}
    values: dict[str, Any] = {**_read_file(file, known), **stated}
    chosen: dict[str, Any] = {}
    for group, kind in groups().items():
        given = {key.split(".", 1)[1]: value for key, value in values.items() if key.startswith(f"{group}.")}
        chosen[group] = kind(**{name: coerce(known[f"{group}.{name}"], v) for name, v in given.items()})
    return Settings(**chosen, given=frozenset(stated))


def override(settings: Settings, flags: Mapping[str, Any]) -> Settings:
    """Return the settings with some rows (by key, `group.name`) set anew; what was `given` stays what it was.

    Raises: Invalid, as `load`.
    """
    current = {item.key: getattr(getattr(settings, item.group), item.name) for item in rows()}
    changed = load(flags={**current, **flags}, env={}, file=None)
    return dataclasses.replace(changed, given=settings.given)


def environment(settings: Settings) -> dict[str, str]:
    """Return the variables that make a child process load the same settings; rows left at None are left out."""
    found = {item.env: getattr(getattr(settings, item.group), item.name) for item in rows()}
    return {name: _spelled(value) for name, value in found.items() if value is not None}


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_file(file: Path | None, known: Mapping[str, Row]) -> dict[str, Any]:
    if file is None:
        return {}
    import tomllib  # 2 ms of every verb that has no such file

    try:
        text = _text_of(file)
        document = tomllib.loads(text)
    except OSError as error:
        if file == DEFAULT_FILE and isinstance(error, FileNotFoundError):
            return {}
        message = f"cannot read settings file {file}: {error.strerror}"
        raise errors.Invalid(message, reason="SettingsFileUnreadable") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number of 5,000 digits, nested without end
        message = f"settings file {file} is not TOML: {error}"
        raise errors.Invalid(message, reason="SettingsFileInvalid") from error
    by_group = {item.group: item for item in known.values()}
    for group, table in document.items():
        if isinstance(table, dict) and group not in by_group:
            raise _unknown(f"group [{group}] in {file}", group, by_group)
    found = {
        f"{group}.{name}": v
        for group, table in document.items()
        if isinstance(table, dict)
        for name, v in table.items()
    }
    loose = [key for key, value in document.items() if not isinstance(value, dict)]
    for key in [*loose, *found]:
        if key not in known:
            raise _unknown(f'key "{key}" in {file}', key, known)
    return found


def _text_of(file: Path) -> str:
    """Return what a settings file says. Raises: OSError; ValueError: it is too large, or not UTF-8."""
    with file.open("rb") as source:
        data = source.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        raise ValueError(f"it is larger than {_LARGEST_BYTES} bytes")
    return data.decode()


def _read_env(env: Mapping[str, str], known: Mapping[str, Row]) -> dict[str, Any]:
    by_env = {item.env: item.key for item in known.values()}
    found: dict[str, Any] = {}
    for name, value in env.items():
        if not name.startswith(PREFIX) or name in RESERVED or name.startswith("FAIRLEAD_TEST_"):
            continue
        if name not in by_env:
            raise _unknown(f'environment variable "{name}"', name, by_env)
        found[by_env[name]] = value
    return found


def _unknown(what: str, name: str, known: Mapping[str, Any]) -> errors.Invalid:
    near = errors.closest(name, known)
    hint = f'did you mean "{near}"?' if near else "docs/reference/settings.md lists all"
    return errors.Invalid(f"unknown {what}", reason="SettingUnknown", hint=hint)
