"""Edits what engines' configurations share: nested tables, taken names, the program behind a name."""

from __future__ import annotations

import copy
import fnmatch
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from fairlead import errors
from fairlead.plan.engineconfig.model import PROGRAM, Location, Request
from fairlead.plan.gpu.allocation import enginesupport

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_OTHERS: Final = "nvidia-container-runtime"
_USUAL: Final = frozenset({"", "runc"})
"""What the shim becomes by default."""


def table(document: Mapping[str, Any], *keys: str, where: str) -> dict[str, Any]:
    """Return the table at a path of keys; one that is not there is empty.

    Raises: ProtocolError (`FileMalformed`): something else stands there.
    """
    found: Any = document
    for index, key in enumerate(keys):
        found = found.get(key, {})
        if not isinstance(found, dict):
            name = ".".join(keys[: index + 1])
            message = f"{where}: {name} must be a table, not {found!r:.200}"
            raise errors.ProtocolError(message, reason="FileMalformed", hint="correct it")
    return dict(found)


def texts(section: Mapping[str, Any], key: str, default: Sequence[str] = (), *, where: str) -> list[str]:
    """Return a list of texts. Raises: ProtocolError (`FileMalformed`): something else stands there."""
    found = section.get(key, default)
    if not isinstance(found, list | tuple) or not all(isinstance(item, str) for item in found):
        message = f"{where}: {key} must be a list of texts, not {found!r:.200}"
        raise errors.ProtocolError(message, reason="FileMalformed", hint="correct it")
    return list(found)


def text(section: Mapping[str, Any], key: str, default: str = "", *, where: str) -> str:
    """Return a text. Raises: ProtocolError (`FileMalformed`): something else stands there."""
    found = section.get(key, default)
    if not isinstance(found, str):
        message = f"{where}: {key} must be a text, not {found!r:.200}"
        raise errors.ProtocolError(message, reason="FileMalformed", hint="correct it")
    return found


def check_asked(place: Location, request: Request) -> None:
    """Refuse names that would be something else in a file, and paths that are none. Raises: Invalid."""
    for name in request.names:
        if _NAME.fullmatch(name) is None:
            message = f'"{name}" is not a name of a runtime'
            raise errors.Invalid(message, reason="RuntimeNameInvalid", hint="letters, digits, '-', '_' and '.'")
    for path in filter(None, (place.config, place.drop_in, request.folder, request.kata_folder, request.gvisor)):
        if not path.startswith("/") or not path.isprintable():
            message = f"{path!r} is not an absolute path"
            raise errors.Invalid(message, reason="PathInvalid", hint="write it from / on, in printable characters")


def merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, tables key by key; of two values the higher one's counts."""
    result = copy.deepcopy(dict(low))
    for key, value in high.items():
        is_both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if is_both else copy.deepcopy(value)
    return result


def find_overruled(low: Mapping[str, Any], high: Mapping[str, Any]) -> str:
    """Return the first value of the lower tables that the higher ones change, as a dotted key; empty: none."""
    for key in low.keys() & high.keys():
        one, other = low[key], high[key]
        if isinstance(one, dict) and isinstance(other, dict):
            if inner := find_overruled(one, other):
                return f"{key}.{inner}"
        elif one != other:
            return key
    return ""


def refuse_undone(path: str, drop_in: str, what: str) -> NoReturn:
    """Refuse a place for our file after which another one takes back what ours says.

    Raises: Conflict (`DropInUndone`).
    """
    message = f"{path} is read after {drop_in}, and {what}"
    hint = "choose a later name or folder with --drop-in, or move that into the main file"
    raise errors.Conflict(message, reason="DropInUndone", hint=hint)


def matches(path: str, pattern: str) -> bool:
    """Whether a path is found by a pattern, whose `*` never reaches over a slash."""
    return path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern)


def refuse_taken(runtimes: Mapping[str, Any], request: Request, where: str) -> None:
    """Refuse a handler's name that means something already; the alias may: taking it over is what it is for.

    Raises: Conflict (`RuntimeNameTaken`).
    """
    if request.name in runtimes:
        message = f'{where} defines a runtime "{request.name}" already'
        raise errors.Conflict(message, reason="RuntimeNameTaken", hint="choose another with --runtime-name")


def program(engine: str, named: str, request: Request) -> tuple[str, tuple[str, ...]]:
    """Return the handler's program, and what it becomes where that is not the shim's own choice.

    Args: named: the program of the runtime that is inherited from, a path or a name; empty: the engine's own.
    """
    base = posixpath.basename(named)
    if (base in _USUAL and not named.startswith("/")) or base.startswith((_OTHERS, PROGRAM)):
        return f"{request.folder}/{PROGRAM}", ()
    # A launcher of its own: another engine of this host may stand on another runtime.
    return f"{request.folder}/{engine}/{PROGRAM}", (named,)


def taken_over(runtimes: Mapping[str, Any], request: Request) -> tuple[str, ...]:
    """Return the note that an alias which others defined now leads to us."""
    if request.alias and request.alias in runtimes:
        taken = f'the handler "{request.alias}" was there already: it starts fairlead now; `unconfigure` gives it back'
        return (taken,)
    return ()


def judge_release(engine: str, place: Location, request: Request) -> tuple[str, ...]:
    """Refuse an engine that ignores CDI, if it is to inject; return the note of one whose release is not known.

    Raises: Unavailable (`CDIUnsupported`).
    """
    if not request.enables_cdi:
        return ()
    enginesupport.check_cdi(engine, place.version)
    if place.version is not None:
        return ()
    first = ".".join(map(str, enginesupport.FIRST[engine]))
    return (f"the release of {engine} is not known: before {first} it ignores CDI devices (--engine-version)",)


def refuse_kata(engine: str, request: Request) -> None:
    """Refuse Kata where the engine has no such handlers. Raises: Invalid (`KataUnsupported`)."""
    if request.has_kata:
        message = f"{engine} has no handlers for virtual machines"
        raise errors.Invalid(message, reason="KataUnsupported", hint="--kata is for containerd and crio")


def put(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set a value at a path of keys, in place."""
    for key in path[:-1]:
        document = document.setdefault(key, {})
    document[path[-1]] = value
