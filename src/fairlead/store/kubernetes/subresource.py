"""Implements pods' subresources through an API server: bind, evict, log, exec, attach, port-forward; and their trial.

exec and attach ask for v5.channel.k8s.io and take v4, which older servers pass through from their kubelets;
port-forward is v4's, which kubelets answer behind servers of any version. Nothing is sent twice: a connection that
broke is an error.
Source: Kubernetes API reference, "Pod" and "Eviction"; KEP-4006.
"""

from __future__ import annotations

import asyncio
import contextlib
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec

from fairlead import errors
from fairlead.model.process import AS_THE_CONTAINER, ProcessOptions
from fairlead.store import port
from fairlead.store.kubernetes import channel, path, replacement
from fairlead.store.kubernetes import client as http
from fairlead.store.subresource import LogOptions, not_on_cluster
from fairlead.wire.kubernetes import api, core, meta
from fairlead.wire.text import timestamp

_SILENCE_S: Final = 365 * 86400.0
"""A container that writes nothing is not a broken connection."""
_REPORT_S: Final = 3.0
"""What a kubelet takes at most to report a container's end; it looks every second."""
_ANY: Final = "*/*"
"""What a stream accepts: a server has no JSON to upgrade to."""
_WAITING: Final = ("is waiting to start", "is not available", "does not have a host assigned", "not found in pod")
"""What servers and kubelets say of a container that has not run yet."""


class KubernetesPods:
    """A `subresource.Placement`, `Trial`, `Recreation`, `Logs` and `Streams` over an API server."""

    def __init__(
        self, client: http.Client, store: port.Store, *, send: Callable[[http.Request], Awaitable[bytes]] | None = None
    ) -> None:
        """Take open connections, and the store over them.

        Args: send: what sends the writes; None: the connections themselves. A fenced store gives its own.
        """
        self._client = client
        self._store = store
        self._send = client.request if send is None else send
        self._replacement = replacement.Replacement(store, self._send)

    async def bind(self, pod: core.Pod, node: str) -> None:
        """See `subresource.Placement.bind`."""
        about = pod.metadata
        body = api.binding(about.name, about.namespace, about.uid, about.resource_version, node)
        await self._post(pod, "binding", body)

    async def evict(
        self,
        pod: core.Pod,
        *,
        grace_s: int | None,
        why: str = "",  # noqa: ARG002  an API server has no place for it
        reason: str = "Preempted",  # noqa: ARG002
    ) -> None:
        """See `subresource.Placement.evict`; a grace of 0 is sent as 1 s: the node ends the process before all goes."""
        about = pod.metadata
        wait_s = None if grace_s is None else max(1, grace_s)
        try:
            await self._post(pod, "eviction", api.eviction(about.name, about.namespace, about.uid, grace_s=wait_s))
        except errors.Unavailable as error:
            if error.reason != "TooManyRequests":
                raise
            hint = "`kubectl get pdb` shows the budget; `fairlead rm` removes the pod all the same"
            raise errors.Denied(error.message, reason="DisruptionBudget", hint=hint) from error

    async def judge(self, pod: core.Pod) -> core.Pod:
        """See `subresource.Trial.judge`: a creation that the server carries out up to its storage."""
        where, query = path.collection(core.Pod, pod.metadata.namespace), path.query(dryRun="All")
        return _pod(await self._send(http.Request(method="POST", path=where, query=query, body=meta.encode(pod))))

    async def recreate(self, pod: core.Pod, *, grace_s: int | None) -> core.Pod:
        """See `subresource.Recreation.recreate`."""
        return _pod(await self._replacement.recreate(pod, grace_s=grace_s))

    async def _post(self, pod: core.Pod, part: str, body: bytes) -> None:
        where = _path(pod, part)
        await self._send(http.Request(method="POST", path=where, body=body, repeatable=False))

    async def logs(self, pod: core.Pod, container: str, options: LogOptions) -> AsyncGenerator[bytes, None]:
        """See `subresource.Logs.logs`."""
        query = path.query(
            container=container,
            follow=options.follow or None,
            tailLines=options.tail,
            timestamps=options.timestamps or options.until is not None or None,
            sinceTime=None if options.since is None else timestamp.emit(options.since),
            previous=options.previous or None,
        )
        request = http.Request(method="GET", path=_path(pod, "log"), query=query)
        try:
            async with self._client.stream(request, silence_s=_SILENCE_S) as chunks:
                async for chunk in chunks if options.until is None else _until(chunks, options):
                    yield chunk
        except (errors.Invalid, errors.Unavailable) as error:
            # A pod that no node has yet is answered with 204, No Content.
            if error.reason != "Http204" and not any(words in error.message for words in _WAITING):
                raise
            hint = f"`fairlead explain -n {pod.metadata.namespace} {pod.metadata.name}` says why"
            message = f'container "{container}" of "{pod.metadata.name}" has not started'
            raise errors.Conflict(message, reason="ContainerNotStarted", hint=hint) from error

    async def exec(
        self,
        pod: core.Pod,
        container: str,
        argv: tuple[str, ...],
        *,
        tty: bool,
        stdin: bool,
        options: ProcessOptions = AS_THE_CONTAINER,
    ) -> channel.ProcessStreams:
        """See `subresource.Streams.exec`; variables and a folder are set by the image's own `sh`."""
        if options.user:
            hint = "leave -u out; `kubectl debug` starts a container beside it with a user of its own"
            raise not_on_cluster(f'a process of "{pod.metadata.name}" as user "{options.user}"', hint)
        asked = [("command", word) for word in _through_shell(argv, options)]
        socket = await self._connect(pod, "exec", [*asked, *_streams(container, tty=tty, stdin=stdin)])
        return channel.ProcessStreams(socket, what=f'exec in "{pod.metadata.name}"', tty=tty, stdin=stdin)

    async def attach(
        self,
        pod: core.Pod,
        container: str,
        *,
        stdin: bool,
        replay: bool = False,  # noqa: ARG002 kubelets carry what is written from now on, and no more
    ) -> channel.ProcessStreams:
        """See `subresource.Streams.attach`."""
        spec = next(item for item in (*pod.spec.containers, *pod.spec.init_containers) if item.name == container)
        if stdin and not spec.stdin:
            message = f'the standard input of container "{container}" of "{pod.metadata.name}" is not open'
            raise errors.Conflict(message, reason="StdinClosed", hint="`fairlead exec -it` runs a shell beside it")
        socket = await self._connect(pod, "attach", _streams(container, tty=spec.tty, stdin=stdin))

        async def exit_code() -> int:
            return await self._exit_code(pod, container)

        return channel.ProcessStreams(
            socket, what=f'attach to "{pod.metadata.name}"', tty=spec.tty, stdin=stdin, exit_code=exit_code
        )

    async def _exit_code(self, pod: core.Pod, container: str) -> int:
        """Return the exit code of the run that has just ended, as its kubelet reports it."""
        about = pod.metadata
        selector = port.Selector(namespace=about.namespace, fields={"metadata.name": about.name})
        async for change in self._store.watch(core.Pod, selector):
            if change.object.metadata.uid != about.uid or change.kind is port.ChangeKind.DELETED:
                break
            for status in (*change.object.status.container_statuses, *change.object.status.init_container_statuses):
                ended = status.state.terminated or status.last_state.terminated
                if status.name == container and ended is not None and not status.state.running:
                    return ended.exit_code
        message = f'"{about.name}" was removed before its exit code was read'
        raise errors.Unavailable(message, reason="ContainerGone", hint="`fairlead events` may say why")

    async def port_forward(self, pod: core.Pod, port: int) -> channel.PortStream:
        """See `subresource.Streams.port_forward`."""
        socket = await self._connect(pod, "portforward", [("ports", str(port))], (channel.V4,))
        return channel.PortStream(socket, what=f'port {port} of "{pod.metadata.name}"')

    async def _connect(
        self,
        pod: core.Pod,
        part: str,
        query: list[tuple[str, str]],
        protocols: tuple[str, ...] = (channel.V5, channel.V4),
    ) -> channel.Socket:
        request = http.Request(method="GET", path=_path(pod, part), query=urllib.parse.urlencode(query), accept=_ANY)
        try:
            return await self._client.connect(request, protocols)
        except (errors.Invalid, errors.Unavailable) as error:
            raise await self._why(pod, dict(query).get("container", ""), error) from error

    async def _ends(self, pod: core.Pod, container: str) -> bool:
        """Return whether a container is reported as ended within the time that a report takes."""
        about = pod.metadata
        selector = port.Selector(namespace=about.namespace, fields={"metadata.name": about.name})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REPORT_S):
                async for change in self._store.watch(core.Pod, selector):
                    if change.kind is port.ChangeKind.DELETED or not _runs(change.object, container):
                        return True
        return False

    async def _why(self, pod: core.Pod, container: str, refusal: errors.FairleadError) -> errors.FairleadError:
        """Return that the container does not run, where that is so: kubelets refuse a handshake in words of their own.

        A kubelet that failed (`Unavailable`) may be about to report the container's end: that is waited for.
        Raises: NotFound: the pod is gone.
        """
        about = pod.metadata
        fresh = await self._store.get(core.Pod, about.name, about.namespace)
        may_end = isinstance(refusal, errors.Unavailable)
        if _runs(fresh, container) and not (may_end and await self._ends(pod, container)):
            return refusal
        message = f'container "{container or about.name}" of "{about.name}" is not running'
        hint = f"`fairlead explain -n {about.namespace} {about.name}`"
        return errors.Conflict(message, reason="ContainerNotRunning", hint=hint)


_SETTING: Final = (
    'n=$1; shift; while [ "$n" -gt 0 ]; do export "$1"; shift; n=$((n-1)); done; '
    '[ -z "$1" ] || cd -- "$1" || exit 126; shift; exec "$@"'
)
"""Takes the number of variables, each as NAME=VALUE, the folder or an empty word, and the command."""


def _through_shell(argv: tuple[str, ...], options: ProcessOptions) -> tuple[str, ...]:
    """Return the command that runs `argv` with variables and in a folder; no word of it is read as a program."""
    if not options.env and not options.workdir:
        return argv
    given = [f"{name}={value}" for name, value in options.env.items()]
    return ("sh", "-c", _SETTING, "sh", str(len(given)), *given, options.workdir, *argv)


async def _until(chunks: AsyncIterator[bytes], options: LogOptions) -> AsyncGenerator[bytes, None]:
    """Yield the lines up to a time, which servers cannot be asked for; they come with theirs."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            stamp, _, text = line.partition(b" ")
            if timestamp.unix_seconds(stamp.decode(errors="replace")) > (options.until or 0):
                return
            yield (line if options.timestamps else text) + b"\n"


def _runs(pod: core.Pod, container: str) -> bool:
    """Return whether a container runs as far as its kubelet says; "" is any of them."""
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return any(one.state.running for one in statuses if container in {"", one.name})


def _path(pod: core.Pod, part: str) -> str:
    return path.named(core.Pod, pod.metadata.namespace, pod.metadata.name, part)


def _streams(container: str, *, tty: bool, stdin: bool) -> list[tuple[str, str]]:
    """Return which streams are asked for; a terminal has one for output and errors."""
    asked = {"stdin": stdin, "stdout": True, "stderr": not tty, "tty": tty}
    return [("container", container), *((name, "true") for name, is_asked in asked.items() if is_asked)]


def _pod(body: bytes) -> core.Pod:
    try:
        found: core.Pod = api.object_decoder(core.Pod).decode(body)
    except msgspec.MsgspecError as error:
        message = f"answer about a pod cannot be read: {error}"
        raise errors.ProtocolError(message, reason="ObjectUnreadable") from error
    return found
