"""Serves the routes of containers: look, wait, stop, delete, and what a container wrote."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import litestar
import msgspec
from litestar import di, openapi, params, response, status_codes

from fairlead import errors
from fairlead.model.container import isolation
from fairlead.plan import trace
from fairlead.plan.claim import extended
from fairlead.plan.claim.life import lifecycle
from fairlead.plan.pod import personwords, podstate
from fairlead.serve.api import eventstream, stream
from fairlead.serve.api import page as pages
from fairlead.serve.api.change import Wait
from fairlead.serve.api.failure import documented
from fairlead.serve.backend import account
from fairlead.serve.backend.containers.pods import container_name, find_pod, is_ephemeral
from fairlead.serve.v1.claims import view as claimview
from fairlead.serve.v1.containers import definition, pods, traceview, view, waits, waitview
from fairlead.serve.v1.containers.life import reading as life
from fairlead.serve.v1.containers.life import waiting
from fairlead.serve.v1.containers.output import logevents, logs
from fairlead.serve.v1.containers.parameters import Grace, Name, Namespace
from fairlead.serve.v1.containers.view import ContainerView
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.serve.v1.events import routes as events
from fairlead.store import tracerecorder
from fairlead.store.port import Selector
from fairlead.store.subresource import LogOptions
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.text import timestamp

PLAIN_BYTES = openapi.ResponseSpec(
    str, generate_examples=False, description="output as the process wrote it", media_type="text/plain"
)


_PLAIN, _FRAMED = "text/plain", "application/vnd.docker.multiplexed-stream"


@dataclass(frozen=True, slots=True)
class _Excerpt:
    """How much of the output, and in which form."""

    options: LogOptions
    split: bool
    notices: bool
    marks: bool
    after: logevents.Position | None


def _excerpt(
    tail: Annotated[int | None, params.QueryParameter(ge=0, description="only the last lines of what is there")] = None,
    timestamps: Annotated[bool, params.QueryParameter(description="put the time before each line")] = False,
    since: Annotated[str, params.QueryParameter(description="RFC 3339 time; older output is left out")] = "",
    until: Annotated[str, params.QueryParameter(description="RFC 3339 time; later output is left out")] = "",
    split: Annotated[
        bool, params.QueryParameter(description="frames of docker's multiplexed stream, which separate the streams")
    ] = False,
    notices: Annotated[
        bool, params.QueryParameter(description="with split: frames of stream 3 say that it was started again")
    ] = False,
    marks: Annotated[
        bool, params.QueryParameter(description="with split: frames of stream 4 hold the position of the line before")
    ] = False,
    after: Annotated[str, params.QueryParameter(description="with marks: only what is behind that position")] = "",
) -> _Excerpt:
    begin, end = _seconds("since", since), _seconds("until", until)
    options = LogOptions(tail=tail, timestamps=timestamps, since=begin, until=end)
    return _Excerpt(options, split, notices, marks and split, logevents.read(after, "after") if marks else None)


def _seconds(name: str, text: str) -> float | None:
    """Return a time as Unix seconds; None where none is given. Raises: Invalid (`TimeInvalid`)."""
    if not text:
        return None
    found = timestamp.parse(text)
    if found is None:
        message = f'{name} "{text}" is not a time of RFC 3339'.replace("\0", "\\0")
        raise errors.Invalid(message, reason="TimeInvalid", hint="for example 2026-01-31T09:30:00Z")
    return found


Excerpt = di.NamedDependency[params.SkipValidation[_Excerpt]]


@litestar.get(
    "/v1/containers",
    dependencies=pages.PAGE,
    summary="List containers",
    responses=documented(400, 404, 422),
    tags=["container"],
)
async def list_containers(
    services: Dependencies,
    page: pages.Paged,
    all_: Annotated[bool, params.QueryParameter(name="all", description="ended ones too")] = False,
    label: Annotated[list[str] | None, params.QueryParameter(description="`key=value`; repeat for more")] = None,
    namespace: Annotated[str | None, params.QueryParameter(description="empty: all namespaces")] = None,
    match: Annotated[
        str,
        params.QueryParameter(
            max_length=200, description="only those with each of these words in name, namespace, image, node or labels"
        ),
    ] = "",
) -> view.ContainerList:
    """Return containers in the order of namespace and name."""
    found = await pods.list_pods(services.store, namespace=namespace, labels=label or ())
    words = match.lower().split()
    wanted = (pod for pod in found if (all_ or not podstate.is_final(pod)) and _matches(pod, words))
    shown, following = page.cut(wanted, lambda one: (one.metadata.namespace, one.metadata.name))
    unplaced = [pod for pod in shown if not pod.spec.node_name and not podstate.is_final(pod)]
    why = await waits.waiting(services, unplaced)
    items = [_view(services, pod) for pod in shown]
    listed = tuple(msgspec.structs.replace(one, waiting=why[one.uid]) if one.uid in why else one for one in items)
    return view.ContainerList(items=listed, next=following)


def _matches(pod: core.Pod, words: Sequence[str]) -> bool:
    if not words:
        return True
    about, spec = pod.metadata, pod.spec
    images = (one.image for one in spec.containers)
    labels = (f"{name}={value}" for name, value in about.labels.items())
    text = "\n".join((about.name, about.namespace, spec.node_name, *images, *labels)).lower()
    return all(word in text for word in words)


def _view(services: Dependencies, pod: core.Pod) -> ContainerView:
    """Return a pod's view; the same for the same pod."""
    found: ContainerView = services.views.of(pod, make=lambda: _named(services, view.container_view(pod)))
    return found


def _named(services: Dependencies, shown: ContainerView) -> ContainerView:
    """Return a view with the name of the account that it belongs to, where that is one of this machine."""
    user = account.owner(shown.namespace) if services.info.node else ""
    return msgspec.structs.replace(shown, user=user) if user else shown


@litestar.get("/v1/containers/{name:str}", summary="Show a container", responses=documented(404), tags=["container"])
async def show_container(services: Dependencies, name: Name, namespace: Namespace = "default") -> ContainerView:
    """Return one container as it is."""
    pod = await find_pod(services.store, name, namespace)
    why = await waits.waiting(services, [pod])
    shown = _named(services, view.container_view(pod))
    steps = await tracerecorder.list_steps(services.store, tracerecorder.reference(pod))
    told = await life.told(services, pod, steps)
    asked = definition.definition(pod)
    return msgspec.structs.replace(shown, waiting=why.get(pod.metadata.uid), definition=asked, **told)


@litestar.delete(
    "/v1/containers/{name:str}",
    summary="Stop and remove a container",
    responses=documented(404, 409),
    status_code=status_codes.HTTP_202_ACCEPTED,
    tags=["container"],
)
async def delete_container(
    services: Dependencies,
    name: Name,
    namespace: Namespace = "default",
    grace: Grace = None,
    wait: Wait = None,
) -> ContainerView:
    """Delete the object; a running container is stopped first. With `wait` the answer comes when it is gone."""
    removed = await services.backend.lifecycle.remove(name, namespace, grace_s=grace)
    return await pods.after(services.store, removed, state="gone", wait_s=wait)


@litestar.post(
    "/v1/containers/{name:str}/:stop",
    summary="Stop a container and keep its record",
    responses=documented(403, 404, 409),
    status_code=status_codes.HTTP_202_ACCEPTED,
    tags=["container"],
)
async def stop_container(
    services: Dependencies,
    name: Name,
    namespace: Namespace = "default",
    grace: Grace = None,
    wait: Wait = None,
) -> ContainerView:
    """Ask for a stop; with `wait` the answer comes when it has ended. Asking again changes nothing.

    On a cluster it is an eviction, which a disruption budget may forbid, and no record stays.
    """
    stopped = await services.backend.lifecycle.stop(name, namespace, grace_s=grace)
    return await pods.after(services.store, stopped, state="ended", wait_s=wait)


@litestar.get(
    "/v1/containers/{name:str}/wait",
    summary="Wait for a container",
    responses=documented(404, 422),
    tags=["container"],
)
async def wait_container(
    services: Dependencies,
    name: Name,
    namespace: Namespace = "default",
    until: Annotated[str, params.QueryParameter(name="state", description="started, ended or gone")] = "ended",
    timeout: Annotated[float, params.QueryParameter(ge=0, le=3600, description="seconds at most")] = 60,
) -> ContainerView:
    """Return the container once it is in the state, or as it is when the time is over: compare `state`."""
    pod = await find_pod(services.store, name, namespace)
    return await pods.wait_for(services.store, pod, state=until, timeout_s=timeout)


@litestar.get(
    "/v1/containers/{name:str}/logs",
    dependencies={"excerpt": di.Provide(_excerpt, sync_to_thread=False)} | eventstream.FOLLOWS,
    summary="Read a container's output",
    responses=documented(400, 404, 409, 422) | {200: PLAIN_BYTES} | eventstream.STREAM,
    tags=["container"],
)
async def read_logs(
    services: Dependencies,
    follows: eventstream.Follows,
    excerpt: Excerpt,
    name: Name,
    namespace: Namespace = "default",
    follow: Annotated[
        bool, params.QueryParameter(description="wait for the start, go on to the end, restarts too")
    ] = False,
    container: Annotated[str, params.QueryParameter(description="which container of the group; empty: the first")] = "",
    once: Annotated[
        bool,
        params.QueryParameter(
            description="with follow: end with the first run, not with the last, and hold its process back where its "
            "output is not read"
        ),
    ] = False,
) -> response.Stream | litestar.Response[Any]:
    """Return standard output and error, from the beginning, while it runs and after its end.

    With `Accept: text/event-stream` it is followed, one event a line: `{"at", "stream", "text"}`; `notice` where it is
    started again, and `end` with `state` and `exit_code`.
    """
    pod = await find_pod(services.store, name, namespace)
    if follows.is_wanted:
        return _log_events(services, pod, container_name(pod, container), excerpt.options, follows.last)
    options = replace(excerpt.options, holds_back=once)
    once = once or is_ephemeral(pod, container)
    if excerpt.marks:
        options = logevents.behind(options, excerpt.after)
    goes_on = excerpt.after is not None
    wanted = logs.Wanted(container=container_name(pod, container), options=options, once=once, goes_on=goes_on)
    if follow:
        pieces = logs.follow(services.store, services.backend.logs, pod, wanted)
    else:
        pieces = await logs.latest(services.backend.logs, pod, wanted)
    if excerpt.marks:
        pieces = logevents.marked(pieces, excerpt.after, keeps_times=excerpt.options.timestamps)
    if not (excerpt.split and excerpt.notices):
        pieces = logs.without_notices(pieces)
    return response.Stream(
        stream.multiplexed(pieces) if excerpt.split else pieces, media_type=_FRAMED if excerpt.split else _PLAIN
    )


def _log_events(
    services: Dependencies, pod: core.Pod, container: str, options: LogOptions, last: str
) -> litestar.Response[Any]:
    """Return a container's output as events, behind the one that was read last."""
    position = None if last == eventstream.END else logevents.read(last)
    stamped = logevents.behind(options, position)
    wanted = logs.Wanted(container=container, options=stamped, goes_on=position is not None)

    def begun() -> AsyncIterator[eventstream.Message]:
        pieces = logs.follow(services.store, services.backend.logs, pod, wanted)
        return logevents.messages(services.store, pod, pieces, position)

    return eventstream.answer(last, begun)


@litestar.get(
    "/v1/containers/{name:str}/events",
    dependencies=pages.PAGE | eventstream.FOLLOWS,
    summary="List or follow a container's events",
    responses=documented(400, 404) | events.FOLLOWED,
    tags=["container"],
)
async def list_container_events(
    services: Dependencies,
    follows: eventstream.Follows,
    page: pages.Paged,
    name: Name,
    namespace: Namespace = "default",
) -> litestar.Response[Any]:
    """Return the events of this container, oldest first; those of an earlier one of the same name are left out.

    With `Accept: text/event-stream` they are followed.
    """
    pod = await find_pod(services.store, name, namespace)
    selector = Selector(namespace=namespace, fields={"involvedObject.uid": pod.metadata.uid})
    if follows.is_wanted:
        return events.answer(services.store, selector, lambda _: True, follows.last)
    return litestar.Response(events.event_list((await services.store.list(core.Event, selector)).items, page))


@litestar.get(
    "/v1/containers/{name:str}/trace",
    summary="Trace a container",
    responses=documented(404),
    tags=["container"],
)
async def trace_container(
    services: Dependencies,
    name: Name,
    namespace: Namespace = "default",
    container: Annotated[
        str, params.QueryParameter(description="steps of this container of the group, and of the group as a whole")
    ] = "",
) -> traceview.TraceView:
    """Return what every layer recorded, from the silicon to the process's end, in order."""
    pod = await find_pod(services.store, name, namespace)
    wanted = container_name(pod, container) if container else ""
    steps = trace.with_acceptance(await tracerecorder.list_steps(services.store, tracerecorder.reference(pod)), pod)
    steps = await life.with_first_output(services, pod, trace.with_statuses(steps, pod))
    node = pod.spec.node_name
    about = core.ObjectReference(kind="Node", name=node)
    before = await tracerecorder.list_steps(services.store, about) if node else ()
    asked = podstate.asked_devices(pod, wanted)
    if wanted:
        steps = tuple(step for step in steps if step.facts.get("container", wanted) == wanted)
    return traceview.trace_view(trace.order_trace(steps, before, is_final=podstate.is_final(pod), resources=asked))


@litestar.get(
    "/v1/containers/{name:str}/explain",
    summary="Explain a container's state",
    responses=documented(404),
    tags=["container"],
)
async def explain_container(services: Dependencies, name: Name, namespace: Namespace = "default") -> view.Explanation:
    """Return why it waits, failed or runs where it does, from the latest step that says why."""
    pod = await find_pod(services.store, name, namespace)
    shown = view.container_view(pod)
    steps = await tracerecorder.list_steps(services.store, tracerecorder.reference(pod))
    step = trace.find_why(steps)
    own = ": ".join(part for part in (shown.reason, shown.message) if part)
    told = "" if step is None else f"{step.message} (says an event of {step.teller})" if step.teller else step.message
    why = (await waits.waiting(services, [pod])).get(pod.metadata.uid)
    words = why.message if why is not None and why.reason != waiting.OTHER else _running(shown)
    unseen = f'no scheduler named "{pod.spec.scheduler_name}" has looked at it yet' if not pod.spec.node_name else ""
    return view.Explanation(
        isolation=isolation.of_class(pod.spec.runtime_class_name),
        name=name,
        state=shown.state,
        summary=words or personwords.message(own or told) or unseen or f"{shown.state} on {shown.node}",
        reason=shown.reason or (step.reason if step else ""),
        facts=dict(step.facts) if step else {},
        at=timestamp.emit(step.at) if step else None,
        diagnosis="" if pod.spec.node_name or podstate.is_final(pod) else await _diagnosed(services, pod),
        waiting=why,
        claims=await _claim_views(services, pod),
        priority=shown.priority,
        priority_class=shown.priority_class,
        time_limit_s=shown.time_limit_s,
        resize=shown.resize,
        started_at=shown.started_at,
        idle=shown.idle,
        **await life.told(services, pod, steps),
    )


def _running(shown: ContainerView) -> str:
    """Return where a container runs and with what; empty where it does not run."""
    if shown.state != "running":
        return ""
    held = [f"{len(ids)} {resource}" for resource, ids in shown.devices.items() if ids]
    held += [
        f"{len(one.devices)} device{'s' if len(one.devices) > 1 else ''} of claim {one.claim or one.name}"
        for one in shown.claims
        if one.devices
    ]
    return f"on {shown.node}, with {' and '.join(held) if held else 'no devices'}"


async def _claim_views(services: Dependencies, pod: core.Pod) -> tuple[claimview.ClaimView, ...]:
    """Return the claims of a pod that the caller may see."""
    found = []
    for name in lifecycle.claim_names(pod):
        with contextlib.suppress(errors.NotFound, errors.Denied):
            claim = await services.store.get(ResourceClaim, name, pod.metadata.namespace)
            found.append(claimview.claim_view(claim, (pod,)))
    return tuple(found)


async def _diagnosed(services: Dependencies, pod: core.Pod) -> str:
    """Return why a pod waits, from the nodes and pods as they are, or that the user may not read them."""
    try:
        nodes, pods = await services.census.list(core.Node), await services.census.list(core.Pod)
        ours, shards = services.info.scheduler_name, await waits.shards(services)
        served = frozenset(extended.served(await waits.classes(services)))
        return waitview.why(pod, waitview.Census(nodes.items, pods.items, ours=ours, shards=shards, served=served))
    except errors.Denied:
        return "nodes and pods of the cluster may not be read, so what fits it is not known"
    except errors.Invalid as error:
        return f"its need cannot be compared with the nodes: {errors.sentence(error)}"


ROUTES = (
    list_containers,
    show_container,
    delete_container,
    stop_container,
    wait_container,
    read_logs,
    list_container_events,
    trace_container,
    explain_container,
)
