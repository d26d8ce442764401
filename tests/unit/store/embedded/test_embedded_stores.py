"""What the memory and SQLite stores promise beyond the port: bounded history, unknown fields, undone steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from fairlead import errors
from fairlead.store import port
from fairlead.store.embedded import memory, transaction
from fairlead.store.sqlite import store as sqlite
from fairlead.wire.kubernetes import core, meta

Open = Callable[..., port.Store]


@pytest.fixture(params=["memory", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    opened: list[sqlite.SQLiteStore] = []

    def open_sqlite(*, history_kept: int = transaction.HISTORY_KEPT) -> port.Store:
        opened.append(sqlite.SQLiteStore(tmp_path / "state.db", history_kept=history_kept))
        return opened[-1]

    yield memory.MemoryStore if request.param == "memory" else open_sqlite
    for store in opened:
        store.close()


class RichSpec(meta.Wire, frozen=True):
    node_name: str = ""
    priority_class_name: str = ""
    containers: tuple[dict[str, object], ...] = ()


class RichPod(meta.Wire, frozen=True):
    """A pod as a writer that knows more than we do sees it."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "Pod"
    PLURAL: ClassVar[str] = "pods"
    NAMESPACED: ClassVar[bool] = True

    metadata: meta.ObjectMeta = meta.ObjectMeta()
    spec: RichSpec = RichSpec()
    status: Mapping[str, object] = {}


def node(name: str, **labels: str) -> core.Node:
    return core.Node(metadata=meta.ObjectMeta(name=name, labels=labels))


async def fill(store: port.Store, count: int) -> core.Node:
    """Change one node `count` times."""
    item = await store.create(node("busy"))
    for number in range(count):
        about = msgspec.structs.replace(item.metadata, labels={"n": str(number)})
        item = await store.update(msgspec.structs.replace(item, metadata=about))
    return item


async def test_history_is_bounded_and_says_when_it_is_gone(open_store: Open) -> None:
    store = open_store(history_kept=20)
    first = await store.create(node("first"))
    last = await fill(store, 300)
    with pytest.raises(errors.Gone) as refused:
        await anext(store.watch(core.Node, since=first.metadata.resource_version))
    assert refused.value.reason == "HistoryCompacted"
    stream = store.watch(core.Node, since=str(int(last.metadata.resource_version) - 5))
    assert (await anext(stream)).kind is port.ChangeKind.MODIFIED


async def test_a_version_of_the_future_is_gone(open_store: Open) -> None:
    """A file that was replaced by an older one must not leave watchers waiting for ever."""
    store = open_store()
    with pytest.raises(errors.Gone):
        await anext(store.watch(core.Node, since="1000"))


async def test_the_oldest_events_make_room(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "EVENTS_KEPT", 10)
    store = open_store()
    await store.create(node("stays"))
    for number in range(260):
        await store.create(core.Event(metadata=meta.ObjectMeta(name=f"e{number:03}", namespace="team")))
    names = [event.metadata.name for event in (await store.list(core.Event)).items]
    assert len(names) < 20
    assert names[-1] == "e259"
    assert (await store.get(core.Node, "stays")).metadata.name == "stays"


async def test_fields_that_a_writer_does_not_know_survive_it(open_store: Open) -> None:
    store = open_store()
    container: dict[str, object] = {
        "name": "main",
        "image": "i",
        "lifecycle": {"preStop": {"exec": {"command": ["x"]}}},
    }
    spec = RichSpec(node_name="n", priority_class_name="high", containers=(container,))
    await store.create(RichPod(metadata=meta.ObjectMeta(name="p", namespace="team"), spec=spec))
    narrow = await store.get(core.Pod, "p", "team")
    image = msgspec.structs.replace(narrow.spec.containers[0], image="j")
    await store.update(msgspec.structs.replace(narrow, spec=msgspec.structs.replace(narrow.spec, containers=(image,))))
    rich = await store.get(RichPod, "p", "team")
    assert rich.spec.priority_class_name == "high"
    assert rich.spec.containers == ({**container, "image": "j"},)
    assert rich.metadata.generation == 2


async def test_status_that_a_writer_does_not_know_survives_it(open_store: Open) -> None:
    store = open_store()
    made = await store.create(RichPod(metadata=meta.ObjectMeta(name="p", namespace="team")))
    await store.update_status(msgspec.structs.replace(made, status={"phase": "Pending", "qosClass": "Burstable"}))
    narrow = await store.get(core.Pod, "p", "team")
    running = msgspec.structs.replace(narrow.status, phase="Running")
    await store.update_status(msgspec.structs.replace(narrow, status=running))
    assert (await store.get(RichPod, "p", "team")).status == {"phase": "Running", "qosClass": "Burstable"}


async def test_an_object_that_does_not_fit_its_type_names_itself(open_store: Open) -> None:
    store = open_store()
    await store.create(RichPod(metadata=meta.ObjectMeta(name="p", namespace="team"), spec=RichSpec(containers=({},))))
    with pytest.raises(errors.ProtocolError, match="team/p") as refused:
        await store.get(core.Pod, "p", "team")
    assert refused.value.reason == "ObjectUnreadable"


async def test_an_object_too_large_for_a_cluster_is_refused_and_leaves_no_trace(open_store: Open) -> None:
    store = open_store()
    await store.create(node("owner"))
    big = core.Event(metadata=meta.ObjectMeta(name="big", namespace="team"), message="x" * 1_600_000)
    with pytest.raises(errors.Invalid, match="too large"):
        await store.create(big)
    assert (await store.list(core.Event)).items == ()
    assert (await store.list(core.Node)).resource_version == "1"


async def test_a_kind_without_status_refuses_one(open_store: Open) -> None:
    store = open_store()
    home = await store.create(core.Namespace(metadata=meta.ObjectMeta(name="team")))
    with pytest.raises(errors.Invalid):
        await store.update_status(home)


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (core.Pod(metadata=meta.ObjectMeta(name="p")), "metadata.namespace"),
        (core.Node(metadata=meta.ObjectMeta(name="n", namespace="team")), "metadata.namespace"),
        (core.Node(), "metadata.name"),
        (core.Namespace(metadata=meta.ObjectMeta(name="a.b")), "metadata.name"),
        (core.Node(metadata=meta.ObjectMeta(name="n", finalizers=("plain",))), "metadata.finalizers"),
        (core.Node(metadata=meta.ObjectMeta(name="n", finalizers=("a.b/not ok",))), "metadata.finalizers"),
        (core.Node(metadata=meta.ObjectMeta(name="n", annotations={"a/b/c": ""})), "metadata.annotations"),
        (core.Node(metadata=meta.ObjectMeta(name="n", annotations={"a": "x" * 262_144})), "metadata.annotations"),
        (core.Pod(metadata=meta.ObjectMeta(name="p", namespace="A")), "metadata.namespace"),
    ],
)
async def test_metadata_that_a_cluster_refuses_is_refused(open_store: Open, item: core.Node, field: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        await open_store().create(item)
    assert refused.value.context["field"] == field


async def test_an_object_to_create_carries_no_version(open_store: Open) -> None:
    store = open_store()
    made = await store.create(node("n"))
    await store.delete(core.Node, "n")
    with pytest.raises(errors.Invalid) as refused:
        await store.create(made)
    assert refused.value.reason == "ResourceVersionSet"


async def test_a_terminating_namespace_survives_an_update_while_it_is_not_empty(open_store: Open) -> None:
    store = open_store()
    await store.create(core.Namespace(metadata=meta.ObjectMeta(name="team")))
    spec = core.PodSpec(node_name="n")
    await store.create(core.Pod(metadata=meta.ObjectMeta(name="p", namespace="team"), spec=spec))
    await store.delete(core.Namespace, "team")
    home = await store.get(core.Namespace, "team")
    assert home.metadata.deletion_timestamp is not None
    await store.update(home)
    await store.delete(core.Namespace, "team")
    assert await store.get(core.Namespace, "team") == home
    await store.delete(core.Pod, "p", "team", grace_s=0)
    assert (await store.list(core.Namespace)).items == ()


async def test_an_owner_in_another_namespace_does_not_count(open_store: Open) -> None:
    store = open_store()
    owner = await store.create(core.Pod(metadata=meta.ObjectMeta(name="owner", namespace="other")))
    reference = meta.OwnerReference(api_version="v1", kind="Pod", name="owner", uid=owner.metadata.uid)
    about = meta.ObjectMeta(name="child", namespace="team", owner_references=(reference,))
    await store.create(core.Pod(metadata=about))
    assert (await store.list(core.Pod, port.Selector(namespace="team"))).items == ()


async def test_a_dead_owners_name_is_struck_out_while_others_live(open_store: Open) -> None:
    store = open_store()
    owners = [await store.create(node(name)) for name in ("a", "b")]
    references = tuple(
        meta.OwnerReference(api_version="v1", kind="Node", name=owner.metadata.name, uid=owner.metadata.uid)
        for owner in owners
    )
    await store.create(core.Pod(metadata=meta.ObjectMeta(name="p", namespace="team", owner_references=references)))
    await store.delete(core.Node, "a")
    child = await store.get(core.Pod, "p", "team")
    assert [reference.name for reference in child.metadata.owner_references] == ["b"]


async def test_applied_finalizers_are_a_set(open_store: Open) -> None:
    store = open_store()
    for manager, finalizer in (("a", "x.dev/a"), ("b", "x.dev/b")):
        await store.apply(core.Node(metadata=meta.ObjectMeta(name="n", finalizers=(finalizer,))), manager=manager)
    assert (await store.get(core.Node, "n")).metadata.finalizers == ("x.dev/a", "x.dev/b")
    await store.apply(node("n"), manager="a")
    assert (await store.get(core.Node, "n")).metadata.finalizers == ("x.dev/b",)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"spec.unschedulable": "true"}, {"cordoned"}),
        ({"spec.unschedulable": "false"}, {"free"}),
        ({"metadata.name": "free", "spec.unschedulable": "false"}, {"free"}),
        ({"metadata.generation": "1"}, {"cordoned", "free"}),
        ({"metadata.generation": "2"}, set()),
        ({"metadata.labels.pool": "a"}, {"free"}),
        ({"metadata.nothing": ""}, {"cordoned", "free"}),
        ({'metadata."name': "free"}, set()),
        ({"": ""}, {"cordoned", "free"}),
        ({"metadata.labels": "a"}, set()),
        ({"spec.unschedulable.deeper": "true"}, set()),
    ],
)
async def test_fields_are_compared_as_text(open_store: Open, fields: dict[str, str], found: set[str]) -> None:
    store = open_store()
    await store.create(core.Node(metadata=meta.ObjectMeta(name="cordoned"), spec=core.NodeSpec(unschedulable=True)))
    await store.create(node("free", pool="a"))
    listing = await store.list(core.Node, port.Selector(fields=fields))
    assert {item.metadata.name for item in listing.items} == found


@pytest.mark.parametrize("labels", [{"absent": "x"}, {'po"ol': "a"}, {"pool": "b"}, {"pool": ""}])
async def test_labels_that_differ_or_cannot_be_select_nothing(open_store: Open, labels: dict[str, str]) -> None:
    store = open_store()
    await store.create(node("free", pool="a"))
    assert (await store.list(core.Node, port.Selector(labels=labels))).items == ()
