"""Pods' subresources over real connections to an API server of a few lines: channels, refusals, older protocols.

What a real API server does is in `tests/contract/test_subresource_contract.py`, run by the cluster ring; here is what
no present server does: speak only v4, break off, refuse a handshake.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from fairlead import command, errors
from fairlead.model.process import ProcessOptions
from fairlead.store.embedded import memory
from fairlead.store.kubernetes import client, credentials, subresource
from fairlead.store.kubernetes.subresource import KubernetesPods
from fairlead.store.subresource import LogOptions
from fairlead.wire.kubernetes import core, kubeconfig, meta

_LIMITS = client.Limits(patience_s=0.01)
_OK = b'{"status": "Success"}'
Talk = Callable[[web.WebSocketResponse], Coroutine[Any, Any, None]]


def _refused(code: int, message: str, reason: str = "BadRequest") -> web.Response:
    return web.json_response({"kind": "Status", "message": message, "reason": reason}, status=code)


class Kubernetes:
    """An API server of one pod's subresources."""

    def __init__(self) -> None:
        self.protocols = ["v5.channel.k8s.io", "v4.channel.k8s.io"]
        self.talk: Talk | None = None
        self.refusal = (403, 'pods "main" is forbidden', "Forbidden")
        self.asked: list[tuple[str, str]] = []
        self.body: dict[str, Any] = {}
        self.answer: Callable[[], web.Response] = lambda: web.json_response({"kind": "Status", "status": "Success"})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        self.asked = list(request.query.items())
        if self.talk is None or "Upgrade" not in request.headers:
            return _refused(*self.refusal)
        socket = web.WebSocketResponse(protocols=self.protocols)
        await socket.prepare(request)
        await self.talk(socket)
        await socket.close()
        return socket

    async def post(self, request: web.Request) -> web.Response:
        self.body = json.loads(await request.text())
        return self.answer()

    async def logs(self, request: web.Request) -> web.Response:
        self.asked = list(request.query.items())
        if request.match_info["pod"] == "waits":
            return _refused(400, 'container "main" in pod "waits" is waiting to start: ContainerCreating')
        if request.match_info["pod"] == "unplaced":
            return web.Response(status=204)
        if request.match_info["pod"] == "odd":
            return _refused(400, "tailLines: Invalid value")
        return web.Response(text="hello\n")


@pytest.fixture
def kubernetes() -> Kubernetes:
    return Kubernetes()


@pytest.fixture
async def store() -> memory.MemoryStore:
    """What the server says of the pod: its container runs."""
    one = memory.MemoryStore()
    about = msgspec.structs.replace(pod().metadata, resource_version="")
    made = await one.create(msgspec.structs.replace(pod(), metadata=about))
    running = core.ContainerStateUnion(running=core.ContainerStateRunning())
    status = core.PodStatus(phase="Running", container_statuses=(core.ContainerStatus(name="main", state=running),))
    await one.update_status(msgspec.structs.replace(made, status=status))
    return one


@pytest.fixture
async def pods(kubernetes: Kubernetes, store: memory.MemoryStore) -> AsyncIterator[KubernetesPods]:
    application = web.Application()
    at = "/api/v1/namespaces/team/pods/{pod}"
    application.router.add_get(f"{at}/log", kubernetes.logs)
    for part in ("exec", "attach", "portforward"):
        application.router.add_get(f"{at}/{part}", kubernetes.stream)
    for part in ("binding", "eviction"):
        application.router.add_post(f"{at}/{part}", kubernetes.post)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    cluster = kubeconfig.Cluster(server=f"http://{host}:{port}")
    access = credentials.Access(cluster=cluster, user=kubeconfig.User(), namespace="default", env={})
    async with client.Client(access, limits=_LIMITS) as connections:
        yield KubernetesPods(connections, store)
    await runner.cleanup()


def pod(name: str = "main", **container: Any) -> core.Pod:
    about = meta.ObjectMeta(name=name, namespace="team", uid="u-1", resource_version="7")
    return core.Pod(metadata=about, spec=core.PodSpec(containers=(core.Container(name="main", **container),)))


async def read(pods: KubernetesPods, name: str, *, tail: int | None = None) -> bytes:
    return b"".join([chunk async for chunk in pods.logs(pod(name), "main", LogOptions(tail=tail))])


def says(*frames: bytes) -> Talk:
    async def talk(socket: web.WebSocketResponse) -> None:
        for frame in frames:
            await socket.send_bytes(frame)

    return talk


async def test_output_comes_as_it_is_asked_for(pods: KubernetesPods, kubernetes: Kubernetes) -> None:
    assert await read(pods, "runs", tail=0) == b"hello\n"
    assert kubernetes.asked == [("container", "main"), ("tailLines", "0")]


async def test_a_container_that_has_not_run_is_told_apart_from_a_bad_question(pods: KubernetesPods) -> None:
    for name in ("waits", "unplaced"):
        with pytest.raises(errors.Conflict) as waits:
            await read(pods, name)
        assert waits.value.reason == "ContainerNotStarted"
    with pytest.raises(errors.Invalid):
        await read(pods, "odd")


async def test_exec_asks_for_each_word_and_joins_both_outputs(pods: KubernetesPods, kubernetes: Kubernetes) -> None:
    kubernetes.talk = says(b"\x01", b"\x01out", b"\x02err", b"\x03" + _OK)
    session = await pods.exec(pod(), "main", ("sh", "-c", "a b"), tty=False, stdin=False)
    assert [await session.read(), await session.read(), await session.read()] == [b"out", b"err", b""]
    assert await session.wait() == 0
    assert [value for name, value in kubernetes.asked if name == "command"] == ["sh", "-c", "a b"]
    assert dict(kubernetes.asked).keys() == {"command", "container", "stdout", "stderr"}
    await session.close()


async def test_variables_and_a_folder_of_an_exec_are_set_by_a_shell_that_reads_no_word_of_it(
    pods: KubernetesPods, kubernetes: Kubernetes, tmp_path: Path
) -> None:
    kubernetes.talk = says(b"\x03" + _OK)
    folder = tmp_path / "-a $(touch oops) b"
    folder.mkdir()
    asked = ProcessOptions(env={"A": "1; touch oops", "B": ""}, workdir=str(folder))
    argv = ("sh", "-c", 'printf "%s|" "$A" "$PWD" "$@"', "-", "two words", "--", "X=1", "")
    session = await pods.exec(pod(), "main", argv, tty=False, stdin=False, options=asked)
    await session.close()

    sent = [value for name, value in kubernetes.asked if name == "command"]
    said = await command.run(sent, env=command.base_env(), timeout_s=10)
    assert said.stdout.decode() == f"1; touch oops|{folder}|two words|--|X=1||"
    assert list(tmp_path.rglob("oops")) == []
    kubernetes.asked.clear()
    with pytest.raises(errors.RequestError) as refused:
        await pods.exec(pod(), "main", argv, tty=False, stdin=False, options=ProcessOptions(user="nobody"))
    assert (refused.value.reason, kubernetes.asked) == ("NotOnCluster", [])


@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [
        ({"status": "Failure", "message": "no: executable file not found in $PATH"}, errors.Invalid, "ExecFailed"),
        ({"status": "Failure", "message": 'container not found ("main")'}, errors.Conflict, "ContainerNotRunning"),
        (
            {"status": "Failure", "message": "namespace path: lstat /proc/1989/ns/ipc: no such file or directory"},
            errors.Conflict,
            "ContainerNotRunning",
        ),
        (
            {"status": "Failure", "message": "exec failed: cannot exec in a stopped container"},
            errors.Conflict,
            "ContainerNotRunning",
        ),
        (None, errors.Unavailable, "StreamBroken"),
    ],
)
async def test_what_kept_a_process_from_its_end_is_told(
    pods: KubernetesPods,
    kubernetes: Kubernetes,
    status: dict[str, str] | None,
    kind: type[errors.FairleadError],
    reason: str,
) -> None:
    kubernetes.talk = says(b"\x01half", *([b"\x03" + json.dumps(status).encode()] if status else []))
    session = await pods.exec(pod(), "main", ("x",), tty=False, stdin=False)
    with pytest.raises(kind) as told:
        await session.wait()
    assert told.value.reason == reason
    assert await session.read() == b"half"
    await session.close()


async def test_an_exit_code_is_the_one_among_the_causes(pods: KubernetesPods, kubernetes: Kubernetes) -> None:
    details = {"causes": [{"reason": "ExitCode", "message": "42"}]}
    ended = {"status": "Failure", "reason": "NonZeroExitCode", "message": "command terminated", "details": details}
    kubernetes.talk = says(b"\x03" + json.dumps(ended).encode())
    session = await pods.exec(pod(), "main", ("x",), tty=False, stdin=False)
    assert await session.wait() == 42
    await session.close()


async def test_input_ends_by_the_newest_protocol_and_an_older_one_says_that_it_cannot(
    pods: KubernetesPods, kubernetes: Kubernetes
) -> None:
    got: list[bytes] = []

    async def until_closed(socket: web.WebSocketResponse) -> None:
        async for message in socket:
            got.append(message.data)
            if message.data[0] == 255:
                await socket.send_bytes(b"\x03" + _OK)
                return

    kubernetes.talk = until_closed
    session = await pods.exec(pod(), "main", ("cat",), tty=False, stdin=True)
    await session.write(b"x" * 100_000)
    await session.write(b"")
    assert await session.wait() == 0
    assert (b"".join(part[1:] for part in got[:-1]), got[-1]) == (b"x" * 100_000, b"\xff\x00")
    assert {part[0] for part in got[:-1]} == {0}
    await session.close()

    kubernetes.protocols = ["v4.channel.k8s.io"]
    older = await pods.exec(pod(), "main", ("cat",), tty=False, stdin=True)
    with pytest.raises(errors.Unavailable) as told:
        await older.write(b"")
    assert told.value.reason == "InputCannotEnd"
    assert "v4.channel.k8s.io" in told.value.message
    await older.close()
    without = await pods.exec(pod(), "main", ("true",), tty=False, stdin=False)
    await without.write(b"")  # it has no input that could end
    await without.close()


async def test_a_terminal_is_told_its_size_and_its_end_as_a_key(pods: KubernetesPods, kubernetes: Kubernetes) -> None:
    got: list[bytes] = []

    async def two(socket: web.WebSocketResponse) -> None:
        got.extend([(await socket.receive()).data for _ in range(2)])
        await socket.send_bytes(b"\x03" + _OK)

    kubernetes.talk = two
    session = await pods.exec(pod(), "main", ("sh",), tty=True, stdin=True)
    await session.resize(50, 132)
    await session.write(b"")
    assert await session.wait() == 0
    assert got == [b'\x04{"Width":132,"Height":50}', b"\x00\x04"]
    assert "stderr" not in dict(kubernetes.asked)
    await session.close()


async def test_a_refused_handshake_is_the_servers_refusal_with_its_words(
    pods: KubernetesPods, kubernetes: Kubernetes
) -> None:
    with pytest.raises(errors.Denied, match='pods "main" is forbidden'):
        await pods.exec(pod(), "main", ("sh",), tty=False, stdin=False)
    kubernetes.refusal = (400, "Upgrade request required", "BadRequest")
    with pytest.raises(errors.Invalid, match="answered 400"):
        await pods.port_forward(pod(), 80)


async def test_a_handshake_that_fails_because_nothing_runs_says_so(
    pods: KubernetesPods, kubernetes: Kubernetes, store: memory.MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subresource, "_REPORT_S", 0.05)
    kubernetes.refusal = (500, "container not found", "InternalError")
    with pytest.raises(errors.Unavailable):
        await pods.exec(pod(), "main", ("sh",), tty=False, stdin=False)
    await store.update_status(
        msgspec.structs.replace(await store.get(core.Pod, "main", "team"), status=core.PodStatus())
    )
    with pytest.raises(errors.Conflict) as told:
        await pods.exec(pod(), "main", ("sh",), tty=False, stdin=False)
    assert told.value.reason == "ContainerNotRunning"


async def test_a_server_that_takes_no_protocol_is_refused(pods: KubernetesPods, kubernetes: Kubernetes) -> None:
    kubernetes.protocols = ["other"]
    kubernetes.talk = says()
    with pytest.raises(errors.ProtocolError, match="took none of v5"):
        await pods.exec(pod(), "main", ("sh",), tty=False, stdin=False)


async def test_input_is_not_offered_to_a_container_whose_own_is_closed(pods: KubernetesPods) -> None:
    with pytest.raises(errors.Conflict) as told:
        await pods.attach(pod(), "main", stdin=True)
    assert told.value.reason == "StdinClosed"


async def test_a_port_carries_bytes_after_its_number_and_says_who_refused(
    pods: KubernetesPods, kubernetes: Kubernetes
) -> None:
    kubernetes.talk = says(b"\x00\x50\x00", b"\x01\x50\x00", b"\x00data")
    connection = await pods.port_forward(pod(), 80)
    assert [await connection.read(), await connection.read()] == [b"data", b""]
    assert kubernetes.asked == [("ports", "80")]
    await connection.close()
    kubernetes.talk = says(b"\x00\x50\x00", b"\x01\x50\x00", b"\x01connection refused")
    refused = await pods.port_forward(pod(), 80)
    with pytest.raises(errors.Unavailable, match="connection refused") as told:
        await refused.read()
    assert told.value.reason == "PortRefused"
    await refused.close()


async def test_an_eviction_names_the_pod_it_means_and_a_budget_denies_it(
    pods: KubernetesPods, kubernetes: Kubernetes
) -> None:
    await pods.evict(pod(), grace_s=0)
    assert kubernetes.body["kind"] == "Eviction"
    assert kubernetes.body["deleteOptions"] == {"preconditions": {"uid": "u-1"}, "gracePeriodSeconds": 1}
    words = "Cannot evict pod as it would violate the pod's disruption budget."
    kubernetes.answer = lambda: _refused(429, words, "TooManyRequests")
    with pytest.raises(errors.Denied, match="disruption budget") as told:
        await pods.evict(pod(), grace_s=None)
    assert told.value.reason == "DisruptionBudget"


async def test_a_binding_names_pod_version_and_node(pods: KubernetesPods, kubernetes: Kubernetes) -> None:
    await pods.bind(pod(), "a")
    assert kubernetes.body["metadata"] == {"name": "main", "namespace": "team", "uid": "u-1", "resourceVersion": "7"}
    assert kubernetes.body["target"]["name"] == "a"
