"""Two changes of sizes at once, and one beside new pods, on the store that a machine has."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.plan.pod.running import resize
from fairlead.serve.backend.containers.lifecycle import LocalLifecycle
from fairlead.serve.backend.containers.podchanges import LocalPodChanges
from fairlead.serve.backend.place import Everywhere
from fairlead.serve.v1.containers.debug.request import ResizeRequest, amounts
from fairlead.store.sqlite.store import SQLiteStore
from fairlead.wire.kubernetes import core, meta, quantity


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "state.db") as opened:
        yield opened


def _wanted(**limits: str) -> resize.Wanted:
    return functools.partial(amounts, ResizeRequest(**limits))


def _pod(name: str, *containers: str, cpu: str = "1") -> core.Pod:
    found = core.ResourceRequirements(limits={"cpu": cpu, "memory": "1Gi"})
    made = tuple(core.Container(name=one, image="i", resources=found) for one in containers or ("main",))
    return core.Pod(metadata=meta.ObjectMeta(name=name, namespace="n"), spec=core.PodSpec(containers=made))


async def _submit(store: SQLiteStore, pod: core.Pod) -> core.Pod:
    return await LocalLifecycle(store=store).submit(Everywhere().new("n").submission(pod))


async def _limit(store: SQLiteStore, cpus: str) -> None:
    spec = core.ResourceQuotaSpec(hard={"limits.cpu": cpus})
    await store.create(core.Namespace(metadata=meta.ObjectMeta(name="n")))
    await store.create(core.ResourceQuota(metadata=meta.ObjectMeta(name="q", namespace="n"), spec=spec))


async def _cpus(store: SQLiteStore) -> Fraction:
    every = [item for pod in (await store.list(core.Pod)).items for item in pod.spec.containers]
    return sum((quantity.parse_quantity(item.resources.limits["cpu"]) for item in every), Fraction(0))


async def test_of_two_changes_neither_undoes_the_other(store: SQLiteStore) -> None:
    await _limit(store, "8")
    pod = await _submit(store, _pod("box"))
    changes = LocalPodChanges(store=store)
    await asyncio.gather(changes.resize(pod, _wanted(cpu="2")), changes.resize(pod, _wanted(memory="2Gi")))
    found = await store.get(core.Pod, "box", "n")
    assert found.spec.containers[0].resources.limits == {"cpu": "2", "memory": "2Gi"}


async def test_two_containers_of_a_pod_do_not_pass_a_quota_together(store: SQLiteStore) -> None:
    await _limit(store, "5")
    pod = await _submit(store, _pod("box", "one", "two"))
    changes = LocalPodChanges(store=store)
    each = (changes.resize(pod, _wanted(cpu="4", container=name)) for name in ("one", "two"))
    done = await asyncio.gather(*each, return_exceptions=True)
    assert sum(isinstance(one, errors.Denied) for one in done) == 1
    assert await _cpus(store) == 5


async def test_a_change_and_new_pods_do_not_pass_a_quota_together(store: SQLiteStore) -> None:
    await _limit(store, "4")
    pod = await _submit(store, _pod("box"))
    changes = LocalPodChanges(store=store)
    made = (_submit(store, _pod(f"n{at}")) for at in range(6))
    done = await asyncio.gather(*made, changes.resize(pod, _wanted(cpu="4")), return_exceptions=True)
    assert any(isinstance(one, errors.Denied) for one in done)
    assert await _cpus(store) <= 4
