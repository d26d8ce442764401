from __future__ import annotations

import dataclasses

import msgspec
import pytest
from structlog.testing import capture_logs

from fairlead.model.container.step import TraceStep
from fairlead.store import tracerecorder
from fairlead.store.embedded import memory
from fairlead.wire.kubernetes import core, meta, names


@pytest.fixture
def store() -> memory.MemoryStore:
    return memory.MemoryStore()


@pytest.fixture
async def pod(store: memory.MemoryStore) -> core.Pod:
    return await store.create(core.Pod(metadata=meta.ObjectMeta(name="train", namespace="team")))


def step(reason: str, at: float, *, is_warning: bool = False, **facts: object) -> TraceStep:
    message = f"{reason} happened"
    return TraceStep(
        layer="kubelet", reason=reason, message=message, at=at, duration_s=0.25, facts=facts, is_warning=is_warning
    )


async def test_steps_come_back_whole_and_in_order_of_time(store: memory.MemoryStore, pod: core.Pod) -> None:
    second, first = step("Second", 2.0, gpus=["GPU-1"], nested={"a": [1, None]}), step("First", 1.0, is_warning=True)
    for taken in (second, first):
        await tracerecorder.record(store, tracerecorder.reference(pod), taken, host="node-1")
    assert await tracerecorder.list_steps(store, tracerecorder.reference(pod)) == (first, second)
    assert await tracerecorder.list_steps(store, core.ObjectReference(kind="Pod", namespace="team", name="train")) == (
        first,
        second,
    )


async def test_steps_of_other_objects_are_left_out(store: memory.MemoryStore, pod: core.Pod) -> None:
    other = await store.create(core.Pod(metadata=meta.ObjectMeta(name="other", namespace="team")))
    await tracerecorder.record(store, tracerecorder.reference(other), step("Elsewhere", 1.0))
    assert await tracerecorder.list_steps(store, tracerecorder.reference(pod)) == ()


async def test_a_step_is_an_event_that_people_can_read(store: memory.MemoryStore, pod: core.Pod) -> None:
    await tracerecorder.record(
        store, tracerecorder.reference(pod), step("OOMKilled", 1.0, is_warning=True), host="node-1"
    )
    (event,) = (await store.list(core.Event)).items
    assert (event.reason, event.message, event.type) == ("OOMKilled", "OOMKilled happened", "Warning")
    assert (event.source.component, event.source.host) == ("fairlead-kubelet", "node-1")
    assert event.involved_object == tracerecorder.reference(pod)


async def test_foreign_and_damaged_events_are_no_steps(store: memory.MemoryStore, pod: core.Pod) -> None:
    about = tracerecorder.reference(pod)
    for name, notes in (("foreign", {}), ("damaged", {names.STEP: '{"layer":'})):
        metadata = meta.ObjectMeta(name=name, namespace="team", annotations=notes)
        await store.create(core.Event(metadata=metadata, involved_object=about))
    assert await tracerecorder.list_steps(store, tracerecorder.reference(pod)) == ()


async def test_a_refused_step_is_logged_and_harms_nobody(store: memory.MemoryStore, pod: core.Pod) -> None:
    nameless = msgspec.structs.replace(tracerecorder.reference(pod), name="Not A Name")
    with capture_logs() as logs:
        await tracerecorder.record(store, nameless, step("Lost", 1.0))
    assert [(entry["event"], entry["reason"]) for entry in logs] == [("step not recorded", "InvalidMetadata")]
    assert (await store.list(core.Event)).items == ()


async def test_a_step_that_is_recorded_once_stays_as_it_was_first(store: memory.MemoryStore, pod: core.Pod) -> None:
    about = tracerecorder.reference(pod)
    for at in (1.0, 2.0):
        assert await tracerecorder.record(store, about, step("Started", at), once="Started/main/0")
    assert await tracerecorder.record(store, about, step("Started", 3.0), once="Started/main/1")
    assert [kept.at for kept in await tracerecorder.list_steps(store, tracerecorder.reference(pod))] == [
        1.0,
        3.0,
    ]
    first = await store.get(core.Event, tracerecorder.event_name(about, "Started/main/0"), "team")
    assert first.reason == "Started"


async def test_another_schedulers_event_is_its_step(store: memory.MemoryStore, pod: core.Pod) -> None:
    event = core.Event(
        metadata=meta.ObjectMeta(name="foreign", namespace="team"),
        involved_object=tracerecorder.reference(pod),
        reason="Scheduled",
        message="Successfully assigned team/train to node-1",
        type="Normal",
        event_time="2026-11-21T11:00:12.630000Z",
        reporting_component="default-scheduler",
    )
    await store.create(event)
    (found,) = await tracerecorder.list_steps(store, tracerecorder.reference(pod))
    assert (found.layer, found.reason, found.message) == ("scheduler", "Scheduled", event.message)
    assert found.at == meta.timestamp(event.event_time)
    assert found.facts == {"scheduler": "default-scheduler"}
    assert found.teller == "default-scheduler"


@pytest.mark.parametrize("component", ["", "fairlead-scheduler", "kubelet", "fairlead-"])
async def test_a_step_in_an_event_that_reports_as_another_is_nobodys(
    store: memory.MemoryStore, pod: core.Pod, component: str
) -> None:
    text = msgspec.json.encode(step("DevicesAllocated", 1.0, gpus=["GPU-forged"])).decode()
    event = core.Event(
        metadata=meta.ObjectMeta(name="forged", namespace="team", annotations={names.STEP: text}),
        involved_object=tracerecorder.reference(pod),
        source=core.EventSource(component=component),
    )
    await store.create(event)
    assert await tracerecorder.list_steps(store, tracerecorder.reference(pod)) == ()


@pytest.mark.parametrize("kind", ["Pod", "Node"])
async def test_events_of_another_namespace_say_nothing_about_an_object(
    store: memory.MemoryStore, pod: core.Pod, kind: str
) -> None:
    about = core.ObjectReference(kind=kind, name="train", namespace="mallory", uid=pod.metadata.uid)
    await tracerecorder.record(store, about, step("DevicesAllocated", 1.0))
    await tracerecorder.record(store, about, step("Scheduled", 1.0))
    by_name = core.ObjectReference(kind=kind, name="train", namespace={"Pod": "team", "Node": ""}[kind])
    for wanted in (by_name, msgspec.structs.replace(by_name, uid=pod.metadata.uid)):
        assert await tracerecorder.list_steps(store, wanted) == ()


async def test_a_recorded_step_cannot_name_another_teller(store: memory.MemoryStore, pod: core.Pod) -> None:
    told = dataclasses.replace(step("Started", 1.0), teller="somebody")
    await tracerecorder.record(store, tracerecorder.reference(pod), told)
    assert await tracerecorder.list_steps(store, tracerecorder.reference(pod)) == ()


def _pulled(pod: core.Pod, message: str, *, component: str = "kubelet", **about: str) -> core.Event:
    return core.Event(
        metadata=meta.ObjectMeta(name="pulled", namespace="team"),
        involved_object=msgspec.structs.replace(tracerecorder.reference(pod), **about),
        reason="Pulled",
        message=message,
        type="Normal",
        first_timestamp="2026-11-21T11:00:12Z",
        last_timestamp="2026-11-21T11:05:00Z",
        source=core.EventSource(component=component, host="node-1"),
    )


_PULL = 'Successfully pulled image "team/train:1"'


@pytest.mark.parametrize(
    ("words", "took_s"),
    [
        (f"{_PULL} in 1m21.5s", 81.5),
        (f"{_PULL} in 812ms (2.5s including waiting)", 2.5),
        (f"{_PULL} in 812ms (812ms including waiting). Image size: 2206928 bytes.", 0.812),
    ],
)
async def test_a_foreign_kubelets_pull_is_its_step(
    store: memory.MemoryStore, pod: core.Pod, words: str, took_s: float
) -> None:
    await store.create(_pulled(pod, words, field_path="spec.containers{main}"))
    (found,) = await tracerecorder.list_steps(store, tracerecorder.reference(pod))
    assert (found.layer, found.reason) == ("engine", "ImagePulled")
    assert found.duration_s == pytest.approx(took_s)
    assert (found.facts, found.teller) == ({"image": "team/train:1", "container": "main"}, "kubelet")
    assert found.at == meta.timestamp("2026-11-21T11:00:12Z")


@pytest.mark.parametrize(
    "event",
    [
        {"message": 'Container image "team/train:1" already present on machine'},
        {"message": f"{_PULL} in a while"},
        {"message": f"{_PULL} in -5s"},
        {"message": f"{_PULL} in 1s", "component": "somebody"},
        {"message": f"{_PULL} in 1s", "kind": "Node"},
    ],
)
async def test_what_is_no_pull_of_a_kubelet_is_no_step(
    store: memory.MemoryStore, pod: core.Pod, event: dict[str, str]
) -> None:
    await store.create(_pulled(pod, **event))
    assert await tracerecorder.list_steps(store, tracerecorder.reference(pod)) == ()
