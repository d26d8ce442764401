"""Merges Compose files by the specification's rules: the later one adds and overrides. Pure.

Maps are merged key by key and lists are joined, but commands and the test of a health check are replaced, and what is
known by a key (a port, the place of a mount) is replaced where it has the same one. `!reset` takes a value away,
`!override` puts one in place of all that was there.
Source: Compose specification, "Merge and override".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from fairlead.wire.compose.document import Tagged

_REPLACED: Final = frozenset({"command", "entrypoint", "test"})
_KEYS: Final[Mapping[str, Callable[[Mapping[str, Any]], object]]] = {
    "ports": lambda one: (one["host_ip"], one["target"], one["published"], one["protocol"]),
    "volumes": lambda one: one["target"],
    "configs": lambda one: str(one.get("target") or one.get("source")),
    "secrets": lambda one: str(one.get("target") or one.get("source")),
    "env_file": lambda one: str(one.get("path")),
}
"""By what an entry of a service's list is known."""
_SETS: Final = frozenset({"expose", "dns", "dns_search", "dns_opt", "tmpfs", "cap_add", "cap_drop", "profiles"})


def files(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return two files as one. Args: both with the long forms of their services."""
    found: dict[str, Any] = _maps({key: one for key, one in base.items() if key != "services"}, over, "")
    mine = base.get("services") or {}
    given = over.get("services")
    if isinstance(given, Tagged):
        return found
    for name, one in (given or {}).items():
        if isinstance(one, Tagged):
            mine = {key: each for key, each in mine.items() if key != name}
            mine |= {} if one.tag == "reset" else {name: services({}, one.value or {})}
        else:
            mine = {**mine, name: services(mine.get(name) or {}, one or {})}
    found["services"] = mine
    return found


def services(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return two services as one, the second over the first; without tags."""
    return _maps(base, over, "service")


def _maps(base: Mapping[str, Any], over: Mapping[str, Any], kind: str) -> dict[str, Any]:
    found = dict(base)
    for key, one in over.items():
        if key == "services" and kind == "":
            continue
        if isinstance(one, Tagged):
            found.pop(key, None)
            if one.tag == "override":
                found[key] = plain(one.value)
        elif key in found and found[key] is not None:
            found[key] = _two(found[key], one, key, kind)
        else:
            found[key] = plain(one)
    return found


def _two(base: Any, over: Any, key: str, kind: str) -> Any:
    if over is None or key in _REPLACED:
        return base if over is None and key not in _REPLACED else plain(over)
    if isinstance(base, dict) and isinstance(over, dict):
        is_other = key == "logging" and over.get("driver") not in (None, base.get("driver"))
        return plain(over) if is_other else _maps(base, over, "map")
    if isinstance(base, list) and isinstance(over, list):
        if kind == "service" and key in _KEYS:
            return _keyed(base, over, _KEYS[key])
        joined = [*base, *plain(over)]
        return list(dict.fromkeys(joined)) if key in _SETS else joined
    return plain(over)


def _keyed(base: list[Any], over: list[Any], key: Callable[[Mapping[str, Any]], object]) -> list[Any]:
    found = {key(one): one for one in base}
    for one in over:
        found[key(one)] = plain(one)
    return list(found.values())


def plain(value: Any) -> Any:
    """Return a value without tags: what `!reset` takes away is not there."""
    match value:
        case Tagged():
            return plain(value.value) if value.tag == "override" else None
        case dict():
            kept = {key: one for key, one in value.items() if not (isinstance(one, Tagged) and one.tag == "reset")}
            return {key: plain(one) for key, one in kept.items()}
        case list():
            return [plain(one) for one in value]
        case _:
            return value
