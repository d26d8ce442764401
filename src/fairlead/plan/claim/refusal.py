"""Declares the answer to the claims of a pod on a node: what was allocated, or why nothing was."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairlead.plan.claim.pool.candidate import DeviceID
from fairlead.wire.kubernetes.resource.resourceclaim import AllocationResult

_SHOWN: Final = 3
WORDS: Final = {
    "held": "held by other claims",
    "taken": "taken by this pod",
    "selector": "not selected",
    "node": "on other nodes",
    "capacity": "without the capacity",
    "feature": "in need of a feature that is off",
    "counter": "short of a counter",
    "group": "of other compatibility groups",
    "taint": "tainted",
    "constraint": "against a constraint",
    "unreadable": "that cannot be read",
    "error": "with a failing selector",
}
"""What the tests say of the devices that they refuse, in the order of the tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Devices for every claim."""

    results: tuple[AllocationResult, ...]
    """By claim."""
    steps: int
    """How many steps the search took."""
    penalty: int | None = None
    """What speaks against the devices by the preferences that were given; None: none were."""
    is_best: bool = True
    """No other devices have a lower penalty, and no alternatives come before; False: the steps ended the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one test says of one device for one request."""

    claim: str
    request: str
    """`request`, or `request/alternative`."""
    device: DeviceID
    test: str
    """Empty: the device fits, as far as it alone is asked."""
    text: str

    def __str__(self) -> str:
        return f"{self.device}: {self.text or 'fits'}"


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why nothing was allocated."""

    reason: str
    """`TooFew`, `TooFewTogether`, `NoneOfAll`, `PoolInvalid`, `PoolIncomplete`, `BudgetSpent`, or an error of claims:
    `TooMany`, `ClassNotFound`, `FeatureOff`, `SelectorFailed`, `SelectorUnknown`, `RequestUnknown`, `CapacityWrong`,
    `ConstraintUnknown`, `AllImpossible`, `SliceUnknown`."""
    message: str
    """What is wrong, in one line."""
    is_fatal: bool
    """No other node can do: the reference ends the pod's scheduling with an error."""
    steps: int
    judge: Callable[[], Sequence[Verdict]] = field(repr=False, compare=False)
    """Returns the verdicts."""

    @functools.cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What refused each device for each request, with no device of this pod placed yet; made when asked for."""
        return tuple(self.judge())


def summary(verdicts: Sequence[Verdict], *, is_brief: bool = False) -> str:
    """Return how many devices each test refused, and, unless in brief, its most frequent reasons."""
    by_test: dict[str, Counter[str]] = {}
    for one in verdicts:
        if one.test:
            by_test.setdefault(one.test, Counter())[one.text] += 1
    parts = []
    for test, words in WORDS.items():
        if test in by_test:
            texts = by_test[test]
            if is_brief:
                parts.append(f"{texts.total()} {words}")
                continue
            shown = [text for text, _ in texts.most_common(_SHOWN)]
            more = f"; {len(texts) - _SHOWN} more reasons" if len(texts) > _SHOWN else ""
            parts.append(f"{texts.total()} {words} ({'; '.join(shown)}{more})")
    return ", ".join(parts)
