"""Makes the request of a submit form, and the two ways to send it by hand. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from fairlead import errors

_NUMBERS: Final = ("priority", "time_limit_s")
_TEXTS: Final = ("name", "tenancy", "namespace", "cpu", "memory", "workdir", "user", "queue")


def request_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of `POST /v1/containers`; what is left empty is left out.

    Raises: Invalid: a field cannot be read as what it is. The API judges the rest.
    """
    given = {name: value.strip() for name, value in fields.items() if value.strip()}
    made: dict[str, Any] = {"image": given.get("image", "")}
    made |= {name: given[name] for name in _TEXTS if name in given}
    count, resource = _number("gpus", given.get("gpus", "0")), given.get("resource", "")
    if count and resource and resource != "gpus":
        made["resources"] = {resource: count}
    elif count:
        made["gpus"] = count
    made |= {name: _number(name, given[name]) for name in _NUMBERS if name in given}
    if words := _words(given.get("args", "")):
        made["args"] = words
    if env := dict(_pairs("env", given.get("env", ""))):
        made["env"] = env
    if labels := dict(_pairs("labels", given.get("labels", ""))):
        made["labels"] = labels
    if volumes := [_volume(line) for line in _lines(given.get("volumes", ""))]:
        made["volumes"] = volumes
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
    for name, count in request.get("resources", {}).items():
        yield f"-g {shlex.quote(f'{name}={count}')}"
    for field, flag in (("env", "-e"), ("labels", "-l")):
        for name, value in request.get(field, {}).items():
            yield f"{flag} {shlex.quote(f'{name}={value}')}"
    for one in request.get("volumes", ()):
        end = ":ro" if one.get("read_only") else ""
        yield f"-v {shlex.quote(one['name'] + ':' + one['container_path'] + end)}"
    if "restart" in request:
        yield f"--restart {request['restart'].lower()}"
    if request.get("preempt"):
        yield "--preempt"


_FLAGS: Final = {
    "gpus": "-g",
    "name": "--name",
    "tenancy": "-T",
    "namespace": "-n",
    "cpu": "--cpus",
    "memory": "-m",
    "workdir": "-w",
    "user": "-u",
    "queue": "--queue",
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


def _volume(line: str) -> dict[str, Any]:
    name, _, rest = line.partition(":")
    path, _, mode = rest.partition(":")
    if not name or not path.startswith("/") or mode not in {"", "ro", "rw"}:
        message = f'volumes: "{errors.readable(line)}" is not of the form NAME:/PATH or NAME:/PATH:ro'
        raise errors.Invalid(message, reason="VolumeInvalid", hint="one a line, for example data:/data")
    return {"name": name, "container_path": path, **({"read_only": True} if mode == "ro" else {})}
