"""Carries out one probe or hook of a container: a command in it, or a connection from inside its network.

Nothing is reached from the host's network, whatever a pod says. What a program sends is read up to a limit and never
kept; who waits for it gives up after a time, and the command's processes are ended then.
Source: kubernetes pkg/probe (exec, http, tcp, grpc): limits and what counts as success.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final
from urllib import parse

from fairlead import errors
from fairlead.engine.port import Engine
from fairlead.kernel.network import address, netns
from fairlead.node.kubelet.probing import grpchealth
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.pod.probe import ExecAction, Handler, HTTPGetAction, Probe, TCPSocketAction

_MOST_OUTPUT: Final = 10 * 1024
_MOST_READ: Final = 16 << 20
"""Output after which a command is ended: what is beyond `_MOST_OUTPUT` is read and dropped until then."""
_MOST_HEADERS: Final = 64 * 1024
_MOST_REDIRECTS: Final = 10
_SHOWN: Final = 300
_CUT: Final = "the connection ended before the answer did"
_LOOPBACK: Final = "127.0.0.1"
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The running container."""

    item: core.Container
    engine_name: str
    pid: int | None
    """Of its first process."""
    addresses: tuple[str, ...] | None = None
    """By which it is reached from the host; None: it is reached from inside its network namespace."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it."""

    is_good: bool
    text: str = ""
    """What is wrong, for people."""


async def probe(engine: Engine, target: Target, wanted: Probe, timeout_s: float) -> Result:
    """Carry out a probe once."""
    try:
        async with asyncio.timeout(timeout_s):
            if wanted.grpc is not None:
                return await _grpc(target, wanted.grpc.port, wanted.grpc.service)
            return await _act(engine, target, wanted.exec, wanted.http_get, wanted.tcp_socket)
    except TimeoutError:
        return Result(False, f"no result within {timeout_s:g}s")


async def hook(engine: Engine, target: Target, wanted: Handler, timeout_s: float | None) -> Result:
    """Carry out a hook. Args: timeout_s: None: as long as it takes."""
    try:
        async with asyncio.timeout(timeout_s):
            if wanted.sleep is not None:
                await asyncio.sleep(wanted.sleep.seconds)
                return Result(True)
            return await _act(engine, target, wanted.exec, wanted.http_get, wanted.tcp_socket)
    except TimeoutError:
        return Result(False, f"it has not ended within {timeout_s:g}s")


async def _act(
    engine: Engine,
    target: Target,
    command: ExecAction | None,
    asked: HTTPGetAction | None,
    connected: TCPSocketAction | None,
) -> Result:
    try:
        if command is not None:
            return await _exec(engine, target, command)
        if asked is not None:
            return await _http(target, asked)
        if connected is not None:
            async with _connection(target, _number(target, connected.port), connected.host):
                return Result(True)
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, errors.FairleadError) as error:
        return Result(False, _said(error))
    return Result(True)


def _said(error: Exception) -> str:
    if isinstance(error, EOFError):
        return _CUT
    return (error.message if isinstance(error, errors.FairleadError) else str(error))[:_SHOWN] or type(error).__name__


async def _exec(engine: Engine, target: Target, wanted: ExecAction) -> Result:
    session = await engine.exec(target.engine_name, wanted.command, tty=False, stdin=False)
    kept, length = b"", 0
    try:
        while data := await session.read():
            kept += data[: _MOST_OUTPUT - len(kept)]
            length += len(data)
            if length > _MOST_READ:
                return Result(False, f"it wrote more than {_MOST_READ >> 20} MiB")
        code = await session.wait()
    finally:
        await session.close()
    return Result(code == 0, f"exit code {code}: {_shown(kept)}" if code else "")


def _shown(data: bytes) -> str:
    text = errors.readable(data.decode(errors="replace").strip())[:_SHOWN]
    return " ".join(text.split())


def _number(target: Target, port: int | str) -> int:
    """Return a port's number. Raises: ValueError: the container has no port of that name."""
    if isinstance(port, int):
        return port
    found = next((one.container_port for one in target.item.ports if one.name == port), None)
    if found is None:
        message = f'the container has no port "{port}"'
        raise ValueError(message)
    return found


@contextlib.asynccontextmanager
async def _connection(
    target: Target, port: int, host: str, *, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect from inside the container's network, to the pod's own address unless a host is named.

    What is reached from the host has no loopback that leads to it: its first address stands for that.
    """
    if target.pid is None:
        message = "the container has no process"
        raise OSError(message)
    where, pid = _LOOPBACK if host == "localhost" else host, target.pid
    if target.addresses is not None:
        where, pid = next(iter(target.addresses), "") if where in {"", _LOOPBACK} else where, os.getpid()
        if not where:
            message = "the container has no address: nothing reaches its network from this machine"
            raise OSError(message)
    elif not where:
        found = await asyncio.to_thread(address.of_process, pid)
        where = next(iter(found), _LOOPBACK)
    family = socket.AF_INET6 if ":" in where else socket.AF_INET
    made = await netns.make_socket(pid, family)
    try:
        await asyncio.get_running_loop().sock_connect(made, (where, port))
        name = where if context is not None else None
        reader, writer = await asyncio.open_connection(
            sock=made, ssl=context, server_hostname=name, limit=_MOST_HEADERS
        )
    except BaseException:
        made.close()
        raise
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _http(target: Target, wanted: HTTPGetAction) -> Result:
    scheme, port, path = wanted.scheme or "HTTP", _number(target, wanted.port), wanted.path or "/"
    path = path if path.startswith("/") else f"/{path}"
    for _ in range(_MOST_REDIRECTS):
        status, location = await _ask(target, wanted, scheme, port, path)
        if status not in _REDIRECTS or not location:
            break
        there = parse.urlsplit(location)
        if there.netloc and there.hostname not in {wanted.host, "localhost"}:
            return Result(True)  # another host is not asked, and the redirect itself is an answer
        scheme = (there.scheme or scheme).upper()
        port = there.port or (port if not there.netloc else 443 if scheme == "HTTPS" else 80)
        path = parse.urlunsplit(("", "", parse.urljoin(path, there.path) or "/", there.query, ""))
        if not path.isascii() or not path.isprintable() or scheme not in {"HTTP", "HTTPS"}:
            return Result(True)
    is_good = 200 <= status < 400
    return Result(is_good, "" if is_good else f"HTTP probe failed with statuscode: {status}")


async def _ask(target: Target, wanted: HTTPGetAction, scheme: str, port: int, path: str) -> tuple[int, str]:
    """Send one request; return the status and where a redirect leads."""
    context = _unchecked() if scheme == "HTTPS" else None
    async with _connection(target, port, wanted.host, context=context) as (reader, writer):
        given = {one.name.lower(): one.value for one in wanted.http_headers}
        fixed = {"host": f"{wanted.host or 'localhost'}:{port}", "user-agent": "kube-probe/1.36", "accept": "*/*"}
        headers = {**fixed, **given, "connection": "close"}
        lines = [
            f"GET {parse.quote(path, safe=_PLAIN)} HTTP/1.1",
            *(f"{key}: {value}" for key, value in headers.items()),
        ]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, _, rest = head[0].partition(" ")
    if not version.startswith("HTTP/") or not rest[:3].isdecimal():
        message = "the answer is not HTTP"
        raise ValueError(message)
    location = next((line.partition(":")[2].strip() for line in head if line.lower().startswith("location:")), "")
    return int(rest[:3]), location


_PLAIN: Final = "/?#[]@!$&'()*+,;=:%-._~"


def _unchecked() -> ssl.SSLContext:
    """Return what a kubelet's probe of HTTPS has: any certificate will do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _grpc(target: Target, port: int, service: str) -> Result:
    try:
        async with _connection(target, port, "") as (reader, writer):
            problem = await grpchealth.check(reader, writer, service, f"localhost:{port}")
    except (OSError, EOFError, errors.FairleadError) as error:
        return Result(False, _said(error))
    return Result(not problem, problem)
