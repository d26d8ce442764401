"""What servers and files answer us with: an API server, an engine, our own service, exec's frames, the state's rows."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp import web

from fairlead import errors
from fairlead.cli.core import client as service_client
from fairlead.cli.doctor.cluster import checks as cluster_checks
from fairlead.cli.doctor.cluster import facts as cluster_facts
from fairlead.cli.doctor.cluster import kinds as cluster_kinds
from fairlead.client import answers as clientanswers
from fairlead.client import container, record, transport
from fairlead.plan.gpu import gpudevice as plan_gpudevice
from fairlead.plan.gpu.allocation import enginesupport
from fairlead.plan.pod import podstate
from fairlead.serve.v1.containers import view
from fairlead.store import port
from fairlead.store.kubernetes import channel, client, server, store
from fairlead.store.sqlite import database
from fairlead.store.sqlite import store as sqlite
from fairlead.wire.fairlead import problem
from fairlead.wire.kubernetes import core, gpudevice, manifest, meta
from fairlead.wire.proto import engineversion_pb2
from tests.fuzz.doors.podman import Unsayable, _message
from tests.fuzz.doors.text import OURS, POD, plain
from tests.fuzz.harness import Door, Feed
from tests.unit.store.kubernetes import scriptedserver as scripted

_OK: Final = 200
_QUIET_S: Final = 0.3
_LIMITS: Final = client.Limits(patience_s=0.02)

# an API server --------------------------------------------------------------------------------------------------------

Ask = Callable[[store.KubernetesStore], Awaitable[object]]


def _api(ask: Ask, *, code: int = _OK) -> Callable[[Path], contextlib.AbstractAsyncContextManager[Feed]]:
    """Return what opens a door whose documents are the answers of an API server."""

    @contextlib.asynccontextmanager
    async def opened(_: Path) -> AsyncIterator[Feed]:
        said = bytearray()

        async def answer(_: web.Request) -> web.StreamResponse:
            return web.Response(body=bytes(said), status=code, content_type="application/json")

        async with (
            scripted.serving(answer) as there,
            store.KubernetesStore(scripted.access(there), limits=_LIMITS, chance=lambda: 0.0) as objects,
        ):

            async def feed(data: bytes) -> None:
                said[:] = data
                there.calls.clear()
                await ask(objects)

            yield feed

    return opened


async def _one_pod(objects: store.KubernetesStore) -> None:
    _judged([await objects.get(core.Pod, "box", "default")])


async def _pods(objects: store.KubernetesStore) -> None:
    _judged((await objects.list(core.Pod)).items)


async def _gpus(objects: store.KubernetesStore) -> None:
    gpus = (await objects.list(gpudevice.GPUDevice)).items
    plan_gpudevice.find_quarantines(gpus)
    _checked(gpus=gpus)


async def _nodes(objects: store.KubernetesStore) -> None:
    _checked(nodes=(await objects.list(core.Node)).items)


async def _watched(objects: store.KubernetesStore) -> None:
    with contextlib.suppress(TimeoutError):  # a line that says nothing is waited past: the watch resumes
        async with asyncio.timeout(_QUIET_S):
            async for change in objects.watch(core.Pod, since="1"):
                _judged([change.object])
                return


async def _rights(objects: store.KubernetesStore) -> None:
    asked = server.Server(objects.client, address="https://cluster")
    found = [await _tried(one) for one in (asked.version(), asked.may("get", "pods"), asked.list_rules())]
    if all(isinstance(one, errors.FairleadError) for one in found):
        raise found[0]  # type: ignore[misc]


async def _tried(asking: Awaitable[object]) -> object:
    try:
        return await asking
    except errors.FairleadError as error:
        return error


def _judged(pods: Any) -> None:
    """Do with pods what the verbs do: say how they are, as `ps` and `doctor` see them."""
    for pod in pods:
        podstate.why(pod)
        msgspec.json.encode(view.container_view(pod))
    _checked(pods=tuple(pods))


_GOOD: Final = cluster_facts.Facts(
    now=1.0,
    address="https://cluster",
    resource="nvidia.com/gpu",
    definitions={kind.KIND: cluster_kinds.Served(is_served=True) for kind in cluster_kinds.KINDS},
    agents=(),
    deployments=(),
    nodes=(core.Node(metadata=meta.ObjectMeta(name="n")),),
    gpus=(),
    pods=(),
    leases=(),
    runtime_classes=frozenset(),
    policies=frozenset(),
    agent_lacks={},
    refusals=(),
)


def _checked(**read: Any) -> None:
    for found in cluster_checks.check(dataclasses.replace(_GOOD, **read)):
        msgspec.json.encode(found)


_ABOUT: Final[Any] = POD["metadata"]
_LIVE: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {**_ABOUT, "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": POD["spec"],
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "containerStatuses": [
            {"name": "c", "ready": True, "restartCount": 1, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
        ],
    },
}
_BRIEF: Final = {
    **_LIVE,
    "spec": {
        "nodeName": "one",
        "schedulerName": "fairlead",
        "containers": [{"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    },
}
"""A pod for doors that read one with the list's own code: every field is fed to the list."""
_GPU: Final = {
    "metadata": {"name": "gpu-0", "resourceVersion": "7"},
    "spec": {
        "nodeName": "n",
        "index": 0,
        "minor": 0,
        "uuid": "GPU-0",
        "vendor": "nvidia",
        "product": "NVIDIA H100",
        "memory": "81559Mi",
        "simulated": False,
        "numaNode": 0,
        "quarantine": "row remap failed",
    },
    "status": {
        "health": "Unhealthy",
        "reason": "XID79",
        "message": "fell off",
        "holders": [{"namespace": "default", "pod": "p", "devices": ["GPU-0"]}],
    },
}
_NODE: Final = {
    "metadata": {"name": "n", "labels": {"a": "b"}, "resourceVersion": "7"},
    "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}], "unschedulable": False},
    "status": {
        "capacity": {"nvidia.com/gpu": "8", "memory": "1Gi", "cpu": "4"},
        "allocatable": {"nvidia.com/gpu": "7", "memory": "1Gi", "cpu": "4"},
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}],
        "nodeInfo": {"containerRuntimeVersion": "containerd://2.1.0", "kubeletVersion": "v1.36.0"},
    },
}
_STATUS: Final = {
    "kind": "Status",
    "status": "Failure",
    "message": "no",
    "reason": "Forbidden",
    "code": 403,
    "details": {"name": "p", "kind": "pods", "causes": [{"reason": "x", "message": "y", "field": "z"}]},
}
_RIGHTS: Final = {
    "gitVersion": "v1.36.2",
    "status": {
        "allowed": True,
        "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["x"]}],
    },
}


def _list(item: Any) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "9", "continue": ""}, "items": [item]}


# exec's frames --------------------------------------------------------------------------------------------------------


class _Socket:
    """A WebSocket from which these messages come."""

    protocol = channel.V5

    def __init__(self, *messages: aiohttp.WSMessage) -> None:
        self._messages = collections.deque(messages)

    async def receive(self) -> aiohttp.WSMessage:
        end = aiohttp.WSMessage(aiohttp.WSMsgType.CLOSED, None, None)
        return self._messages.popleft() if self._messages else end


def _frame(data: bytes) -> aiohttp.WSMessage:
    return aiohttp.WSMessage(aiohttp.WSMsgType.BINARY, data, None)


async def _ended(*frames: bytes) -> None:
    socket: Any = _Socket(*map(_frame, frames))
    streams = channel.ProcessStreams(socket, what="exec in default/box", tty=False, stdin=False)
    while await streams.read():
        pass
    await streams.wait()


def _through(feed: Feed) -> Callable[[Path], contextlib.AbstractAsyncContextManager[Feed]]:
    @contextlib.asynccontextmanager
    async def opened(_: Path) -> AsyncIterator[Feed]:
        yield feed

    return opened


async def _end_of_exec(data: bytes) -> None:
    await _ended(b"\1out", b"\3" + data)


async def _any_frames(data: bytes) -> None:
    """Take a text as frames: each line is one."""
    socket: Any = _Socket(*map(_frame, data.split(b"\n")))
    carried = channel.PortStream(socket, what="port 80 of default/box")
    with contextlib.suppress(*OURS):
        while await carried.read():
            pass
    await _ended(*data.split(b"\n"))


_END: Final = {
    "status": "Failure",
    "reason": "NonZeroExitCode",
    "message": "command terminated",
    "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
}

# our own service ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Answer:
    status: int
    body: bytes

    def header(self, name: str) -> str:
        return ""

    def read(self) -> bytes:
        return self.body

    def pieces(self) -> Iterator[bytes]:
        yield self.body[: len(self.body) // 2]
        yield self.body[len(self.body) // 2 :]


@dataclasses.dataclass
class _Carrier:
    """A `transport.Transport` whose service says what it was told to say."""

    answer: _Answer = _Answer(_OK, b"")
    address: str = "http+unix:///run/x"

    @contextlib.contextmanager
    def send(self, request: transport.Request, *, timeout_s: float | None) -> Iterator[_Answer]:
        del request, timeout_s
        yield self.answer

    def connect(self, target: str) -> contextlib.AbstractContextManager[transport.Session]:
        raise NotImplementedError(target)

    def close(self) -> None: ...


Call = Callable[[service_client.Client], object]
_CALLS: dict[str, Call] = {
    "container": lambda one: one.container("box", "default"),
    "containers": lambda one: one.list_containers(),
    "explanation": lambda one: one.explain("box", "default"),
    "status": lambda one: one.status(),
    "trace": lambda one: one.trace("box", "default"),
    "lines": lambda one: list(one.lines("GET", "/v1/events")),
}


def _python_waits(one: service_client.Client) -> object:
    """Wait as the Python client does, and show what came of it as a notebook does."""
    began = msgspec.convert(_container(), clientanswers.ContainerView)
    waited = container.Container(one, began)
    for state in ("started", "ended", "gone"):
        waited.wait(state, timeout_s=0.0)
    return record.Listing((waited.refresh(),), columns=("name", "state", "view.message"))._repr_html_(), repr(waited)


def _python_secrets(one: service_client.Client) -> object:
    found = one.call("GET", "/v1/secrets", clientanswers.SecretList).items
    return record.Listing(found, columns=("namespace", "name", "digests", "used_by"))._repr_html_()


_CALLS |= {"wait, Python": _python_waits, "secrets, Python": _python_secrets}


def _said(call: Call, status: int = _OK) -> Callable[[bytes, Path], None]:
    def feed(data: bytes, _: Path) -> None:
        call(service_client.Client(_Carrier(_Answer(status, data))))

    return feed


def _container() -> dict[str, Any]:
    (found,) = manifest.parse(json.dumps(POD).encode(), kinds=(core.Pod,))
    assert isinstance(found.item, core.Pod)
    made: dict[str, Any] = msgspec.to_builtins(view.container_view(found.item))
    return made


def _problem() -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(problem.problem_of(errors.Conflict("no", reason="X", hint="y", pod="p")))
    return made


_SECRET: Final = {
    "name": "db",
    "namespace": "default",
    "digests": {"a": "0123456789ab"},
    "sizes": {"a": 7},
    "used_by": ["box"],
    "created_at": "2026-01-31T09:30:00Z",
    "updated_at": None,
}
_EXPLANATION: Final = {
    "name": "box",
    "state": "pending",
    "summary": "waits",
    "reason": "Unschedulable",
    "facts": {"nodes": {"n": "no"}},
    "at": "2026-01-31T09:30:00Z",
}

# the state's rows -----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _rows(folder: Path) -> AsyncIterator[Feed]:
    path = folder / "state.db"
    database.ensure(path)
    with sqlite.SQLiteStore(path) as opened:
        (found,) = manifest.parse(json.dumps(_LIVE).encode(), kinds=(core.Pod,))
        assert isinstance(found.item, core.Pod)
        about = msgspec.structs.replace(found.item.metadata, resource_version="", uid="")
        await opened.create(msgspec.structs.replace(found.item, metadata=about))
    # No flush: what is tried is reading.
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    with contextlib.closing(connection), sqlite.SQLiteStore(path) as opened:

        async def feed(data: bytes) -> None:
            connection.execute("UPDATE objects SET document = CAST(? AS TEXT)", (data,))
            found = [
                await _tried(opened.get(core.Pod, "box", "default")),
                await _tried(opened.list(core.Pod)),
                await _tried(opened.list(core.Pod, port.Selector(labels={"app": "x"}, fields={"spec.nodeName": "n"}))),
            ]
            refused = [one for one in found if isinstance(one, errors.FairleadError)]
            if refused:
                raise refused[0]

        yield feed


def _state(data: bytes, folder: Path) -> None:
    path = folder / "state.db"
    for old in (path, *database.sidecars(path)):
        old.unlink(missing_ok=True)
    path.write_bytes(data)
    before = path.read_bytes()
    try:
        database.ensure(path)
    except errors.ProtocolError:
        if path.read_bytes() != before:
            raise AssertionError("a damaged state file was changed") from None
        raise


def _whole_state() -> bytes:
    """Return a small state file as SQLite writes it."""
    with sqlite3.connect(":memory:") as connection:
        for statement in database._SCHEMA_1.replace("BEGIN;", "").replace("COMMIT;", "").split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {database.APPLICATION_ID}")
        connection.execute("INSERT INTO objects VALUES ('v1/Pod', 'default', 'box', 'u', 1, ?)", (json.dumps(_LIVE),))
        connection.commit()
        return connection.serialize()


# an engine ------------------------------------------------------------------------------------------------------------


def _engine(data: bytes, _: Path) -> None:
    said = _message(data, engineversion_pb2.VersionResponse())
    words = f"{said.runtime_name}://{said.runtime_version}"
    enginesupport.check_node(words)
    enginesupport.has_release(words)


_VERSION: Final = {"version": "0.1.0", "runtime_name": "containerd", "runtime_version": "v2.1.0"}

DOORS: Final = (
    Door(name="API server: a pod", every=3, opened=_api(_one_pod), specimens=(("pod", _BRIEF),), refusals=OURS),
    Door(name="API server: pods", opened=_api(_pods), specimens=(("list", _list(_LIVE)),), refusals=OURS),
    Door(name="API server: GPUDevices", opened=_api(_gpus), specimens=(("list", _list(_GPU)),), refusals=OURS),
    Door(name="API server: nodes", opened=_api(_nodes), specimens=(("list", _list(_NODE)),), refusals=OURS),
    Door(
        name="API server: a watch",
        every=3,
        opened=_api(_watched),
        specimens=(("event", {"type": "ADDED", "object": _BRIEF}),),
        encode=lambda document: json.dumps(document).encode() + b"\n",
        refusals=OURS,
        documents=False,
        sample=40,
    ),
    Door(
        name="API server: a refusal",
        opened=_api(_one_pod, code=403),
        specimens=(("status", _STATUS),),
        refusals=OURS,
        refuses_specimens=True,
    ),
    Door(name="API server: rights", opened=_api(_rights), specimens=(("answer", _RIGHTS),), refusals=OURS),
    Door(
        name="exec's end",
        opened=_through(_end_of_exec),
        specimens=(("status", _END),),
        refusals=OURS,
    ),
    Door(
        name="exec's frames",
        opened=_through(_any_frames),
        documents=False,  # one of 2,500,000 lines is as many messages
        binary=(("frames", b"\1out\n\2err\n\3" + json.dumps({"status": "Success"}).encode()),),
        refusals=OURS,
    ),
    *(
        Door(
            name=f"our service: {name}", opened=plain(_said(_CALLS[name])), specimens=((name, document),), refusals=OURS
        )
        for name, document in (
            ("container", _container()),
            ("containers", {"items": [_container()]}),
            ("explanation", _EXPLANATION),
            ("wait, Python", _container()),
            ("secrets, Python", {"items": [_SECRET]}),
        )
    ),
    Door(
        name="our service: lines",
        opened=plain(_said(_CALLS["lines"])),
        specimens=(("problem", {"problem": _problem()}),),
        encode=lambda document: json.dumps(document).encode() + b"\n",
        refusals=OURS,
        refuses_specimens=True,
    ),
    Door(
        name="our service: a problem",
        opened=plain(_said(_CALLS["status"], status=409)),
        specimens=(("problem", _problem()),),
        refusals=OURS,
        refuses_specimens=True,
    ),
    Door(name="row of the state", opened=_rows, specimens=(("pod", _LIVE),), refusals=OURS),
    Door(name="state file", opened=plain(_state), binary=(("file", _whole_state()),), refusals=OURS),
    Door(
        name="engine's version", opened=plain(_engine), specimens=(("answer", _VERSION),), refusals=(*OURS, Unsayable)
    ),
)
