"""Compiles comprehensions: the quantifiers, the collecting macros, and `cel.bind`.

An error of one round is kept as the value so far, and the rounds go on, as in the reference: `exists` may still find
true. Lists and maps that a macro collects are grown in place.
Source: cel-go interpreter/interpretable.go (`evalFold`), v0.29.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fairlead.plan.cel.running.charge import LIMIT
from fairlead.plan.cel.running.frame import COST, PENDING, Frame, Run
from fairlead.plan.cel.value import NO_OVERLOAD, Failed, Spent, Value, from_key, go_name_of

_CONDITION_COSTS: Final = {True: 2, False: 3}
"""Of a round's condition: reading the value so far and `@not_strictly_false`; `exists` turns it over first."""


def _rounds(value: Value, at: int, *, two: bool) -> Iterator[tuple[Value, Value]]:
    if isinstance(value, tuple):
        yield from enumerate(value) if two else ((item, None) for item in value)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from_key(key), item
    elif two:
        raise Failed(f"unsupported comprehension range type: {go_name_of(value)}", at)
    else:
        raise Failed(f"got '{go_name_of(value)}', expected iterable type", at)


def quantifier(over: Run, test: Run, places: tuple[int, int], at: int, *, is_all: bool) -> Run:
    """Return the function of `all` or `exists`; `places` are those of its variables, the second 0 where it has one."""
    first, second = places
    condition_cost = _CONDITION_COSTS[is_all]
    end = not is_all

    def run(frame: Frame) -> Value:
        so_far: Value = is_all
        for one, other in _rounds(over(frame), at, two=second > 0):
            frame[COST] += condition_cost
            if so_far is end:
                break
            frame[first] = one
            if second:
                frame[second] = other
            frame[COST] += 1
            so_far = _joined(frame, test, so_far, end, at)
            if frame[COST] > LIMIT:
                raise Spent
        frame[COST] += 1
        if isinstance(so_far, Failed):
            raise so_far
        return so_far

    return run


def _joined(frame: Frame, test: Run, so_far: Value, end: bool, at: int) -> Value:
    """Return the value so far with one more term, as `&&` or `||` has it."""
    try:
        found = test(frame)
    except Failed as error:
        found = error
    if type(found) is not bool:
        problem = found if isinstance(found, Failed) else Failed(NO_OVERLOAD, at)
        return so_far if isinstance(so_far, Failed) else problem
    return end if found is end else so_far


def collected(over: Run, step: Run, result: Run, places: tuple[int, int, int], start: Value, at: int) -> Run:
    """Return the function of a macro that goes through all rounds; `places`: the variables' and the value so far's."""
    first, second, accu = places

    def run(frame: Frame) -> Value:
        rounds = _rounds(over(frame), at, two=second > 0)
        frame[accu] = [] if start == () else (dict(start) if isinstance(start, dict) else start)
        for one, other in rounds:
            frame[first] = one
            if second:
                frame[second] = other
            try:
                frame[accu] = step(frame)
            except Failed as error:
                frame[accu] = error
            if frame[COST] > LIMIT:
                raise Spent
        found = result(frame)
        return tuple(found) if type(found) is list else found

    return run


def appended(accu: int, item: Run, cost: int) -> Run:
    """Return the function of `accu + [item]`, which grows the list in place."""

    def run(frame: Frame) -> Value:
        frame[COST] += cost
        held = frame[accu]
        found = item(frame)
        if type(held) is not list:
            raise held
        held.append(found)
        return held

    return run


def bound(body: Run, accu: int) -> Run:
    """Return the function of `cel.bind`: its variable is evaluated where it is first asked for, and never again."""

    def run(frame: Frame) -> Value:
        frame[accu] = PENDING
        return body(frame)

    return run


def variable(place: int) -> Run:
    """Return the function that reads a macro's variable."""

    def run(frame: Frame) -> Value:
        return frame[place]

    return run


def accumulator(place: int) -> Run:
    """Return the function that reads the value so far, which may be an error."""

    def run(frame: Frame) -> Value:
        found = frame[place]
        if type(found) is Failed:
            raise found
        return found

    return run


def lazy(place: int, init: Run) -> Run:
    """Return the function that reads what `cel.bind` bound."""

    def run(frame: Frame) -> Value:
        found = frame[place]
        if found is PENDING:
            try:
                found = init(frame)
            except Failed as error:
                found = error
            frame[place] = found
        if type(found) is Failed:
            raise found
        return found

    return run
