"""What every implementation of pods' subresources promises: over the fake engine, over podman, over an API server.

The API server is the one of a cluster with a kubelet, where `FAIRLEAD_TEST_KUBECONFIG` names it. Its node needs the
image `docker.io/local/busybox:1`; `tests/cluster/test_contracts_hold.py` runs the suite there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from fairlead import errors, settings
from fairlead.engine import port as engines
from fairlead.engine.fake import engine as fake
from fairlead.serve.backend import local
from fairlead.serve.backend.containers import enginepods
from fairlead.store.embedded import memory
from fairlead.store.embedded.placement import EmbeddedPlacement
from fairlead.store.kubernetes import credentials
from fairlead.store.kubernetes import store as kubernetes
from fairlead.store.kubernetes.subresource import KubernetesPods
from fairlead.store.port import ChangeKind, Selector, Store
from fairlead.store.subresource import LogOptions, Logs, Placement, Session, Streams
from fairlead.wire.kubernetes import core, meta, names
from tests import podmanhere
from tests.contract.test_engine_contract import needs_podman, podman_image, root_folder  # noqa: F401 fixtures

KUBECONFIG = os.environ.get("FAIRLEAD_TEST_KUBECONFIG", "")  # noqa: TID251 - chooses what the suite runs on
MEBIBYTE = 1 << 20
PORT = 7007
_PATIENCE_S = 50.0
_FLOOD = "busybox head -c 4194304 /dev/zero | busybox tr '\\0' x; echo; echo done"
_GATE = "while ! busybox test -e /tmp/go; do sleep 0.1; done"


class Node(Protocol):
    """Brings pods to life where they are tested."""

    async def start(self, pod: core.Pod) -> None:
        """Return once its container runs, or has run."""

    async def clear(self) -> None:
        """Remove everything."""


@dataclass(frozen=True, kw_only=True)
class World:
    """One implementation, and a node behind it."""

    store: Store
    placement: Placement
    logs: Logs
    streams: Streams
    node: Node
    image: str
    flood: str = _FLOOD
    """Writes more than any buffer in between takes, then "done"."""
    gate: str = _GATE
    """Waits until the gate is opened."""

    async def pod(self, script: str = "sleep 600", *, scheduler: str = "") -> core.Pod:
        container = core.Container(
            name="main",
            image=self.image,
            command=("/bin/sh", "-c"),
            args=(script,),
            image_pull_policy="Never",
        )
        spec = core.PodSpec(
            containers=(container,),
            restart_policy="Never",
            scheduler_name=scheduler,
            termination_grace_period_seconds=1,
        )
        name = f"sub-{secrets.token_hex(4)}"
        return await self.store.create(core.Pod(metadata=meta.ObjectMeta(name=name, namespace="default"), spec=spec))

    async def started(self, script: str = "sleep 600") -> core.Pod:
        made = await self.pod(script)
        async with asyncio.timeout(_PATIENCE_S):
            await self.node.start(made)
        return await self.store.get(core.Pod, made.metadata.name, "default")

    async def open_gate(self, pod: core.Pod) -> None:
        if self.gate == _GATE:
            assert await self.run(pod, "busybox", "touch", "/tmp/go") == (b"", 0)

    async def run(self, pod: core.Pod, *argv: str) -> tuple[bytes, int]:
        async with session(await self.streams.exec(pod, "main", argv, tty=False, stdin=False)) as one:
            return await drain(one), await one.wait()

    async def output(self, pod: core.Pod, options: LogOptions) -> bytes:
        async with asyncio.timeout(_PATIENCE_S):
            return b"".join([chunk async for chunk in self.logs.logs(pod, "main", options)])


@contextlib.asynccontextmanager
async def session(one: Session) -> AsyncIterator[Session]:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            yield one
    finally:
        await one.close()


async def drain(one: Session) -> bytes:
    parts = []
    while data := await one.read():
        parts.append(data)
    return b"".join(parts)


@dataclass(kw_only=True)
class EngineNode:
    """Runs a pod's container in an engine, labelled as the embedded kubelet labels it."""

    engine: engines.Engine
    made: list[str] = field(default_factory=list)

    async def start(self, pod: core.Pod) -> None:
        item = pod.spec.containers[0]
        labels = {names.POD_UID: pod.metadata.uid, names.CONTAINER_NAME: item.name, names.ATTEMPT: "0"}
        name = f"ft-{pod.metadata.name}"
        self.made.append(name)
        await self.engine.create(
            engines.ContainerSpec(name=name, image=item.image, command=item.command, args=item.args, labels=labels)
        )
        await self.engine.start(name)

    async def clear(self) -> None:
        for name in self.made:
            await self.engine.remove(name)


@dataclass(frozen=True, kw_only=True)
class ClusterNode:
    """Waits for the cluster's own kubelet."""

    store: Store

    async def start(self, pod: core.Pod) -> None:
        selector = Selector(namespace="default", fields={"metadata.name": pod.metadata.name})
        async for change in self.store.watch(core.Pod, selector):
            if change.object.status.phase in {"Running", *core.ENDED_PHASES}:
                return

    async def clear(self) -> None:
        for pod in (await self.store.list(core.Pod, Selector(namespace="default"))).items:
            if pod.metadata.name.startswith("sub-"):
                await self.store.delete(core.Pod, pod.metadata.name, "default", grace_s=0)


def over_engine(engine: local.EngineAndImages, image: str, dial: enginepods.Dial, *, flood: str, gate: str) -> World:
    store = memory.MemoryStore()
    return World(
        store=store,
        placement=EmbeddedPlacement(store),
        logs=enginepods.EngineLogs(engine=engine),
        streams=enginepods.EngineStreams(engine=engine, access=engine, dial=dial),
        node=EngineNode(engine=engine),
        image=image,
        flood=flood,
        gate=gate,
    )


@pytest.fixture(params=["fake", pytest.param("podman", marks=needs_podman), "kubernetes"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "fake":
        async with fake.FakeEngine() as engine:
            engine.add_image("localhost/bb:1", command=("/bin/sh",))
            flood = "; ".join([f"echo {'x' * 80}"] * 500 + ["echo done"])
            yield over_engine(engine, "localhost/bb:1", engine.dial, flood=flood, gate="sleep 0.5")
    elif request.param == "podman":
        real = podmanhere.engine(settings.EngineSettings(network="none"))
        image = request.getfixturevalue("podman_image")
        one = over_engine(real, image, local.dial, flood=_FLOOD, gate=_GATE)
        yield one
        await one.node.clear()
    elif not KUBECONFIG:
        pytest.skip("FAIRLEAD_TEST_KUBECONFIG names no cluster")
    else:
        async with kubernetes.KubernetesStore(credentials.from_files([Path(KUBECONFIG)], env={})) as store:
            pods = KubernetesPods(store.client, store)
            node = ClusterNode(store=store)
            yield World(
                store=store, placement=pods, logs=pods, streams=pods, node=node, image="docker.io/local/busybox:1"
            )
            await node.clear()


# exec


async def test_input_reaches_the_process_to_its_end_and_output_is_all_there(world: World) -> None:
    sent = secrets.token_bytes(10 * MEBIBYTE)
    pod = await world.started()
    async with session(await world.streams.exec(pod, "main", ("cat",), tty=False, stdin=True)) as cat:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(drain(cat))
            await cat.write(sent)
            await cat.write(b"")
        assert await cat.wait() == 0
    assert reading.result() == sent


async def test_output_and_errors_come_with_the_exit_code(world: World) -> None:
    pod = await world.started()
    output, code = await world.run(pod, "sh", "-c", "echo out; echo err >&2; exit 42")
    assert (sorted(output.split()), code) == ([b"err", b"out"], 42)


async def test_an_exit_code_is_known_without_reading_the_output(world: World) -> None:
    pod = await world.started()
    async with session(await world.streams.exec(pod, "main", ("false",), tty=False, stdin=False)) as one:
        assert await one.wait() == 1


async def test_a_terminal_has_the_size_it_was_last_told(world: World) -> None:
    pod = await world.started()
    async with session(await world.streams.exec(pod, "main", ("sh",), tty=True, stdin=True)) as shell:
        seen = b""
        await shell.resize(41, 117)
        while b"41 117" not in seen:  # the size travels beside the keys
            await shell.write(b"stty size\n")
            seen += await shell.read()
        await shell.write(b"exit 3\n")
        await drain(shell)
        assert await shell.wait() == 3


async def test_a_program_that_is_not_there_does_not_end_well(world: World) -> None:
    pod = await world.started()
    try:
        _, code = await world.run(pod, "no-such-program")
    except errors.Invalid as error:
        assert "no-such-program" in error.message  # noqa: PT017 one of two ways to say it
    else:
        assert code == 127


async def test_a_session_ends_with_its_container(world: World) -> None:
    pod = await world.started(f"{world.gate}; exit 0")
    async with session(await world.streams.exec(pod, "main", ("sleep", "600"), tty=False, stdin=False)) as one:
        await world.open_gate(pod)
        assert await drain(one) == b""
        with contextlib.suppress(errors.Unavailable, errors.Conflict):
            assert await one.wait() != 0


async def test_a_container_that_ended_takes_no_process(world: World) -> None:
    pod = await world.started("exit 0")
    assert await world.output(pod, LogOptions(follow=True)) == b""
    with pytest.raises((errors.Conflict, errors.RequestError)):
        await world.run(pod, "true")


async def test_unknown_containers_are_refused(world: World) -> None:
    pod = await world.started()
    with pytest.raises((errors.Conflict, errors.RequestError)):
        async with session(await world.streams.exec(pod, "other", ("true",), tty=False, stdin=False)) as one:
            await one.wait()


# attach


async def test_attached_output_comes_from_now_on_with_the_first_processs_exit_code(world: World) -> None:
    pod = await world.started(f"echo before; {world.gate}; echo later; exit 5")
    async with session(await world.streams.attach(pod, "main", stdin=False)) as one:
        await world.open_gate(pod)
        assert b"later" in await drain(one)
        assert await one.wait() == 5


async def test_a_first_process_without_input_takes_none(world: World) -> None:
    pod = await world.started()
    with pytest.raises(errors.Conflict) as told:
        await world.streams.attach(pod, "main", stdin=True)
    assert told.value.reason == "StdinClosed"


# logs


async def test_followed_output_ends_with_the_run_and_stays(world: World) -> None:
    pod = await world.started(f"echo one; {world.gate}; echo two")
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(world.output(pod, LogOptions(follow=True)))
        await world.open_gate(pod)
    assert following.result() == b"one\ntwo\n"
    assert await world.output(pod, LogOptions()) == b"one\ntwo\n"
    assert await world.output(pod, LogOptions(tail=1)) == b"two\n"
    stamped = await world.output(pod, LogOptions(tail=1, timestamps=True))
    assert stamped.split()[1:] == [b"two"]


async def test_a_follower_that_stops_reading_blocks_nobody(world: World) -> None:
    pod = await world.started(f"{world.flood}; sleep 600")
    idle = world.logs.logs(pod, "main", LogOptions(follow=True))
    async with contextlib.aclosing(idle):
        async with asyncio.timeout(_PATIENCE_S):
            await anext(idle)
        async with contextlib.aclosing(world.logs.logs(pod, "main", LogOptions(follow=True))) as busy:
            last = b""
            async with asyncio.timeout(_PATIENCE_S):
                async for chunk in busy:
                    last = (last + chunk)[-16:]
                    if last.endswith(b"done\n"):
                        break
        assert await world.run(pod, "true") == (b"", 0)


async def test_a_pod_that_never_started_has_no_output(world: World) -> None:
    pod = await world.pod(scheduler="nobody")
    with pytest.raises(errors.Conflict) as told:
        await world.output(pod, LogOptions())
    assert told.value.reason == "ContainerNotStarted"


# port-forward


async def test_a_port_carries_bytes_both_ways(world: World) -> None:
    sent = secrets.token_bytes(MEBIBYTE)
    pod = await world.started(f"nc -ll -p {PORT} -e cat")
    async with asyncio.timeout(_PATIENCE_S):
        while (found := await _echoed(world, pod, sent)) is None:  # noqa: ASYNC110 nobody says when it listens
            await asyncio.sleep(0.1)
    assert found == sent


async def _first_bytes(world: World, pod: core.Pod, port: int) -> bytes:
    connection = await world.streams.port_forward(pod, port)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await connection.read()
    finally:
        await connection.close()


async def _echoed(world: World, pod: core.Pod, sent: bytes) -> bytes | None:
    """Return what comes back, None while nobody listens."""
    try:
        connection = await world.streams.port_forward(pod, PORT)
    except errors.Unavailable:
        return None
    found = b""
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(connection.write(sent))
            while len(found) < len(sent) and (data := await connection.read()):
                found += data
    except* errors.Unavailable:
        found = b""
    finally:
        await connection.close()
    return found or None


async def test_a_port_where_nobody_listens_says_so(world: World) -> None:
    pod = await world.started()
    with pytest.raises(errors.Unavailable) as told:
        await _first_bytes(world, pod, 9)
    assert told.value.reason == "PortRefused"


# bind, evict


async def test_a_pod_is_bound_once(world: World) -> None:
    pod = await world.pod(scheduler="nobody")
    await world.placement.bind(pod, "somewhere")
    assert (await world.store.get(core.Pod, pod.metadata.name, "default")).spec.node_name == "somewhere"
    with pytest.raises(errors.Conflict):
        await world.placement.bind(pod, "elsewhere")


async def test_an_evicted_pod_is_deleted_and_its_namesake_is_not(world: World) -> None:
    pod = await world.started()
    other = core.Pod(metadata=meta.ObjectMeta(name=pod.metadata.name, namespace="default", uid="another"))
    for why in ("", "ended to make room"):
        with pytest.raises(errors.Conflict):
            await world.placement.evict(other, grace_s=1, why=why)
    selector = Selector(namespace="default", fields={"metadata.name": pod.metadata.name})
    await world.placement.evict(pod, grace_s=1)
    async with asyncio.timeout(_PATIENCE_S):
        found = (await world.store.list(core.Pod, selector)).items
        if found and found[0].metadata.deletion_timestamp is None:
            async for change in world.store.watch(core.Pod, selector):
                if change.kind is ChangeKind.DELETED or change.object.metadata.deletion_timestamp:
                    break


async def test_a_pod_that_is_gone_is_not_found(world: World) -> None:
    nobody = core.Pod(
        metadata=meta.ObjectMeta(name="sub-nobody", namespace="default", uid="none"),
        spec=core.PodSpec(containers=(core.Container(name="main"),)),
    )
    with pytest.raises(errors.NotFound):
        await world.placement.evict(nobody, grace_s=1)
    with pytest.raises(errors.NotFound):
        await world.placement.bind(nobody, "somewhere")
    with pytest.raises((errors.NotFound, errors.Conflict)):
        await world.run(nobody, "true")
