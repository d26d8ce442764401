"""Finds the function of an overload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fairlead.plan.cel.functions import clock, convert, measure, naming, network, sequence, text, wording
from fairlead.plan.cel.value import Value

FUNCTIONS: Final[Mapping[str, Callable[..., Value]]] = {
    **measure.TABLE,
    **clock.TABLE,
    **convert.TABLE,
    **naming.TABLE,
    **network.TABLE,
    **sequence.TABLE,
    **text.TABLE,
    **wording.TABLE,
}
"""By the ids of `declare`; the operators, which go by the kinds of their values alone, are in `operator`."""

OLD_FUNCTIONS: Final[Mapping[str, Callable[..., Value]]] = {**FUNCTIONS, **sequence.OLD, **text.OLD}
"""As Kubernetes 1.36 has them."""
