"""Compiles chains of fields and indices: a start, and what is looked up from it step by step.

The start costs 1 and each step costs 1. A conditional costs nothing of its own, and hands its steps to both branches;
a branch that is a chain costs no start. The usual chains over the device's attributes and capacity become one lookup.
Source: cel-go interpreter/attributes.go and the observers of runtimecost.go, v0.29.2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from fairlead.plan.cel.problem import shown
from fairlead.plan.cel.running.frame import COST, DEVICE, Frame, Run
from fairlead.plan.cel.value import NO_OVERLOAD, NONE, DomainMap, Failed, NameMap, Optional, UInt, Value, to_key


@dataclass(frozen=True, slots=True)
class Step:
    """One field or index: a constant key, or an expression for it."""

    at: int
    key: Value = None
    index: Run | None = None
    is_optional: bool = False
    is_test: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """A start and its steps. `branches` has condition, truthy and falsy chain where the start is a conditional."""

    at: int
    start: Run | None = None
    is_device: bool = False
    branches: tuple[Run, Chain, Chain] | None = None
    steps: tuple[Step, ...] = ()

    def then(self, step: Step) -> Chain:
        """Return the chain with one more step."""
        return replace(self, steps=(*self.steps, step))

    @property
    def is_test(self) -> bool:
        """Whether it ends by asking whether a field is there."""
        return bool(self.steps) and self.steps[-1].is_test


def compiled(chain: Chain, start_cost: int = 1) -> Run:
    """Return the function of a chain."""
    if chain.branches is not None:
        return _conditional(chain)
    usual = _usual(chain, start_cost)
    if usual is not None:
        return usual
    cost = start_cost - (1 if chain.is_test else 0)
    start = chain.start or _device
    if not chain.steps:
        return _started(start, cost) if cost else start
    return _walk(start, cost, chain.steps)


def _device(frame: Frame) -> Value:
    return frame[DEVICE].root


def _started(start: Run, cost: int) -> Run:
    def run(frame: Frame) -> Value:
        frame[COST] += cost
        return start(frame)

    return run


def _conditional(chain: Chain) -> Run:
    if chain.branches is None:
        raise ValueError(chain)
    condition, truthy, falsy = chain.branches
    at = chain.at
    both = [compiled(replace(one, steps=(*one.steps, *chain.steps)), 0) for one in (truthy, falsy)]
    on_true, on_false = both

    def run(frame: Frame) -> Value:
        chosen = condition(frame)
        if chosen is True:
            return on_true(frame)
        if chosen is False:
            return on_false(frame)
        raise Failed(NO_OVERLOAD, at)

    return run


def _usual(chain: Chain, start_cost: int) -> Run | None:
    """Return the function of `device.attributes[domain].id` and the like; None: the chain is another one."""
    steps = chain.steps
    if not chain.is_device or any(step.index or step.is_optional or step.is_test for step in steps):
        return None
    keys = [step.key for step in steps]
    if keys == ["driver"]:
        return _driver(start_cost + 1)
    if len(keys) != 3 or keys[0] not in {"attributes", "capacity"} or not all(isinstance(key, str) for key in keys):
        return None
    if "/" in keys[1]:
        return None  # no domain has one, and one key for both parts could mean another pair
    return _flat(keys[0], f"{keys[1]}/{keys[2]}", start_cost + 3, steps[-1].at)


def _driver(cost: int) -> Run:
    def run(frame: Frame) -> Value:
        frame[COST] += cost
        return frame[DEVICE].driver

    return run


_MISSING: Final = object()


def _flat(kind: str, name: str, cost: int, at: int) -> Run:
    missing = f"no such key: {shown(name.partition('/')[2])[1:-1]}"

    def attribute(frame: Frame) -> Value:
        frame[COST] += cost
        found = frame[DEVICE].flat_attributes.get(name, _MISSING)
        if found is _MISSING:
            raise Failed(missing, at)
        return found

    def capacity(frame: Frame) -> Value:
        frame[COST] += cost
        found = frame[DEVICE].flat_capacity.get(name, _MISSING)
        if found is _MISSING:
            raise Failed(missing, at)
        return found

    return attribute if kind == "attributes" else capacity


def _walk(start: Run, cost: int, steps: tuple[Step, ...]) -> Run:
    def run(frame: Frame) -> Value:
        frame[COST] += cost
        value = start(frame)
        is_optional = type(value) is Optional
        if is_optional:
            if not value.is_present:
                return False if steps[-1].is_test else value
            value = value.value
        for step in steps:
            is_optional = is_optional or step.is_optional
            if not is_optional:
                frame[COST] += 1
                value = _test(step, value) if step.is_test else _looked_up(frame, step, value)
                continue
            found = _find_any(frame, step, value)
            if found is _MISSING:
                return False if steps[-1].is_test else NONE
            frame[COST] += 1
            value = found
        if steps[-1].is_test:
            return value if not is_optional else True
        return Optional(value) if is_optional else value

    return run


def _key_of(frame: Frame, step: Step) -> Value:
    return step.key if step.index is None else step.index(frame)


def _looked_up(frame: Frame, step: Step, holder: Value) -> Value:
    key = _key_of(frame, step)
    try:
        found = _find(holder, key, is_asking=False)
    except Failed as error:
        raise Failed(error.message, step.at) from None
    if found is _MISSING:
        said = shown(key)[1:-1] if isinstance(key, str) else str(key)
        raise Failed(
            f"no such key: {said}" if not isinstance(holder, tuple) else f"index out of bounds: {said}", step.at
        )
    return found


def _find_any(frame: Frame, step: Step, holder: Value) -> Value:
    key = _key_of(frame, step)
    try:
        return _find(holder, key, is_asking=True)
    except Failed as error:
        raise Failed(error.message, step.at) from None


def _test(step: Step, holder: Value) -> bool:
    return _find(holder, step.key, is_asking=True) is not _MISSING


def _find(holder: Value, key: Value, *, is_asking: bool) -> Value:
    """Return what a holder has under a key, or `_MISSING`. Raises: Failed where the key is of a wrong type."""
    if isinstance(holder, dict):
        found = holder.get(to_key(key), _MISSING)
        return NameMap() if found is _MISSING and type(holder) is DomainMap else found
    if isinstance(holder, tuple):
        place = _place(key)
        return holder[place] if 0 <= place < len(holder) else _MISSING
    if type(key) not in {str, int, UInt, float, bool}:
        raise Failed(NO_OVERLOAD)
    del is_asking
    return _MISSING


def _place(key: Value) -> int:
    if type(key) in {int, UInt}:
        return int(key)
    if type(key) is float and key.is_integer():
        return int(key)
    raise Failed(f"unsupported index type: {shown(str(key))}")
