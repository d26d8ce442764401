"""Tests one device for one row, in the reference's order, and places it in the ledger.

The tests that no other device of the answer changes (selectors, where the device is, its capacity as such, taints) are
made once and remembered; the rest are made against the ledger. Each says why it refuses, so that the search and the
explanation of its failure cannot differ. Where the reference is wrong (defects A to F and I of the reference notes) its
intention is followed; `docs/design/allocator.md` lists them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from fractions import Fraction
from typing import Final, NamedTuple

from fairlead import errors
from fairlead.plan.claim.gate import Gates
from fairlead.plan.claim.pool.candidate import ONE, Candidate, CounterID, DeviceID, Value, value_of
from fairlead.plan.claim.pool.held import Held, HeldPool
from fairlead.plan.claim.pool.pool import NodePools, Pool
from fairlead.plan.claim.search.capacity import CapacityError, Consumption, consumption
from fairlead.plan.claim.search.ledger import Ledger, Placed
from fairlead.plan.claim.search.request import Constraint, Fatal, Wanted
from fairlead.plan.claim.selector import Derives, DeviceError, Matches, SelectorError
from fairlead.wire.kubernetes import quantity
from fairlead.wire.kubernetes.resource.device import DeviceTaint, DeviceToleration

_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
_NO_CLAIMS: Final[frozenset[int]] = frozenset()
_NONE: Final[frozenset[str]] = frozenset()
_CLASH: Final = frozenset({""})
"""Groups of devices that have none in common, though they are held together."""


class Misfit(NamedTuple):
    """Why a device does not do."""

    test: str
    """`held`, `taken`, `selector`, `node`, `capacity`, `feature`, `counter`, `group`, `taint` or `constraint`."""
    text: str


class Fit(NamedTuple):
    """What a device that matches would consume; None: it is plain, and has nothing that is consumed."""

    consumption: Consumption | None


_PLAIN: Final = Fit(None)


class Fitting:
    """Tests of one search."""

    def __init__(self, pools: NodePools, held: Held, gates: Gates, matches: Matches, derives: Derives) -> None:
        """Take what is asked of devices, and who answers."""
        self.pools, self.gates = pools, gates
        self.ledger = Ledger()
        self._held = held
        self._matches, self._derives = matches, derives
        self._known: dict[tuple[int, int], Fit | Misfit] = {}
        self._computed: dict[tuple[int, str], Value | None] = {}
        self._free: dict[tuple[str, str], tuple[dict[CounterID, int], str]] = {}
        self._grouped: dict[tuple[str, str], dict[tuple[str, str, str], frozenset[str]]] = {}

    def afresh(self) -> Fitting:
        """Return tests with an empty ledger, which know what these know already."""
        other = Fitting(self.pools, self._held, self.gates, self._matches, self._derives)
        other._known, other._free, other._grouped = self._known, self._free, self._grouped
        other._computed = self._computed
        return other

    def place(self, wanted: Wanted, candidate: Candidate) -> Misfit | None:
        """Place a device; None: it is placed, and a rollback takes it back. Raises: Fatal."""
        found = self.free_for(wanted, candidate)
        if found is None:
            static = self.static(wanted, candidate)
            if isinstance(static, Misfit):
                return static
            mark = self.ledger.checkpoint()
            found = self._take(wanted, candidate, static.consumption)
            if found is not None:
                self.ledger.rollback(mark)
        return found

    def free_for(self, wanted: Wanted, candidate: Candidate) -> Misfit | None:
        """Return who has the device; None: no holder keeps the row from it."""
        taken = self.ledger.taken.get(candidate.at, _NO_CLAIMS)
        if wanted.admin:
            return Misfit("taken", "this claim has it already") if wanted.claim in taken else None
        if taken:
            return Misfit("taken", "this pod has it already")
        pool = self.held_of(candidate)
        if (holder := pool.devices.get(candidate.id.device)) is not None:
            return Misfit("held", f"held by claim {holder}")
        if not candidate.is_shared and (holders := pool.shares.get(candidate.id.device)):
            return Misfit("held", f"shared by claim {', '.join(holders)}, from when it could be shared")
        return None

    def held_of(self, candidate: Candidate) -> HeldPool:
        """Return what is held of the device's pool."""
        return self._held.pool(candidate.id.driver, candidate.id.pool)

    def held_in(self, pool: Pool) -> HeldPool:
        """Return what is held of a pool."""
        return self._held.pool(pool.driver, pool.name)

    def static(self, wanted: Wanted, candidate: Candidate) -> Fit | Misfit:
        """Return what no other device changes. Raises: Fatal."""
        key = (wanted.at, candidate.at)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._static(wanted, candidate)
        return found

    def selects(self, wanted: Wanted, candidate: Candidate) -> Misfit | None:
        """Return which selector refuses the device, or that it is not on the node. Raises: Fatal."""
        if candidate.barred:
            return Misfit("feature", candidate.barred)
        for one in wanted.selectors:
            try:
                if not self._matches(one.expression, candidate):
                    return Misfit("selector", f"selector #{one.number} of {one.owner}: {one.expression}")
            except DeviceError as error:
                return Misfit("unreadable", str(error))
            except SelectorError as error:
                kind = "compile" if error.is_compile else "runtime"
                on = "" if error.is_compile else f" on device {candidate.id}"
                message = f"{one.owner}: selector #{one.number}{on}: CEL {kind} error: {error}"
                brief = f"{one.owner}: selector #{one.number}: {error}"
                raise Fatal(message, "SelectorFailed", brief=brief) from error
        return Misfit("node", "the device is on other nodes") if candidate.is_elsewhere else None

    def consumed(self, wanted: Wanted, candidate: Candidate) -> Fit | Misfit:
        """Return what a device that matches would consume of itself. Raises: Fatal."""
        if not self.gates.consumable_capacity or (
            candidate.is_plain and not wanted.amounts and candidate.id.device not in self.held_of(candidate).capacity
        ):
            return _PLAIN
        fractions = self.gates.fractional_capacity_range
        try:
            found = consumption(wanted.amounts, candidate.device.capacity, fractions=fractions)
        except (CapacityError, errors.Invalid) as error:
            where = f"claim {wanted.owner}, request {wanted.name}"
            raise Fatal(f"{where}: checking capacity for device {candidate.id}: {error}", "CapacityWrong") from error
        return Misfit("capacity", found) if isinstance(found, str) else Fit(found)

    def _static(self, wanted: Wanted, candidate: Candidate) -> Fit | Misfit:
        if (misfit := self.selects(wanted, candidate)) is not None:
            return misfit
        found = self.consumed(wanted, candidate)
        if isinstance(found, Misfit):
            return found
        if candidate.refused:
            return Misfit("feature", candidate.refused)
        taint = self._taint(wanted, candidate) if self.gates.device_taints and candidate.device.taints else None
        return taint or found

    def _taint(self, wanted: Wanted, candidate: Candidate) -> Misfit | None:
        for taint in candidate.device.taints:
            if taint.effect in _EFFECTS and not any(tolerates(one, taint) for one in wanted.tolerations):
                value = f"={taint.value}" if taint.value else ""
                return Misfit("taint", f"taint {taint.key}{value}:{taint.effect} is not tolerated")
        return None

    def _take(self, wanted: Wanted, candidate: Candidate, consumed: Consumption | None) -> Misfit | None:
        """Make the tests that the ledger decides, and write what they change."""
        ledger = self.ledger
        room = () if consumed is None else self._room(candidate, consumed, ledger.shares.get(candidate.at))
        # For `All` it is told last, since the reference makes an error of a constraint that keeps `All` from a device,
        # full or not.
        if isinstance(room, Misfit) and not wanted.is_all:
            return room
        is_new = candidate.takes_counters and not wanted.admin and not self._is_charged(candidate)
        if is_new and (misfit := self._take_groups(candidate) or self._take_counters(candidate)):
            return misfit
        for one in wanted.constraints:
            if (misfit := self._constrain(one, candidate, wanted)) is not None:
                return misfit
        if isinstance(room, Misfit):
            return room
        if candidate.is_shared:
            if is_new:
                ledger.put(ledger.charged, candidate.at, True)
            ledger.put(ledger.shares, candidate.at, room)
        else:
            claims = ledger.taken.get(candidate.at, _NO_CLAIMS)
            ledger.put(ledger.taken, candidate.at, claims | {wanted.claim})
        ledger.place(Placed(wanted, candidate, consumed if candidate.is_shared else None))
        return None

    def _room(
        self, candidate: Candidate, consumed: Consumption, before: tuple[int, ...] | None
    ) -> tuple[int, ...] | Misfit:
        """Return what is consumed with this share, or which capacity does not have it."""
        held = self.held_of(candidate).capacity.get(candidate.id.device, {})
        total = []
        for at, (name, amount, there) in enumerate(consumed.amounts):
            now = amount + (before[at] if before is not None else 0)
            if (over := now + held.get(name, 0) - there) > 0:
                return Misfit("capacity", f"capacity {name} is short by {amount_text(over, candidate, name)}")
            total.append(now)
        return tuple(total)

    def _is_charged(self, candidate: Candidate) -> bool:
        """Return whether another share of the device has its counters already."""
        if not candidate.is_shared:
            return False
        pool = self.held_of(candidate)
        device = candidate.id.device
        return device in pool.shares or device in pool.capacity or candidate.at in self.ledger.charged

    def free_counters(self, pool: tuple[str, str]) -> tuple[Mapping[CounterID, int], str]:
        """Return what a pool's counters have left beside claims that are allocated, and why none may be given out."""
        if pool not in self._free:
            self._free[pool] = self._counters(self.pools.by_name[pool])
        return self._free[pool]

    def _counters(self, pool: Pool) -> tuple[dict[CounterID, int], str]:
        left = dict(pool.totals)
        problem = ""
        held = self._held.pool(pool.driver, pool.name)
        # Sorted, so that the words do not change from run to run.
        for device in sorted(held.names()):
            name = DeviceID(pool.driver, pool.name, device)
            consumes = pool.consumes.get(device) or self._held.remembered.get(name)
            if consumes is None and device not in pool.devices:
                problem = f"{name} is held, and no slice says any more what it takes of the pool's counters"
            for counter, amount in consumes or ():
                if counter in left:
                    left[counter] -= amount
        for counter, amount in left.items():
            if amount < 0 and not problem:
                problem = f"counter {counter} is overdrawn by {counter_text(-amount)}"
        return left, problem

    def _take_counters(self, candidate: Candidate) -> Misfit | None:
        ledger = self.ledger
        left, problem = self.free_counters((candidate.id.driver, candidate.id.pool))
        if problem:
            return Misfit("counter", problem)
        for counter, amount in candidate.consumes:
            now = ledger.counters.get(counter, 0) + amount
            if now > left[counter]:
                return Misfit("counter", f"counter {counter} is short by {counter_text(now - left[counter])}")
            ledger.put(ledger.counters, counter, now)
        return None

    def _take_groups(self, candidate: Candidate) -> Misfit | None:
        if not self.gates.device_compatibility_groups:
            return None
        ledger = self.ledger
        for use in candidate.groups:
            key = (use.driver, use.pool, use.counter_set)
            now = ledger.groups.get(key)
            if now is None:
                now = self.held_groups((use.driver, use.pool)).get(key)
            if now is not None and not _goes_with(now, use.groups):
                shown = ", ".join(sorted(now - _CLASH)) or "devices without groups alone"
                return Misfit("group", f"counter set {use.counter_set} has {shown}")
            ledger.put(ledger.groups, key, _joined(now, use.groups))
        return None

    def held_groups(self, name: tuple[str, str]) -> Mapping[tuple[str, str, str], frozenset[str]]:
        """Return the groups that the held devices of a pool have in common, by counter set."""
        if name not in self._grouped:
            found: dict[tuple[str, str, str], frozenset[str]] = {}
            pool = self.pools.by_name[name]
            held = self._held.pool(*name).names()
            # In the slices' order: where what is held contradicts itself, the first device decides.
            for use in itertools.chain.from_iterable(of for device, of in pool.groups.items() if device in held):
                key = (use.driver, use.pool, use.counter_set)
                found[key] = _joined(found.get(key), use.groups)
            self._grouped[name] = found
        return self._grouped[name]

    def value(self, constraint: Constraint, candidate: Candidate, wanted: Wanted) -> Value | None:
        """Return what a device has for a constraint's attribute, which the row may compute. Raises: Fatal."""
        expression = wanted.derived.get(constraint.attribute)
        if expression is None:
            return value_of(candidate, constraint.attribute, lists=self.gates.list_type_attributes)
        key = (candidate.at, expression)
        if key not in self._computed:
            self._computed[key] = self._compute(constraint.attribute, expression, candidate, wanted)
        return self._computed[key]

    def _compute(self, name: str, expression: str, candidate: Candidate, wanted: Wanted) -> Value | None:
        try:
            found = self._derives(expression, candidate)
        except (DeviceError, SelectorError) as error:
            where = f"claim {wanted.owner}, request {wanted.name}: derived attribute {name}"
            raise Fatal(
                f"{where} on device {candidate.id}: {error}", "SelectorFailed", brief=f"{where}: {error}"
            ) from error
        if found.is_list and not self.gates.list_type_attributes:
            return Value()  # of a type that is not known while the gate is off
        return found.value or None

    def _constrain(self, one: Constraint, candidate: Candidate, wanted: Wanted) -> Misfit | None:
        value = self.value(one, candidate, wanted)
        if value is None:
            return Misfit("constraint", f"it has no attribute {one.attribute}")
        ledger = self.ledger
        table = ledger.match if one.is_match else ledger.distinct
        now = table.get(one.at)
        if one.is_match:
            common = value if now is None else now & value
            if now is not None and not common:
                text = f"attribute {one.attribute} is {value_text(value)}, where the others have {value_text(now)}"
                return Misfit("constraint", text)
            ledger.put(table, one.at, common)
            return None
        if now is not None and (now & value or not value):
            return Misfit("constraint", f"attribute {one.attribute} is {value_text(value)}, which another one has")
        ledger.put(table, one.at, value if now is None else now | value)
        return None


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Return whether a toleration bears a taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in {"", "Equal"}:
        return toleration.value == taint.value
    return toleration.operator == "Exists"


def value_text(value: Value) -> str:
    """Return the values of an attribute in words."""
    return ", ".join(sorted(str(one) for _, one in value)) or "of a type that is not known"


def counter_text(amount: int) -> str:
    """Return an amount of a counter, given in billionths."""
    form = quantity.Form.BINARY if amount % (ONE * 1024) == 0 else quantity.Form.DECIMAL
    return quantity.emit_quantity(Fraction(amount, ONE), form)


def amount_text(amount: int, candidate: Candidate, name: str) -> str:
    """Return an amount of a device's capacity, given in billionths, as the device writes it."""
    form = quantity.parse(candidate.device.capacity[name].value).form
    return quantity.emit_quantity(Fraction(amount, ONE), form)


def _goes_with(now: frozenset[str], groups: frozenset[str]) -> bool:
    return not now if not groups else bool(now & groups)


def _joined(now: frozenset[str] | None, groups: frozenset[str]) -> frozenset[str]:
    if now is None:
        return groups
    if not now or not groups:
        return now
    return now & groups or _CLASH
