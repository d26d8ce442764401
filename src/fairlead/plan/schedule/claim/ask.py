"""Says what a pod's claims ask of a node, as a value that is equal for pods that ask alike, and judges a node by it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

import msgspec

from fairlead.plan.claim import allocate, expression
from fairlead.plan.claim.allocate import BUDGET_SPENT
from fairlead.plan.claim.gate import Gates
from fairlead.plan.claim.pool.held import Held
from fairlead.plan.claim.pool.pool import NodePools
from fairlead.plan.claim.refusal import Allocation, Refusal
from fairlead.plan.claim.search.preference import Preferences
from fairlead.plan.claim.validate.request import ALTERNATIVES_MOST
from fairlead.plan.claim.validate.resourceclaim import RESERVED_MOST
from fairlead.plan.pod import affinity
from fairlead.plan.schedule import constraint
from fairlead.plan.schedule.claim import implicit
from fairlead.plan.schedule.constraint import Filter, Node
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.meta import ObjectMeta
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.resourceclaim import AllocationResult, ResourceClaim

NAME: Final = "claims"
FILTER: Final = "DynamicResources"
BUDGET: Final = 5_000
"""Steps of the search on one node, about a quarter of a second."""
PATIENCE: Final = 10_000
"""Steps that a look at a pod gives to searches that are given up, on all nodes together: the pods behind it wait."""
_MOST_SPENT: Final = 1_000
"""Claims whose searches are counted."""
_GIVEN_UP: Final = "the search was given up: what is asked for may or may not be there"
_LONGEST: Final = 400
"""Characters of a reason: a message names every one, and a pod's event has 1,024."""


@dataclass(frozen=True, slots=True, eq=False)
class Supply:
    """What a node has for claims; another value where any of it changed."""

    read_pools: Callable[[], NodePools]
    held: Held
    claims: Mapping[str, ResourceClaim]
    """By namespace and name: those that hold any of it."""
    is_freeable: Callable[[ResourceClaim], bool]
    """Returns whether a claim is given back once the pods that have a node have ended."""
    classes: Mapping[str, DeviceClass]
    gates: Gates
    spent: dict[tuple[Wanted, ...], int]
    """By what is asked for: steps of searches that were given up, on all nodes together."""

    def judge(self, wanted: tuple[Wanted, ...], used: Collection[str] | None) -> str:
        """Return why claims cannot be allocated; empty: they can. Args: used: see `allocate`."""
        if self.spent.get(wanted, 0) >= PATIENCE:
            return _GIVEN_UP
        claims = tuple(one.claim for one in wanted)
        if why := next((why for one in claims if (why := implicit.problem(one))), ""):
            return why
        found = self.allocate(claims, used)
        if isinstance(found, Allocation):
            return _unready(claims, found)
        if found.reason == BUDGET_SPENT:
            if len(self.spent) >= _MOST_SPENT:
                self.spent.clear()
            self.spent[wanted] = self.spent.get(wanted, 0) + max(1, found.steps)
            return _GIVEN_UP
        return found.message

    def allocate(
        self,
        claims: tuple[ResourceClaim, ...],
        used: Collection[str] | None = None,
        *,
        preferences: Preferences | None = None,
    ) -> Allocation | Refusal:
        """Return devices for claims, or why there are none, in words that are alike for alike nodes.

        Args: used: claims that pods of the node use, where pods are thought away; None: all counts that is held.
              preferences: by which devices are chosen; None: the first are.
        """
        return allocate.allocate(
            claims,
            self.classes,
            self.read_pools(),
            self.held if used is None else self._held_by(used),
            matches=_MATCHES,
            gates=self.gates,
            is_brief=True,
            budget=BUDGET,
            preferences=preferences,
        )

    def after(self, wanted: tuple[Wanted, ...], used: Collection[str] | None) -> Supply:
        """Return what is left once claims were allocated here; where they cannot be, nothing less."""
        found = self.allocate(tuple(one.claim for one in wanted), used)
        if not isinstance(found, Allocation):
            return self
        held, claims = self.held, self.claims
        if used is not None:
            held = self._held_by(used)
            claims = {name: one for name, one in claims.items() if name in used or not self.is_freeable(one)}
        for got in found.results:
            held = held.plus("a claim of the same group", got.devices.results, shares=self.gates.consumable_capacity)
        return dataclasses.replace(self, held=held, claims=claims)

    def _held_by(self, used: Collection[str]) -> Held:
        """Return what is held once the claims are free that no pod of the node uses any more."""
        found = self.held
        for name, claim in self.claims.items():
            allocation = claim.status.allocation
            if name not in used and allocation is not None and self.is_freeable(claim):
                results = [one for one in allocation.devices.results if (one.driver, one.pool) in self.held.pools]
                found = found.minus(name, results, shares=self.gates.consumable_capacity)
        return found


_MATCHES: Final = expression.matcher()


def _unready(claims: tuple[ResourceClaim, ...], found: Allocation) -> str:
    """Return why a claim that is made for a binding cannot have its devices; empty: it can."""
    for claim, got in zip(claims, found.results, strict=True):
        waited = [one.device for one in got.devices.results if one.binding_conditions]
        if waited and claim.metadata.name == implicit.NAME:
            return (
                f"device {waited[0]} has binding conditions, which are waited for where a pod names its claim, "
                "and not for extended resources"
            )
    return ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A claim without an allocation, equal to others that say the same under the same name."""

    spec: bytes
    claim: ResourceClaim = field(compare=False)
    """Under the name that the pod has for it, since what is said of it is said of all pods that ask alike."""
    uid: str = field(default="", compare=False)
    """Which claim it is; "": one that is made for a binding."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A claim that is allocated: where its devices are."""

    name: str
    where: bytes
    nodes: core.NodeSelector = field(compare=False)


def _check(ask: Ask, node: Node) -> tuple[str, ...]:
    for one in ask.fixed:
        if not affinity.is_allowed({}, _affinity(one.nodes), name=node.name, labels=node.labels):
            return (f"node(s) do not have the devices that claim {one.name} is allocated",)
    wanted = ask.on(node)
    if not wanted:
        return ()
    supply = node.limits.get(NAME)
    if not isinstance(supply, Supply):
        return ("node(s) have no device of a claim: no ResourceSlice is published",)
    why = supply.judge(wanted, _used(node))
    return (f"cannot allocate all claims: {why}"[:_LONGEST],) if why else ()


def _used(node: Node) -> frozenset[str] | None:
    """Return the claims that pods of a node use, where pods are thought away; None: all counts that is held."""
    return node.taken_for.get(NAME, frozenset()) if node.is_imagined else None


def _is_other(before: Node, after: Node) -> bool:
    if before.limits.get(NAME) is not after.limits.get(NAME) or before.labels != after.labels:
        return True
    return _offered(before) != _offered(after)


def _offered(node: Node) -> set[str]:
    """Return the resources of which a node has any: classes stand for the others."""
    return {name for name, amount in node.allocatable.items() if amount > 0}


@dataclass(frozen=True, slots=True)
class Ask(constraint.Ask):
    """What a pod's claims ask of a node."""

    wanted: tuple[Wanted, ...] = ()
    fixed: tuple[Fixed, ...] = ()
    extended: tuple[implicit.Met, ...] = ()
    """Its extended resources that classes stand for."""
    uses: frozenset[str] = frozenset()
    """Of a pod that has a node: its claims by namespace and name. One that waits has none: pods that ask alike differ
    in the names of their claims alone."""
    will_use: frozenset[str] = field(default=frozenset(), compare=False)
    """Of a pod that waits: what it uses once it has a node."""

    constraint: ClassVar[str] = NAME
    common_most: ClassVar[int] = RESERVED_MOST
    filters: ClassVar[tuple[Filter, ...]] = (Filter(FILTER, _check, _is_other),)

    def on(self, node: Node) -> tuple[Wanted, ...]:
        """Return the claims that are to be allocated on a node."""
        if not self.extended or not (met := implicit.lacking(self.extended, node.allocatable)):
            return self.wanted
        return (*self.wanted, for_resources(met))

    @property
    def met(self) -> frozenset[str]:
        """See `constraint.Ask.met`."""
        return frozenset(one.resource for one in self.extended)

    @property
    def takes(self) -> frozenset[str]:
        """See `constraint.Ask.takes`: claims."""
        return self.uses

    @property
    def is_graded(self) -> bool:
        """See `constraint.Ask.is_graded`: a request has alternatives, of which the first is the best."""
        return any(request.first_available for one in self.wanted for request in one.claim.spec.devices.requests or ())

    def grade(self, node: Node) -> int:
        """See `constraint.Ask.grade`: 8 for each first alternative that the node meets, 7 for each second, …"""
        supply = node.limits.get(NAME)
        if not isinstance(supply, Supply) or not self.is_graded:
            return 0
        claims = tuple(one.claim for one in self.on(node))
        found = supply.allocate(claims)
        if not isinstance(found, Allocation):
            return 0
        return sum(_grade(claim, got) for claim, got in zip(claims, found.results, strict=True))

    @property
    def is_counted(self) -> bool:
        """See `constraint.Ask.is_counted`: which devices a claim would get is known once it is allocated."""
        return not self.wanted and not self.extended

    @property
    def is_foreseen(self) -> bool:
        """See `constraint.Ask.is_foreseen`."""
        return not self.is_counted

    @property
    def common(self) -> frozenset[str]:
        """See `constraint.Ask.common`: the claims that are to be allocated, by uid."""
        return frozenset(one.uid for one in self.wanted if one.uid)

    def beside(self, other: object, node: Node) -> Ask:
        """See `constraint.Ask.beside`: claims that the other has are allocated then, where its node has devices."""
        if not isinstance(other, Ask) or self.common.isdisjoint(other.common):
            return self
        got = other._allocated(node)
        there = (
            fixed(with_allocation(one.claim, got[one.uid]), one.claim.metadata.name)
            for one in self.wanted
            if one.uid in got
        )
        return dataclasses.replace(
            self,
            wanted=tuple(one for one in self.wanted if one.uid not in got),
            fixed=(*self.fixed, *(one for one in there if one is not None)),
        )

    def _allocated(self, node: Node) -> Mapping[str, AllocationResult]:
        """Return what its claims get on a node, by uid; nothing where the node has not enough."""
        supply, wanted = node.limits.get(NAME), self.on(node)
        if not isinstance(supply, Supply) or not wanted:
            return {}
        found = supply.allocate(tuple(one.claim for one in wanted), _used(node))
        if not isinstance(found, Allocation):
            return {}
        return {one.uid: result for one, result in zip(wanted, found.results, strict=True) if one.uid}

    def once_there(self) -> Ask:
        """See `constraint.Ask.once_there`: what its claims hold is not free while it is there."""
        return Ask(uses=self.uses | self.will_use)

    def after(self, node: Node) -> Supply | None:
        """See `constraint.Ask.after`."""
        supply, wanted = node.limits.get(NAME), self.on(node)
        if not isinstance(supply, Supply):
            return None
        return supply.after(wanted, _used(node)) if wanted else supply


def _grade(claim: ResourceClaim, allocation: AllocationResult) -> int:
    met = {one.request for one in allocation.devices.results}
    return sum(
        ALTERNATIVES_MOST - at
        for request in claim.spec.devices.requests or ()
        for at, way in enumerate(request.first_available or ())
        if f"{request.name}/{way.name}" in met
    )


def wanted(claim: ResourceClaim, name: str) -> Wanted:
    """Return what a claim asks for. Args: name: the pod's for it."""
    spec = msgspec.json.encode((name, claim.spec))
    about = ObjectMeta(name=name)
    return Wanted(spec=spec, claim=msgspec.structs.replace(claim, metadata=about), uid=claim.metadata.uid)


def with_allocation(claim: ResourceClaim, result: AllocationResult) -> ResourceClaim:
    """Return a claim that has devices."""
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=result))


@functools.lru_cache(maxsize=256)
def for_resources(met: tuple[implicit.Met, ...]) -> Wanted:
    """Return what the claim asks for that meets extended resources."""
    return wanted(implicit.wanted(met), implicit.NAME)


def fixed(claim: ResourceClaim, name: str) -> Fixed | None:
    """Return where a claim's devices are; None: they can be used on every node."""
    allocation = claim.status.allocation
    if allocation is None or allocation.node_selector is None:
        return None
    return Fixed(name=name, where=msgspec.json.encode(allocation.node_selector), nodes=allocation.node_selector)


def _affinity(nodes: core.NodeSelector) -> core.NodeAffinity:
    return core.NodeAffinity(required_during_scheduling_ignored_during_execution=nodes)
