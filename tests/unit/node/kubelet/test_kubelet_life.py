"""The kubelet with sidecars, probes, hooks and last words, over the fake engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from fairlead.model.container.output import LogQuery
from fairlead.node.kubelet import lastword
from fairlead.wire.kubernetes import core, meta
from tests.unit.node.kubelet.test_kubelet import World

_IMAGE = "localhost/tools:1"
_FOREVER = ["sh", "-c", 'trap "exit 143" TERM; sleep 600']


def _pod(name: str, container: dict[str, Any], *inits: dict[str, Any], policy: str = "Always") -> core.Pod:
    spec = {
        "nodeName": "here",
        "restartPolicy": policy,
        "containers": [{"name": "main", "image": _IMAGE, **container}],
        "initContainers": [{"image": _IMAGE, **one} for one in inits],
    }
    return core.Pod(metadata=meta.ObjectMeta(name=name, namespace="default"), spec=msgspec.convert(spec, core.PodSpec))


def _is_ready(wanted: str) -> Callable[[core.Pod], bool]:
    def holds(pod: core.Pod) -> bool:
        found = meta.find_condition(pod.status.conditions, "Ready")
        return found is not None and found.status == wanted

    return holds


async def test_a_sidecar_lives_beside_the_container_and_ends_after_it(tmp_path: Path) -> None:
    side = {"name": "log", "restartPolicy": "Always", "command": _FOREVER}
    async with World(tmp_path) as world, world.kubelet(plugged=False):
        await world.run(_pod("p", {"command": ["sh", "-c", "sleep 0.2; exit 0"]}, side, policy="Never"))
        running = await world.until("p", lambda pod: pod.status.phase == "Running")
        assert running.status.init_container_statuses[0].state.running is not None
        ended = await world.until("p", lambda pod: pod.status.phase == "Succeeded")
    (state,) = (one.state.terminated for one in ended.status.init_container_statuses)
    assert state is not None
    assert state.exit_code == 143


async def test_readiness_follows_its_probe_and_a_dead_container_is_started_again(tmp_path: Path) -> None:
    async with World(tmp_path) as world, world.kubelet(plugged=False):
        probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
        await world.run(_pod("good", {"command": _FOREVER, "readinessProbe": probe}))
        await world.until("good", _is_ready("True"))
        probe = {"exec": {"command": ["false"]}, "failureThreshold": 1, "periodSeconds": 1}
        await world.run(_pod("bad", {"command": _FOREVER, "livenessProbe": probe}))
        pod = await world.until("bad", lambda pod: bool(pod.status.container_statuses[0:1]) and _restarted(pod))
    before = pod.status.container_statuses[0].last_state.terminated
    assert before is not None
    assert before.exit_code == 143
    events = [one for one in (await world.store.list(core.Event)).items if one.reason in {"Unhealthy", "Killing"}]
    assert {one.reason for one in events} == {"Unhealthy", "Killing"}
    assert any("Liveness probe failed: exit code 1" in one.message for one in events)


def _restarted(pod: core.Pod) -> bool:
    return pod.status.container_statuses[0].restart_count > 0


async def test_a_hook_that_fails_at_the_start_ends_the_container(tmp_path: Path) -> None:
    hook = {"postStart": {"exec": {"command": ["sh", "-c", "echo no; exit 1"]}}}
    async with World(tmp_path) as world, world.kubelet(plugged=False):
        await world.run(_pod("p", {"command": _FOREVER, "lifecycle": hook}, policy="Never"))
        await world.until("p", lambda pod: pod.status.phase == "Failed")
        events = (await world.store.list(core.Event)).items
    assert [one.message for one in events if one.reason == "FailedPostStartHook"] == [
        "container main: its postStart hook failed: exit code 1: no"
    ]


async def test_a_hook_at_the_end_runs_before_the_container_is_stopped(tmp_path: Path) -> None:
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo no; exit 1"]}}}
    async with World(tmp_path) as world, world.kubelet(plugged=False):
        await world.run(_pod("p", {"command": _FOREVER, "lifecycle": hook}))
        await world.until("p", lambda pod: pod.status.phase == "Running")
        await world.store.delete(core.Pod, "p", "default")
        await world.until_gone("p")
        events = (await world.store.list(core.Event)).items
    assert [one.message for one in events if one.reason == "FailedPreStopHook"] == [
        "container main: its preStop hook failed: exit code 1: no"
    ]


async def test_the_end_of_the_output_is_the_last_word_of_a_failure(tmp_path: Path) -> None:
    last = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "FallbackToLogsOnError"}
    async with World(tmp_path) as world, world.kubelet(plugged=False):
        await world.run(_pod("p", {"command": ["sh", "-c", "echo out of memory; exit 2"], **last}, policy="Never"))
        pod = await world.until("p", lambda pod: pod.status.phase == "Failed")
    ended = pod.status.container_statuses[0].state.terminated
    assert ended is not None
    assert ended.message == "out of memory\n"


async def test_a_container_waits_for_its_config_map_and_gets_what_is_in_it(tmp_path: Path) -> None:
    taken = [{"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "word"}}}]
    node = [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    async with World(tmp_path) as world, world.kubelet(plugged=False):
        await world.run(_pod("p", {"command": ["sh", "-c", "env"], "env": [*taken, *node]}, policy="Never"))
        await world.until("p", lambda pod: "configmap" in _waits(pod))
        await world.store.create(
            core.ConfigMap(metadata=meta.ObjectMeta(name="m", namespace="default"), data={"word": "hello"})
        )
        await world.until("p", lambda pod: pod.status.phase == "Succeeded")
        (state,) = await world.engine.list_containers({})
        lines = b"".join([data async for data in world.engine.logs(state.name, LogQuery())]).decode().splitlines()
    assert {"GREETING=hello", "NODE=here"} <= set(lines)


def _waits(pod: core.Pod) -> str:
    states = [one.state.waiting for one in pod.status.container_statuses]
    return states[0].message if states and states[0] is not None else ""


def test_the_end_of_a_long_file_is_kept_and_a_link_is_not_followed(tmp_path: Path) -> None:
    file = tmp_path / "word"
    file.write_bytes(b"x" * 10_000 + b"\0end")
    assert lastword.read_end(file) == "x" * 4092 + "end"
    (tmp_path / "link").symlink_to(file)
    assert lastword.read_end(tmp_path / "link") == ""
