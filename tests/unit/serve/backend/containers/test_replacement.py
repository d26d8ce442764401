"""A pod replaced by another one of its name: a service that ends at any step leaves the rest to the next one."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from fairlead import errors, telemetry
from fairlead.serve.backend.containers.lifecycle import LocalLifecycle
from fairlead.serve.backend.place import Everywhere, Submission
from fairlead.serve.v1.containers import restart
from fairlead.store.port import Selector
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.devicechange import PodReplacement
from tests.unit.serve.world import World

STEPS = (
    "replacement.after-store",
    "replacement.after-mark",
    "replacement.after-delete",
    "replacement.before-submit",
    "replacement.after-submit",
)


class _Killed(BaseException):
    """Ends a service's request as SIGKILL does: nothing of it is cleaned up in the store."""


def _wanted(name: str = "train") -> core.Pod:
    item = core.Container(name="main", image="demo", args=("sh", "-c", "sleep 60"))
    about = meta.ObjectMeta(name=name, namespace="default", labels={"of": "mine"})
    return core.Pod(metadata=about, spec=core.PodSpec(containers=(item,)))


async def _running(world: World, living: LocalLifecycle) -> core.Pod:
    return await living.submit(Everywhere().new("default").submission(_wanted()))


def _again(old: core.Pod) -> Submission:
    return Everywhere().again(old).submission(restart.like(old))


async def _left(world: World) -> int:
    return len((await world.store.list(PodReplacement)).items)


@pytest.mark.parametrize("step", STEPS)
async def test_a_service_killed_at_any_step_leaves_the_restart_to_the_next_one(
    world: World, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = LocalLifecycle(store=world.store)
    old = await _running(world, first)

    def kill(name: str) -> None:
        if name == step:
            raise _Killed

    with monkeypatch.context() as armed:
        armed.setattr(telemetry, "crash_point", kill)
        with pytest.raises(_Killed):
            await first.replace(old, _again(old), grace_s=0)

    await LocalLifecycle(store=world.store).replacements.carry_on()
    new = await world.pod("train")
    assert new.metadata.uid != old.metadata.uid
    assert new.metadata.labels == {"of": "mine"}
    assert await _left(world) == 0
    assert len((await world.store.list(core.Pod, Selector(namespace="default"))).items) == 1


async def test_what_is_carried_on_twice_is_done_once(world: World) -> None:
    living = LocalLifecycle(store=world.store)
    old = await _running(world, living)
    new = await living.replace(old, _again(old), grace_s=0)
    await living.replacements.carry_on()
    assert (await world.pod("train")).metadata.uid == new.metadata.uid


async def test_a_container_removed_while_it_is_restarted_stays_away(world: World) -> None:
    living = LocalLifecycle(store=world.store)
    world.may_start.clear()  # its end takes its time
    old = await _running(world, living)
    async with asyncio.TaskGroup() as group:
        replacing = group.create_task(_refused(living, old))
        await anext(world.store.watch(PodReplacement))
        await living.remove("train", "default", grace_s=0)
        error = await replacing
    assert error.message == 'container "train" was removed while it was restarted'
    with pytest.raises(errors.NotFound):
        await world.pod("train")


async def _refused(living: LocalLifecycle, old: core.Pod) -> errors.FairleadError:
    with pytest.raises(errors.Conflict) as refused:
        await living.replace(old, _again(old), grace_s=0)
    return refused.value


async def test_one_restart_of_a_container_at_a_time(world: World) -> None:
    living = LocalLifecycle(store=world.store)
    old = await _running(world, living)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(living.replace(old, _again(old), grace_s=0))
        await anext(world.store.watch(PodReplacement))
        assert (await _refused(living, old)).reason == "RestartPending"
        new = await first
    assert (await world.pod("train")).metadata.uid == new.metadata.uid


async def test_a_restart_that_is_refused_when_carried_on_is_recorded_and_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = LocalLifecycle(store=world.store)
    old = await _running(world, first)

    def kill(name: str) -> None:
        if name == "replacement.before-submit":
            raise _Killed

    with monkeypatch.context() as armed:
        armed.setattr(telemetry, "crash_point", kill)
        with pytest.raises(_Killed):
            await first.replace(old, _again(old), grace_s=0)
    [left] = (await world.store.list(PodReplacement)).items
    broken = msgspec.structs.replace(left.spec.pod, spec=msgspec.structs.replace(left.spec.pod.spec, containers=()))
    await world.store.update(msgspec.structs.replace(left, spec=msgspec.structs.replace(left.spec, pod=broken)))

    await LocalLifecycle(store=world.store).replacements.carry_on()
    assert await _left(world) == 0
    events = (await world.store.list(core.Event, Selector(namespace="default"))).items
    [said] = [one for one in events if one.reason == "RestartFailed"]
    assert said.message.startswith("was stopped for a restart and not started again: ")
    assert said.involved_object.uid == old.metadata.uid
