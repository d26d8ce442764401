"""Sums a decision up in a size that does not grow with the number of nodes: the ten best, reasons by count.

Pure. This is what is recorded of a decision: in the pod's condition, in its event, in `fairlead trace` and `explain`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

_TEXT: Final = 100
"""Characters of a name that are kept: a node's may have hundreds."""
_WHY: Final = 180
"""Characters of a reason that are kept: a taint's value and a selector may have hundreds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why some nodes were refused."""

    why: str
    nodes: int
    example: str
    """The first of the nodes by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A decision: what spoke for and against the nodes."""

    BEST: ClassVar[int] = 10
    """Nodes and reasons that are kept."""

    nodes: int
    """How many were judged."""
    fitting: int
    best: tuple[tuple[str, float], ...]
    """Names and scores of the best that fit, best first; at most `BEST`."""
    reasons: tuple[Reason, ...]
    """Each with the number of nodes that the first refusing filter gave it for."""
    preface: str = ""
    """What goes before the message: of the group that the pod is placed with."""
    devices: str = ""
    """Which devices the pod would get on the chosen node, and how they hang together; empty: not known."""

    domain: str = ""
    """Where in the network its group is placed; empty: anywhere."""
    policy: str = ""
    """The policy of the pod's class or queue; empty: the scheduler's decided."""

    @property
    def node(self) -> str | None:
        """The node chosen: the best; None where none fits."""
        return self.best[0][0] if self.best else None

    @property
    def message(self) -> str:
        """One line as kube-scheduler writes it."""
        if self.node is not None:
            return f"assigned to {self.node}{self.aside}"
        kept, rest = self._kept()
        texts = sorted(f"{one.nodes} {_short(one.why, _WHY)}" for one in kept) + [f"and {rest} more reasons"] * bool(
            rest
        )
        why = f"0/{self.nodes} nodes are available: {', '.join(texts) or 'no nodes are known'}."
        return f"{self.preface}{why}"

    @property
    def aside(self) -> str:
        """What is said of the chosen node's devices and of its group's place, behind its name."""
        place = f"its group is placed in {self.domain}" if self.domain else ""
        said = "; ".join(filter(None, (self.devices, place)))
        return f": {said}" if said else ""

    @property
    def facts(self) -> Mapping[str, object]:
        """Return it as JSON values."""
        kept, rest = self._kept()
        best = [{"name": _short(name), "score": score} for name, score in self.best]
        refused = [{"why": _short(one.why, _WHY), "nodes": one.nodes, "example": _short(one.example)} for one in kept]
        more: dict[str, object] = {"more_reasons": rest} if rest else {}
        more |= {"devices": self.devices} if self.devices else {}
        more |= {"domain": self.domain} if self.domain else {}
        more |= {"policy": self.policy} if self.policy else {}
        return {"nodes": self.nodes, "fitting": self.fitting, "best": best, "refused": refused, **more}

    def _kept(self) -> tuple[list[Reason], int]:
        ordered = sorted(self.reasons, key=lambda one: (-one.nodes, one.why))
        return ordered[: self.BEST], max(0, len(ordered) - self.BEST)


def _short(text: str, most: int = _TEXT) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
