"""Compares what is used with what may be used, for meters. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve.console.draw import words
from fairlead.wire.kubernetes import quantity

_BYTES: Final = frozenset({"memory", "storage", "ephemeral-storage"})
_WORDS: Final = {
    "nvidia.com/gpu": "GPUs",
    "pods": "Containers",
    "cpu": "CPUs",
    "memory": "Memory",
    "ephemeral-storage": "Disk",
    "persistentvolumeclaims": "Volumes",
}


@frozen
class Meter:
    """One amount of its limit."""

    name: str
    used: str
    limit: str
    percent: float
    tone: str


def meters(limits: Mapping[str, str], used: Mapping[str, str]) -> tuple[Meter, ...]:
    """Return a meter a limit, in the order of their names."""
    return tuple(_meters(limits, used))


def _meters(limits: Mapping[str, str], used: Mapping[str, str]) -> Iterable[Meter]:
    for name, written in sorted(limits.items()):
        text, limit = used.get(name, "0"), written
        most, now = _number(limit), _number(text)
        percent = 100.0 if most == 0 else min(100.0, 100 * now / most)
        tone = "bad" if now > most else "warn" if percent >= 90 else ""
        if name.rpartition(".")[2] in _BYTES:
            text, limit = words.bytes_(now), words.bytes_(most)
        yield Meter(name=word(name), used=text, limit=limit, percent=percent, tone=tone)


def word(name: str) -> str:
    """Return what people call a resource of a quota; others have their own names."""
    plain = name.removeprefix("requests.").removeprefix("limits.")
    known = _WORDS.get(plain, plain)
    return f"{known}, limit" if name.startswith("limits.") else known


def _number(text: str) -> float:
    try:
        return float(quantity.parse_quantity(text))
    except errors.FairleadError:
        return 0.0
