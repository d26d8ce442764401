"""Ephemeral containers over the fake engine: what they join, and how they end."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.engine.port import ContainerPhase, ContainerState
from fairlead.model.container.output import LogQuery
from fairlead.node.kubelet import joining, sandbox
from fairlead.plan.pod.running import ephemeral
from fairlead.wire.kubernetes import core, meta, names
from tests.unit.node.kubelet.test_kubelet import World

_IMAGE = "localhost/tools:1"
_FOREVER = ["sh", "-c", 'trap "exit 143" TERM; sleep 600']


def _pod(*containers: dict[str, Any], **more: Any) -> core.Pod:
    items = [{"image": _IMAGE, "command": _FOREVER, **one} for one in containers]
    spec = {"nodeName": "here", "restartPolicy": "Never", "containers": items, **more}
    return core.Pod(metadata=meta.ObjectMeta(name="p", namespace="default"), spec=msgspec.convert(spec, core.PodSpec))


def _item(name: str = "look", **fields: Any) -> core.EphemeralContainer:
    return msgspec.convert({"name": name, "image": _IMAGE, "command": _FOREVER, **fields}, core.EphemeralContainer)


def _state(name: str, phase: ContainerPhase = ContainerPhase.RUNNING, *, pid: int = 1) -> ContainerState:
    labels = {names.CONTAINER_NAME: name}
    return ContainerState(engine="fake", id=name, name=f"e-{name}", phase=phase, labels=labels, image="i", pid=pid)


def test_the_namespaces_are_the_pods_and_the_processes_the_targets() -> None:
    pod = _pod({"name": "a"}, {"name": "b"})
    states = [_state("a"), _state("b"), _state("look", ContainerPhase.CREATED)]
    assert joining.find(pod, _item(), states) == joining.Joined(
        network_of="e-a", ipc_of="e-a", processes_of=None, pid=1
    )
    with_sandbox = [*states, _state(sandbox.CONTAINER, pid=7)]
    found = joining.find(pod, _item(targetContainerName="b"), with_sandbox)
    assert dataclasses.astuple(found) == (f"e-{sandbox.CONTAINER}", "e-b", "e-b", 7)


def test_what_does_not_run_yet_is_waited_for() -> None:
    with pytest.raises(errors.Unavailable, match='container "a" does not run'):
        joining.find(_pod({"name": "a"}), _item(targetContainerName="a"), [])
    with pytest.raises(errors.Unavailable, match='no container of "p" runs'):
        joining.find(_pod({"name": "a"}), _item(), [_state("look")])


@pytest.mark.parametrize(("text", "first"), [("0 300000 65536\n", 300000), ("0 0 4294967295\n", None)])
def test_users_are_read_from_the_kernel(tmp_path: Path, text: str, first: int | None) -> None:
    (tmp_path / "12").mkdir()
    (tmp_path / "12/uid_map").write_text(text)
    assert joining.first_user_id(12, tmp_path) == first
    assert joining.first_user_id(None, tmp_path) is None
    with pytest.raises(errors.Unavailable, match="has ended"):
        joining.first_user_id(13, tmp_path)


def test_it_has_the_limits_of_what_it_looks_into_and_no_devices() -> None:
    limits = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": 4}
    pod = _pod({"name": "a"}, {"name": "b", "resources": {"limits": limits}})
    _, item = joining.beside(pod, _item(targetContainerName="b"))
    assert item.resources.limits == {"cpu": "2", "memory": "1Gi"}
    assert joining.beside(pod, _item())[1].resources.limits == {}


async def test_it_joins_runs_and_ends_with_the_pod(tmp_path: Path) -> None:
    async with World(tmp_path) as world, world.kubelet(plugged=False):
        await world.run(_pod({"name": "main"}))
        running = await world.until("p", lambda pod: pod.status.phase == "Running")
        told = _item("said", command=["sh", "-c", "echo here; exit 3"])
        await world.store.update(ephemeral.added(ephemeral.added(running, told), _item(targetContainerName="main")))

        def are_there(pod: core.Pod) -> bool:
            found = {one.name: one.state for one in pod.status.ephemeral_container_statuses}
            return len(found) == 2 and found["said"].terminated is not None and found["look"].running is not None

        shown = await world.until("p", are_there)
        ended = shown.status.ephemeral_container_statuses[0].state.terminated
        assert ended is not None
        assert (ended.exit_code, shown.status.phase) == (3, "Running")
        (said,) = await world.engine.list_containers({names.CONTAINER_NAME: "said"})
        assert b"".join([data async for data in world.engine.logs(said.name, LogQuery())]) == b"here\n"
        (main,) = await world.engine.list_containers({names.CONTAINER_NAME: "main"})
        with pytest.raises(errors.Conflict, match="others join its namespaces"):
            await world.engine.remove(main.name)
        await world.store.delete(core.Pod, "p", "default", grace_s=1)
        await world.until_gone("p")
        assert await world.engine.list_containers({}) == ()
