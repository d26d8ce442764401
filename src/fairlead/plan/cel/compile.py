"""Compiles selectors and evaluates them: the door of this folder.

`compile_selector` keeps the expressions that were used last, since a cluster has few and asks for them without end.
Source: dynamic-resource-allocation cel/compile.go, v0.37.2.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.plan.cel import celtype, check, estimate, problem
from fairlead.plan.cel.device import DeviceView
from fairlead.plan.cel.grammar import node, parser
from fairlead.plan.cel.running import program
from fairlead.plan.cel.running.charge import LIMIT
from fairlead.plan.cel.running.frame import COST, Frame
from fairlead.plan.cel.value import Failed, Spent, Value, is_text, name_of

LONGEST: Final = 10 * 1024
"""Bytes of an expression: the API server's limit, which the scheduler does not ask about."""
RELEASES: Final = ("1.36", "1.37")
SELECTOR, DERIVED, DERIVED_SCALAR = "selector", "derived", "derived scalar"
"""What an expression is for: a selector, or an attribute that is derived, which may or may not be a list."""
_KEPT: Final = 1024
_DEEPEST: Final = 400
"""Nodes below each other: Python's own stack, which evaluation uses, has 1,000 places for all callers."""

ANY: Final = "any"
"""Results: a value of any type, for people who look at it, never for a scheduler."""
_SCALARS: Final = frozenset({celtype.BOOL, celtype.INT, celtype.STRING, celtype.SEMVER, celtype.DYN})
_SCALAR: Final = "a primitive scalar (string, integer, boolean, semver)"
_RESULTS: Final = {
    SELECTOR: (frozenset({celtype.BOOL, celtype.DYN}), "bool or the unknown type"),
    DERIVED: (_SCALARS | set(map(celtype.list_of, _SCALARS)), f"{_SCALAR} or a list of these scalars"),
    DERIVED_SCALAR: (_SCALARS, _SCALAR),
}
"""The types that each may have, and their words."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an expression gave for one device, and what that cost."""

    value: Value
    cost: int


class Selector:
    """A compiled expression. Made by `compile_selector`; holds no device and may be used by many threads."""

    __slots__ = ("_blank", "_estimate", "_run", "kind", "release", "text")

    def __init__(self, text: str, release: str, kind: str, made: program.Program, estimated: int | None) -> None:
        self.text = text
        self.release = release
        self.kind = kind
        """The type of its values as it is checked: `bool`, or `dyn` where only evaluation tells."""
        self._run = made.run
        self._blank: Frame = [None] * made.places
        self._estimate = estimated

    def matches(self, device: DeviceView) -> bool:
        """Return whether it selects a device. Raises: CELError (`CELFailed`, `CELCost`)."""
        frame: Frame = [0, device, *self._blank]
        try:
            value = self._run(frame)
        except (Failed, Spent, RecursionError) as error:
            raise self._error(error) from None
        if frame[COST] > LIMIT:
            raise self._error(Spent())
        if value is True or value is False:
            return value
        message = f"CEL result of type {name_of(value)} could not be converted to bool"
        raise problem.failed(self.text, message, -1)

    def evaluate(self, device: DeviceView) -> Evaluation:
        """Return the value for a device, of any type, and its cost. Raises: CELError, its `cost` in the context."""
        frame: Frame = [0, device, *self._blank]
        try:
            value = self._run(frame)
        except (Failed, Spent, RecursionError) as error:
            told = self._error(error)
            told.context["cost"] = frame[COST]
            raise told from None
        if frame[COST] > LIMIT:
            told = self._error(Spent())
            told.context["cost"] = frame[COST]
            raise told
        return Evaluation(value, frame[COST])

    def estimate(self) -> int | None:
        """Return the most that an evaluation may cost by the API server's estimate; None: it has no bound."""
        return self._estimate

    def _error(self, error: Failed | Spent | RecursionError) -> problem.CELError:
        if isinstance(error, Failed):
            return problem.failed(self.text, error.message, error.at)
        if isinstance(error, RecursionError):
            return problem.CELError("the expression nests too deep to be evaluated", reason="CELFailed")
        return problem.CELError(error.message, reason="CELCost", expression=problem.bounded(self.text))


def compile_selector(text: str, *, release: str = RELEASES[-1], result: str = SELECTOR) -> Selector:
    """Return a selector that is ready to use; the last ones used are kept.

    Args:
        text: the expression.
        release: whose costs it has, `1.36` or `1.37`.
        result: what it evaluates to: `SELECTOR`, one that is derived, or `ANY`.

    Raises: Invalid (`CELInvalid`), with line and column.
    """
    if release not in RELEASES:
        raise errors.Invalid(f"release {problem.shown(release)} is unknown", reason="CELInvalid", hint="1.36 or 1.37")
    return _compiled(text, release, result)


@functools.lru_cache(maxsize=_KEPT)
def _compiled(text: str, release: str, result: str) -> Selector:
    try:
        return _made(text, release, result)
    except problem.Wrong as wrong:
        raise problem.invalid(text, wrong) from None
    except RecursionError:
        raise problem.invalid(text, problem.Wrong("nested too deep", 0)) from None


def _made(text: str, release: str, result: str) -> Selector:
    if not is_text(text):
        raise problem.Wrong("no UTF-8", 0)
    if len(text.encode()) > LONGEST:
        raise problem.Wrong(f"longer than {LONGEST} bytes", 0)
    root = parser.parse(text)
    if node.depth(root) > _DEEPEST:
        raise problem.Wrong(f"nested deeper than {_DEEPEST}", root.at)
    kind = check.check(root, release)
    if result != ANY:
        allowed, words = _RESULTS[result]
        if kind not in allowed:
            raise problem.Wrong(f"must evaluate to {words}, not {kind}", root.at)
    made = program.build(root, release)
    return Selector(text, release, str(kind), made, estimate.estimate(root, release))
