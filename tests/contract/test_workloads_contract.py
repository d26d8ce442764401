"""What controllers of workloads do to objects, seen through the store alone: upstream's behaviour.

Nothing here knows which controllers run: a world gives a store, and plays the kubelet's part for the pods in it. Ours
run over the embedded store. Where `FAIRLEAD_TEST_KUBECONFIG` names a cluster, its kube-controller-manager is held to
the same tests (`tests/cluster/test_contracts_hold.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from fairlead import errors
from fairlead.control import manager
from fairlead.control.workload import cronjob, deployment, disruption, job, replicaset, statefulset
from fairlead.control.workload.owner import Owners
from fairlead.plan.workload.deployment import REVISION
from fairlead.store import retry
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.kubernetes import credentials
from fairlead.store.kubernetes.store import KubernetesStore
from fairlead.store.port import Selector, Store
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling.policy import PodDisruptionBudget
from fairlead.wire.kubernetes.workloads.apps import Deployment, ReplicaSet, StatefulSet
from fairlead.wire.kubernetes.workloads.batch import CronJob, Job

KUBECONFIG: Final = os.environ.get("FAIRLEAD_TEST_KUBECONFIG", "")  # noqa: TID251 - chooses what the suite runs on
_PATIENCE_S: Final = 30.0
"""kube-controller-manager makes a pod in place of a failed one after 10 s."""
_NODE: Final = "played"
_TEMPLATE: Final[dict[str, dict[str, Any]]] = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"nodeName": _NODE, "containers": [{"name": "main", "image": "localhost/demo"}]},
}
_HERE: Final = Selector(namespace="default")
_KINDS: Final = (
    PodDisruptionBudget,
    Deployment,
    StatefulSet,
    CronJob,
    Job,
    ReplicaSet,
    core.Pod,
    core.PersistentVolumeClaim,
)


class _Maker:
    """Stores pods as they come."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.refusal: errors.FairleadError | None = None

    async def make(self, pod: core.Pod, owner: meta.Object) -> core.Pod:
        assert owner.metadata.uid
        if self.refusal is not None:
            raise self.refusal
        return await self.store.create(pod)

    async def make_claim(self, claim: core.PersistentVolumeClaim, owner: meta.Object) -> None:
        assert owner.metadata.uid
        with contextlib.suppress(errors.Conflict):
            await self.store.create(claim)


class World:
    """A store with controllers over it; tests play the kubelet of one node."""

    store: Store

    def __init__(self) -> None:
        self.most = 0
        """The most pods that ran at once."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have the controllers run for the length of a block."""
        yield

    async def pods(self) -> list[core.Pod]:
        """Return the pods that are there, in the order of their names."""
        found = list((await self.store.list(core.Pod, _HERE)).items)
        alive = [one for one in found if one.status.phase not in core.ENDED_PHASES]
        self.most = max(self.most, len(alive))
        return found

    async def until(self, check: Callable[[list[core.Pod]], bool], what: str) -> list[core.Pod]:
        """Return the pods once they are as they should be; what is deleted goes meanwhile, as its kubelet has it."""
        for _ in range(int(_PATIENCE_S / 0.01)):
            await self.sweep()
            found = await self.pods()
            if check(found):
                return found
            await asyncio.sleep(0.01)
        raise AssertionError(f"{what}: {[(one.metadata.name, one.status.phase) for one in await self.pods()]}")

    async def sweep(self) -> None:
        """Let go of pods that are deleted."""
        for one in await self.pods():
            if one.metadata.deletion_timestamp is not None:
                with contextlib.suppress(errors.NotFound):
                    await self.store.delete(core.Pod, one.metadata.name, one.metadata.namespace, grace_s=0)

    async def play(self, name: str, phase: str = "Running", *, ready: bool = True) -> None:
        """Have a pod's kubelet report."""

        def reported(pod: core.Pod) -> core.Pod:
            state = "True" if ready and phase == "Running" else "False"
            condition = meta.Condition(type="Ready", status=state, last_transition_time=meta.now())
            return msgspec.structs.replace(pod, status=core.PodStatus(phase=phase, conditions=(condition,)))

        await retry.change_status(self.store, core.Pod, name, reported, namespace="default")

    async def play_all(self, phase: str = "Running") -> None:
        for one in await self.pods():
            if one.status.phase not in {phase, *core.ENDED_PHASES} and one.metadata.deletion_timestamp is None:
                with contextlib.suppress(errors.NotFound):
                    await self.play(one.metadata.name, phase)

    async def change(self, kind: type[Any], name: str, **fields: Any) -> None:
        def changed(item: Any) -> Any:
            return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, **fields))

        await retry.change(self.store, kind, name, changed, namespace="default")

    async def job(self, name: str = "j") -> Job:
        return await self.store.get(Job, name, "default")


class Ours(World):
    """Our controllers, over the store of one machine."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.maker = _Maker(self.store)

    def controllers(self) -> tuple[manager.Controller, ...]:
        owners = Owners(self.store, self.maker)
        return (
            replicaset.ReplicaSets(owners),
            deployment.Deployments(owners),
            statefulset.StatefulSets(owners),
            job.Jobs(owners, backoff_s=0.01),
            cronjob.CronJobs(owners),
            disruption.Disruptions(owners),
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run them for the length of a block."""
        task = asyncio.create_task(manager.run_controllers(self.store, self.controllers()))  # noqa: TID251
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


class Cluster(World):
    """A cluster's kube-controller-manager, over its API server. The node is an object that no kubelet reports for."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    async def clear(self) -> None:
        """Take away what a test has left, and wait until it is gone."""
        for _ in range(int(_PATIENCE_S / 0.1)):
            left = 0
            for kind in _KINDS:
                for item in (await self.store.list(kind, _HERE)).items:
                    left += 1
                    with contextlib.suppress(errors.NotFound):
                        await self.store.delete(kind, item.metadata.name, "default", grace_s=0)
            if not left:
                break
            await asyncio.sleep(0.1)
        with contextlib.suppress(errors.NotFound):
            await self.store.delete(core.Node, _NODE)


@pytest.fixture(params=["ours", "kubernetes"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "ours":
        yield Ours()
    elif not KUBECONFIG:
        pytest.skip("FAIRLEAD_TEST_KUBECONFIG names no cluster")
    else:
        async with KubernetesStore(credentials.from_files([Path(KUBECONFIG)], env={})) as store:
            one = Cluster(store)
            await one.clear()
            await store.create(core.Node(metadata=meta.ObjectMeta(name=_NODE)))
            yield one
            await one.clear()


@pytest.fixture
def ours() -> Ours:
    return Ours()


def _deployment(replicas: int, **spec: Any) -> Deployment:
    document = {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": _TEMPLATE, **spec},
    }
    return msgspec.convert(document, Deployment)


def _job(**spec: Any) -> Job:
    template = {
        "spec": {
            "nodeName": _NODE,
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "localhost/demo"}],
        }
    }
    document = {"metadata": {"name": "j", "namespace": "default"}, "spec": {"template": template, **spec}}
    return msgspec.convert(document, Job)


def _are(number: int) -> Callable[[list[core.Pod]], bool]:
    return lambda pods: len(pods) == number


def _are_all(number: int, image: str) -> Callable[[list[core.Pod]], bool]:
    return lambda pods: len(pods) == number and {*map(_image, pods)} == {image}


def _image(pod: core.Pod) -> str:
    return pod.spec.containers[0].image


def _with_image(image: str) -> dict[str, Any]:
    spec = {**_TEMPLATE["spec"], "containers": [{"name": "main", "image": image}]}
    document = {**_TEMPLATE, "spec": spec}
    return {"template": msgspec.convert(document, type(_deployment(1).spec.template))}


async def _until_status(world: World, kind: type[Any], name: str, check: Callable[[Any], bool]) -> Any:
    item: Any = None
    for _ in range(int(_PATIENCE_S / 0.01)):
        await world.sweep()
        item = await world.store.get(kind, name, "default")
        if check(item):
            return item
        await asyncio.sleep(0.01)
    raise AssertionError(item.status)


# Deployments


async def test_a_deployment_makes_its_pods_through_a_replica_set_and_counts_them(world: World) -> None:
    async with world.running():
        await world.store.create(_deployment(3))
        pods = await world.until(_are(3), "three pods")
        (sets,) = (await world.store.list(ReplicaSet, _HERE)).items
        assert all(one.metadata.name.startswith(f"{sets.metadata.name}-") for one in pods)
        assert {one.metadata.labels["pod-template-hash"] for one in pods} == {sets.metadata.name.rpartition("-")[2]}
        await world.play_all()
        item = await _until_status(world, Deployment, "web", lambda one: one.status.available_replicas == 3)
    found = {one.type: (one.status, one.reason) for one in item.status.conditions}
    assert found["Available"] == ("True", "MinimumReplicasAvailable")
    assert item.status.unavailable_replicas == 0


async def test_a_pod_that_goes_is_replaced_and_a_smaller_number_takes_the_least_useful(world: World) -> None:
    async with world.running():
        await world.store.create(_deployment(3))
        first = await world.until(_are(3), "three pods")
        await world.play(first[0].metadata.name)
        await world.store.delete(core.Pod, first[1].metadata.name, "default")
        names = {one.metadata.name for one in first}
        await world.until(lambda pods: len(pods) == 3 and {one.metadata.name for one in pods} != names, "a new one")
        await world.change(Deployment, "web", replicas=1)
        (left,) = await world.until(_are(1), "one pod")
    assert left.metadata.name == first[0].metadata.name


async def test_a_rolling_update_never_has_too_few_nor_too_many(world: World) -> None:
    async with world.running():
        limits = {"strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}
        await world.store.create(_deployment(3, **limits))
        await world.until(_are(3), "three pods")
        await world.play_all()
        await _until_status(world, Deployment, "web", lambda one: one.status.available_replicas == 3)
        await world.change(Deployment, "web", **_with_image("localhost/new"))
        for _ in range(2000):
            pods = [one for one in await world.pods() if one.metadata.deletion_timestamp is None]
            ready = [one for one in pods if one.status.phase == "Running"]
            assert len(pods) <= 4
            assert len(ready) >= 3
            if len(pods) == 3 and all(_image(one) == "localhost/new" for one in pods):
                break
            await world.play_all()
            await world.sweep()
            await asyncio.sleep(0.005)
        else:
            pytest.fail("the update does not end")
        await world.until(_are(3), "three pods")
        sets = (await world.store.list(ReplicaSet, _HERE)).items
    assert sorted(one.spec.replicas or 0 for one in sets) == [0, 3]


async def test_an_update_that_never_gets_ready_keeps_the_old_pods(world: World) -> None:
    async with world.running():
        await world.store.create(_deployment(2, progressDeadlineSeconds=1))
        await world.until(_are(2), "two pods")
        await world.play_all()
        await _until_status(world, Deployment, "web", lambda one: one.status.available_replicas == 2)
        await world.change(Deployment, "web", **_with_image("localhost/bad"))
        await world.until(lambda pods: any(_image(one) == "localhost/bad" for one in pods), "a new pod")
        item = await _until_status(
            world,
            Deployment,
            "web",
            lambda one: any(found.reason == "ProgressDeadlineExceeded" for found in one.status.conditions),
        )
        old = [one for one in await world.pods() if _image(one) == "localhost/demo"]
    assert len(old) == 2
    assert item.status.available_replicas == 2


async def test_recreate_ends_every_old_pod_before_a_new_one_is_made(world: World) -> None:
    async with world.running():
        await world.store.create(_deployment(2, strategy={"type": "Recreate"}))
        await world.until(_are(2), "two pods")
        await world.play_all()
        await world.change(Deployment, "web", **_with_image("localhost/new"))
        for _ in range(2000):
            images = {_image(one) for one in await world.pods()}
            assert len(images) <= 1
            if images == {"localhost/new"}:
                break
            await world.sweep()
            await asyncio.sleep(0.005)
        await world.until(lambda pods: len(pods) == 2 and {_image(one) for one in pods} == {"localhost/new"}, "new")


async def test_a_template_that_comes_back_has_its_old_replica_set_with_the_last_number(world: World) -> None:
    async with world.running():
        await world.store.create(_deployment(2, strategy={"type": "Recreate"}))
        for image in ("localhost/demo", "localhost/new", "localhost/demo"):
            await world.change(Deployment, "web", **_with_image(image))
            await world.until(_are_all(2, image), image)
            await world.play_all()
            await _until_status(world, Deployment, "web", lambda one: one.status.available_replicas == 2)
        sets = (await world.store.list(ReplicaSet, _HERE)).items
    numbers = {one.spec.replicas: one.metadata.annotations[REVISION] for one in sets}
    assert numbers == {2: "3", 0: "2"}


async def test_a_paused_deployment_is_scaled_and_takes_no_other_template(world: World) -> None:
    async with world.running():
        await world.store.create(_deployment(1, progressDeadlineSeconds=1))
        await world.until(_are(1), "a pod")
        await world.play_all()
        await _until_status(world, Deployment, "web", _progress("NewReplicaSetAvailable"))
        await world.change(Deployment, "web", paused=True, **_with_image("localhost/new"))
        await _until_status(world, Deployment, "web", _progress("DeploymentPaused"))
        await world.change(Deployment, "web", replicas=2)
        pods = await world.until(_are(2), "another pod of the old template")
        await asyncio.sleep(1.5)
        item = await world.store.get(Deployment, "web", "default")
        assert _progress("DeploymentPaused")(item), "a paused one has no deadline"
        assert {_image(one) for one in pods} == {"localhost/demo"}
        await world.play_all()
        await world.change(Deployment, "web", paused=False, progress_deadline_seconds=60)
        for _ in range(2000):
            pods = [one for one in await world.pods() if one.metadata.deletion_timestamp is None]
            if len(pods) == 2 and {_image(one) for one in pods} == {"localhost/new"}:
                break
            await world.play_all()
            await world.sweep()
            await asyncio.sleep(0.005)
        await world.play_all()
        await _until_status(world, Deployment, "web", _progress("NewReplicaSetAvailable"))


def _progress(reason: str) -> Callable[[Deployment], bool]:
    return lambda item: any((one.type, one.reason) == ("Progressing", reason) for one in item.status.conditions)


async def test_what_a_deployment_made_goes_with_it(world: World) -> None:
    async with world.running():
        await world.store.create(_deployment(2))
        await world.until(_are(2), "two pods")
        await world.store.delete(Deployment, "web", "default")
        await world.until(_are(0), "no pod")
        assert (await world.store.list(ReplicaSet, _HERE)).items == ()


async def test_a_pod_that_is_refused_is_an_event_of_its_replica_set_and_is_tried_again(ours: Ours) -> None:
    ours.maker.refusal = errors.Denied("beyond the quota", reason="Forbidden")
    async with ours.running():
        await ours.store.create(_deployment(1))
        for _ in range(500):
            events = [one for one in (await ours.store.list(core.Event)).items if one.reason == "FailedCreate"]
            if events:
                break
            await asyncio.sleep(0.01)
        assert [one.involved_object.kind for one in events] == ["ReplicaSet"]
        ours.maker.refusal = None
        await ours.until(_are(1), "a pod")


# PodDisruptionBudgets


@pytest.mark.parametrize(
    ("spec", "numbers"),
    [
        ({"minAvailable": 2}, (3, 3, 2, 1)),
        ({"minAvailable": "50%"}, (3, 3, 2, 1)),
        ({"maxUnavailable": 2}, (3, 3, 1, 2)),
        ({"maxUnavailable": "10%"}, (3, 3, 2, 1)),
        ({"minAvailable": 4}, (3, 3, 4, 0)),
    ],
)
async def test_a_disruption_budget_counts_the_pods_that_may_go(
    world: World, spec: dict[str, Any], numbers: tuple[int, ...]
) -> None:
    def counted(item: PodDisruptionBudget) -> tuple[int, ...]:
        found = item.status
        return found.expected_pods, found.current_healthy, found.desired_healthy, found.disruptions_allowed

    document = {
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec},
    }
    async with world.running():
        await world.store.create(msgspec.convert(document, PodDisruptionBudget))
        await world.store.create(_deployment(3))
        await world.until(_are(3), "three pods")
        await world.play_all()
        item = await _until_status(world, PodDisruptionBudget, "b", lambda one: counted(one) == numbers)
        (condition,) = item.status.conditions
        state = ("True", "SufficientPods") if numbers[-1] else ("False", "InsufficientPods")
        assert (condition.type, condition.status, condition.reason) == ("DisruptionAllowed", *state)
        (first, *_) = await world.pods()
        await world.play(first.metadata.name, ready=False)
        less = (numbers[0], numbers[1] - 1, numbers[2], max(0, numbers[3] - 1))
        await _until_status(world, PodDisruptionBudget, "b", lambda one: counted(one) == less)


async def test_a_budget_by_share_over_pods_that_nothing_scales_allows_none(world: World) -> None:
    document = {
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1},
    }
    about = meta.ObjectMeta(name="alone", namespace="default", labels={"app": "web"})
    spec = msgspec.convert(_TEMPLATE["spec"], core.PodSpec)
    async with world.running():
        await world.store.create(core.Pod(metadata=about, spec=spec))
        await world.play("alone")
        await world.store.create(msgspec.convert(document, PodDisruptionBudget))
        item = await _until_status(world, PodDisruptionBudget, "b", lambda one: bool(one.status.conditions))
    assert item.status.disruptions_allowed == 0
    assert item.status.conditions[0].status == "False"


# StatefulSets


def _stateful(replicas: int, **spec: Any) -> StatefulSet:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"metadata": {"name": "data"}, "spec": wanted}
    document = {
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": _TEMPLATE,
            "volumeClaimTemplates": [claim],
            **spec,
        },
    }
    return msgspec.convert(document, StatefulSet)


def _names(*names: str) -> Callable[[list[core.Pod]], bool]:
    return lambda pods: [one.metadata.name for one in pods] == list(names)


def _is_new(number: int) -> Callable[[list[core.Pod]], bool]:
    return lambda pods: len(pods) == 3 and _image(pods[number]) == "localhost/new"


def _are_alive(number: int) -> Callable[[list[core.Pod]], bool]:
    return lambda pods: sum(one.status.phase not in core.ENDED_PHASES for one in pods) == number


async def test_a_stateful_set_makes_its_pods_in_order_each_with_its_volume(world: World) -> None:
    async with world.running():
        await world.store.create(_stateful(2))
        (first,) = await world.until(_names("db-0"), "the first alone")
        await asyncio.sleep(0.1)
        assert len(await world.pods()) == 1
        await world.play("db-0")
        await world.until(_names("db-0", "db-1"), "the second")
        claims = [one.metadata.name for one in (await world.store.list(core.PersistentVolumeClaim, _HERE)).items]
        await world.play("db-1")
        await world.change(StatefulSet, "db", replicas=1)
        await world.until(_names("db-0"), "the last one goes first")
        kept = [one.metadata.name for one in (await world.store.list(core.PersistentVolumeClaim, _HERE)).items]
    assert claims == kept == ["data-db-0", "data-db-1"]
    assert first.spec.volumes[0].persistent_volume_claim == core.ClaimVolume(claim_name="data-db-0")
    assert first.spec.hostname == "db-0"
    assert first.metadata.labels["statefulset.kubernetes.io/pod-name"] == "db-0"


async def test_a_stateful_set_replaces_its_pods_from_the_last_down_to_the_partition(world: World) -> None:
    async with world.running():
        await world.store.create(_stateful(3, updateStrategy={"rollingUpdate": {"partition": 1}}))
        for number in range(3):
            await world.until(_names(*(f"db-{one}" for one in range(number + 1))), "the next")
            await world.play(f"db-{number}")
        await world.change(StatefulSet, "db", **_with_image("localhost/new"))
        for number in (2, 1):
            await world.until(_is_new(number), f"db-{number} is new")
            await world.play(f"db-{number}")
        await asyncio.sleep(0.1)
        images = [_image(one) for one in await world.pods()]
    assert images == ["localhost/demo", "localhost/new", "localhost/new"]


# Jobs


def _is(kind: str) -> Callable[[Job], bool]:
    return lambda item: any(one.type == kind and one.status == "True" for one in item.status.conditions)


async def test_a_job_runs_as_many_pods_as_it_may_until_enough_have_succeeded(world: World) -> None:
    async with world.running():
        await world.store.create(_job(parallelism=2, completions=5))
        for done in range(5):
            pods = await world.until(_are_alive(min(2, 5 - done)), "as many as may run")
            alive = [one for one in pods if one.status.phase not in core.ENDED_PHASES]
            await world.play(alive[0].metadata.name, "Succeeded")
        item = await _until_status(world, Job, "j", _is("Complete"))
        pods = await world.pods()
    assert (item.status.succeeded, item.status.failed, item.status.active) == (5, 0, 0)
    assert item.status.completion_time
    assert len(pods) == 5
    assert all(one.metadata.finalizers == () for one in pods)
    assert world.most <= 5


async def test_an_indexed_job_has_a_pod_for_each_number_and_starts_a_failed_one_again(world: World) -> None:
    async with world.running():
        await world.store.create(_job(parallelism=3, completions=3, completionMode="Indexed"))
        pods = await world.until(_are(3), "three pods")
        by_index = {one.metadata.annotations["batch.kubernetes.io/job-completion-index"]: one for one in pods}
        assert sorted(by_index) == ["0", "1", "2"]
        assert {one.spec.hostname for one in pods} == {"j-0", "j-1", "j-2"}
        (variable,) = by_index["1"].spec.containers[0].env
        assert variable.name == "JOB_COMPLETION_INDEX"
        assert variable.value_from is not None
        assert variable.value_from.field_ref is not None
        label = "batch.kubernetes.io/job-completion-index"
        assert variable.value_from.field_ref.field_path == f"metadata.labels['{label}']"
        assert by_index["1"].metadata.labels[label] == "1"
        await world.play(by_index["0"].metadata.name, "Succeeded")
        await world.play(by_index["1"].metadata.name, "Failed")
        await world.play(by_index["2"].metadata.name, "Succeeded")
        again = await world.until(_are(4), "index 1 again")
        (new,) = (one for one in again if one.metadata.name not in {pod.metadata.name for pod in pods})
        assert new.metadata.annotations["batch.kubernetes.io/job-completion-index"] == "1"
        await world.play(new.metadata.name, "Succeeded")
        item = await _until_status(world, Job, "j", _is("Complete"))
    assert (item.status.completed_indexes, item.status.succeeded, item.status.failed) == ("0-2", 3, 1)


async def test_a_job_gives_up_after_as_many_failures_as_it_bears(world: World) -> None:
    async with world.running():
        await world.store.create(_job(backoffLimit=1))
        for number in (1, 2):
            pods = await world.until(_are(number), "a pod")
            (alive,) = (one for one in pods if one.status.phase not in core.ENDED_PHASES)
            await world.play(alive.metadata.name, "Failed")
        item = await _until_status(world, Job, "j", _is("Failed"))
    (reason,) = (one.reason for one in item.status.conditions if one.type == "Failed")
    assert (reason, item.status.failed) == ("BackoffLimitExceeded", 2)


async def test_a_suspended_job_has_no_pods_and_goes_on_where_it_was(world: World) -> None:
    async with world.running():
        await world.store.create(_job(completions=2, suspend=True))
        await _until_status(world, Job, "j", _is("Suspended"))
        assert await world.pods() == []
        await world.change(Job, "j", suspend=False)
        (first,) = await world.until(_are(1), "a pod")
        await world.play(first.metadata.name, "Succeeded")
        await world.until(_are(2), "the second")
        await world.change(Job, "j", suspend=True)
        await world.until(_are(1), "the second goes")
        await world.change(Job, "j", suspend=False)
        pods = await world.until(_are(2), "another second")
        (alive,) = (one for one in pods if one.status.phase not in core.ENDED_PHASES)
        await world.play(alive.metadata.name, "Succeeded")
        item = await _until_status(world, Job, "j", _is("Complete"))
    assert (item.status.succeeded, item.status.failed) == (2, 0)


async def test_a_job_goes_so_long_after_its_end_as_it_says(world: World) -> None:
    async with world.running():
        await world.store.create(_job(ttlSecondsAfterFinished=0))
        (pod,) = await world.until(_are(1), "a pod")
        await world.play(pod.metadata.name, "Succeeded")
        await world.until(_are(0), "its pod is gone")
        for _ in range(int(_PATIENCE_S / 0.01)):
            if not (left := (await world.store.list(Job, _HERE)).items):
                break
            await asyncio.sleep(0.01)
        assert left == ()


async def test_a_job_that_is_deleted_takes_its_pods_with_it_and_none_is_held_by_its_finalizer(world: World) -> None:
    async with world.running():
        await world.store.create(_job(parallelism=2, completions=2))
        await world.until(_are(2), "two pods")
        await world.store.delete(Job, "j", "default")
        await world.until(_are(0), "no pod")


async def test_a_job_that_takes_too_long_is_ended(world: World) -> None:
    async with world.running():
        await world.store.create(_job(activeDeadlineSeconds=1))
        await world.until(_are(1), "a pod")
        item = await _until_status(world, Job, "j", _is("Failed"))
        await world.until(_are(0), "its pod is ended")
    (reason,) = (one.reason for one in item.status.conditions if one.type == "Failed")
    assert reason == "DeadlineExceeded"


class _Killed(Exception):
    """The controllers' process ends."""


async def test_controllers_that_end_anywhere_never_lose_a_completion_nor_run_too_many(
    ours: Ours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill at each crash point in turn, again and again, while pods end; then let it run out."""
    counter = itertools.count()

    def die(_name: str) -> None:
        if next(counter) % 3 == 2:
            raise _Killed

    monkeypatch.setattr("fairlead.telemetry.crash_point", die)
    await ours.store.create(_job(parallelism=3, completions=9))
    seen: Mapping[str, str] = {}
    for _ in range(400):
        task = asyncio.create_task(manager.run_controllers(ours.store, ours.controllers()))  # noqa: TID251
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        alive = [one for one in await ours.pods() if one.status.phase not in core.ENDED_PHASES]
        assert len(alive) <= 3
        for one in alive[:2]:
            seen = {**seen, one.metadata.uid: one.metadata.name}
            await ours.play(one.metadata.name, "Succeeded")
        if _is("Complete")(await ours.job()):
            break
    item = await ours.job()
    succeeded = [one for one in await ours.pods() if one.status.phase == "Succeeded"]
    assert _is("Complete")(item), item.status
    assert item.status.succeeded == 9 == len(succeeded)


async def test_the_selector_of_a_list_is_the_namespace_of_the_owner(world: World) -> None:
    async with world.running():
        await world.store.create(_deployment(1))
        await world.until(_are(1), "a pod")
        other = (await world.store.list(core.Pod, Selector(namespace="other"))).items
    assert other == ()
