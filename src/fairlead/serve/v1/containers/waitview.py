"""Says why a container waits in a person's words: what it lacks, who has it, its place in the queue. Pure.

Nodes and pods are judged as the scheduler judges them (`plan.schedule.reference`), and put into numbers with one
sentence. What no node could ever give is distinguished from what is taken now. What is not a matter of amounts (taints,
labels, scheduling gates, unknown rules) keeps the diagnosis of `plan.schedule.waiting`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.plan.pod import affinity, personwords, podstate
from fairlead.plan.schedule import reference, rules, waiting, workloads
from fairlead.plan.schedule.group import gang, membership
from fairlead.plan.schedule.shard import running
from fairlead.serve.backend import hardware
from fairlead.serve.v1.containers.life import estimate
from fairlead.serve.v1.containers.life.waiting import (
    DEVICES,
    GROUP,
    NEVER,
    OTHER,
    PORT,
    QUEUE,
    RESOURCES,
    ROOM,
    SCHEDULER,
    Held,
    Waiting,
    duration,
    ordinal,
)
from fairlead.wire.kubernetes import core, meta, quantity
from fairlead.wire.text import timestamp

_OF_NODES: Final = frozenset({NEVER, DEVICES, RESOURCES, PORT, OTHER})
"""Reasons that are about the nodes that there are."""
_LISTED: Final = 3
"""Holders that are named; the others are counted."""
_GIB: Final = 1 << 30


class Census:
    """Nodes and pods as one answer sees them, each judged once however many pods of a list wait.

    Otherwise a list of a thousand waiting pods would judge each pod a thousand times, and delay every other request.
    """

    def __init__(
        self,
        nodes: Sequence[core.Node],
        pods: Sequence[core.Pod],
        *,
        ours: str,
        shards: running.Shards = running.WHOLE,
        served: frozenset[str] = frozenset(),
    ) -> None:
        """Take what is there.

        Args: pods: of all namespaces.   ours: the name of the scheduler that is ours.   shards: those that run.
              served: extended resources that DeviceClasses stand for.
        """
        self.nodes, self.pods, self.ours, self.shards, self.served = nodes, pods, ours, shards, served
        self._parts: dict[str, Census] = {}
        """By pool: the census with the nodes of that pool alone."""
        self.living = [one for one in pods if not podstate.is_final(one)]
        self.there: dict[str, list[core.Pod]] = {}
        for one in self.living:
            self.there.setdefault(one.spec.node_name, []).append(one)
        self._needs: dict[int, reference.PodInfo | None] = {}
        self._holders: dict[tuple[str, str], tuple[Held, ...]] = {}
        self._queues: dict[tuple[str, str], Mapping[str, int]] = {}
        self._asked: dict[tuple[str, str], tuple[int, ...]] = {}
        self._ends: dict[tuple[str, str], tuple[tuple[float, int], ...]] = {}
        self._is_hopeful: dict[int, bool] = {}
        self._own = frozenset(map(id, pods))
        self._told: dict[tuple[int, str], tuple[int, Waiting]] = {}

    def of(self, pod: core.Pod) -> Census:
        """Return the census with the nodes alone that the pod's scheduler uses."""
        if not self.shards.divide(pod):
            return self
        pool = self.shards.pool_of(pod)
        if pool not in self._parts:
            nodes = self.shards.nodes_for(pod, self.nodes)
            self._parts[pool] = Census(nodes, self.pods, ours=self.ours, served=self.served)
        return self._parts[pool]

    def told(self, pod: core.Pod, caller: str, second: int, tell: Callable[[], Waiting]) -> Waiting:
        """Return why a pod waits, computed by `tell` once a second: the words hold durations in seconds."""
        if id(pod) not in self._own:
            return tell()
        known = self._told.get((id(pod), caller))
        if known is None or known[0] != second:
            known = self._told[id(pod), caller] = (second, tell())
        return known[1]

    def need(self, pod: core.Pod) -> reference.PodInfo | None:
        """Return what a pod of the census asks; None: a quantity of it cannot be read."""
        if id(pod) not in self._needs:
            try:
                self._needs[id(pod)] = reference.pod_info(pod)
            except errors.Invalid:
                self._needs[id(pod)] = None
        return self._needs[id(pod)]

    @functools.cached_property
    def claimed(self) -> frozenset[str]:
        """The resources that some node has none of, where a claim meets them: amounts do not say what fits there."""
        return frozenset(name for name in self.served if any(not one.allocatable.get(name) for one in self.whole))

    def by_amount(self, need: reference.PodInfo) -> reference.PodInfo:
        """Return what a pod asks without the resources that no node has and a claim is to meet."""
        offered = {name for one in self.whole for name, count in one.allocatable.items() if count}
        met = self.claimed - offered
        if met.isdisjoint(need.requests):
            return need
        left = {name: count for name, count in need.requests.items() if name not in met}
        return dataclasses.replace(need, requests=left)

    @functools.cached_property
    def whole(self) -> list[reference.NodeInfo]:
        """The nodes as if no pod were on them. Raises: Invalid."""
        return [_whole(node) for node in self.nodes]

    @functools.cached_property
    def full(self) -> list[reference.NodeInfo]:
        """The nodes with what is on them. Raises: Invalid."""
        return [reference.node_info(node, self.there.get(node.metadata.name, ())) for node in self.nodes]

    def holders(self, name: str, node: str) -> tuple[Held, ...]:
        """Return who has a resource of a node, most first."""
        if (name, node) not in self._holders:
            self._holders[name, node] = _holders(name, self._known(node))
        return self._holders[name, node]

    def queue(self, name: str, scheduler: str) -> Mapping[str, int]:
        """Return places in the queue for a resource, by uid, 1 is next; one that will never fit has none."""
        if (name, scheduler) not in self._queues:
            found = (one for one in self.living if one.spec.scheduler_name == scheduler and self._waits(one, name))
            queue = sorted(found, key=gang.turn)
            self._queues[name, scheduler] = {one.metadata.uid: at for at, one in enumerate(queue, 1)}
            needs = (need for one in queue if (need := self.need(one)) is not None)
            self._asked[name, scheduler] = (0, *itertools.accumulate(need.requests[name] for need in needs))
        return self._queues[name, scheduler]

    def asked_before(self, name: str, scheduler: str, place: int) -> int:
        """Return how much of a resource the pods before a place in its queue ask for."""
        self.queue(name, scheduler)
        return self._asked[name, scheduler][max(0, place - 1)]

    def ends(self, name: str, node: str) -> tuple[tuple[float, int], ...]:
        """Return what of a resource of a node is free again by which times, see `estimate.ends`."""
        if (name, node) not in self._ends:
            self._ends[name, node] = estimate.ends(name, self._known(node))
        return self._ends[name, node]

    def _known(self, node: str) -> list[tuple[core.Pod, reference.PodInfo]]:
        """Return what is on a node, and what it asks, as far as that can be read."""
        return [(one, need) for one in self.there.get(node, ()) if (need := self.need(one)) is not None]

    def _waits(self, one: core.Pod, name: str) -> bool:
        if one.spec.node_name or one.spec.scheduling_gates:
            return False
        need = self.need(one)
        if need is None or not need.requests.get(name):
            return False
        if id(one) not in self._is_hopeful:
            self._is_hopeful[id(one)] = _never(need, self.whole, self.claimed) is None
        return self._is_hopeful[id(one)]


@frozen
class Caller:
    """Who asks."""

    name: str = ""
    """No other caller has it."""
    kept: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """By node, which of its GPUs programs that Fairlead did not start keep from tenants, as the caller may know it."""
    whose: Callable[[str, str], tuple[str, str]] = lambda namespace, name: (namespace, name)
    """Returns whose a container is and its name, as the caller may know them; empty: not."""


EVERYTHING: Final = Caller()
"""Who may know all holders."""


def describe(pod: core.Pod, census: Census, *, now: dt.datetime, caller: Caller = EVERYTHING) -> Waiting | None:
    """Return why a pod has no node; None: it has one, or has ended.

    Args:   census: the pod is one of it, or as good as one.
    Raises: Invalid: a quantity of the pod, of one that has a node, or of a node cannot be read.
    """
    if pod.spec.node_name or podstate.is_final(pod):
        return None
    second = int(now.timestamp())
    return census.told(pod, caller.name, second, lambda: _found(pod, census, now=now, caller=caller))


def _found(pod: core.Pod, census: Census, *, now: dt.datetime, caller: Caller) -> Waiting:
    if unled := census.shards.refusal(pod):
        return Waiting(reason=SCHEDULER, message=unled)
    found, where = _described(pod, census.of(pod), now=now, caller=caller), census.shards.words(pod)
    return msgspec.structs.replace(found, message=f"{found.message}{where}") if found.reason in _OF_NODES else found


def why(pod: core.Pod, census: Census) -> str:
    """Return one sentence on why a pod has no node, from nodes and pods alone. Raises: Invalid: as `waiting.why`."""
    if unled := census.shards.refusal(pod):
        return unled
    if not census.of(pod).claimed.isdisjoint(podstate.asked_devices(pod)) and (told := waiting.said(pod)):
        return f"{told}{census.shards.words(pod)}"  # amounts do not say what a claim can have
    words = waiting.why(pod, census.of(pod).nodes, census.pods, ours=census.ours)
    return f"{words}{census.shards.words(pod)}"


def _described(pod: core.Pod, census: Census, *, now: dt.datetime, caller: Caller) -> Waiting:
    nodes, whole, ours = census.nodes, census.whole, census.ours
    whole_need = reference.pod_info(pod)
    need = census.by_amount(whole_need)
    is_refused = bool(pod.spec.scheduling_gates) or (pod.spec.scheduler_name == ours and rules.refusal(pod.spec))
    if whole and not is_refused:
        open_to_it = [node for node in whole if _is_open(need, node)]
        if open_to_it and (never := _never(need, open_to_it, census.claimed)) is not None:
            return never
        if (told := _told(pod, has_claims=need is not whole_need)) is not None:
            return told
        every = zip(nodes, whole, census.full, strict=True)
        taken = [(node, info) for node, all_of_it, info in every if _fits(need, all_of_it)]
        if taken and any(_fits(need, info) for _, info in taken):
            if not need.peer.has_rules:
                where = "" if len(nodes) == 1 else f" on {taken[0][0].metadata.name}"
                message = f"there is room{where}: the scheduler places it in its next round"
                return Waiting(reason=SCHEDULER, message=message)
        elif name := _lacking(need, [info for _, info in taken]):
            short = _short(pod, name, need.requests[name], taken, census)
            short = msgspec.structs.replace(short, holders=_known(short.holders, caller))
            words = _sentence(
                short, pod.metadata.namespace, now=now, many=len(nodes) > 1, kept=caller.kept.get(short.node, ())
            )
            return msgspec.structs.replace(short, message=words)
        elif (found := _of_port(need, taken, census)) is not None:
            node, port, holder = found
            (held,) = _known((holder,), caller)
            words = _held(held, "port", pod.metadata.namespace, now).replace("1 by ", "held by ", 1)
            where = "" if len(nodes) == 1 else f" on {node}"
            return Waiting(reason=PORT, message=f"waiting for port {port}{where}: {words}", node=node, holders=(held,))
    words = waiting.why(pod, nodes, census.pods, ours=ours, full=census.full)
    return Waiting(reason=OTHER, message=f"{words}{_missed(need, whole)}")


def _missed(need: reference.PodInfo, whole: Sequence[reference.NodeInfo]) -> str:
    """Return which labels no node has as they are asked for, of the node that lacks fewest; empty: they are not why."""
    each = [affinity.missed(need.node_selector, need.affinity, name=one.name, labels=one.labels) for one in whole]
    fewest = min(each, key=len, default=())
    return f"; asked for: {', '.join(fewest)}" if fewest else ""


def _told(pod: core.Pod, *, has_claims: bool = False) -> Waiting | None:
    """Return what the scheduler says of a group, a queue or of room that is made; None: nodes alone matter.

    Args: has_claims: a claim is to meet what it asks for by number: then its words count whatever they are about.
    """
    said = meta.find_condition(pod.status.conditions, "PodScheduled")
    if said is None or said.status != "False":
        return None
    if pod.status.nominated_node_name:
        return Waiting(reason=ROOM, message=personwords.message(said.message), node=pod.status.nominated_node_name)
    reason = {workloads.GROUP_INCOMPLETE: GROUP, workloads.QUEUE_HOLDS: QUEUE}.get(said.reason, "")
    if not reason and membership.of_pod(pod) is not None and said.message.startswith("group "):
        reason = GROUP
    if not reason and (refused := said.message if has_claims else waiting.said(pod)):
        return Waiting(reason=OTHER, message=personwords.message(refused))
    return Waiting(reason=reason, message=personwords.message(said.message)) if reason else None


def _whole(node: core.Node) -> reference.NodeInfo:
    """Return a node with nothing on it and everything healthy."""
    bare = reference.offered(node)
    capacity = {
        name: int(quantity.parse_quantity(text) * reference.UNIT) for name, text in node.status.capacity.items()
    }
    return dataclasses.replace(
        bare,
        allocatable={
            name: max(bare.allocatable.get(name, 0), capacity.get(name, 0) if _is_device(name) else 0)
            for name in (*bare.allocatable, *capacity)
        },
    )


def _is_device(name: str) -> bool:
    return "/" in name and not name.startswith("kubernetes.io/")


def _is_open(need: reference.PodInfo, node: reference.NodeInfo) -> bool:
    """Return whether amounts alone keep a pod off a node: else no amount would help."""
    refusal = reference.first_refusal(need, dataclasses.replace(node, allocatable=need.requests))
    return refusal is None


def _fits(need: reference.PodInfo, node: reference.NodeInfo) -> bool:
    return reference.first_refusal(need, node) is None


def _siblings(name: str, whole: Sequence[reference.NodeInfo]) -> list[str]:
    """Return the resources of the same domain that nodes offer: a configuration may have renamed or divided one."""
    if not _is_device(name):
        return []
    start = f"{name.partition('/')[0]}/"
    return sorted({one for node in whole for one, count in node.allocatable.items() if count and one.startswith(start)})


def _never(
    need: reference.PodInfo, whole: Sequence[reference.NodeInfo], claimed: frozenset[str] = frozenset()
) -> Waiting | None:
    """Return what no node has enough of, however long one waits. Args: claimed: see `Census.claimed`."""
    for name in _ordered(need.requests):
        if name in claimed:
            continue
        asked, most = need.requests[name], max(node.allocatable.get(name, 0) for node in whole)
        if asked > most:
            whose = "this machine has" if len(whole) == 1 else f"the largest of {len(whole)} nodes has"
            has = _amount(name, most) if most else f"no {_unit(name, 1)}"
            message = f"will never fit: {_amount(name, asked, plain=bool(most))} asked, {whose} {has}"
            if not most and (others := _siblings(name, whole)):
                message += f"; offered in its place: {', '.join(others)}"
            return Waiting(reason=NEVER, message=message, resource=name, asked=_number(asked), total=_number(most))
    return None


def _lacking(need: reference.PodInfo, taken: Sequence[reference.NodeInfo]) -> str:
    """Return the resource that people wait for, devices before anything else; empty: it is not about amounts."""
    ordered = _ordered(need.requests)
    everywhere = (name for name in ordered if taken and all(need.requests[name] > info.free(name) for info in taken))
    somewhere = (name for name in ordered if any(need.requests[name] > info.free(name) for info in taken))
    return next(everywhere, "") or next(somewhere, "")


def _short(
    pod: core.Pod,
    name: str,
    asked: int,
    taken: Sequence[tuple[core.Node, reference.NodeInfo]],
    census: Census,
) -> Waiting:
    """Return who has what a pod lacks, on the node that has most of it free; without a message.

    Args: taken: the nodes that could have the pod.
    """
    node, info = max(taken, key=lambda pair: (pair[1].free(name), pair[0].metadata.name))
    total = int(quantity.parse_quantity(node.status.capacity.get(name, "0")) * reference.UNIT)
    unhealthy = max(0, total - info.allocatable.get(name, 0)) if _is_device(name) else 0
    queue = census.queue(name, pod.spec.scheduler_name)
    place = queue.get(pod.metadata.uid, 0)
    before = census.asked_before(name, pod.spec.scheduler_name, place)
    times = (
        estimate.latest(asked + before, one.free(name), census.ends(name, where.metadata.name)) for where, one in taken
    )
    at = min((one for one in times if one is not None), default=None)
    return Waiting(
        reason=DEVICES if _is_device(name) else RESOURCES,
        message="",
        resource=name,
        asked=_number(asked),
        free=_number(max(0, info.free(name))),
        total=_number(total),
        unhealthy=_number(unhealthy),
        node=node.metadata.name,
        holders=census.holders(name, node.metadata.name),
        place=place,
        queued=len(queue),
        estimate=None if at is None else timestamp.emit(at),
    )


def _of_port(
    need: reference.PodInfo, taken: Sequence[tuple[core.Node, reference.NodeInfo]], census: Census
) -> tuple[str, int, Held] | None:
    """Return a node, which port of it that a pod asks for is taken, and who has it; None: none is."""
    for node, _ in taken:
        for one in census.there.get(node.metadata.name, ()):
            other = census.need(one)
            if other is not None and (ports := reference.taken_ports(need, other)):
                since = one.status.start_time or one.metadata.creation_timestamp
                held = Held(namespace=one.metadata.namespace, name=one.metadata.name, count=1, since=since)
                return node.metadata.name, ports[0], held
    return None


def _known(holders: Sequence[Held], caller: Caller) -> tuple[Held, ...]:
    """Return holders as the caller may know them; of those whose tenancy may not be known only the sum, at the end."""
    found = []
    hidden = 0
    for one in holders:
        namespace, name = caller.whose(one.namespace, one.name)
        if namespace:
            found.append(msgspec.structs.replace(one, namespace=namespace, name=name))
        else:
            hidden += one.count
    return (*found, *((Held(namespace="", name="", count=hidden, since=None),) if hidden else ()))


def _holders(name: str, pods: Sequence[tuple[core.Pod, reference.PodInfo]]) -> tuple[Held, ...]:
    found = [
        Held(
            namespace=one.metadata.namespace,
            name=one.metadata.name,
            count=_number(count),
            since=one.status.start_time or one.metadata.creation_timestamp,
        )
        for one, need in pods
        if (count := need.requests.get(name, 0))
    ]
    return tuple(sorted(found, key=lambda one: (-one.count, one.namespace, one.name)))


def _sentence(found: Waiting, namespace: str, *, now: dt.datetime, many: bool, kept: Sequence[str] = ()) -> str:
    """Return the wait in words. Args: kept: which GPUs of the node neighbours keep, a sentence each."""
    name, unit = found.resource, reference.UNIT
    where = f" on {found.node}" if many else ""
    free, total = _amount(name, int(found.free * unit), plain=True), _amount(name, int(found.total * unit), plain=True)
    parts = [
        f"waiting for {_amount(name, int(found.asked * unit), plain=False)}: {free} of {total}"
        f" {'is' if found.free == 1 else 'are'} free{where}"
    ]
    if found.holders:
        told = ", ".join(_held(one, name, namespace, now) for one in found.holders[:_LISTED])
        rest = len(found.holders) - _LISTED
        parts.append(told.replace(" by ", " held by ", 1) + (f" and {rest} more" if rest > 0 else ""))
    if found.unhealthy and found.reason == DEVICES:
        parts += kept[:_LISTED]
        parts += [f"{len(kept) - _LISTED} more GPUs are used by such programs"] if len(kept) > _LISTED else []
    if (ill := found.unhealthy - len(kept)) > 0:
        parts.append(f"{ill:g} not healthy (`fairlead doctor`)")
    if found.place:
        parts.append(f"{ordinal(found.place)} in the queue")
    if found.estimate is not None and (at := timestamp.parse(found.estimate)) is not None:
        parts.append(f"free in {duration(at - now.timestamp())} at the latest, by time limits")
    return "; ".join(parts)


def _held(one: Held, name: str, namespace: str, now: dt.datetime) -> str:
    who = (
        one.name
        if one.namespace == namespace
        else "/".join(filter(None, (one.namespace, one.name))) or hardware.ANOTHER
    )
    since = f" ({duration((now - dt.datetime.fromisoformat(one.since)).total_seconds())})" if one.since else ""
    return f"{_amount(name, int(one.count * reference.UNIT), plain=True)} by {who}{since}"


def _ordered(requests: Mapping[str, int]) -> list[str]:
    return sorted(requests, key=lambda name: (not _is_device(name), name == "pods", name))


def _number(thousandths: int) -> int:
    return thousandths // reference.UNIT if thousandths % reference.UNIT == 0 else round(thousandths / reference.UNIT)


def _unit(name: str, count: float) -> str:
    """Return the word for a resource, in the number that goes with a count."""
    many = "" if count == 1 else "s"
    if name.endswith("/gpu"):
        return f"GPU{many}"
    return {"cpu": f"CPU{many}", "pods": f"container{many}", "memory": "of memory"}.get(name, name)


def _amount(name: str, thousandths: int, *, plain: bool = True) -> str:
    """Return an amount; not `plain`: with its unit."""
    count = thousandths / reference.UNIT
    if name in {"memory", "ephemeral-storage"}:
        text = f"{count / _GIB:.3g} GiB" if count >= _GIB else f"{count / (1 << 20):.3g} MiB"
        return text if plain or name != "memory" else f"{text} of memory"
    return f"{count:.12g}" if plain else f"{count:.12g} {_unit(name, count)}"
