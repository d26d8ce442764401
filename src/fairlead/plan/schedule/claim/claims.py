"""The constraint of claims: nodes that have devices for a pod's claims, which are allocated before the pod is bound.

A pod waits, whichever nodes there are, while a claim of it is missing, is being deleted, is another pod's, or asks for
a DeviceClass that is not there. Each node is judged by the allocator. Where the pod then goes its claims are allocated:
that counts at once, and one write says it, with the pod among those that the claim is reserved for. Nothing waits for
that but the binding, except where devices have binding conditions.
Source: kubernetes 1.37 pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go (behaviour).
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import msgspec

from fairlead import errors
from fairlead.plan.claim import extended
from fairlead.plan.claim.gate import DEFAULTS, Gates
from fairlead.plan.claim.life import lifecycle
from fairlead.plan.claim.pool import held
from fairlead.plan.claim.pool.held import PoolName
from fairlead.plan.claim.refusal import Allocation
from fairlead.plan.claim.search.preference import Preferences
from fairlead.plan.claim.validate.resourceclaim import RESERVED_MOST
from fairlead.plan.schedule import constraint
from fairlead.plan.schedule.claim import ask as asks
from fairlead.plan.schedule.claim import counting, implicit, published
from fairlead.plan.schedule.claim.ask import NAME, Ask, Supply
from fairlead.plan.schedule.claim.known import KnownClaims
from fairlead.plan.schedule.constraint import Node, Noted, Refusal, Reservation
from fairlead.plan.schedule.reference import UNIT
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.meta import Object
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.resourceclaim import (
    FINALIZER,
    AllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
)
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice

_WAITING_MOST: Final = 100_000
"""Claims for which pods are noted that wait for them."""
NO_DRIVER: Final = "no driver publishes devices (no ResourceSlice)"
BINDING_S: Final = 600.0
"""How long devices may take to meet their binding conditions; kube-scheduler's."""


@dataclass(frozen=True, slots=True)
class Write:
    """A claim as it is to be stored for a pod."""

    uid: str
    namespace: str
    name: str
    pod: str
    """Uid; empty: the claim is given back."""


@dataclass(frozen=True, slots=True)
class _Named:
    """One claim of a pod, by the pod's name for it."""

    name: str
    claim: ResourceClaim


class Claims:
    """A `constraint.Constraint` of claims, slices, device classes and taint rules."""

    name: ClassVar[str] = NAME
    kinds: ClassVar[tuple[type[Object], ...]] = (ResourceClaim, *published.KINDS)

    def __init__(
        self,
        users: constraint.Users,
        *,
        gates: Gates = DEFAULTS,
        preferences: Preferences | None = None,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        suffix: implicit.Suffix = implicit.random_suffix,
    ) -> None:
        """Begin without any.

        Args: users: see `constraint.Users`.   gates: of the cluster.   preferences: by which devices of a node are
              chosen; None: the first are.   now: the time of allocations.   suffix: draws the ends of names.
        """
        self._users, self._gates, self._now, self._preferences = users, gates, now, preferences
        self._suffix = suffix
        self._served: Mapping[str, str] = {}
        """By extended resource: the class that stands for it."""
        self.known = KnownClaims(shares=gates.consumable_capacity)
        self._published = published.Published(gates)
        self._supplies: dict[str, tuple[Mapping[str, str], Supply]] = {}
        """By node: its labels, and what it has."""
        self._spent: dict[tuple[asks.Wanted, ...], int] = {}
        """See `Supply.spent`; since the last look at a pod that asks so."""
        self._waiting: dict[tuple[str, str], set[str]] = {}
        """By claim: uids of pods that were looked at, and ask for it."""

    # what the watch says

    def note(self, item: ResourceClaim | published.Object, *, is_gone: bool = False) -> Noted:
        """See `Constraint.note`."""
        if isinstance(item, ResourceClaim):
            about = item.metadata
            owners = [one.uid for one in about.owner_references if one.kind == core.Pod.KIND]
            waiting = self._waiting.pop((about.namespace, about.name), ())
            return self._heed(self.known.note(item, is_gone=is_gone), pods=(*owners, *waiting))
        was_empty = self._published.is_empty
        nodes, gone = self._published.note(item, is_gone=is_gone)
        self.known.take_out(gone)
        self._drop(nodes)
        # A pod whose class was missing, or that came before every driver, is held back by no node.
        is_first = was_empty is not self._published.is_empty
        pods = () if isinstance(item, ResourceSlice) and not is_first else None
        return Noted(nodes=nodes, pods=pods, concerns=isinstance(item, DeviceClass) and self._serve())

    def _serve(self) -> bool:
        """Find out which resources classes stand for; returns whether these are others than before."""
        before = self._served
        self._served = extended.served(self._published.classes.values()) if self._gates.extended_resources else {}
        return self._served != before

    def assume(self, before: ResourceClaim, after: ResourceClaim) -> Noted:  # noqa: ARG002 - as of every constraint
        """See `Constraint.assume`."""
        return self._heed(self.known.assume(after))

    def withdraw(self, before: ResourceClaim, after: ResourceClaim) -> Noted:
        """See `Constraint.withdraw`."""
        return self._heed(self.known.withdraw(before, after))

    def confirm(self, sent: ResourceClaim, written: ResourceClaim) -> Noted:
        """Note that the store has taken a claim."""
        return self._heed(self.known.confirm(sent, written))

    def adopt(self, draft: ResourceClaim, created: ResourceClaim) -> Noted:
        """Note that the store has made a claim."""
        return self._heed(self.known.adopt(draft, created))

    def drop(self, draft: ResourceClaim) -> Noted:
        """Note that a claim is not made."""
        return self._heed(self.known.drop(draft))

    def settle(self, write: Write | implicit.Removal, found: ResourceClaim | None) -> Noted:
        """Believe what the store says of a claim whose write failed."""
        waiting = self._waiting.pop((write.namespace, write.name), ())
        return self._heed(self.known.settle(write.uid, found), pods=tuple(waiting))

    def resolve(self, uid: str, found: ResourceClaim | None) -> Noted:
        """Believe what the store says of a claim that was made, or not, without an answer."""
        if found is not None and self.known.by_uid(uid) is None:
            return self.note(found)
        return self._heed(self.known.settle(uid, found))

    def forget(self, kind: type[Object]) -> None:
        """See `Constraint.forget`."""
        self._supplies.clear()
        if kind is ResourceClaim:
            self.known.forget()
        else:
            self._published.forget(kind)  # type: ignore[arg-type]
            self._serve()

    def _heed(self, pools: Iterable[PoolName], *, pods: tuple[str, ...] = ()) -> Noted:
        nodes = self._published.nodes_of(pools)
        self._drop(nodes)
        return Noted(nodes=nodes, pods=pods)

    def _drop(self, nodes: Iterable[str] | None) -> None:
        if nodes is None:
            self._supplies.clear()
        else:
            for name in nodes:
                self._supplies.pop(name, None)

    # what a pod asks

    @staticmethod
    def names_claims(pod: core.Pod) -> bool:
        """Return whether a pod names claims, or its status says which meets its extended resources."""
        return lifecycle.has_claims(pod)

    def concerns(self, pod: core.Pod) -> bool:
        """See `Constraint.concerns`: a pod that names claims, or asks for what a class stands for."""
        return self.names_claims(pod) or bool(self._served and extended.asked(pod, self._served))

    def amounts(self, pod: core.Pod) -> Mapping[str, int]:
        """See `Constraint.amounts`: devices by class; of a class that stands for an extended resource, by that too."""
        found = Counter[str]()
        for one in self._look_up(pod):
            if not isinstance(one, Refusal) and counting.is_counted_for(one.claim, pod.metadata.uid):
                found.update(counting.devices(one.claim, self._published.classes))
        return {name: count * UNIT for name, count in found.items()}

    def frees(self, pod: core.Pod) -> bool:  # noqa: ARG002
        """See `Constraint.frees`: a claim says itself that it is free."""
        return False

    def refusal(self, pod: core.Pod) -> Refusal | None:
        """See `Constraint.refusal`."""
        found = tuple(self._look_up(pod))
        return next((one for one in found if isinstance(one, Refusal)), None)

    def ask(self, pod: core.Pod) -> Ask | None:
        """See `Constraint.ask`."""
        wanted, fixed, names = list[asks.Wanted](), list[asks.Fixed](), set[str]()
        for one in self._look_up(pod):
            if isinstance(one, Refusal):
                continue
            names.add(held.holder(one.claim))
            if one.claim.status.allocation is None:
                wanted.append(asks.wanted(one.claim, one.name))
            elif (there := asks.fixed(one.claim, one.name)) is not None:
                fixed.append(there)
        met = implicit.of_pod(pod, self._served) if self._served else ()
        self._spent.pop(tuple(wanted), None)
        if met:
            self._spent.pop((*wanted, asks.for_resources(met)), None)
        return Ask(wanted=tuple(wanted), fixed=tuple(fixed), extended=met, will_use=frozenset(names))

    def has(self, pod: core.Pod) -> Ask | None:
        """See `Constraint.has`: the names of its claims; what these hold they say themselves."""
        namespace = pod.metadata.namespace
        made = (one.metadata.name for one in self.known.made_for(pod.metadata.uid))  # its status says so later
        return Ask(uses=frozenset(f"{namespace}/{name}" for name in (*lifecycle.claim_names(pod), *made)))

    @property
    def has_limits(self) -> bool:
        """See `Constraint.has_limits`."""
        return True

    def limits(self, node: str, labels: Mapping[str, str]) -> Supply | None:
        """See `Constraint.limits`: the same value while nothing of it changed."""
        if self._published.is_empty:
            return None
        known = self._supplies.get(node)
        if known is not None and known[0] == labels:
            return known[1]
        pools = self._published.pool_names(node)
        supply = Supply(
            read_pools=lambda: self._published.pools(node, labels),
            held=self.known.held(pools),
            claims=self.known.holding(pools),
            is_freeable=self._is_freeable,
            classes=self._published.classes,
            gates=self._gates,
            spent=self._spent,
        )
        self._supplies[node] = (labels, supply)
        return supply

    def _is_freeable(self, claim: ResourceClaim) -> bool:
        """Return whether a claim is given back once the pods that have a node have ended: no other user is known."""
        return not any(one.resource != "pods" or self._users.wait(one.uid) for one in claim.status.reserved_for)

    def _look_up(self, pod: core.Pod) -> Iterator[_Named | Refusal]:
        """Yield each claim of a pod once, in the order of its names, or why the pod waits."""
        seen = set[str]()
        for reference in pod.spec.resource_claims:
            name = _claim_name(pod, reference)
            if name is None:
                continue
            if isinstance(name, Refusal):
                yield name
                continue
            if name in seen:
                continue
            seen.add(name)
            self._note_waiting(pod, name)
            claim = self.known.find(pod.metadata.namespace, name)
            refused = self._refused(pod, reference, name, claim)
            if refused is not None:
                yield refused
            elif claim is not None:
                yield _Named(reference.name, claim)

    def _note_waiting(self, pod: core.Pod, name: str) -> None:
        if pod.spec.node_name:
            return
        if len(self._waiting) > _WAITING_MOST:
            self._waiting.clear()  # the pods' own time has them looked at again (`queue.REST_S`)
        self._waiting.setdefault((pod.metadata.namespace, name), set()).add(pod.metadata.uid)

    def _refused(
        self, pod: core.Pod, reference: core.PodResourceClaim, name: str, claim: ResourceClaim | None
    ) -> Refusal | None:
        if claim is None:
            none_at_all = ", and none is known: may they be listed?" if self.known.is_empty else ""
            return Refusal(f'resourceclaim "{name}" not found{none_at_all}')
        about = claim.metadata
        if about.deletion_timestamp is not None:
            return Refusal(f'resourceclaim "{name}" is being deleted')
        owner = lifecycle.owning_pod(claim)
        if reference.resource_claim_name is None and (owner is None or owner.uid != pod.metadata.uid):
            return Refusal(f'resourceclaim "{name}" was not created for pod "{pod.metadata.name}"')
        users = claim.status.reserved_for
        if claim.status.allocation is not None:
            is_full = len(users) >= RESERVED_MOST and all(one.uid != pod.metadata.uid for one in users)
            return Refusal(f'resourceclaim "{name}" is in use by {RESERVED_MOST} pods, the most') if is_full else None
        for request in claim.spec.devices.requests or ():
            ways = (request.exactly,) if request.exactly is not None else request.first_available or ()
            missing = [one.device_class_name for one in ways if one.device_class_name not in self._published.classes]
            if missing:
                return Refusal(f'request {request.name}: device class "{missing[0]}" does not exist')
        return Refusal(NO_DRIVER) if self._published.is_empty else None

    # what is written

    def reserve(self, pod: core.Pod, ask: constraint.Ask, node: Node) -> Reservation | None:
        """See `Constraint.reserve`: claims with their devices, reserved for the pod."""
        named = self._still(pod, ask)
        if earlier := self.known.made_for(pod.metadata.uid):
            gone = tuple(implicit.removal(one, pod) for one in earlier)
            return Reservation(constraint=NAME, node=node.name, writes=gone, changes=())
        if any(failed(one.claim) or self._is_late(one.claim) for one in named):
            if (back := self.give_back(pod)) is None:
                message = "devices do not meet their binding conditions, and another pod uses their claim"
                raise errors.Conflict(message, reason="DevicesNotReady")
            return back
        new = [one.claim for one in named if one.claim.status.allocation is None]
        draft = self._draft(pod, node)
        new += [draft.claim] if draft is not None else []
        results: dict[str, AllocationResult] = {}
        if new:
            supply = self.limits(node.name, node.labels)
            found = supply.allocate(tuple(new), preferences=self._preferences) if supply is not None else None
            if not isinstance(found, Allocation):
                why = found.message if found is not None else "no ResourceSlice is published"
                raise errors.Conflict(f"node {node.name}: {why}", reason="DevicesTaken")
            results = {one.metadata.uid: got for one, got in zip(new, found.results, strict=True)}
        changes = list[tuple[ResourceClaim, ResourceClaim]]()
        waits = False
        for one in named:
            after = self._reserved(one.claim, results.get(one.claim.metadata.uid), pod)
            if after is not one.claim or not self.known.is_written(after.metadata.uid):
                changes.append((one.claim, after))
            waits |= bool(unmet(after))
        made = tuple(self._made(one, results[one.claim.metadata.uid], pod) for one in (draft,) if one is not None)
        if not changes and not waits and not made:
            return None
        return Reservation(
            constraint=NAME,
            node=node.name,
            writes=tuple(_write(after, pod.metadata.uid) for _, after in changes),
            changes=tuple(changes),
            waits=waits,
            made=made,
            assumed=tuple(one.claim for one in made),
        )

    def _draft(self, pod: core.Pod, node: Node) -> implicit.Creation | None:
        """Return the claim that is to meet a pod's extended resources on a node; None: it has them."""
        met = implicit.of_pod(pod, self._served) if self._served else ()
        met = implicit.lacking(met, node.allocatable)
        return implicit.creation(pod, met, self._served, self._suffix) if met else None

    def _made(self, draft: implicit.Creation, result: AllocationResult, pod: core.Pod) -> implicit.Creation:
        return implicit.Creation(self._reserved(draft.claim, result, pod), draft.told)

    def _still(self, pod: core.Pod, ask: constraint.Ask) -> list[_Named]:
        """Return the claims of a pod. Raises: Conflict: they are other ones than when nodes were judged by them."""
        named = list[_Named]()
        for one in self._look_up(pod):
            if isinstance(one, Refusal):
                raise errors.Conflict(one.why, reason="ClaimChanged")
            named.append(one)
        if self.ask(pod) != ask:
            raise errors.Conflict("a claim was allocated, or given back, meanwhile", reason="ClaimChanged")
        return named

    def give_back(self, pod: core.Pod) -> Reservation | None:
        """See `Constraint.give_back`: claims that are allocated and that no other pod uses, or of an earlier try."""
        changes = list[tuple[ResourceClaim, ResourceClaim]]()
        for one in self._look_up(pod):
            if isinstance(one, Refusal) or one.claim.status.allocation is None:
                continue
            others = [user for user in one.claim.status.reserved_for if user.uid != pod.metadata.uid]
            if not others and self.known.is_written(one.claim.metadata.uid):
                status = msgspec.structs.replace(one.claim.status, allocation=None, reserved_for=(), devices=())
                changes.append((one.claim, msgspec.structs.replace(one.claim, status=status)))
        made = (implicit.removal(one, pod) for one in self.known.made_for(pod.metadata.uid))
        writes = (*(_write(after, "") for _, after in changes), *made)
        return Reservation(constraint=NAME, node="", writes=writes, changes=tuple(changes)) if writes else None

    def _is_late(self, claim: ResourceClaim) -> bool:
        """Return whether the devices of a claim have not met their binding conditions in time."""
        at = claim.status.allocation.allocation_timestamp if claim.status.allocation is not None else None
        if at is None or not unmet(claim):
            return False
        try:
            return self._now() - dt.datetime.fromisoformat(at) > dt.timedelta(seconds=BINDING_S)
        except ValueError:
            return False

    def _reserved(self, claim: ResourceClaim, result: AllocationResult | None, pod: core.Pod) -> ResourceClaim:
        about, status = claim.metadata, claim.status
        if result is not None:
            if self._gates.device_binding_conditions:
                at = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
                result = msgspec.structs.replace(result, allocation_timestamp=at)
            status = msgspec.structs.replace(status, allocation=result)
        if all(one.uid != pod.metadata.uid for one in status.reserved_for):
            user = ResourceClaimConsumerReference(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)
            status = msgspec.structs.replace(status, reserved_for=(*status.reserved_for, user))
        if FINALIZER not in about.finalizers and result is not None:
            about = msgspec.structs.replace(about, finalizers=(*about.finalizers, FINALIZER))
        if status is claim.status and about is claim.metadata:
            return claim
        return msgspec.structs.replace(claim, metadata=about, status=status)


def _claim_name(pod: core.Pod, reference: core.PodResourceClaim) -> str | Refusal | None:
    """Return the claim that a pod has under one of its names; None: it needs none there."""
    if reference.resource_claim_name is not None:
        return reference.resource_claim_name
    for one in pod.status.resource_claim_statuses:
        if one.name == reference.name:
            return one.resource_claim_name or None
    if reference.resource_claim_template_name is None:
        return Refusal(f"spec.resourceClaims {reference.name} names neither a claim nor a template")
    return Refusal(
        f"waits for claim {reference.name}, which is to be made from template {reference.resource_claim_template_name}"
    )


def _write(claim: ResourceClaim, pod: str) -> Write:
    about = claim.metadata
    return Write(uid=about.uid, namespace=about.namespace, name=about.name, pod=pod)


def unmet(claim: ResourceClaim) -> tuple[str, ...]:
    """Return the devices of a claim whose binding conditions are not met yet."""
    return tuple(name for name, wanted, conditions in _conditions(claim) if not wanted <= _true(conditions))


def failed(claim: ResourceClaim) -> tuple[str, ...]:
    """Return the devices of a claim that said that they will not meet their binding conditions."""
    allocation = claim.status.allocation
    found = []
    for result in allocation.devices.results if allocation is not None else ():
        conditions = _status_of(claim.status, result.driver, result.pool, result.device)
        if set(result.binding_failure_conditions) & _true(conditions):
            found.append(result.device)
    return tuple(found)


_Conditions = Mapping[str, str]


def _conditions(claim: ResourceClaim) -> Iterator[tuple[str, set[str], _Conditions]]:
    allocation = claim.status.allocation
    for result in allocation.devices.results if allocation is not None else ():
        if result.binding_conditions:
            there = _status_of(claim.status, result.driver, result.pool, result.device)
            yield result.device, set(result.binding_conditions), there


def _status_of(status: ResourceClaimStatus, driver: str, pool: str, device: str) -> _Conditions:
    found = (one for one in status.devices if (one.driver, one.pool, one.device) == (driver, pool, device))
    return {each.type: each.status for one in found for each in one.conditions or ()}


def _true(conditions: _Conditions) -> set[str]:
    return {name for name, status in conditions.items() if status == "True"}
