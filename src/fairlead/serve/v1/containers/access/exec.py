"""Routes into containers: one more process (exec), the first one (attach), files in and out (copy, sftp).

All are WebSockets whose frames `carry` describes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import litestar
from litestar import di, params

from fairlead import errors
from fairlead.model.process import ProcessOptions
from fairlead.plan.pod import machine
from fairlead.serve.backend.containers import pods
from fairlead.serve.backend.port import require
from fairlead.serve.v1.containers.access.carry import Socket, carry
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.store.subresource import Session

Split = Annotated[bool, params.QueryParameter(description="begin each binary frame with its stream, 1 or 2")]
Stdin = Annotated[bool, params.QueryParameter(description="keep standard input open")]


@dataclass(frozen=True, slots=True)
class _How:
    """How a process is run."""

    tty: bool
    stdin: bool
    split: bool
    options: ProcessOptions


def _how(
    tty: Annotated[bool, params.QueryParameter(description="give the process a terminal")] = False,
    stdin: Stdin = False,
    split: Split = False,
    env: Annotated[list[str] | None, params.QueryParameter(description="`KEY=VALUE`; repeat for more")] = None,
    user: Annotated[str, params.QueryParameter(description="`USER[:GROUP]`; empty: the container's")] = "",
    workdir: Annotated[str, params.QueryParameter(description="its folder; empty: the container's")] = "",
) -> _How:
    return _How(tty, stdin, split, ProcessOptions(env=_pairs(env or ()), user=user, workdir=workdir))


def _pairs(words: Sequence[str]) -> dict[str, str]:
    """Return variables by name; a word without `=` has an empty name, which is refused once the socket is open."""
    return {key if equals else "": value for key, equals, value in (word.partition("=") for word in words)}


How = di.NamedDependency[params.SkipValidation[_How]]


@litestar.websocket("/v1/containers/{name:str}/exec", dependencies={"how": di.Provide(_how, sync_to_thread=False)})
async def exec_in_container(
    socket: Socket,
    services: Dependencies,
    how: How,
    name: params.FromPath[str],
    command: params.FromQuery[list[str] | None] = None,
    namespace: params.FromQuery[str] = "default",
    container: params.FromQuery[str] = "",
) -> None:
    """Run `command` (repeat the parameter for each word) and carry its streams until it ends."""
    opening = functools.partial(_exec, services, name, namespace, container, tuple(command or ()), how)
    await carry(socket, opening, is_split=how.split)


async def _exec(
    services: Services,
    name: str,
    namespace: str,
    container: str,
    argv: tuple[str, ...],
    how: _How,
) -> Session:
    if not argv:
        raise errors.Invalid("no command given", reason="CommandRequired", hint="for example -- sh")
    if nul := next((word for word in argv if "\0" in word), ""):
        shown = nul.replace("\0", "\\0")
        raise errors.Invalid(
            f'word "{shown}" of the command has a NUL', reason="CommandInvalid", hint="no program can be given one"
        )
    _check(how.options)
    pod = await pods.find_pod(services.store, name, namespace)
    streams, which = require(services.backend.streams), pods.container_name(pod, container)
    return await streams.exec(pod, which, argv, tty=how.tty, stdin=how.stdin, options=how.options)


def _check(options: ProcessOptions) -> None:
    """Refuse what no process can have. Raises: Invalid, naming what it is."""
    if bad := next((f"{name}={value}" for name, value in options.env.items() if not name or "\0" in name + value), ""):
        shown = bad.replace("\0", "\\0")
        message = f'variable "{shown}" is not of the form KEY=VALUE without a NUL'
        raise errors.Invalid(message, reason="EnvInvalid", hint="for example -e DEBUG=1")
    if options.user and not machine.is_user(options.user):
        shown = options.user.replace("\0", "\\0")
        message = f'user "{shown}" is neither USER nor USER:GROUP, by number or by name'
        raise errors.Invalid(message, reason="UserInvalid", hint="for example -u nobody or -u 1000:1000")
    if options.workdir and (not options.workdir.startswith("/") or "\0" in options.workdir):
        shown = options.workdir.replace("\0", "\\0")
        message = f'folder "{shown}" of the container does not begin with /'
        raise errors.Invalid(message, reason="PathNotAbsolute", hint="write it from / on")


@litestar.websocket("/v1/containers/{name:str}/attach")
async def attach_to_container(
    socket: Socket,
    services: Dependencies,
    name: params.FromPath[str],
    namespace: params.FromQuery[str] = "default",
    container: params.FromQuery[str] = "",
    replay: Annotated[bool, params.QueryParameter(description="what was written before comes first")] = False,
    stdin: Stdin = False,
    split: Split = False,
) -> None:
    """Join the first process: its output, and its input where it was started with `stdin`; it goes on without us."""

    async def opened() -> Session:
        pod = await pods.find_pod(services.store, name, namespace)
        streams = require(services.backend.streams)
        return await streams.attach(pod, pods.container_name(pod, container), stdin=stdin, replay=replay)

    await carry(socket, opened, is_split=split)


@litestar.websocket("/v1/containers/{name:str}/copy")
async def copy_files(
    socket: Socket,
    services: Dependencies,
    name: params.FromPath[str],
    path: Annotated[str, params.QueryParameter(description="of the container, from / on")],
    namespace: params.FromQuery[str] = "default",
    container: params.FromQuery[str] = "",
    into: Annotated[bool, params.QueryParameter(description="the tar goes into the container")] = False,
) -> None:
    """Carry a tar of a path of the container, or write one below a folder of it."""

    async def opened() -> Session:
        if not path.startswith("/") or "\0" in path:
            message = f'path "{path}" of the container does not begin with /'.replace("\0", "\\0")
            raise errors.Invalid(message, reason="PathNotAbsolute", hint="write it from / on")
        pod = await pods.find_pod(services.store, name, namespace)
        which = pods.container_name(pod, container)
        access = services.backend.access
        return await (access.unpack(pod, which, path) if into else access.pack(pod, which, path))

    await carry(socket, opened, is_split=True)


@litestar.websocket("/v1/containers/{name:str}/sftp")
async def carry_sftp(
    socket: Socket,
    services: Dependencies,
    name: params.FromPath[str],
    namespace: params.FromQuery[str] = "default",
    container: params.FromQuery[str] = "",
) -> None:
    """Carry the SFTP protocol to and from a container's files, as its user."""

    async def opened() -> Session:
        pod = await pods.find_pod(services.store, name, namespace)
        return await services.backend.access.sftp(pod, pods.container_name(pod, container))

    await carry(socket, opened, is_split=True)


ROUTES = (exec_in_container, attach_to_container, copy_files, carry_sftp)
