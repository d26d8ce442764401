"""Divides a cluster among queues: what each is due, who goes next, who may take from whom. Pure.

Queues form a tree. At each level the children get, in this order and never more than they ask for: their guarantee, the
rest of what they deserve, and by weight what is left. The shares depend on what is asked for in all (running and
waiting), not on who runs, so that taking a place does not change what any queue is due: this is why two pods can never
take each other's place (`may_reclaim`).

Amounts are whole thousandths, as everywhere in `plan.schedule`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fairlead import errors
from fairlead.settings.control import POLICIES
from fairlead.wire.kubernetes import quantity
from fairlead.wire.kubernetes.scheduling import queue

DEFAULT: Final = ""
"""The queue of pods that no queue claims: a child of the root with weight 1 and nothing of its own."""
ROOT: Final = "/"
UNIT: Final = 1000

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One queue in thousandths."""

    name: str
    parent: str = ROOT
    guarantee: Amounts = field(default_factory=dict)
    deserved: Amounts = field(default_factory=dict)
    limit: Amounts = field(default_factory=dict)
    weight: int = 1
    namespaces: tuple[str, ...] = ()
    min_runtime_s: int = 0
    policy: str = ""


def spec_of(item: queue.Queue) -> Spec:
    """Return a queue's spec. Raises: Invalid (`QueueInvalid`): an amount is not a quantity, or beyond its limit."""
    said, name = item.spec, item.metadata.name
    parts = {
        part: {resource: _amount(name, part, resource, text) for resource, text in amounts.items()}
        for part, amounts in (("guarantee", said.guarantee), ("deserved", said.deserved), ("limit", said.limit))
    }
    for part in ("guarantee", "deserved"):
        for resource, value in parts[part].items():
            if value > parts["limit"].get(resource, value):
                message = f'queue "{name}": {part} of {resource} is above its limit'
                raise errors.Invalid(message, reason="QueueInvalid", hint="raise the limit, or ask for less")
    return Spec(
        name=name,
        parent=said.parent or ROOT,
        guarantee=parts["guarantee"],
        deserved=parts["deserved"],
        limit=parts["limit"],
        weight=max(0, said.weight),
        namespaces=said.namespaces,
        min_runtime_s=said.min_runtime_seconds,
        policy=_policy(name, said.policy),
    )


def _policy(name: str, policy: str) -> str:
    if policy and policy not in POLICIES:
        message = f'queue "{name}": there is no policy "{policy}"'
        raise errors.Invalid(message, reason="QueueInvalid", hint=f"one of {', '.join(POLICIES)}")
    return policy


def _amount(name: str, part: str, resource: str, text: str) -> int:
    try:
        value = quantity.parse_quantity(text)
    except errors.Invalid as error:
        message = f'queue "{name}": {part} of {resource}: {error.message}'
        raise errors.Invalid(message, reason="QueueInvalid", hint='write a quantity, "8" or "64Gi"') from error
    if value < 0:
        message = f'queue "{name}": {part} of {resource} is below 0: {text}'
        raise errors.Invalid(message, reason="QueueInvalid", hint="leave it out for no limit; 0 is nothing at all")
    return math.floor(value * UNIT)


class Tree:
    """Queues as they are; rebuilt when one changes."""

    def __init__(self, specs: Iterable[Spec] = ()) -> None:
        """Take the queues; a parent that is not there, or a circle, is noted in `problems` and hangs at the root."""
        self.specs = {one.name: one for one in sorted(specs, key=lambda one: one.name) if one.name not in {"", ROOT}}
        self.problems: dict[str, str] = {}
        """By queue: what cannot be carried out as written."""
        self._parents = {name: self._parent(one) for name, one in self.specs.items()}
        self._parents[DEFAULT] = ROOT
        self.specs[DEFAULT] = Spec(name=DEFAULT)
        self.children: dict[str, list[str]] = {ROOT: []}
        for name, parent in self._parents.items():
            self.children.setdefault(parent, []).append(name)
        self._claims: dict[str, str] = {}
        for name, one in self.specs.items():
            for namespace in one.namespaces:
                if (other := self._claims.setdefault(namespace, name)) != name:
                    self.problems[name] = f'namespace "{namespace}" is claimed by queue "{other}" too'

    def __len__(self) -> int:
        """Return how many queues there are beside the default one."""
        return len(self.specs) - 1

    def _parent(self, one: Spec) -> str:
        if one.parent == ROOT:
            return ROOT
        if one.parent not in self.specs:
            self.problems[one.name] = f'its parent "{one.parent}" is not there'
            return ROOT
        seen, at = {one.name}, one.parent
        while at in self.specs:
            if at in seen:
                self.problems[one.name] = f'it is its own ancestor by "{one.parent}"'
                return ROOT
            seen.add(at)
            at = self.specs[at].parent
        return one.parent

    def path(self, name: str) -> tuple[str, ...]:
        """Return a queue and its ancestors without the root, the queue first."""
        found = []
        while name != ROOT:
            found.append(name)
            name = self._parents[name]
        return tuple(found)

    def policy(self, name: str) -> str:
        """Return the policy that places a queue's pods, its own or its nearest ancestor's; "": the scheduler's."""
        return next((policy for one in self.path(name) if (policy := self.specs[one].policy)), "")

    def find(self, namespace: str, named: str) -> tuple[str, str]:
        """Return a pod's queue, and why it may not be in it.

        Args:    named: the queue that the pod names; "": none, and the namespace decides.
        """
        if not named:
            return self._claims.get(namespace, DEFAULT), ""
        one = self.specs.get(named)
        if one is None:
            there = ", ".join(name for name in self.specs if name) or "none"
            return DEFAULT, f'queue "{named}" is not there (queues: {there})'
        if self.children.get(named):
            return DEFAULT, f'queue "{named}" has queues below it: name one of {", ".join(self.children[named])}'
        if one.namespaces and namespace not in one.namespaces:
            return DEFAULT, f'queue "{named}" is not for namespace "{namespace}"'
        return named, ""

    def totals(self, leaves: Mapping[str, Amounts]) -> dict[str, dict[str, int]]:
        """Return amounts of every queue with those below it."""
        found: dict[str, dict[str, int]] = {name: {} for name in self.specs}
        for leaf, amounts in leaves.items():
            for name in self.path(leaf):
                for resource, value in amounts.items():
                    found[name][resource] = found[name].get(resource, 0) + value
        return found

    def shares(self, total: Amounts, asked: Mapping[str, Amounts]) -> dict[str, dict[str, int]]:
        """Return what each queue is due.

        Args:    total: what the cluster has.   asked: by leaf, what its pods have and wait for.
        """
        wanted = self.totals(asked)
        found: dict[str, dict[str, int]] = {name: {} for name in self.specs}
        for resource, amount in total.items():
            self._divide(ROOT, resource, amount, wanted, found)
        return found

    def _divide(
        self, parent: str, resource: str, amount: int, wanted: Mapping[str, Amounts], found: dict[str, dict[str, int]]
    ) -> None:
        names = self.children.get(parent, ())
        asks = {name: self._capped(name, resource, wanted[name].get(resource, 0)) for name in names}
        due = dict.fromkeys(names, 0)
        for part in ("guarantee", "deserved"):
            owed = {
                name: max(0, min(asks[name], getattr(self.specs[name], part).get(resource, 0)) - due[name])
                for name in names
            }
            amount -= _pour(amount, owed, owed, due)
        _pour(amount, {name: asks[name] - due[name] for name in names}, {n: self.specs[n].weight for n in names}, due)
        for name in names:
            found[name][resource] = due[name]
            self._divide(name, resource, due[name], wanted, found)

    def _capped(self, name: str, resource: str, amount: int) -> int:
        return min(amount, self.specs[name].limit.get(resource, amount))

    def over_limit(self, leaf: str, needs: Amounts, allocated: Mapping[str, Amounts]) -> tuple[str, str] | None:
        """Return the first queue of the path whose limit the needs would pass, and the resource; None: none would."""
        for name in self.path(leaf):
            for resource, most in self.specs[name].limit.items():
                value = needs.get(resource, 0)
                if value and allocated[name].get(resource, 0) + value > most:
                    return name, resource
        return None

    def kept_back(
        self, leaf: str, needs: Amounts, free: Amounts, allocated: Mapping[str, Amounts]
    ) -> tuple[str, str] | None:
        """Return the queue whose unused guarantee the needs would take, and the resource; None: none would."""
        own = self.path(leaf)
        for resource, value in needs.items():
            if not value:
                continue
            kept, first = self._kept(resource, own, allocated)
            if kept and value > free.get(resource, 0) - kept:
                return first, resource
        return None

    def _kept(self, resource: str, own: tuple[str, ...], allocated: Mapping[str, Amounts]) -> tuple[int, str]:
        """Return how much of a resource is kept for others, and the first of them."""
        kept, first = 0, ""
        for parent in (ROOT, *reversed(own)):
            for name in self.children.get(parent, ()):
                if name in own:
                    continue
                unused = self._guaranteed(name, resource) - allocated[name].get(resource, 0)
                if unused > 0:
                    kept, first = kept + unused, first or name
        return kept, first

    def _guaranteed(self, name: str, resource: str) -> int:
        """Return a queue's guarantee, or those of the queues below it where they are more."""
        below = sum(self._guaranteed(child, resource) for child in self.children.get(name, ()))
        return max(self.specs[name].guarantee.get(resource, 0), below)

    def ratio(self, amounts: Amounts, share: Amounts) -> float:
        """Return the dominant part of its share that a queue has; beyond it, over 1."""
        found = 0.0
        for resource, value in amounts.items():
            if value > 0:
                found = max(found, value / share[resource] if share.get(resource) else math.inf)
        return found

    def fork(self, one: str, other: str) -> tuple[str, str] | None:
        """Return the two siblings below which two leaves part; None: one leaf."""
        mine, theirs = list(reversed(self.path(one))), list(reversed(self.path(other)))
        for left, right in zip(mine, theirs, strict=False):
            if left != right:
                return left, right
        return None

    def may_reclaim(
        self,
        taker: str,
        needs: Amounts,
        giver: str,
        has: Amounts,
        *,
        allocated: Mapping[str, Amounts],
        shares: Mapping[str, Amounts],
    ) -> bool:
        """Return whether a pod that waits may end a pod of another queue.

        Where their queues part, the taker's side stays within its share with it, and the giver's side is beyond its
        share in a resource that both pods are about. With the taker in its place the giver's side would not be within
        its share with the ended pod, so the same two are never judged the other way round.

        Args:    needs: of the pod that waits.   has: of the pod that would end.
        """
        forked = self.fork(taker, giver)
        if forked is None:
            return False
        mine, theirs = forked
        within = all(
            allocated[mine].get(resource, 0) + value <= shares[mine].get(resource, 0)
            for resource, value in needs.items()
            if value and resource in shares[mine]
        )
        beyond = any(
            value and needs.get(resource) and allocated[theirs].get(resource, 0) > shares[theirs].get(resource, 0)
            for resource, value in has.items()
            if resource in shares[theirs]
        )
        return within and beyond


def _pour(amount: int, wants: Mapping[str, int], weights: Mapping[str, int], into: dict[str, int]) -> int:
    """Divide an amount by weight, none more than it wants; returns what was given.

    Whole numbers: what rounding leaves goes to the first by name, so that nothing is lost.
    """
    given = 0
    open_to = {name: want for name, want in sorted(wants.items()) if want > 0 and weights[name] > 0}
    while open_to and given < amount:
        rest, whole = amount - given, sum(weights[name] for name in open_to)
        full = {name: want for name, want in open_to.items() if want * whole <= rest * weights[name]}
        if full:  # those who want less than their part get it, and the others divide what they leave
            for name, want in full.items():
                into[name] += want
                given += want
                del open_to[name]
            continue
        parts = {name: rest * weights[name] // whole for name in open_to}
        for name, part in parts.items():
            into[name] += part
            given += part
        for name, want in open_to.items():  # at most one each
            if given < amount and parts[name] < want:
                into[name] += 1
                given += 1
        break
    return given
