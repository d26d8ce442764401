"""Brings the short forms of a Compose file into their long ones, so that files can be merged key by key. Pure.

Source: Compose specification, "Services top-level element"; compose-go transform (behaviour).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from fairlead.plan.compose import value
from fairlead.plan.compose.value import invalid, shown, text
from fairlead.wire.compose.document import Tagged

MOST_PORTS: Final = 1000
"""Of one service, ranges counted port by port."""
_RANGE: Final = re.compile(r"(?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?")
_PROTOCOLS: Final = ("tcp", "udp", "sctp")
_ACCESS: Final = frozenset({"ro", "rw", "z", "Z", "cached", "delegated", "consistent", "nocopy"})
_PROPAGATION: Final = frozenset(
    {"rprivate", "private", "rshared", "shared", "rslave", "slave", "bind", "rbind", "rro", "volume-nocopy"}
)


def service(given: Any, path: str) -> dict[str, Any]:
    """Return a service with its long forms. Raises: Invalid."""
    found = dict[str, Any]()
    for key, one in value.mapping(given, path).items():
        where = f"{path}.{key}"
        if isinstance(one, Tagged):
            inner = None if one.tag == "reset" else _long(key, one.value, where)
            found[key] = Tagged(one.tag, inner)
        else:
            found[key] = _long(key, one, where)
    return found


def _long(key: str, given: Any, path: str) -> Any:
    form = _FORMS.get(key)
    return given if form is None or given is None else form(given, path)


def _build(given: Any, path: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        return {"context": text(given, path)}
    return {**given, **({"args": value.pairs(given["args"], f"{path}.args")} if "args" in given else {})}


def _depends_on(given: Any, path: str) -> dict[str, Any]:
    if isinstance(given, dict):
        return {key: value.mapping(one, f"{path}.{key}") for key, one in given.items()}
    return {one: {"condition": "service_started"} for one in value.texts(given, path)}


def _env_files(given: Any, path: str) -> list[dict[str, Any]]:
    entries = given if isinstance(given, list) else [given]
    return [
        one if isinstance(one, dict) else {"path": text(one, f"{path}[{index}]")} for index, one in enumerate(entries)
    ]


def _hosts(given: Any, path: str) -> dict[str, list[str]]:
    """Return addresses by name: `name:ip`, `name=ip`, a map of them, or of lists."""
    if isinstance(given, dict):
        return {key: [_bare(one) for one in value.texts(each, f"{path}.{key}")] for key, each in given.items()}
    found = dict[str, list[str]]()
    for index, word in enumerate(value.texts(given, path)):
        name, sign, address = word.partition("=" if "=" in word else ":")
        if not name or not sign or not address:
            raise invalid(f"{path}[{index}]", f'"{shown(word)}" is not HOST=ADDRESS')
        found.setdefault(name.strip(), []).append(_bare(address.strip()))
    return found


def _bare(address: str) -> str:
    return address[1:-1] if address.startswith("[") and address.endswith("]") else address


def _networks(given: Any, path: str) -> dict[str, Any]:
    if isinstance(given, dict):
        return {key: value.mapping(one, f"{path}.{key}") for key, one in given.items()}
    return {one: {} for one in value.texts(given, path)}


def _files(given: Any, path: str) -> list[dict[str, Any]]:
    """Return the long form of `configs` and `secrets`."""
    return [
        dict(one) if isinstance(one, dict) else {"source": text(one, f"{path}[{index}]")}
        for index, one in enumerate(value.sequence(given, path))
    ]


def _healthcheck(given: Any, path: str) -> dict[str, Any]:
    found = dict(value.mapping(given, path))
    if isinstance(found.get("test"), str):
        found["test"] = ["CMD-SHELL", found["test"]]
    return found


def _ulimits(given: Any, path: str) -> dict[str, Any]:
    return {
        key: one if isinstance(one, dict | Tagged) else {"soft": one, "hard": one}
        for key, one in value.mapping(given, path).items()
    }


def _gpus(given: Any, path: str) -> list[dict[str, Any]]:
    """Return `gpus: all`, `gpus: 2` and its list of requests as requests of devices."""
    if isinstance(given, list):
        return [{"capabilities": ["gpu"], **value.mapping(one, f"{path}[{at}]")} for at, one in enumerate(given)]
    return [{"capabilities": ["gpu"], "count": given}]


def ports(given: Any, path: str) -> list[dict[str, Any]]:
    """Return the ports of a service, one entry a port; `published` is text, and may be a range for a single one."""
    found = list[dict[str, Any]]()
    for index, one in enumerate(value.sequence(given, path)):
        where = f"{path}[{index}]"
        found += [_long_port(one, where)] if isinstance(one, dict) else _short_ports(text(one, where), where)
        if len(found) > MOST_PORTS:
            raise invalid(path, f"it has more than {MOST_PORTS} ports")
    return found


def _long_port(given: Mapping[str, Any], path: str) -> dict[str, Any]:
    value.only(given, ("name", "target", "published", "host_ip", "protocol", "app_protocol", "mode"), path)
    if "target" not in given:
        raise invalid(f"{path}.target", "it is needed")
    target = value.whole(given["target"], f"{path}.target", least=1, most=65535)
    published = given.get("published")
    first, last = (0, 0) if published in (None, "") else _bounds(str(published), f"{path}.published")
    return {
        "target": target,
        "published": _published(first, last),
        "host_ip": text(given.get("host_ip") or "", f"{path}.host_ip"),
        "protocol": _protocol(str(given.get("protocol") or "tcp"), f"{path}.protocol"),
    }


def _published(first: int, last: int) -> str:
    return "" if not first else str(first) if first == last else f"{first}-{last}"


def _short_ports(given: str, path: str) -> list[dict[str, Any]]:
    """Return the ports of `[[IP:]HOST:]CONTAINER[/PROTOCOL]`, each of which may be a range."""
    rest, _, protocol = given.partition("/")
    protocol = _protocol(protocol or "tcp", path)
    before, _, inner = rest.rpartition(":")
    address, _, outer = before.rpartition(":")
    first, last = _bounds(inner, path)
    count = last - first + 1
    begin, end = _bounds(outer, path) if outer else (0, 0)
    if count > MOST_PORTS:
        raise invalid(path, f"it has more than {MOST_PORTS} ports")
    if outer and count > 1 and end - begin + 1 != count:
        raise invalid(path, f'"{shown(given)}": the ranges have different lengths')
    entries = []
    for number in range(count):
        single = _published(begin, end) if count == 1 else str(begin + number)
        entries.append(
            {
                "target": first + number,
                "published": single if outer else "",
                "host_ip": _bare(address),
                "protocol": protocol,
            }
        )
    return entries


def _bounds(given: str, path: str) -> tuple[int, int]:
    found = _RANGE.fullmatch(given.strip())
    first = int(found["first"]) if found else 0
    last = int(found["last"] or first) if found else 0
    if not 1 <= first <= last <= 65535:
        raise invalid(path, f'"{shown(given)}" is not a port or a range of them', "8000, 8000:80, 127.0.0.1:8000:80")
    return first, last


def _protocol(given: str, path: str) -> str:
    if given.lower() not in _PROTOCOLS:
        raise invalid(path, f'"{shown(given)}" is not a protocol', "tcp, udp or sctp")
    return given.lower()


def volumes(given: Any, path: str) -> list[dict[str, Any]]:
    """Return the long form of what a service mounts."""
    return [
        _long_volume(one, f"{path}[{index}]")
        if isinstance(one, dict)
        else _short_volume(text(one, f"{path}[{index}]"), f"{path}[{index}]")
        for index, one in enumerate(value.sequence(given, path))
    ]


def _long_volume(given: Mapping[str, Any], path: str) -> dict[str, Any]:
    keys = ("type", "source", "target", "read_only", "consistency", "bind", "volume", "tmpfs", "image", "cluster")
    value.only(given, keys, path)
    found = dict(given)
    found["type"] = text(given.get("type") or "volume", f"{path}.type")
    if not given.get("target"):
        raise invalid(f"{path}.target", "it is needed")
    found["target"] = text(given["target"], f"{path}.target")
    if not found["target"].startswith("/"):
        raise invalid(f"{path}.target", f'"{shown(found["target"])}" is not a path from / on')
    found["read_only"] = value.boolean(given.get("read_only", False), f"{path}.read_only")
    return found


def _short_volume(given: str, path: str) -> dict[str, Any]:
    """Return the long form of `[SOURCE:]TARGET[:MODE]`."""
    parts = given.split(":")
    if len(parts) == 1:
        return _long_volume({"type": "volume", "target": given}, path)
    if len(parts) > 3 or not parts[0]:
        raise invalid(path, f'"{shown(given)}" is not SOURCE:TARGET[:MODE]')
    source, target, modes = parts[0], parts[1], parts[2].split(",") if len(parts) > 2 else []
    for mode in modes:
        if mode not in _ACCESS and mode not in _PROPAGATION:
            raise invalid(path, f'"{shown(mode)}" is not a mode of a mount', "ro, rw, z or Z")
    is_path = source.startswith((".", "/", "~"))
    return _long_volume(
        {"type": "bind" if is_path else "volume", "source": source, "target": target, "read_only": "ro" in modes}
        | ({"bind": {"create_host_path": True}} if is_path else {}),
        path,
    )


def _map_of_texts(given: Any, path: str) -> dict[str, str]:
    return {key: one or "" for key, one in value.pairs(given, path).items()}


_FORMS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "annotations": _map_of_texts,
    "build": _build,
    "cap_add": value.texts,
    "cap_drop": value.texts,
    "configs": _files,
    "depends_on": _depends_on,
    "devices": value.sequence,
    "dns": value.texts,
    "dns_opt": value.texts,
    "dns_search": value.texts,
    "env_file": _env_files,
    "environment": value.pairs,
    "expose": value.texts,
    "external_links": value.texts,
    "extra_hosts": _hosts,
    "gpus": _gpus,
    "group_add": value.texts,
    "healthcheck": _healthcheck,
    "labels": _map_of_texts,
    "links": value.texts,
    "networks": _networks,
    "ports": ports,
    "profiles": value.texts,
    "secrets": _files,
    "security_opt": value.texts,
    "sysctls": _map_of_texts,
    "tmpfs": value.texts,
    "ulimits": _ulimits,
    "volumes": volumes,
    "volumes_from": value.texts,
}
"""The forms of a service's attributes that have shorter ones."""
