"""Names what the parts of a compiled expression share: the frame they run over and the plans they are made of.

A frame is a list: the cost so far, the device, and a place for each variable of a macro. A compiled part is a function
of the frame. Costs are added as the parts run; loops and growing costs look at the limit, the end looks once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fairlead.plan.cel.running.charge import LIMIT
from fairlead.plan.cel.value import Spent, Value

Frame = list[Any]
Run = Callable[[Frame], Value]
COST, DEVICE, FIRST_FREE = 0, 1, 2
PENDING: Final = object()
"""Stands in a variable's place until its value is first asked for."""


def spend(frame: Frame, cost: int) -> None:
    """Add a cost that grows with a value. Raises: Spent."""
    frame[COST] += cost
    if frame[COST] > LIMIT:
        raise Spent
