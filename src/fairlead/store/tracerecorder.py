"""Records trace steps as Kubernetes Events, so that `kubectl get events` shows them too.

One step is one Event of its object, its facts as JSON in the annotation `fairlead.dev/step`. Recording never fails the
act that it describes: a step that cannot be stored is logged and lost. What others say in events of their own counts
as theirs (`TraceStep.teller`); docs/design/trace.md says who can write which.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Final

import msgspec

from fairlead import errors, telemetry
from fairlead.model.container.step import TraceStep
from fairlead.store.port import Selector, Store
from fairlead.wire.kubernetes import core, meta, names
from fairlead.wire.text import goduration, typedjson

_CLUSTER_SCOPED: Final = "default"
"""Where the events of objects without a namespace lie."""
_SCHEDULING: Final = frozenset({"Scheduled", "FailedScheduling"})
_PULLED: Final = re.compile(
    r'Successfully pulled image "(?P<image>[^"]{1,4096})" in (?P<took>[^ ]{1,40})'
    r"(?: \((?P<all>[^ ]{1,40}) including waiting\))?"
)
"""The kubelet's words; an image that was there already is reported in others."""
_CONTAINER: Final = re.compile(r"spec\.(?:initContainers|containers)\{([^{}]{1,253})\}")


def reference(item: meta.Object) -> core.ObjectReference:
    """Name an object as events do."""
    about = item.metadata
    return core.ObjectReference(
        api_version=item.API_VERSION, kind=item.KIND, name=about.name, namespace=about.namespace, uid=about.uid
    )


async def record(store: Store, about: core.ObjectReference, step: TraceStep, *, host: str = "", once: str = "") -> bool:
    """Keep one step; a store that refuses is logged, never raised.

    Args:    once: names the step among those of its object; while its event is kept it is not recorded again, by
             whomever. Empty: recorded each time.
    Returns: False where the store did not answer, so that another try may keep it.
    """
    event = core.Event(
        metadata=meta.ObjectMeta(
            name=event_name(about, once) if once else f"{about.name}.{uuid.uuid4().hex[:16]}",
            namespace=about.namespace or _CLUSTER_SCOPED,
            annotations={names.STEP: msgspec.json.encode(step).decode()},
        ),
        involved_object=about,
        reason=step.reason,
        message=step.message,
        type="Warning" if step.is_warning else "Normal",
        source=core.EventSource(component=_component(step.layer), host=host),
        first_timestamp=meta.emit_time(step.at),
        last_timestamp=meta.emit_time(step.at),
        count=1,
    )
    try:
        await store.create(event)
    except errors.FairleadError as error:
        if once and error.reason == "AlreadyExists":
            return True
        telemetry.log.warning("step not recorded", reason=error.reason, error=error.message, pod=about.name)
        return not isinstance(error, errors.Unavailable)
    return True


def event_name(about: core.ObjectReference, once: str) -> str:
    """Return the name of the event of a step that is recorded once."""
    own = hashlib.sha256(f"{about.uid}/{once}".encode()).hexdigest()[:16]
    return f"{about.name}.{own}"


async def list_steps(store: Store, about: core.ObjectReference) -> tuple[TraceStep, ...]:
    """Return the steps recorded for one object, oldest first; by uid, or by name for a reference without one.

    Only events in the object's own namespace count: those that lie elsewhere were written by others.
    """
    wanted = {"involvedObject.kind": about.kind}
    wanted |= {"involvedObject.uid": about.uid} if about.uid else {"involvedObject.name": about.name}
    listing = await store.list(core.Event, Selector(namespace=about.namespace or _CLUSTER_SCOPED, fields=wanted))
    steps = [step for event in listing.items if (step := parse_step(event)) is not None]
    return tuple(sorted(steps, key=lambda step: step.at))


def parse_step(event: core.Event) -> TraceStep | None:
    """Return the step an event carries, or that of another's scheduler or kubelet; None for others, damaged ones.

    Of a kubelet its warnings count, and how long it pulled an image.

    An annotation counts only in an event that reports as the layer whose step it is: only we may write either,
    where the chart's policy `reserved-names` is in force.
    """
    text = event.metadata.annotations.get(names.STEP)
    if text is None:
        return _scheduler_step(event) or _kubelet_warning(event) or _kubelet_pull(event)
    try:
        step = typedjson.decode(text, type=TraceStep)
    except msgspec.MsgspecError:
        return None
    is_ours = event.source.component == _component(step.layer) and not step.teller
    return step if is_ours else None


def _component(layer: str) -> str:
    return f"fairlead-{layer}"


def _teller(event: core.Event) -> str:
    return event.reporting_component or event.source.component or "an event"


def _scheduler_step(event: core.Event) -> TraceStep | None:
    """Return what a scheduler that is not ours says in an event of its own; its words are all there is.

    Source: kubernetes pkg/scheduler schedule_one.go, the events `Scheduled` and `FailedScheduling` of a pod.
    """
    at = meta.timestamp(event.event_time or event.last_timestamp or event.first_timestamp)
    if event.reason not in _SCHEDULING or event.involved_object.kind != core.Pod.KIND or at is None:
        return None
    return TraceStep(
        layer="scheduler",
        reason=event.reason,
        message=event.message,
        at=at,
        facts={"scheduler": event.reporting_component or event.source.component},
        is_warning=event.type == "Warning",
        teller=_teller(event),
    )


def _kubelet_warning(event: core.Event) -> TraceStep | None:
    """Return what a kubelet that is not ours warns of: images, volumes, sandboxes, admission, containers that crash.

    Source: kubernetes pkg/kubelet/events event.go; the component is `kubelet`.
    """
    component = event.reporting_component or event.source.component
    at = meta.timestamp(event.event_time or event.last_timestamp or event.first_timestamp)
    if component != "kubelet" or event.type != "Warning" or event.involved_object.kind != core.Pod.KIND or at is None:
        return None
    return TraceStep(
        layer="kubelet",
        reason=event.reason,
        message=event.message,
        at=at,
        is_warning=True,
        teller=_teller(event),
    )


def _kubelet_pull(event: core.Event) -> TraceStep | None:
    """Return how long a kubelet that is not ours pulled an image, waiting for other pulls included.

    Source: kubernetes pkg/kubelet/images image_manager.go, the event `Pulled` of a pod.
    """
    component = event.reporting_component or event.source.component
    at = meta.timestamp(event.event_time or event.first_timestamp or event.last_timestamp)
    if component != "kubelet" or event.reason != "Pulled" or event.involved_object.kind != core.Pod.KIND or at is None:
        return None
    found = _PULLED.match(event.message)
    took_s = goduration.parse(found["all"] or found["took"]) if found is not None else None
    if found is None or took_s is None:
        return None
    of = _CONTAINER.fullmatch(event.involved_object.field_path)
    return TraceStep(
        layer="engine",
        reason="ImagePulled",
        message=event.message,
        at=at,
        duration_s=took_s,
        facts={"image": found["image"], **({"container": of[1]} if of is not None else {})},
        teller=_teller(event),
    )
