"""What every store promises: memory, SQLite and, where `FAIRLEAD_TEST_KUBECONFIG` names a cluster, its API server.

So that all of them can be asked the same: names are unique per test, resource versions are compared for equality only,
pods have containers with images, live in a namespace that exists and name a scheduler that nobody is, and only fields
that an API server lets change are changed. The cluster needs a controller manager (it collects garbage and ends
namespaces) and no kubelet.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar, TypeVar

import msgspec
import pytest

from fairlead import errors
from fairlead.store import lease, port
from fairlead.store.embedded import memory
from fairlead.store.fence import Fence
from fairlead.store.kubernetes import credentials
from fairlead.store.kubernetes import store as kubernetes
from fairlead.store.port import ChangeKind, Selector
from fairlead.store.sqlite import store as sqlite
from fairlead.wire.kubernetes import coordination, core, meta, names

T = TypeVar("T", bound=meta.Object)

KUBECONFIG = os.environ.get("FAIRLEAD_TEST_KUBECONFIG", "")  # noqa: TID251 - chooses what the suite runs on
_made: set[str] = set()
"""Unique names given out: what a test leaves on a cluster that lives on."""


class ServiceAccount(meta.Wire, frozen=True):
    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "ServiceAccount"
    PLURAL: ClassVar[str] = "serviceaccounts"
    NAMESPACED: ClassVar[bool] = True

    metadata: meta.ObjectMeta = meta.ObjectMeta()


@pytest.fixture(params=["memory", "sqlite", "kubernetes"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[port.Fencible]:
    if request.param == "memory":
        yield memory.MemoryStore()
    elif request.param == "sqlite":
        with sqlite.SQLiteStore(tmp_path / "state.db") as opened:
            yield opened
    elif not KUBECONFIG:
        pytest.skip("FAIRLEAD_TEST_KUBECONFIG names no cluster")
    else:
        async with kubernetes.KubernetesStore(credentials.from_files([Path(KUBECONFIG)], env={})) as cluster:
            yield cluster
            await tidy(cluster)


async def tidy(store: port.Store) -> None:
    """Take away what the test left: nobody else would."""
    for kind in (core.Node, core.Namespace):
        for item in (await store.list(kind)).items:
            if item.metadata.name in _made:
                with contextlib.suppress(errors.NotFound, errors.Conflict):
                    await store.delete(kind, item.metadata.name)


@pytest.fixture
async def team(store: port.Store) -> str:
    """A namespace of the test's own."""
    return await new_team(store)


async def new_team(store: port.Store) -> str:
    """Return a namespace that takes pods: on a cluster, one whose service account is there."""
    name = (await store.create(core.Namespace(metadata=meta.ObjectMeta(name=unique("team"))))).metadata.name
    if isinstance(store, kubernetes.KubernetesStore):
        await changes(store.watch(ServiceAccount, Selector(namespace=name, fields={"metadata.name": "default"})), 1)
    return name


def unique(prefix: str) -> str:
    name = f"{prefix}-{uuid.uuid4().hex[:8]}"
    _made.add(name)
    return name


def pod(namespace: str, name: str = "", **about: object) -> core.Pod:
    """A pod an API server would take."""
    metadata = msgspec.convert({"name": name or unique("pod"), "namespace": namespace, **about}, meta.ObjectMeta)
    container = core.Container(name="main", image="registry.invalid/cuda:1")
    return core.Pod(metadata=metadata, spec=core.PodSpec(containers=(container,), scheduler_name="nobody"))


def node(name: str, **labels: str) -> core.Node:
    return core.Node(metadata=meta.ObjectMeta(name=name, labels=labels))


def bound(item: core.Pod, host: str, *, grace_s: int = 30) -> core.Pod:
    spec = msgspec.structs.replace(item.spec, node_name=host, termination_grace_period_seconds=grace_s)
    return msgspec.structs.replace(item, spec=spec)


def relabelled(item: core.Pod, **labels: str) -> core.Pod:
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, labels=labels))


def with_image(item: core.Pod, image: str) -> core.Pod:
    container = msgspec.structs.replace(item.spec.containers[0], image=image)
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, containers=(container,)))


def with_phase(item: core.Pod, phase: str) -> core.Pod:
    return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, phase=phase))


def held(item: core.Pod, *finalizers: str) -> core.Pod:
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, finalizers=finalizers))


def owned_by(item: core.Pod, *owners: meta.Object) -> core.Pod:
    references = tuple(
        meta.OwnerReference(
            api_version=owner.API_VERSION, kind=owner.KIND, name=owner.metadata.name, uid=owner.metadata.uid
        )
        for owner in owners
    )
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, owner_references=references))


async def changes(stream: AsyncIterator[port.Change[T]], count: int) -> list[tuple[ChangeKind, T]]:
    """Return the next `count` changes and end the watch.

    What an API server writes down before it removes a pod, a mark of no grace at all, is left out.
    """
    found: list[tuple[ChangeKind, T]] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            change = await anext(stream)
            about = change.object.metadata
            is_last_mark = about.deletion_timestamp and not about.deletion_grace_period_seconds and not about.finalizers
            if change.kind is not ChangeKind.MODIFIED or not is_last_mark:
                found.append((change.kind, change.object))
    await stream.aclose()  # type: ignore[attr-defined]  # every watch is an async generator
    return found


async def is_gone(store: port.Store, item: meta.Object) -> None:
    """Return when the object is gone: a cluster collects garbage in its own time."""
    selector = Selector(namespace=item.metadata.namespace or None, fields={"metadata.name": item.metadata.name})
    listing = await store.list(type(item), selector)
    if not listing.items:
        return
    async with asyncio.timeout(20):
        async for change in store.watch(type(item), selector, since=listing.resource_version):
            if change.kind is ChangeKind.DELETED:
                return


# create, get, list


async def test_create_fills_what_the_store_owns(store: port.Store, team: str) -> None:
    made = await store.create(pod(team))
    assert made.metadata.uid
    assert made.metadata.resource_version
    assert made.metadata.generation == 1
    assert meta.timestamp(made.metadata.creation_timestamp) is not None


async def test_created_object_is_read_back_equal(store: port.Store, team: str) -> None:
    made = await store.create(pod(team, labels={"app": "train"}, annotations={"note": "x y"}))
    assert await store.get(core.Pod, made.metadata.name, team) == made


async def test_a_new_pod_is_pending_whatever_status_it_brings(store: port.Store, team: str) -> None:
    made = await store.create(with_phase(pod(team), "Running"))
    assert made.status.phase == "Pending"


async def test_a_node_registers_with_its_status(store: port.Store) -> None:
    machine = core.Node(metadata=meta.ObjectMeta(name=unique("node")), status=core.NodeStatus(capacity={"cpu": "8"}))
    assert (await store.create(machine)).status.capacity == {"cpu": "8"}


async def test_create_refuses_a_taken_name(store: port.Store, team: str) -> None:
    made = await store.create(pod(team))
    with pytest.raises(errors.Conflict) as refused:
        await store.create(pod(team, made.metadata.name))
    assert refused.value.reason == "AlreadyExists"
    assert await store.get(core.Pod, made.metadata.name, team) == made


async def test_generated_names_differ_and_keep_their_prefix(store: port.Store, team: str) -> None:
    container = core.Container(name="main", image="registry.invalid/cuda:1")
    unnamed = core.Pod(
        metadata=meta.ObjectMeta(generate_name="train-", namespace=team),
        spec=core.PodSpec(containers=(container,), scheduler_name="nobody"),
    )
    names = {(await store.create(unnamed)).metadata.name for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("train-") and len(name) > 6 for name in names)


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "a" * 254, "dot..dot"])
async def test_create_refuses_names_that_are_no_dns_names(store: port.Store, team: str, name: str) -> None:
    with pytest.raises(errors.Invalid, match=r"metadata\.name"):
        await store.create(pod(team, name))


@pytest.mark.parametrize("labels", [{"a b": "x"}, {"app": "not ok"}, {"app": "v" * 64}, {"/app": "x"}])
async def test_create_refuses_labels_that_break_the_rules(store: port.Store, team: str, labels: dict[str, str]) -> None:
    with pytest.raises(errors.Invalid, match=r"metadata\.labels"):
        await store.create(pod(team, labels=labels))


async def test_absent_objects_are_not_found(store: port.Store, team: str) -> None:
    with pytest.raises(errors.NotFound):
        await store.get(core.Pod, "absent", team)
    with pytest.raises(errors.NotFound):
        await store.update(pod(team, "absent"))
    with pytest.raises(errors.NotFound):
        await store.update_status(pod(team, "absent"))
    with pytest.raises(errors.NotFound):
        await store.delete(core.Pod, "absent", team)


async def test_one_name_may_live_in_two_namespaces(store: port.Store, team: str) -> None:
    other = await new_team(store)
    first, second = await store.create(pod(team, "same")), await store.create(pod(other, "same"))
    assert await store.get(core.Pod, "same", team) == first
    assert await store.get(core.Pod, "same", other) == second


async def test_list_is_ordered_by_namespace_and_name(store: port.Store, team: str) -> None:
    for name in ("c", "a", "b"):
        await store.create(pod(team, name))
    listing = await store.list(core.Pod, Selector(namespace=team))
    assert [item.metadata.name for item in listing.items] == ["a", "b", "c"]
    everywhere = [(item.metadata.namespace, item.metadata.name) for item in (await store.list(core.Pod)).items]
    assert everywhere == sorted(everywhere)
    assert (team, "a") in everywhere


async def test_list_selects_by_every_label(store: port.Store, team: str) -> None:
    await store.create(pod(team, "both", labels={"app": "x", "tier": "gpu"}))
    await store.create(pod(team, "one", labels={"app": "x"}))
    listing = await store.list(core.Pod, Selector(namespace=team, labels={"app": "x", "tier": "gpu"}))
    assert [item.metadata.name for item in listing.items] == ["both"]


async def test_list_selects_by_fields(store: port.Store, team: str) -> None:
    host = unique("node")
    await store.create(bound(pod(team, "here"), host))
    await store.create(pod(team, "pending"))
    by_node = await store.list(core.Pod, Selector(fields={"spec.nodeName": host}))
    by_name = await store.list(core.Pod, Selector(namespace=team, fields={"metadata.name": "pending"}))
    unbound = await store.list(core.Pod, Selector(namespace=team, fields={"spec.nodeName": ""}))
    by_default = await store.list(core.Pod, Selector(namespace=team, fields={"spec.restartPolicy": "Always"}))
    assert [item.metadata.name for item in by_node.items] == ["here"]
    assert [item.metadata.name for item in by_name.items] == ["pending"]
    assert [item.metadata.name for item in unbound.items] == ["pending"]
    assert len(by_default.items) == 2


async def test_events_are_found_by_the_object_they_are_about(store: port.Store, team: str) -> None:
    about = core.ObjectReference(api_version="v1", kind="Pod", name="p", namespace=team, uid=str(uuid.uuid4()))
    for name, reference in (("mine", about), ("other", msgspec.structs.replace(about, uid=str(uuid.uuid4())))):
        await store.create(
            core.Event(metadata=meta.ObjectMeta(name=name, namespace=team), involved_object=reference, reason="Tested")
        )
    listing = await store.list(core.Event, Selector(namespace=team, fields={"involvedObject.uid": about.uid}))
    assert [event.metadata.name for event in listing.items] == ["mine"]


async def test_events_are_listed_and_watched_by_the_name_they_are_about(store: port.Store, team: str) -> None:
    async def add(name: str, about: str) -> None:
        reference = core.ObjectReference(api_version="v1", kind="Pod", name=about, namespace=team)
        about_it = meta.ObjectMeta(name=name, namespace=team)
        await store.create(core.Event(metadata=about_it, involved_object=reference, reason="Tested"))

    for name, about in (("first", "p"), ("second", "p2")):
        await add(name, about)
    wanted = Selector(namespace=team, fields={"involvedObject.name": "p"})
    listing = await store.list(core.Event, wanted)
    for name, about in (("third", "p2"), ("fourth", "p")):
        await add(name, about)
    seen = await changes(store.watch(core.Event, wanted, since=listing.resource_version), 1)
    assert [event.metadata.name for event in listing.items] == ["first"]
    assert [(kind, event.metadata.name) for kind, event in seen] == [(ChangeKind.ADDED, "fourth")]
    odd = Selector(namespace=team, fields={"involvedObject.name": "p,involvedObject.name!=x\\"})
    assert not (await store.list(core.Event, odd)).items


# update, status, generation


async def test_update_refuses_a_stale_version(store: port.Store, team: str) -> None:
    made = await store.create(pod(team))
    await store.update(relabelled(made, by="first"))
    with pytest.raises(errors.Conflict) as refused:
        await store.update(relabelled(made, by="second"))
    assert refused.value.reason == "StaleVersion"
    assert (await store.get(core.Pod, made.metadata.name, team)).metadata.labels == {"by": "first"}


async def test_status_update_refuses_a_stale_version(store: port.Store, team: str) -> None:
    made = await store.create(pod(team))
    await store.update_status(with_phase(made, "Running"))
    with pytest.raises(errors.Conflict):
        await store.update_status(with_phase(made, "Failed"))


async def test_update_without_a_version_overwrites(store: port.Store, team: str) -> None:
    made = await store.create(pod(team))
    await store.update(relabelled(made, by="first"))
    bare = msgspec.structs.replace(made.metadata, resource_version="", labels={"by": "second"})
    assert (await store.update(msgspec.structs.replace(made, metadata=bare))).metadata.labels == {"by": "second"}


async def test_update_refuses_a_successor_of_the_same_name(store: port.Store, team: str) -> None:
    made = await store.create(pod(team))
    await store.delete(core.Pod, made.metadata.name, team)
    await store.create(pod(team, made.metadata.name))
    bare = msgspec.structs.replace(made.metadata, resource_version="", labels={"by": "ghost"})
    with pytest.raises(errors.Conflict):
        await store.update(msgspec.structs.replace(made, metadata=bare))


async def test_update_changes_the_version_and_keeps_identity(store: port.Store, team: str) -> None:
    made = await store.create(pod(team))
    forged = msgspec.structs.replace(made.metadata, labels={"a": "b"}, creation_timestamp="2001-01-01T00:00:00Z")
    changed = await store.update(msgspec.structs.replace(made, metadata=forged))
    assert changed.metadata.resource_version != made.metadata.resource_version
    assert changed.metadata.uid == made.metadata.uid
    assert changed.metadata.creation_timestamp == made.metadata.creation_timestamp


async def test_update_without_a_difference_changes_nothing(store: port.Store, team: str) -> None:
    made = await store.create(pod(team, labels={"a": "b"}))
    assert await store.update(made) == made
    assert await store.update_status(made) == made


async def test_labels_left_out_are_removed(store: port.Store, team: str) -> None:
    made = await store.create(pod(team, labels={"keep": "1", "drop": "1"}))
    await store.update(relabelled(made, keep="1"))
    assert (await store.get(core.Pod, made.metadata.name, team)).metadata.labels == {"keep": "1"}


async def test_update_never_touches_status(store: port.Store, team: str) -> None:
    made = await store.create(pod(team))
    running = await store.update_status(with_phase(made, "Running"))
    changed = await store.update(relabelled(with_phase(running, "Failed"), a="b"))
    assert changed.status.phase == "Running"
    assert changed.metadata.labels == {"a": "b"}


async def test_status_update_touches_nothing_else(store: port.Store, team: str) -> None:
    made = await store.create(pod(team))
    changed = await store.update_status(with_image(with_phase(made, "Running"), "registry.invalid/other:2"))
    assert changed.status.phase == "Running"
    assert changed.spec == made.spec


async def test_generation_counts_spec_changes_only(store: port.Store, team: str) -> None:
    made = await store.create(pod(team))
    labelled = await store.update(relabelled(made, a="b"))
    running = await store.update_status(with_phase(labelled, "Running"))
    imaged = await store.update(with_image(running, "registry.invalid/cuda:2"))
    generations = [item.metadata.generation for item in (made, labelled, running, imaged)]
    assert generations == [1, 1, 1, 2]


async def test_a_patch_writes_what_differs_and_nothing_else(store: port.PatchingStore, team: str) -> None:
    made = await store.create(pod(team, "a", labels={"keep": "1", "drop": "2"}))
    about = msgspec.structs.replace(made.metadata, labels={"keep": "1", "new": "3"}, finalizers=("example.com/f",))
    changed = await store.patch(made, msgspec.structs.replace(made, metadata=about))
    assert changed.metadata.labels == {"keep": "1", "new": "3"}
    assert changed.metadata.finalizers == ("example.com/f",)
    assert changed.metadata.resource_version != made.metadata.resource_version
    assert changed.spec == made.spec
    status = msgspec.structs.replace(changed.status, message="said")
    told = await store.patch(changed, msgspec.structs.replace(changed, status=status), is_status=True)
    assert (told.status.message, told.metadata.labels) == ("said", changed.metadata.labels)
    assert await store.get(core.Pod, "a", team) == told
    freed = msgspec.structs.replace(told, metadata=msgspec.structs.replace(told.metadata, finalizers=()))
    assert (await store.patch(told, freed)).metadata.finalizers == ()


@pytest.mark.parametrize("is_status", [False, True])
async def test_a_patch_of_a_version_that_is_not_stored_is_refused(
    store: port.PatchingStore, team: str, *, is_status: bool
) -> None:
    old = await store.create(pod(team, "a"))
    labelled = msgspec.structs.replace(old, metadata=msgspec.structs.replace(old.metadata, labels={"x": "y"}))
    await store.update(labelled)
    status = msgspec.structs.replace(old.status, message="late")
    about = msgspec.structs.replace(old.metadata, labels={"late": "1"})
    with pytest.raises(errors.Conflict):
        await store.patch(old, msgspec.structs.replace(old, metadata=about, status=status), is_status=is_status)
    assert (await store.get(core.Pod, "a", team)).metadata.labels == {"x": "y"}
    gone = msgspec.structs.replace(old, metadata=msgspec.structs.replace(old.metadata, name="none"))
    with pytest.raises(errors.NotFound):
        await store.patch(gone, msgspec.structs.replace(gone, status=status), is_status=is_status)


async def test_concurrent_writers_lose_no_update(store: port.Store, team: str) -> None:
    made = await store.create(pod(team, labels={"count": "0"}))

    async def add_ten() -> None:
        for _ in range(10):
            while True:
                current = await store.get(core.Pod, made.metadata.name, team)
                counted = relabelled(current, count=str(int(current.metadata.labels["count"]) + 1))
                with contextlib.suppress(errors.Conflict):
                    await store.update(counted)
                    break

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(add_ten())
    assert (await store.get(core.Pod, made.metadata.name, team)).metadata.labels == {"count": "50"}


async def test_one_of_many_creators_wins(store: port.Store, team: str) -> None:
    async def try_to_create() -> bool:
        try:
            await store.create(pod(team, "contested"))
        except errors.Conflict:
            return False
        return True

    assert sum(await asyncio.gather(*(try_to_create() for _ in range(8)))) == 1


# apply


def only_labels(namespace: str, name: str, **labels: str) -> core.Pod:
    return core.Pod(metadata=meta.ObjectMeta(name=name, namespace=namespace, labels=labels))


async def test_apply_creates_then_is_idempotent(store: port.Store, team: str) -> None:
    wanted = pod(team, labels={"pool": "a"})
    made = await store.apply(wanted, manager="test")
    assert made.metadata.labels == {"pool": "a"}
    assert await store.apply(wanted, manager="test") == made


async def test_apply_keeps_what_others_gave(store: port.Store, team: str) -> None:
    await store.apply(pod(team, "p", labels={"pool": "a"}), manager="first")
    both = await store.apply(only_labels(team, "p", zone="b"), manager="second")
    assert both.metadata.labels == {"pool": "a", "zone": "b"}
    assert both.spec.containers


async def test_apply_takes_back_what_its_manager_no_longer_gives(store: port.Store, team: str) -> None:
    await store.apply(pod(team, "p", labels={"pool": "a", "old": "x"}), manager="first")
    await store.apply(only_labels(team, "p", zone="b"), manager="second")
    again = await store.apply(pod(team, "p", labels={"pool": "a"}), manager="first")
    assert again.metadata.labels == {"pool": "a", "zone": "b"}


async def test_the_last_applier_of_a_field_wins(store: port.Store, team: str) -> None:
    await store.apply(pod(team, "p", labels={"pool": "a"}), manager="first")
    await store.apply(only_labels(team, "p", pool="b"), manager="second")
    assert (await store.apply(pod(team, "p", labels={"pool": "a"}), manager="first")).metadata.labels == {"pool": "a"}


async def test_apply_with_a_uid_makes_no_successor_of_an_object_that_is_gone(store: port.Store, team: str) -> None:
    made = await store.apply(pod(team, "p", labels={"pool": "a"}), manager="test")
    await store.delete(core.Pod, "p", team)
    about = meta.ObjectMeta(name="p", namespace=team, uid=made.metadata.uid, labels={"pool": "b"})
    with pytest.raises(errors.Conflict) as caught:
        await store.apply(msgspec.structs.replace(made, metadata=about), manager="test")
    assert caught.value.reason == "UidMismatch"


async def test_apply_never_touches_status(store: port.Store) -> None:
    name = unique("node")
    machine = core.Node(metadata=meta.ObjectMeta(name=name), status=core.NodeStatus(capacity={"cpu": "8"}))
    await store.create(machine)
    applied = await store.apply(node(name, pool="a"), manager="test")
    assert applied.status.capacity == {"cpu": "8"}


# watch


async def test_watch_from_a_list_misses_nothing_and_is_ordered(store: port.Store, team: str) -> None:
    await store.create(pod(team, "before"))
    listing = await store.list(core.Pod, Selector(namespace=team))
    made = await store.create(pod(team, "after"))
    changed = await store.update(relabelled(made, a="b"))
    await store.delete(core.Pod, "before", team)
    seen = await changes(store.watch(core.Pod, Selector(namespace=team), since=listing.resource_version), 3)
    assert [(kind, item.metadata.name) for kind, item in seen] == [
        (ChangeKind.ADDED, "after"),
        (ChangeKind.MODIFIED, "after"),
        (ChangeKind.DELETED, "before"),
    ]
    assert [seen[0][1], seen[1][1]] == [made, changed]


async def test_watch_from_nowhere_begins_with_what_is_there(store: port.Store, team: str) -> None:
    present = [await store.create(pod(team, name)) for name in ("a", "b")]
    stream = store.watch(core.Pod, Selector(namespace=team))
    first = [await anext(stream), await anext(stream)]
    made = await store.create(pod(team, "c"))
    (last,) = await changes(stream, 1)
    assert [(change.kind, change.object) for change in first] == [(ChangeKind.ADDED, item) for item in present]
    assert last == (ChangeKind.ADDED, made)


async def test_watch_from_a_change_continues_after_it(store: port.Store, team: str) -> None:
    made = await store.create(pod(team))
    changed = await store.update(relabelled(made, a="b"))
    seen = await changes(store.watch(core.Pod, Selector(namespace=team), since=made.metadata.resource_version), 1)
    assert seen == [(ChangeKind.MODIFIED, changed)]


async def test_watch_wakes_a_waiting_reader(store: port.Store, team: str) -> None:
    version = (await store.list(core.Pod, Selector(namespace=team))).resource_version
    async with asyncio.TaskGroup() as group:
        reader = group.create_task(changes(store.watch(core.Pod, Selector(namespace=team), since=version), 20))
        made = [await store.create(pod(team, f"p{number:02}")) for number in range(20)]
    assert [item for _, item in reader.result()] == made


async def test_watch_sees_only_its_kind_and_namespace(store: port.Store, team: str) -> None:
    other = await new_team(store)
    version = (await store.list(core.Pod, Selector(namespace=team))).resource_version
    await store.create(pod(other))
    await store.create(node(unique("node")))
    mine = await store.create(pod(team))
    assert await changes(store.watch(core.Pod, Selector(namespace=team), since=version), 1) == [
        (ChangeKind.ADDED, mine)
    ]


async def test_an_object_enters_and_leaves_a_label_selector(store: port.Store, team: str) -> None:
    made = await store.create(pod(team, labels={"app": "no"}))
    inside = await store.update(relabelled(made, app="yes"))
    still = await store.update(relabelled(inside, app="yes", more="x"))
    outside = await store.update(relabelled(still, app="no"))
    await store.update(relabelled(outside, app="yes"))
    selector = Selector(namespace=team, labels={"app": "yes"})
    seen = await changes(store.watch(core.Pod, selector, since=made.metadata.resource_version), 4)
    kinds = [kind for kind, _ in seen]
    assert kinds == [ChangeKind.ADDED, ChangeKind.MODIFIED, ChangeKind.DELETED, ChangeKind.ADDED]
    assert seen[2][1].metadata.name == made.metadata.name


async def test_an_object_enters_a_field_selector(store: port.Store, team: str) -> None:
    made = await store.create(pod(team))
    running = await store.update_status(with_phase(made, "Running"))
    selector = Selector(namespace=team, fields={"status.phase": "Running"})
    assert await changes(store.watch(core.Pod, selector, since=made.metadata.resource_version), 1) == [
        (ChangeKind.ADDED, running)
    ]


async def test_deletion_shows_the_last_state_at_a_new_version(store: port.Store, team: str) -> None:
    made = await store.create(pod(team, labels={"a": "b"}))
    await store.delete(core.Pod, made.metadata.name, team)
    last = await deletion(store, made)
    assert (last.metadata.uid, last.metadata.labels) == (made.metadata.uid, {"a": "b"})
    assert last.metadata.resource_version != made.metadata.resource_version


async def deletion(store: port.Store, made: core.Pod) -> core.Pod:
    """Return a pod as its deletion showed it; a scheduler may have written to it before."""
    own = Selector(namespace=made.metadata.namespace)
    async with asyncio.timeout(20):
        async for change in store.watch(core.Pod, own, since=made.metadata.resource_version):
            if change.kind is ChangeKind.DELETED:
                return change.object
    raise AssertionError("the watch ended")


async def test_a_watch_may_go_on_from_a_deletion(store: port.Store, team: str) -> None:
    made = await store.create(pod(team))
    await store.delete(core.Pod, made.metadata.name, team)
    last = await deletion(store, made)
    again = await store.create(pod(team))
    stream = store.watch(core.Pod, Selector(namespace=team), since=last.metadata.resource_version)
    assert await changes(stream, 1) == [(ChangeKind.ADDED, again)]


async def test_many_watchers_see_the_same(store: port.Store, team: str) -> None:
    version = (await store.list(core.Pod, Selector(namespace=team))).resource_version
    async with asyncio.TaskGroup() as group:
        readers = [
            group.create_task(changes(store.watch(core.Pod, Selector(namespace=team), since=version), 5))
            for _ in range(50)
        ]
        made = [await store.create(pod(team)) for _ in range(5)]
    assert all([item for _, item in reader.result()] == made for reader in readers)


async def test_a_cancelled_watch_leaves_the_store_working(store: port.Store, team: str) -> None:
    version = (await store.list(core.Pod, Selector(namespace=team))).resource_version
    first_seen = asyncio.Event()

    async def follow() -> None:
        async for _ in store.watch(core.Pod, Selector(namespace=team), since=version):
            first_seen.set()

    async with asyncio.TaskGroup() as group:
        reader = group.create_task(follow())
        made = [await store.create(pod(team))]
        await first_seen.wait()
        reader.cancel()
    made.append(await store.create(pod(team)))
    seen = await changes(store.watch(core.Pod, Selector(namespace=team), since=version), 2)
    assert [item for _, item in seen] == made


async def test_a_version_from_elsewhere_is_gone(store: port.Store) -> None:
    with pytest.raises(errors.Gone):
        await anext(store.watch(core.Pod, since="not-a-version"))


# delete


async def test_delete_removes(store: port.Store, team: str) -> None:
    made = await store.create(pod(team))
    await store.delete(core.Pod, made.metadata.name, team)
    with pytest.raises(errors.NotFound):
        await store.get(core.Pod, made.metadata.name, team)


async def test_delete_of_another_uid_is_refused(store: port.Store, team: str) -> None:
    made = await store.create(pod(team))
    with pytest.raises(errors.Conflict):
        await store.delete(core.Pod, made.metadata.name, team, uid=str(uuid.uuid4()))
    await store.delete(core.Pod, made.metadata.name, team, uid=made.metadata.uid)


async def test_finalizers_delete_in_two_steps(store: port.Store, team: str) -> None:
    made = await store.create(held(pod(team), "fairlead.dev/test"))
    await store.delete(core.Pod, made.metadata.name, team)
    marked = await store.get(core.Pod, made.metadata.name, team)
    assert marked.metadata.deletion_timestamp is not None
    await store.update(held(marked))
    with pytest.raises(errors.NotFound):
        await store.get(core.Pod, made.metadata.name, team)


async def test_a_second_delete_leaves_the_first_mark(store: port.Store, team: str) -> None:
    made = await store.create(held(pod(team), "fairlead.dev/test"))
    await store.delete(core.Pod, made.metadata.name, team)
    marked = await store.get(core.Pod, made.metadata.name, team)
    await store.delete(core.Pod, made.metadata.name, team)
    assert await store.get(core.Pod, made.metadata.name, team) == marked
    await store.update(held(marked))


async def test_a_dying_object_takes_no_new_finalizer(store: port.Store, team: str) -> None:
    made = await store.create(held(pod(team), "fairlead.dev/test"))
    await store.delete(core.Pod, made.metadata.name, team)
    marked = await store.get(core.Pod, made.metadata.name, team)
    with pytest.raises(errors.Invalid):
        await store.update(held(marked, "fairlead.dev/test", "fairlead.dev/late"))
    await store.update(held(marked))


async def test_a_mark_cannot_be_taken_back(store: port.Store, team: str) -> None:
    made = await store.create(held(pod(team), "fairlead.dev/test"))
    await store.delete(core.Pod, made.metadata.name, team)
    marked = await store.get(core.Pod, made.metadata.name, team)
    undone = msgspec.structs.replace(marked.metadata, deletion_timestamp=None, labels={"a": "b"})
    changed = await store.update(msgspec.structs.replace(marked, metadata=undone))
    assert changed.metadata.deletion_timestamp == marked.metadata.deletion_timestamp
    await store.update(held(changed))


async def test_a_bound_pod_waits_for_its_node(store: port.Store, team: str) -> None:
    made = await store.create(bound(pod(team), unique("node"), grace_s=17))
    await store.delete(core.Pod, made.metadata.name, team)
    marked = await store.get(core.Pod, made.metadata.name, team)
    assert marked.metadata.deletion_grace_period_seconds == 17
    assert marked.metadata.deletion_timestamp is not None
    await store.delete(core.Pod, made.metadata.name, team, grace_s=0)
    with pytest.raises(errors.NotFound):
        await store.get(core.Pod, made.metadata.name, team)


async def test_the_asked_grace_comes_before_the_pods_own(store: port.Store, team: str) -> None:
    made = await store.create(bound(pod(team), unique("node"), grace_s=30))
    await store.delete(core.Pod, made.metadata.name, team, grace_s=5)
    marked = await store.get(core.Pod, made.metadata.name, team)
    assert marked.metadata.deletion_grace_period_seconds == 5
    await store.delete(core.Pod, made.metadata.name, team, grace_s=0)


async def test_grace_can_be_shortened_and_not_prolonged(store: port.Store, team: str) -> None:
    made = await store.create(bound(pod(team), unique("node"), grace_s=30))
    await store.delete(core.Pod, made.metadata.name, team)
    for asked_s, expected_s in ((10, 10), (20, 10)):
        await store.delete(core.Pod, made.metadata.name, team, grace_s=asked_s)
        marked = await store.get(core.Pod, made.metadata.name, team)
        assert marked.metadata.deletion_grace_period_seconds == expected_s
    await store.delete(core.Pod, made.metadata.name, team, grace_s=0)


async def test_a_dying_pod_still_reports(store: port.Store, team: str) -> None:
    made = await store.create(bound(pod(team), unique("node")))
    await store.delete(core.Pod, made.metadata.name, team)
    marked = await store.get(core.Pod, made.metadata.name, team)
    reported = await store.update_status(with_phase(marked, "Succeeded"))
    labelled = await store.update(relabelled(reported, a="b"))
    assert (labelled.status.phase, labelled.metadata.labels) == ("Succeeded", {"a": "b"})
    await store.delete(core.Pod, made.metadata.name, team, grace_s=0)


async def test_an_unbound_or_ended_pod_goes_at_once(store: port.Store, team: str) -> None:
    ended = await store.create(bound(pod(team, "ended"), unique("node")))
    await store.update_status(with_phase(ended, "Succeeded"))
    await store.create(pod(team, "unbound"))
    for name in ("ended", "unbound"):
        await store.delete(core.Pod, name, team)
    assert (await store.list(core.Pod, Selector(namespace=team))).items == ()


async def test_zero_grace_removes_a_bound_pod_at_once(store: port.Store, team: str) -> None:
    made = await store.create(bound(pod(team), unique("node")))
    await store.delete(core.Pod, made.metadata.name, team, grace_s=0)
    assert (await store.list(core.Pod, Selector(namespace=team))).items == ()


async def test_a_watcher_sees_both_steps_of_a_deletion(store: port.Store, team: str) -> None:
    made = await store.create(bound(pod(team), unique("node")))
    await store.delete(core.Pod, made.metadata.name, team)
    await store.delete(core.Pod, made.metadata.name, team, grace_s=0)
    stream = store.watch(core.Pod, Selector(namespace=team), since=made.metadata.resource_version)
    seen = await changes(stream, 2)
    assert [kind for kind, _ in seen] == [ChangeKind.MODIFIED, ChangeKind.DELETED]
    assert all(item.metadata.deletion_timestamp for _, item in seen)


# owners


async def test_dependants_go_with_their_last_owner(store: port.Store, team: str) -> None:
    first, second = await store.create(pod(team, "first")), await store.create(pod(team, "second"))
    child = await store.create(owned_by(pod(team, "child"), first, second))
    await store.delete(core.Pod, "first", team)
    await is_gone(store, first)
    assert (await store.get(core.Pod, "child", team)).metadata.uid == child.metadata.uid
    await store.delete(core.Pod, "second", team)
    await is_gone(store, child)


async def test_removal_reaches_dependants_of_dependants(store: port.Store, team: str) -> None:
    top = await store.create(pod(team, "top"))
    middle = await store.create(owned_by(pod(team, "middle"), top))
    bottom = await store.create(owned_by(pod(team, "bottom"), middle))
    await store.delete(core.Pod, "top", team)
    await is_gone(store, middle)
    await is_gone(store, bottom)


async def test_dependants_stay_while_their_owner_is_only_marked(store: port.Store, team: str) -> None:
    owner = await store.create(held(pod(team, "owner"), "fairlead.dev/test"))
    child = await store.create(owned_by(pod(team, "child"), owner))
    await store.delete(core.Pod, "owner", team)
    assert await store.get(core.Pod, "child", team) == child
    await store.update(held(await store.get(core.Pod, "owner", team)))
    await is_gone(store, child)


async def test_a_bound_dependant_is_stopped_gracefully(store: port.Store, team: str) -> None:
    owner = await store.create(pod(team, "owner"))
    child = await store.create(owned_by(bound(pod(team, "child"), unique("node")), owner))
    stream = store.watch(
        core.Pod, Selector(namespace=team, fields={"metadata.name": "child"}), since=child.metadata.resource_version
    )
    await store.delete(core.Pod, "owner", team)
    ((kind, marked),) = await changes(stream, 1)
    assert kind is ChangeKind.MODIFIED
    assert marked.metadata.deletion_timestamp is not None
    await store.delete(core.Pod, "child", team, grace_s=0)


async def test_an_object_whose_owner_never_was_is_removed(store: port.Store, team: str) -> None:
    ghost = msgspec.structs.replace(pod(team, "ghost").metadata, uid=str(uuid.uuid4()))
    child = await store.create(owned_by(pod(team, "child"), msgspec.structs.replace(pod(team), metadata=ghost)))
    await is_gone(store, child)


# namespaces


async def test_a_namespace_goes_with_everything_in_it(store: port.Store) -> None:
    home = await store.get(core.Namespace, await new_team(store))
    inside = await store.create(pod(home.metadata.name))
    await store.delete(core.Namespace, home.metadata.name)
    await is_gone(store, inside)
    await is_gone(store, home)


async def test_a_namespace_waits_for_pods_that_still_run_and_takes_no_new_ones(store: port.Store) -> None:
    home = await store.get(core.Namespace, await new_team(store))
    name = home.metadata.name
    inside = await store.create(bound(pod(name, "running"), unique("node")))
    stream = store.watch(core.Pod, Selector(namespace=name), since=inside.metadata.resource_version)
    await store.delete(core.Namespace, name)
    ((_, marked),) = await changes(stream, 1)
    assert marked.metadata.deletion_timestamp is not None
    with pytest.raises(errors.Denied):
        await store.create(pod(name))
    await store.delete(core.Pod, "running", name, grace_s=0)
    await is_gone(store, home)


# elections


async def test_leadership_goes_from_one_to_the_next(store: port.Fencible, team: str) -> None:
    terms = lease.Terms(lease_s=10, renew_within_s=8, retry_s=0.05)
    leading: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    async def stand(identity: str) -> None:
        async def work(leadership: lease.Leadership) -> None:
            leading.put_nowait((identity, leadership.token))
            await asyncio.Event().wait()

        await lease.Election(store, name="control", namespace=team, identity=identity, terms=terms).run(work)

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        candidates = {name: group.create_task(stand(name)) for name in ("a", "b")}
        first, first_token = await leading.get()
        renewed = (await store.get(coordination.Lease, "control", team)).metadata.resource_version
        await changes(store.watch(coordination.Lease, Selector(namespace=team), since=renewed), 1)
        candidates[first].cancel()
        second, second_token = await leading.get()
        candidates[second].cancel()
    assert {first, second} == {"a", "b"}
    assert second_token > first_token
    assert (await store.get(coordination.Lease, "control", team)).spec.holder_identity == ""


# fences


async def held_lease(store: port.Store, team: str, *, holder: str, token: int) -> coordination.Lease:
    spec = coordination.LeaseSpec(holder_identity=holder, lease_duration_seconds=15, lease_transitions=token)
    about = meta.ObjectMeta(name="control", namespace=team)
    return await store.create(coordination.Lease(metadata=about, spec=spec))


def fence_of(team: str, *, holder: str = "a", token: int = 3) -> Fence:
    return Fence(lease="control", namespace=team, holder=holder, token=token, is_fresh=lambda: True)


async def test_a_leader_writes_through_its_fence(store: port.Fencible, team: str) -> None:
    await held_lease(store, team, holder="a", token=3)
    fenced = store.fenced(fence_of(team))
    made = await fenced.create(pod(team))
    assert (await fenced.get(core.Pod, made.metadata.name, team)).metadata.uid == made.metadata.uid
    await fenced.delete(core.Pod, made.metadata.name, team, grace_s=0)


@pytest.mark.parametrize("end", ["taken", "retaken", "deleted"])
async def test_nothing_is_written_through_the_fence_of_a_former_leader(
    store: port.Fencible, team: str, end: str
) -> None:
    found = await held_lease(store, team, holder="a", token=3)
    present = await store.create(pod(team))
    fenced = store.fenced(fence_of(team))
    if end == "deleted":
        await store.delete(coordination.Lease, "control", team)
    else:
        holder = {"taken": "b", "retaken": "a"}[end]
        spec = msgspec.structs.replace(found.spec, holder_identity=holder, lease_transitions=4)
        await store.update(msgspec.structs.replace(found, spec=spec))
    about = msgspec.structs.replace(present.metadata, labels={"changed": "yes"})
    changed = msgspec.structs.replace(present, metadata=about)
    for write in (
        lambda: fenced.create(pod(team)),
        lambda: fenced.update(changed),
        lambda: fenced.update_status(msgspec.structs.replace(present, status=core.PodStatus(phase="Failed"))),
        lambda: fenced.apply(core.Pod(metadata=about, spec=present.spec), manager="test"),
        lambda: fenced.delete(core.Pod, present.metadata.name, team, grace_s=0),
    ):
        with pytest.raises(errors.Conflict) as refused:
            await write()
        assert refused.value.reason == "LeaseLost"
    (left,) = (await store.list(core.Pod, Selector(namespace=team))).items
    assert left.metadata.uid == present.metadata.uid
    assert (left.metadata.labels, left.status.phase) == (present.metadata.labels, present.status.phase)


# creating after a look


async def admitter(store: port.Store) -> port.Admitter:
    if isinstance(store, kubernetes.KubernetesStore):
        pytest.skip("an API server checks quotas itself")
    assert isinstance(store, memory.MemoryStore | sqlite.SQLiteStore)
    return store


async def test_a_check_sees_the_objects_that_are_there_and_refuses(store: port.Store, team: str) -> None:
    present = await store.create(pod(team))

    def refuse_second(seen: port.Reader) -> None:
        assert [one.metadata.namespace for one in seen.list(core.Namespace, "")]
        if seen.list(core.Pod, team) == (present,):
            raise errors.Denied("there is one", reason="OneIsEnough")

    with pytest.raises(errors.Denied, match="there is one"):
        await (await admitter(store)).create_checked(pod(team), refuse_second)
    assert len((await store.list(core.Pod, Selector(namespace=team))).items) == 1


async def test_of_many_checked_at_once_only_as_many_as_the_check_allows_are_made(store: port.Store, team: str) -> None:
    admitting = await admitter(store)

    def at_most_three(seen: port.Reader) -> None:
        if len(seen.list(core.Pod, team)) >= 3:
            raise errors.Denied("full", reason="Full")

    made = await asyncio.gather(
        *(admitting.create_checked(pod(team), at_most_three) for _ in range(12)), return_exceptions=True
    )
    assert sum(isinstance(one, core.Pod) for one in made) == 3
    assert len((await store.list(core.Pod, Selector(namespace=team))).items) == 3


async def test_a_checked_update_sees_what_is_there_and_is_refused_or_stale(store: port.Store, team: str) -> None:
    admitting = await admitter(store)
    first, second = [await store.create(pod(team)) for _ in range(2)]
    labelled = msgspec.structs.replace(first, metadata=msgspec.structs.replace(first.metadata, labels={"a": "b"}))

    def refuse(seen: port.Reader) -> None:
        assert seen.list(core.Pod, team) == tuple(sorted((first, second), key=lambda one: one.metadata.name))
        raise errors.Denied("no", reason="No")

    with pytest.raises(errors.Denied):
        await admitting.update_checked(labelled, refuse)
    assert await store.get(core.Pod, first.metadata.name, team) == first
    assert (await admitting.update_checked(labelled, lambda _seen: None)).metadata.labels == {"a": "b"}
    with pytest.raises(errors.Conflict) as stale:
        await admitting.update_checked(labelled, lambda _seen: None)
    assert stale.value.reason == "StaleVersion"


async def test_what_is_stored_beside_an_object_is_stored_with_it_or_neither_is(store: port.Store, team: str) -> None:
    admitting = await admitter(store)

    def beside(made: core.Pod) -> core.Namespace:
        return core.Namespace(
            metadata=meta.ObjectMeta(name=f"b-{made.metadata.namespace}", labels={"of": made.metadata.uid})
        )

    made = await admitting.create_checked(pod(team), lambda _seen: None, beside=beside)
    assert (await store.get(core.Namespace, f"b-{team}")).metadata.labels == {"of": made.metadata.uid}
    with pytest.raises(errors.Conflict):
        await admitting.create_checked(pod(team), lambda _seen: None, beside=beside)
    assert len((await store.list(core.Pod, Selector(namespace=team))).items) == 1


# another name


async def renamer(store: port.Store) -> port.Renamer:
    if isinstance(store, kubernetes.KubernetesStore):
        pytest.skip("an API server has no other name for an object")
    assert isinstance(store, memory.MemoryStore | sqlite.SQLiteStore)
    return store


def _named(namespace: str, name: str) -> core.Pod:
    found = pod(namespace)
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, name=name))


async def test_a_renamed_object_keeps_all_but_its_name(store: port.Store, team: str) -> None:
    renaming = await renamer(store)
    old = await store.create(_named(team, "old"))
    old = await store.update_status(msgspec.structs.replace(old, status=core.PodStatus(phase="Succeeded")))
    owner = meta.OwnerReference(api_version="v1", kind="Pod", name="old", uid=old.metadata.uid)
    about = meta.ObjectMeta(name="kept", namespace=team, owner_references=(owner,))
    await store.create(core.ConfigMap(metadata=about, data={"a": "b"}))
    new = await renaming.rename(old, "new", lambda _seen: None)
    version = new.metadata.resource_version
    kept = msgspec.structs.replace(old.metadata, name="new", resource_version=version)
    assert new == msgspec.structs.replace(old, metadata=kept)
    assert await store.get(core.Pod, "new", team) == new
    with pytest.raises(errors.NotFound):
        await store.get(core.Pod, "old", team)
    (reference,) = (await store.get(core.ConfigMap, "kept", team)).metadata.owner_references
    assert (reference.name, reference.uid) == ("new", old.metadata.uid)
    await store.create(_named(team, "old"))  # its old name is free
    await store.delete(core.Pod, "new", team, grace_s=0)
    with pytest.raises(errors.NotFound):
        await store.get(core.ConfigMap, "kept", team)


async def test_watchers_see_a_renamed_object_go_under_one_name_and_come_under_the_other(
    store: port.Store, team: str
) -> None:
    renaming = await renamer(store)
    old = await store.create(_named(team, "old"))
    since = (await store.list(core.Pod)).resource_version
    await renaming.rename(old, "new", lambda _seen: None)
    seen = store.watch(core.Pod, Selector(namespace=team), since=since)
    gone, come = await anext(seen), await anext(seen)
    assert (gone.kind, gone.object.metadata.name, gone.renamed_to) == (ChangeKind.DELETED, "old", "new")
    assert (come.kind, come.object.metadata.name, come.renamed_to) == (ChangeKind.ADDED, "new", "")
    assert gone.object.metadata.uid == come.object.metadata.uid
    assert come.object.metadata.annotations == old.metadata.annotations
    await store.delete(core.Pod, "new", team, grace_s=0)
    assert (await anext(seen)).renamed_to == ""


async def test_an_annotation_that_says_renamed_makes_no_rename_of_a_deletion_elsewhere(
    store: port.Store, team: str
) -> None:
    if not isinstance(store, kubernetes.KubernetesStore):
        pytest.skip("an embedded store writes it itself, and admission lets nobody else")
    about = meta.ObjectMeta(name="old", namespace=team, annotations={names.RENAMED: "new"})
    old = await store.create(core.ConfigMap(metadata=about))
    seen = store.watch(core.ConfigMap, Selector(namespace=team), since=old.metadata.resource_version)
    await store.delete(core.ConfigMap, "old", team)
    gone = await anext(seen)
    assert (gone.kind, gone.renamed_to) == (ChangeKind.DELETED, "")


async def test_a_rename_is_refused_for_a_taken_name_a_stale_version_and_by_its_check(
    store: port.Store, team: str
) -> None:
    renaming = await renamer(store)
    old = await store.create(_named(team, "old"))
    await store.create(_named(team, "taken"))

    def refuse(seen: port.Reader) -> None:
        assert {one.metadata.name for one in seen.list(core.Pod, team)} == {"old", "taken"}
        raise errors.Denied("no", reason="No")

    for name, reason in (("taken", "AlreadyExists"), ("old", "AlreadyExists")):
        with pytest.raises(errors.Conflict) as refused:
            await renaming.rename(old, name, lambda _seen: None)
        assert refused.value.reason == reason
    for name in ("A", "", "a/b", "a\0", "-", "x" * 300):
        with pytest.raises(errors.Invalid):
            await renaming.rename(old, name, lambda _seen: None)
    with pytest.raises(errors.Denied):
        await renaming.rename(old, "new", refuse)
    await store.update_status(msgspec.structs.replace(old, status=core.PodStatus(phase="Running")))
    with pytest.raises(errors.Conflict) as stale:
        await renaming.rename(old, "new", lambda _seen: None)
    assert stale.value.reason == "StaleVersion"
    assert [one.metadata.name for one in (await store.list(core.Pod, Selector(namespace=team))).items] == [
        "old",
        "taken",
    ]
