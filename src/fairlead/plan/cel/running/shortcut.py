"""Compiles the calls that most selectors are made of by shorter ways; each answers and costs what `calls` does.

A constant is parsed once; a comparison with a constant knows its cost by the length of the other text.
"""

from __future__ import annotations

import math
import operator as python_operator
from typing import Final

from fairlead.plan.cel.functions import operator
from fairlead.plan.cel.functions import text as text_functions
from fairlead.plan.cel.running import charge
from fairlead.plan.cel.running.calls import Function
from fairlead.plan.cel.running.frame import COST, Frame, Run, spend
from fairlead.plan.cel.value import NO_OVERLOAD, Failed, Value, equal, size_through


def rewritten(function: Function, arg: Run, at: int) -> Run:
    """Return the function of `lowerAscii` and the like: one text of another, a tenth a character, and no errors."""
    costs = charge.TENTHS
    known = len(costs)

    def run(frame: Frame) -> Value:
        try:
            value = arg(frame)
        except Failed:
            frame[COST] += 1
            raise
        if type(value) is not str:
            spend(frame, charge.tenths(size_through(value)))
            raise Failed(NO_OVERLOAD, at)
        count = len(value)
        if count < known:
            frame[COST] += costs[count]
        else:
            spend(frame, charge.tenths(count))
        return function(value)

    return run


def known_call(function: Function, values: list[Value], cost: charge.Cost, at: int) -> Run:
    """Return the function of a call with constants: made once, and charged each time."""
    problem = None
    result: Value = None
    try:
        result = function(*values)
    except Failed as error:
        problem = error.message
    price = cost if isinstance(cost, int) else cost(values, result if problem is None else Failed(problem))

    def run(frame: Frame) -> Value:
        frame[COST] += price
        if problem is not None:
            raise Failed(problem, at)
        return result

    return run


def ordered_to_number(function: Function, left: Run, number: int, at: int) -> Run:
    """Return the function of `<` and the like with a constant int, as `compareTo` is mostly asked."""
    test = _ORDERS[function]

    def run(frame: Frame) -> Value:
        try:
            value = left(frame)
        except Failed:
            frame[COST] += 1
            raise
        frame[COST] += 1
        if type(value) is int:
            return test(value, number)
        try:
            return function(value, number)
        except Failed as error:
            raise Failed(error.message, at) from None

    return run


_ORDERS: Final[dict[Function, Function]] = {
    operator.BINARY["_<_"]: python_operator.lt,
    operator.BINARY["_<=_"]: python_operator.le,
    operator.BINARY["_>_"]: python_operator.gt,
    operator.BINARY["_>=_"]: python_operator.ge,
}


def matching(text: Run, pattern: str, at: int) -> Run:
    """Return the function of `matches` with a constant pattern. Raises: Failed where RE2 does not read the pattern."""
    matches = text_functions.matcher(pattern)
    each = math.ceil(len(pattern) * 0.25)
    costs = [each * cost for cost in charge.TENTHS]
    known = len(costs) - 1

    def run(frame: Frame) -> Value:
        value = text(frame)  # of an error, nothing is charged: the reference ends the call with it
        if type(value) is not str:
            spend(frame, each * charge.tenths(1 + size_through(value)))
            raise Failed(NO_OVERLOAD, at)
        count = len(value)
        if count < known:
            frame[COST] += costs[count + 1]
        else:
            spend(frame, each * charge.tenths(count + 1))
        return matches(value)

    return run


def equal_to_text(left: Run, text: str, at: int) -> Run:
    """Return the function of a comparison with a constant text, which most selectors are made of."""
    longest = len(text)
    costs = [charge.tenths(count) for count in range(longest + 1)]
    whole, single = costs[longest], costs[min(1, longest)]

    def run(frame: Frame) -> Value:
        try:
            value = left(frame)
        except Failed:
            frame[COST] += single
            raise
        if type(value) is str:
            count = len(value)
            frame[COST] += whole if count >= longest else costs[count]
            return value == text
        frame[COST] += charge.equality((value, text), None)
        try:
            return equal(value, text)
        except Failed as error:
            error.at = at
            raise

    return run
