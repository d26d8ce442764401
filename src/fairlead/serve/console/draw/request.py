"""Makes the request of a submit form, and the two ways to send it by hand. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from fairlead import errors

_NUMBERS: Final = ("priority", "time_limit_s")
_SHM: Final = "/dev/shm"  # noqa: S108  (a path of the container)
_PORT: Final = re.compile(
    r"(?:(?P<address>[0-9.]+|\[[0-9a-fA-F:]+\]):)?(?P<host>[0-9]{0,5}):(?P<container>[0-9]{1,5})"
    r"(?:/(?P<protocol>tcp|udp|sctp))?",
    re.IGNORECASE,
)
_SECRET: Final = re.compile(r"(?P<name>[^=:/\s]+)(?:/(?P<key>[^=:\s]+))?(?:=(?P<env>[^\s]+)|:(?P<path>/[^\s]*))?")
_TEXTS: Final = ("name", "tenancy", "namespace", "cpu", "memory", "workdir", "user", "queue", "reservation")


def request_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of `POST /v1/containers`; what is left empty is left out.

    Raises: Invalid: a field cannot be read as what it is. The API judges the rest.
    """
    # A browser ends the lines of a field by CR LF, which a shell in the container would not take.
    given = {name: value.replace("\r\n", "\n").strip() for name, value in fields.items() if value.strip()}
    made: dict[str, Any] = {"image": given.get("image", "")}
    made |= {name: given[name] for name in _TEXTS if name in given}
    count, resource = _number("gpus", given.get("gpus", "0")), given.get("resource", "")
    if count and resource and resource != "gpus":
        made["resources"] = {resource: count}
    elif count:
        made["gpus"] = count
    made |= {name: _number(name, given[name]) for name in _NUMBERS if name in given}
    for field, (name, read) in _READ.items():
        if found := read(given.get(field, "")):
            made[name] = found
    if given.get("restart", "Never") != "Never":
        made["restart"] = given["restart"]
    if "preempt" in given:
        made["preempt"] = True
    return made


def curl(request: Mapping[str, Any], *, address: str, socket: str) -> str:
    """Return a command that sends it. Args: address: of the API on TLS; empty: it goes over the socket."""
    body = shlex.quote(json.dumps(request, ensure_ascii=False))
    if address:
        way = f'-H "Authorization: Bearer $FAIRLEAD_KEY" {address}/v1/containers'
    else:
        way = f"--unix-socket {shlex.quote(socket or '/run/fairlead/api.sock')} http://localhost/v1/containers"
    return f"curl --json {body} \\\n  {way}"


def command(request: Mapping[str, Any]) -> str:
    """Return the verb that does the same."""
    return " ".join(["fairlead run -d", *_flags(request), shlex.quote(request["image"]), *_after(request)])


def _flags(request: Mapping[str, Any]) -> Iterator[str]:
    for name, flag in _FLAGS.items():
        if name in request:
            yield f"{flag} {shlex.quote(str(request[name]))}"
    for field, (flag, say) in _LISTED.items():
        given = request.get(field, ())
        items = given.items() if isinstance(given, Mapping) else given
        yield from (f"{flag} {shlex.quote(say(one))}" for one in items)
    if "command" in request:
        yield f"--entrypoint {shlex.quote(shlex.join(request['command']))}"
    if "restart" in request:
        yield f"--restart {request['restart'].lower()}"
    yield from (f"--{name}" for name in ("preempt", "init") if request.get(name))
    yield from _say_health(request.get("health") or {})


def _say_pair(pair: tuple[str, Any]) -> str:
    return f"{pair[0]}={pair[1]}"


def _say_volume(one: Mapping[str, Any]) -> str:
    return f"{one['name']}:{one['container_path']}{':ro' if one.get('read_only') else ''}"


def _say_port(one: Mapping[str, Any]) -> str:
    protocol = str(one.get("protocol", "TCP"))
    host = str(one.get("host_ip", ""))
    address = f"[{host}]:" if ":" in host else f"{host}:" if host else ""
    ending = "" if protocol == "TCP" else f"/{protocol.lower()}"
    return f"{address}{one['host_port'] or ''}:{one['container_port']}{ending}"


def _say_secret(one: Mapping[str, Any]) -> str:
    target = f"={one['env']}" if "env" in one else f":{one['path']}" if "path" in one else ""
    return f"{one['name']}{'/' + one['key'] if 'key' in one else ''}{target}"


def _say_host(one: Mapping[str, Any]) -> str:
    return f"{one['name']}:{one['address']}"


def _say_health(one: Mapping[str, Any]) -> Iterator[str]:
    if one:
        shell = ["/bin/sh", "-c"]
        words = list(one["command"])
        text = words[2] if words[:2] == shell and len(words) == len(shell) + 1 else shlex.join(words)
        yield f"--health-cmd {shlex.quote(text)}"
        for field, flag in _HEALTH.items():
            if field in one:
                yield f"{flag} {one[field]}"


_HEALTH: Final = {
    "interval_s": "--health-interval",
    "timeout_s": "--health-timeout",
    "retries": "--health-retries",
    "start_period_s": "--health-start-period",
}


def _say_size(one: Mapping[str, Any]) -> str:
    return str(one["size"])


_LISTED: Final[Mapping[str, tuple[str, Callable[[Any], str]]]] = {
    "resources": ("-g", _say_pair),
    "env": ("-e", _say_pair),
    "labels": ("-l", _say_pair),
    "volumes": ("-v", _say_volume),
    "ports": ("-p", _say_port),
    "secrets": ("--secret", _say_secret),
    "memory_mounts": ("--shm-size", _say_size),
    "hosts": ("--add-host", _say_host),
    "dns": ("--dns", str),
    "dns_searches": ("--dns-search", str),
    "dns_options": ("--dns-option", str),
    "groups": ("--group-add", str),
}
"""Flags of what a request lists, and how each item is written."""
_FLAGS: Final = {
    "gpus": "-g",
    "name": "--name",
    "tenancy": "-T",
    "namespace": "-n",
    "cpu": "--cpus",
    "memory": "-m",
    "workdir": "-w",
    "user": "-u",
    "stop_signal": "--stop-signal",
    "queue": "--queue",
    "reservation": "--reservation",
    "priority": "--priority",
    "time_limit_s": "--timeout",
}


def _after(request: Mapping[str, Any]) -> list[str]:
    words = request.get("args", ())
    return ["--", *map(shlex.quote, words)] if words else []


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        message = f'{name}: "{errors.readable(text)}" is not a whole number'
        raise errors.Invalid(message, reason="NumberInvalid", hint="write digits") from error


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        message = f"the command cannot be read: {error}"
        raise errors.Invalid(message, reason="CommandInvalid", hint="close each quotation mark") from error


def _lines(text: str) -> Iterable[str]:
    return (line.strip() for line in text.splitlines() if line.strip())


def _pairs(field: str, text: str) -> Iterator[tuple[str, str]]:
    for line in _lines(text):
        name, equals, value = line.partition("=")
        if not equals or not name:
            message = f'{field}: "{errors.readable(line)}" is not of the form NAME=VALUE'
            raise errors.Invalid(message, reason="PairInvalid", hint="one a line, for example DEBUG=1")
        yield name, value


def _port(line: str) -> dict[str, Any]:
    found = _PORT.fullmatch(line)
    if found is None:
        message = f'ports: "{errors.readable(line)}" is not of the form HOST:CONTAINER or HOST:CONTAINER/udp'
        raise errors.Invalid(message, reason="PortInvalid", hint="one a line, for example 8888:8888")
    made: dict[str, Any] = {"host_port": int(found["host"] or 0), "container_port": int(found["container"])}
    if found["address"]:
        made["host_ip"] = found["address"].strip("[]")
    if found["protocol"] and found["protocol"].lower() != "tcp":
        made["protocol"] = found["protocol"].upper()
    return made


def _secret(line: str) -> dict[str, Any]:
    """Return a grant of `NAME[/KEY]`, with `=VARIABLE` or `:/PATH` behind it."""
    found = _SECRET.fullmatch(line)
    if found is None:
        message = f'secrets: "{errors.readable(line)}" is not of the form NAME, NAME=VARIABLE or NAME:/PATH'
        raise errors.Invalid(message, reason="SecretInvalid", hint="one a line, for example wandb=WANDB_API_KEY")
    return {name: text for name, text in found.groupdict().items() if text}


_READ: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "args": ("args", _words),
    "command": ("command", _words),
    "env": ("env", lambda text: dict(_pairs("env", text))),
    "labels": ("labels", lambda text: dict(_pairs("labels", text))),
    "volumes": ("volumes", lambda text: [_volume(line) for line in _lines(text)]),
    "ports": ("ports", lambda text: [_port(line) for line in _lines(text)]),
    "secrets": ("secrets", lambda text: [_secret(line) for line in _lines(text)]),
    "shm": ("memory_mounts", lambda text: [{"container_path": _SHM, "size": text}] if text else []),
}
"""By field of the form: the field of the request, and how its text is read."""


FIELDS: Final = frozenset({*_TEXTS, *_NUMBERS, *_READ, "gpus", "image"})
"""Of the form, by the names that errors have for them."""


def _volume(line: str) -> dict[str, Any]:
    name, _, rest = line.partition(":")
    path, _, mode = rest.partition(":")
    if not name or not path.startswith("/") or mode not in {"", "ro", "rw"}:
        message = f'volumes: "{errors.readable(line)}" is not of the form NAME:/PATH or NAME:/PATH:ro'
        raise errors.Invalid(message, reason="VolumeInvalid", hint="one a line, for example data:/data")
    return {"name": name, "container_path": path, **({"read_only": True} if mode == "ro" else {})}
