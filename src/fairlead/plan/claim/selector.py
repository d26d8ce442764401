"""Says how the search asks whether a device meets a CEL expression, and what an expression's failure is.

The search takes any callable, so that tests and other engines can stand in for CEL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fairlead.plan.claim.pool.candidate import Candidate, Value

Matches = Callable[[str, Candidate], bool]
"""Returns whether a device meets an expression. Raises: SelectorError, DeviceError."""


class Derived(NamedTuple):
    """The value of an attribute that was computed for a device."""

    value: Value
    is_list: bool


Derives = Callable[[str, Candidate], Derived]
"""Returns what an expression computes for a device. Raises: SelectorError, DeviceError."""


class DeviceError(Exception):
    """A device that no expression can be asked about, since a value of it is none of its kind; it fits no request."""


class SelectorError(Exception):
    """An expression that does not compile, or that fails on a device; either ends the allocation of the pod."""

    def __init__(self, message: str, *, is_compile: bool = False) -> None:
        super().__init__(message)
        self.is_compile = is_compile
