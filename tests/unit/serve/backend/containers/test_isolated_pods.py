"""Pods have the isolation that their tenancy demands, on one machine and on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.tenancy import baseline
from fairlead.serve.backend.containers.lifecycle import ClusterLifecycle, LocalLifecycle
from fairlead.serve.backend.place import Everywhere
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.fairlead.tenancy import READY, Tenancy, TenancySpec, TenancyStatus
from fairlead.wire.kubernetes import core, meta, workload

_UID = "0f990600-0000-0000-0000-000000000000"


async def tenancy(store: MemoryStore, isolation: str) -> str:
    ready = meta.Condition(type=READY, status="True", reason="Isolated", last_transition_time=meta.now())
    made = await store.create(Tenancy(metadata=meta.ObjectMeta(name="red"), spec=TenancySpec(isolation=isolation)))
    generation = made.metadata.generation
    status = TenancyStatus(phase=READY, observed_generation=generation, conditions=(ready,))
    made = await store.update_status(msgspec.structs.replace(made, status=status))
    return (await store.create(baseline.namespace(made, READY))).metadata.name


def pod(namespace: str, runtime_class: str = "", *, says_none: bool = False) -> core.Pod:
    machine = core.MachineOptions(has_no_sandbox=True) if says_none else None
    spec = core.PodSpec(
        containers=(core.Container(name="main", image="x"),), runtime_class_name=runtime_class, machine=machine
    )
    return core.Pod(metadata=meta.ObjectMeta(name="one", namespace=namespace), spec=spec)


async def has_gvisor(_pod: core.Pod) -> errors.FairleadError | None:
    return None


def living(store: MemoryStore, **more: Any) -> LocalLifecycle:
    return LocalLifecycle(store=store, **more)


async def test_one_machine_gives_a_pod_what_its_tenancy_demands() -> None:
    store = MemoryStore()
    home = await tenancy(store, "gvisor")
    submission = Everywhere().new(home).submission(pod(home))
    stored = await living(store, gvisor=has_gvisor).submit(submission)
    assert stored.spec.runtime_class_name == "gvisor"


@pytest.mark.parametrize(
    ("demanded", "asked", "reason"),
    [
        ("gvisor", pod("x", says_none=True), "IsolationBound"),
        ("none", pod("x", "gvisor"), "IsolationBound"),
        ("vm", pod("x"), "IsolationUnavailable"),
        ("gvisor", pod("x"), "IsolationUnavailable"),  # nothing says that this machine has it
    ],
)
async def test_one_machine_refuses_another_and_what_it_cannot_give(demanded: str, asked: core.Pod, reason: str) -> None:
    store = MemoryStore()
    home = await tenancy(store, demanded)
    there = pod(home, asked.spec.runtime_class_name, says_none=asked.spec.machine is not None)
    for act in ("submit", "judge"):
        submission = Everywhere().new(home).submission(there)
        with pytest.raises(errors.FairleadError) as caught:
            await (living(store).submit(submission) if act == "submit" else living(store).judge([submission]))
        assert caught.value.reason == reason
    assert not (await store.list(core.Pod)).items


async def test_a_tenancy_that_changes_between_the_answer_and_the_write_is_not_passed_by() -> None:
    store = MemoryStore()
    home = await tenancy(store, "")

    async def changing(_pod: core.Pod) -> errors.FairleadError | None:
        found = await store.get(Tenancy, "red")
        await store.update(Tenancy(metadata=found.metadata, spec=TenancySpec(isolation="none"), status=found.status))
        return None

    submission = Everywhere().new(home).submission(pod(home, "gvisor"))
    with pytest.raises(errors.FairleadError) as caught:
        await living(store, gvisor=changing).submit(submission)
    assert caught.value.reason in {"IsolationBound", "TenancyNotReady"}
    assert not (await store.list(core.Pod)).items


class Trial:
    """A server's dry run, which refuses a RuntimeClass that it does not have."""

    async def judge(self, asked: core.Pod) -> core.Pod:
        name = asked.spec.runtime_class_name
        if name:
            message = f'pods "one" is forbidden: pod rejected: RuntimeClass "{name}" not found'
            raise errors.Denied(message, reason="Forbidden")
        return asked


def cluster(store: MemoryStore) -> ClusterLifecycle:
    absent: Any = None
    return ClusterLifecycle(store=store, placement=absent, trial=Trial(), recreation=absent)


async def test_a_cluster_gives_a_pod_the_class_of_its_tenancys_isolation() -> None:
    store = MemoryStore()
    home = await tenancy(store, "vm")
    stored = await cluster(store).submit(Everywhere().new(home).submission(pod(home)))
    assert stored.spec.runtime_class_name == "kata-qemu-nvidia-gpu"
    assert stored.spec.machine is None


async def test_a_cluster_with_classes_by_size_gives_a_pod_the_one_that_fits() -> None:
    store = MemoryStore()
    for name in ("kata-qemu-nvidia-gpu-x8", "kata-qemu-nvidia-gpu-x1", "runc"):
        await store.create(workload.RuntimeClass(metadata=meta.ObjectMeta(name=name)))
    stored = await cluster(store).submit(Everywhere().new("default").submission(pod("default", "kata-qemu-nvidia-gpu")))
    assert stored.spec.runtime_class_name == "kata-qemu-nvidia-gpu-x1"


async def test_the_word_none_is_no_field_of_a_pod_on_a_cluster() -> None:
    store = MemoryStore()
    stored = await cluster(store).submit(Everywhere().new("default").submission(pod("default", says_none=True)))
    assert stored.spec.machine is None


@pytest.mark.parametrize(("word", "says"), [("gvisor", "runtimeClass.gvisor.create"), ("kata-qemu-nvidia-gpu", "Kata")])
async def test_a_class_that_a_cluster_lacks_is_named_with_what_makes_it(word: str, says: str) -> None:
    asked: Sequence[Any] = [Everywhere().new("default").submission(pod("default", word))]
    with pytest.raises(errors.Unavailable) as caught:
        await cluster(MemoryStore()).judge(asked)
    assert caught.value.reason == "IsolationUnavailable"
    assert f'needs the RuntimeClass "{word}"' in caught.value.message
    assert says in (caught.value.hint or "")


def test_a_class_that_is_no_isolation_is_sent_as_a_manifest_has_it() -> None:
    assert cluster(MemoryStore()).leave_out(["spec.runtimeClassName", "a: spec.runtimeClassName"]) == ()
