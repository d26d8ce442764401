"""Says why a claim or a pod's claims wait: they are tried on each node, and each device's refusal is kept.

The answer comes first, then nodes (those that fit before others), then devices; what is not shown is counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from fairlead import errors
from fairlead.cli.layer.dra import note
from fairlead.cli.layer.dra.read import Objects
from fairlead.plan.claim import expression, extended, refusal, wanted
from fairlead.plan.claim.allocate import allocate
from fairlead.plan.claim.gate import Gates
from fairlead.plan.claim.pool import held, pool, taintrule
from fairlead.plan.claim.pool.pool import Site
from fairlead.plan.claim.refusal import Allocation, Refusal, Verdict
from fairlead.plan.pod import affinity
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule
from fairlead.wire.kubernetes.resource.resourceclaim import (
    EXTENDED_RESOURCE_CLAIM,
    ResourceClaim,
    ResourceClaimTemplate,
)
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

_LONGEST_S: Final = 20.0
"""How long nodes are tried."""
NODES: Final = 10
DEVICES: Final = 10
"""Devices of a node that are shown."""
_NAMES: Final = 5
_COMPARED, _MOST_COMPARED = 253, 1000
"""Characters of a name, and names, that a misspelt one is compared with."""
_SCHEDULED: Final = "PodScheduled"


class DeviceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What one device says to one request."""

    device: str
    """`DRIVER/POOL/NAME`."""
    claim: str
    request: str
    test: str
    """Which test refused it (`held`, `selector`, `taint`, …); empty: it fits, by itself."""
    text: str


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says to all claims together."""

    node: str
    fits: bool
    is_fatal: bool = False
    """An error: no other node is tried after it."""
    reason: str = ""
    """A word for programs, `TooFew`; empty where it fits."""
    message: str
    refused: dict[str, int] = {}
    """How many devices each test refused, once a request."""
    devices: tuple[DeviceAnswer, ...] = ()
    """Where it fits: what would be allocated; else each device for each request."""
    more: str = ""
    """What is said of devices that are not shown."""


class ClaimState(msgspec.Struct, frozen=True, kw_only=True):
    """One claim."""

    claim: str
    state: str
    """In words: `waits`, `is allocated on node-1, and reserved for pod web`."""
    devices: tuple[str, ...] = ()


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a claim or a pod waits, or where it is."""

    item: str
    answer: str
    """In one line."""
    waits: bool
    fits: bool
    """Some node has what waits, or nothing waits."""
    claims: tuple[ClaimState, ...]
    nodes: tuple[NodeAnswer, ...] = ()
    left_out: tuple[str, ...] = ()
    """Nodes and objects that were not tried, not shown or not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How to try."""

    gates: Gates
    release: str
    every: bool
    """Show all nodes and devices."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is explained."""

    claims: tuple[ResourceClaim, ...]
    unmade: frozenset[str] = frozenset()
    pod: core.Pod | None = None
    problems: tuple[str, ...] = ()
    resources: frozenset[str] = frozenset()
    """Extended resources that the pod waits for, and that a class stands for."""
    classes: Mapping[str, str] = field(default_factory=dict)
    """By extended resource (`extended.served`)."""

    @property
    def item(self) -> str:
        return f"Pod {_name(self.pod)}" if self.pod is not None else f"ResourceClaim {_name(self.claims[0])}"

    @property
    def waiting(self) -> tuple[ResourceClaim, ...]:
        return tuple(one for one in self.claims if one.status.allocation is None)

    def extended(self, resources: Collection[str]) -> tuple[ResourceClaim, ...]:
        """Return the claim that meets these extended resources of the pod; none: there are none."""
        if self.pod is None or not resources:
            return ()
        return (extended.claim(self.pod, extended.requests(self.pod, resources, self.classes)),)


def explain(
    found: Objects, name: str, namespace: str, asked: Asked, *, clock: Callable[[], float] = time.monotonic
) -> Explanation:
    """Return why a claim or a pod waits.

    Args:    name: `NAME`, `NAMESPACE/NAME`, `claim/NAME` or `pod/NAME`.   namespace: empty: any.
    Raises:  NotFound; RequestError: the name is of several objects; Invalid: a claim has an amount that is none.
    """
    subject = _subject(found, name, namespace)
    claims = tuple(_state(one, subject.unmade) for one in (*subject.claims, *subject.extended(subject.resources)))
    unread = note.unread(found)
    if not (subject.waiting or subject.resources) or subject.problems:
        return Explanation(
            item=errors.readable(subject.item),
            answer=errors.readable(_settled(subject, claims)),
            waits=bool(subject.problems),
            fits=not subject.problems,
            claims=claims,
            left_out=unread,
        )
    sites, left_out = _sites(found, subject)
    wishes, offering = _wishes(found, subject, sites)
    tried, untried = _try(found, wishes, asked, clock)
    tried.sort(key=lambda one: (not one.fits, one.node))
    shown = tried if asked.every else tried[:NODES]
    return Explanation(
        item=errors.readable(subject.item),
        answer=errors.readable(_answer(found, subject, tried)),
        waits=True,
        fits=any(one.fits for one in tried) or len(wishes) < len(sites),
        claims=claims,
        nodes=tuple(shown),
        left_out=(*left_out, *offering, *untried, *_hidden(tried[len(shown) :]), *unread),
    )


def _subject(found: Objects, name: str, namespace: str) -> _Subject:
    kind, slash, rest = name.partition("/")
    kinds = _KINDS.get(kind.lower(), "") if slash else ""
    if slash and not kinds:
        if namespace and namespace != kind:
            message = (
                f'"{errors.readable(name)}" names namespace {errors.readable(kind)}, and -n {namespace} another one'
            )
            raise errors.RequestError(message, reason="NamespaceAmbiguous", hint="leave -n out")
        namespace = kind
    name = rest if slash else name
    there: list[ResourceClaim | core.Pod] = [
        *(found.of(ResourceClaim) if kinds != "pod" else ()),
        *(found.of(core.Pod) if kinds != "claim" else ()),
    ]
    fits = [
        one for one in there if one.metadata.name == name and (not namespace or one.metadata.namespace == namespace)
    ]
    if not fits:
        raise _not_found(there, namespace, name)
    if len(fits) > 1:
        names = note.listed([f"{one.KIND} {_name(one)}" for one in fits], most=_NAMES)
        message = f'"{errors.readable(name)}" is the name of {names}'
        raise errors.RequestError(message, reason="NameAmbiguous", hint="claim/NAME or pod/NAME, and -n NAMESPACE")
    one = fits[0]
    if isinstance(one, core.Pod):
        by_name = {(each.metadata.namespace, each.metadata.name): each for each in found.of(ResourceClaim)}
        templates = {(each.metadata.namespace, each.metadata.name): each for each in found.of(ResourceClaimTemplate)}
        of = wanted.of_pod(one, by_name, templates)
        classes = extended.served(found.of(DeviceClass))
        is_met = bool(one.spec.node_name) or one.status.extended_resource_claim_status is not None
        resources = frozenset[str]() if is_met else extended.asked(one, classes)
        amounts = (node.status.allocatable for node in found.of(core.Node))
        is_offered = any(not extended.lacking(resources, each) for each in amounts)
        problems = (*of.problems, *(() if is_offered else extended.problems(one, resources, classes)))
        return _Subject(
            claims=of.claims, unmade=of.unmade, pod=one, problems=problems, resources=resources, classes=classes
        )
    return _Subject(claims=(one,))


_KINDS: Final = {
    **dict.fromkeys(("claim", "claims", "resourceclaim", "resourceclaims"), "claim"),
    **dict.fromkeys(("pod", "pods", "po"), "pod"),
}


def _not_found(there: Sequence[ResourceClaim | core.Pod], namespace: str, name: str) -> errors.NotFound:
    known = {one.metadata.name[:_COMPARED]: _name(one) for one in there[:_MOST_COMPARED]}
    near = known.get(errors.closest(name[:_COMPARED], known), "")
    hint = f"did you mean {near}?" if near else "`fairlead dra claims` lists the claims"
    shown = errors.readable(f"{namespace}/{name}" if namespace else name)
    message = f'no ResourceClaim and no Pod is named "{shown}" among what was read'
    return errors.NotFound(message, reason="NotFound", hint=hint)


def _name(item: ResourceClaim | core.Pod) -> str:
    return f"{item.metadata.namespace}/{item.metadata.name}"


def _state(claim: ResourceClaim, unmade: frozenset[str]) -> ClaimState:
    allocation = claim.status.allocation
    name = errors.readable(_name(claim))
    if allocation is None and EXTENDED_RESOURCE_CLAIM in claim.metadata.annotations and not claim.metadata.uid:
        classes = {one.exactly.device_class_name for one in claim.spec.devices.requests or () if one.exactly}
        shown = note.listed(sorted(classes), most=_NAMES)
        state = f"is not made yet; it would meet extended resources by {shown}, on nodes that offer none themselves"
        return ClaimState(claim=name, state=errors.readable(state))
    if allocation is None:
        state = "is not made yet, from its template" if claim.metadata.name in unmade else "waits"
        return ClaimState(claim=name, state=state)
    where = note.nodes_of(allocation.node_selector)
    users = note.listed([_user(one.resource, one.name) for one in claim.status.reserved_for], most=_NAMES)
    reserved = f", and reserved for {users}" if users else ", and reserved for no pod yet"
    devices = tuple(errors.readable(f"{one.driver}/{one.pool}/{one.device}") for one in allocation.devices.results)
    return ClaimState(claim=name, state=errors.readable(f"is allocated on {where}{reserved}"), devices=devices)


def _user(resource: str, name: str) -> str:
    return f"{resource.removesuffix('s') or 'user'} {name}"


def _settled(subject: _Subject, claims: Sequence[ClaimState]) -> str:
    """Return the answer where nothing is to be tried."""
    if subject.problems:
        return f"{subject.item} waits: {'; '.join(subject.problems)}"
    if not claims:
        return f"{subject.item} has no claims: they are not what it waits for"
    if subject.pod is None:
        return f"{subject.item} {claims[0].state}"
    told = f"all {len(claims)} claims of {subject.item} are" if len(claims) > 1 else f"the claim of {subject.item} is"
    return f"{told} allocated{_scheduled(subject.pod)}"


def _scheduled(pod: core.Pod) -> str:
    """Return what the scheduler last said of a pod, in words."""
    if pod.spec.node_name:
        return f"; the pod is on {pod.spec.node_name}"
    for one in pod.status.conditions:
        if one.type == _SCHEDULED and one.status == "False":
            return f"; of the pod its scheduler says: {one.message or one.reason}"
    return ""


def _sites(found: Objects, subject: _Subject) -> tuple[list[Site], tuple[str, ...]]:
    """Return the nodes to try, by name, and what is said of others: where the pod or its claims cannot be."""
    nodes = found.of(core.Node)
    if nodes:
        sites = [pool.site_of(one) for one in sorted(nodes, key=lambda one: one.metadata.name)]
        left = []
    else:
        sites = [Site(name=one, labels={}) for one in note.node_names(found.of(ResourceSlice))]
        left = ["no Node was read: the nodes are those that slices name, and labels of nodes are not known"]
    kept = [one for one in sites if _may_be(subject, one, has_labels=bool(nodes))]
    if len(kept) < len(sites):
        rest = note.count(len(sites) - len(kept), "node")
        left.append(f"not tried: {rest}, where the pod's node selector or a claim that is allocated does not let it be")
    if subject.pod is not None:
        left.append("not judged: what else the pod needs of a node, such as CPUs, tolerations and ports")
    return kept, tuple(left)


def _may_be(subject: _Subject, site: Site, *, has_labels: bool) -> bool:
    for one in subject.claims:
        selector = one.status.allocation.node_selector if one.status.allocation is not None else None
        if selector is not None and not _selects({}, selector, site):
            return False
    if subject.pod is None or not has_labels:
        return True
    spec = subject.pod.spec
    near = spec.affinity.node_affinity if spec.affinity is not None else None
    return _selects(
        spec.node_selector, near.required_during_scheduling_ignored_during_execution if near else None, site
    )


def _selects(labels: Mapping[str, str], selector: core.NodeSelector | None, site: Site) -> bool:
    wants = core.NodeAffinity(required_during_scheduling_ignored_during_execution=selector)
    return affinity.is_allowed(labels, wants, name=site.name, labels=site.labels)


_Wish = tuple[Site, tuple[ResourceClaim, ...]]
"""A node, and the claims that wait for devices of it."""


def _wishes(found: Objects, subject: _Subject, sites: Sequence[Site]) -> tuple[list[_Wish], tuple[str, ...]]:
    """Return what is to be tried on which node, and what is said of nodes that offer extended resources themselves."""
    if not subject.resources:
        return [(one, subject.waiting) for one in sites], ()
    amounts = {one.metadata.name: one.status.allocatable for one in found.of(core.Node)}
    lacking = [extended.lacking(subject.resources, amounts.get(one.name, {})) for one in sites]
    by_lack = {one: subject.extended(one) for one in {*lacking}}
    pairs = zip(sites, lacking, strict=True)
    wishes = [(site, (*subject.waiting, *by_lack[lack])) for site, lack in pairs]
    left = [_MAKERS] if any(lacking) else []
    if offering := sum(one != subject.resources for one in lacking):
        names = note.listed(sorted(subject.resources), most=_NAMES)
        left.append(f"offered by {note.count(offering, 'node')} without a claim: {names}; there the amount decides")
    return [one for one in wishes if one[1]], tuple(left)


_MAKERS: Final = (
    "a claim for extended resources is made by kube-scheduler (from 1.36), which then binds the pod; "
    "fairlead's scheduler makes none yet, and goes by what nodes offer"
)


def _try(
    found: Objects, wishes: Sequence[_Wish], asked: Asked, clock: Callable[[], float]
) -> tuple[list[NodeAnswer], tuple[str, ...]]:
    """Return what each node says, until an error would end the pod's scheduling, or the time is over."""
    slices = taintrule.tainted(found.of(ResourceSlice), found.of(DeviceTaintRule))
    pools = pool.Pools(slices, asked.gates)
    classes = {one.metadata.name: one for one in found.of(DeviceClass)}
    others = _held(found.of(ResourceClaim), asked.gates)
    matches = expression.matcher(asked.release)
    tried: list[NodeAnswer] = []
    refused, until = 0, clock() + _LONGEST_S
    for at, (site, waiting) in enumerate(wishes):
        if clock() > until:
            rest = note.count(len(wishes) - at, "node")
            return tried, (f"not tried: {rest}, since {_LONGEST_S:.0f} s were over",)
        answer = allocate(waiting, classes, pools.on(site), others, matches=matches, gates=asked.gates)
        if not isinstance(answer, Refusal):
            tried.append(_fitting(site, waiting, answer, asked))
            continue
        # Devices of nodes that are not shown would fill the memory.
        tried.append(_refusing(site, answer, asked, has_devices=asked.every or refused < NODES))
        refused += 1
        if answer.is_fatal:
            rest = note.count(len(wishes) - at - 1, "node")
            left = f"not tried: {rest}, since this error ends the scheduling on every node"
            return tried, (left,) if at + 1 < len(wishes) else ()
    return tried, ()


def _held(claims: Sequence[ResourceClaim], gates: Gates) -> held.Held:
    """Return what claims have. Raises: Invalid: an amount that is none."""
    shares = gates.consumable_capacity
    try:
        return held.of_claims(claims, shares=shares)
    except errors.Invalid:
        for claim in claims:
            try:
                held.of_claims([claim], shares=shares)
            except errors.Invalid as error:
                message = f"ResourceClaim {_name(claim)} consumes an amount that is none: {error.message}"
                raise errors.Invalid(message, reason=error.reason, hint="`fairlead dra check` says more") from error
        raise


def _fitting(site: Site, waiting: Sequence[ResourceClaim], answer: Allocation, asked: Asked) -> NodeAnswer:
    given = [
        DeviceAnswer(
            device=f"{one.driver}/{one.pool}/{one.device}",
            claim=_name(claim),
            request=one.request,
            test="",
            text="would be allocated",
        )
        for claim, result in zip(waiting, answer.results, strict=True)
        for one in result.devices.results
    ]
    most = len(given) if asked.every else DEVICES
    return NodeAnswer(
        node=errors.readable(site.name),
        fits=True,
        message=note.count(len(given), "device"),
        devices=tuple(map(_readable, given[:most])),
        more=f"{note.count(len(given) - most, 'device')} more; --all shows them" if len(given) > most else "",
    )


def _refusing(site: Site, answer: Refusal, asked: Asked, *, has_devices: bool) -> NodeAnswer:
    refused = Counter(one.test for one in answer.verdicts if one.test)
    verdicts = _telling(answer.verdicts) if has_devices else []
    most = len(verdicts) if asked.every else DEVICES
    more = ""
    if len(verdicts) > most:
        rest = refusal.summary(verdicts[most:]) or "all of them fit by themselves"
        more = f"{note.count(len(verdicts) - most, 'device')} more: {rest}; --all shows them"
    return NodeAnswer(
        node=errors.readable(site.name),
        fits=False,
        is_fatal=answer.is_fatal,
        reason=answer.reason,
        message=errors.readable(answer.message),
        refused=dict(refused),
        devices=tuple(_readable(_device(one)) for one in verdicts[:most]),
        more=errors.readable(more),
    )


def _telling(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return verdicts, those of devices that are not selected at all last: they tell least."""
    return sorted(verdicts, key=lambda one: one.test == "selector")


def _device(one: Verdict) -> DeviceAnswer:
    text = f"{one.text} is false" if one.test == "selector" else one.text or "fits"
    return DeviceAnswer(device=str(one.device), claim=one.claim, request=one.request, test=one.test, text=text)


def _readable(one: DeviceAnswer) -> DeviceAnswer:
    return DeviceAnswer(**{name: errors.readable(getattr(one, name)) for name in one.__struct_fields__})


def _answer(found: Objects, subject: _Subject, tried: Sequence[NodeAnswer]) -> str:
    """Return why it waits, in one line."""
    fits = [one.node for one in tried if one.fits]
    if not tried and subject.resources and found.of(core.Node):
        return f"{subject.item} waits, and for no claim: where it may be, nodes offer its extended resources themselves"
    if not tried:
        return f"{subject.item} waits, and there is no node to try"
    if fatal := next((one for one in tried if one.is_fatal), None):
        return f"{subject.item} waits, and an error ends its scheduling on every node: {fatal.message}"
    if fits:
        on = f"fits on {len(fits)} of {note.count(len(tried), 'node')} ({note.listed(fits, most=3)})"
        return f"{subject.item} waits, and {on}{_next(found, subject)}"
    where = f"fits on none of {len(tried)} nodes" if len(tried) > 1 else f"does not fit on {tried[0].node}"
    return f"{subject.item} waits, and {where}: {_reasons(tried)}"


def _reasons(tried: Sequence[NodeAnswer]) -> str:
    """Return the nodes' reason where they have one, else how many devices each test refused on all of them."""
    if len({one.message for one in tried}) == 1:
        return tried[0].message
    refused = sum((Counter(one.refused) for one in tried), Counter[str]())
    parts = [f"{refused[test]} {words}" for test, words in refusal.WORDS.items() if refused[test]]
    return f"of their devices {', '.join(parts)}" if parts else f"{tried[0].message} (on {tried[0].node})"


def _next(found: Objects, subject: _Subject) -> str:
    """Return what a claim that fits waits for."""
    if subject.pod is not None:
        return _scheduled(subject.pod)
    pods = [one for one in found.of(core.Pod) if wanted.uses(one, subject.claims[0])]
    if not pods:
        return ": a claim is allocated when a pod that uses it is scheduled, and no such pod was read"
    names = note.listed([one.metadata.name for one in pods], most=_NAMES)
    return f": it is allocated when a pod that uses it is scheduled: {names}{_scheduled(pods[0])}"


def _hidden(rest: Sequence[NodeAnswer]) -> tuple[str, ...]:
    """Return what is said of nodes that are not shown."""
    if not rest:
        return ()
    fits = sum(one.fits for one in rest)
    return (f"not shown: {note.count(len(rest), 'node')}, of which {fits} fit; --all shows them",)


def lines(found: Explanation) -> Iterator[str]:
    """Yield an explanation for a terminal."""
    yield from note.wrapped(found.answer)
    for one in found.claims:
        if one.state not in found.answer:
            yield from note.wrapped(f"claim {one.claim} {one.state}", indent=4, first=2)
        yield from (f"    {device}" for device in one.devices)
    is_one = len({(each.claim, each.request) for one in found.nodes for each in one.devices}) < 2
    for node in found.nodes:
        word = "fits" if node.fits else "does not fit"
        why = "" if node.message in found.answer and node.devices else f": {node.message}"
        yield from note.wrapped(f"{node.node} {word}{why}", indent=2, first=0)
        for device in node.devices:
            request = "" if is_one else f" for {device.claim} {device.request}"
            yield from note.wrapped(f"{device.device}{request}: {device.text}", indent=6, first=4)
        if node.more:
            yield from note.wrapped(node.more, indent=6, first=4)
    for text in found.left_out:
        yield from note.wrapped(text, indent=2, first=0)
