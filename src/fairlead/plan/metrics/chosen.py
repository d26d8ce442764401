"""Applies dcgm-exporter's list of counters to the page: which metrics stand on it, with which types and texts. Pure.

The list says what of DCGM's is shown; metrics of our own stay. A field that NVML does not give has no series here, and
is named when the list is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from fairlead.plan.metrics import dcgm
from fairlead.wire.nvidia.counters import LABEL, Counter
from fairlead.wire.text import exposition

DRIVER_VERSION: Final = "DCGM_FI_DRIVER_VERSION"
_LABELS: Final = frozenset({DRIVER_VERSION})
"""Fields that a list may ask for as labels; they are on every series anyway."""
KNOWN: Final = frozenset({row.name for row in dcgm.FIELDS} | {dcgm.XID[0], dcgm.XID_COUNT[0]})
DCGM: Final = "DCGM_"


def find_unknown(counters: Iterable[Counter]) -> tuple[Counter, ...]:
    """Return the lines that show nothing here."""
    return tuple(one for one in counters if one.field not in (_LABELS if one.kind == LABEL else KNOWN))


def choose(families: Sequence[exposition.Family], counters: Sequence[Counter]) -> Iterator[exposition.Family]:
    """Yield the families that a list asks for, in its order and with its types and texts, then those of our own."""
    by_name = {family.name: family for family in families}
    for one in counters:
        if one.kind != LABEL and (family := by_name.get(one.field)) is not None:
            yield exposition.Family(name=family.name, kind=one.kind, text=one.text or family.text, series=family.series)
    yield from (family for family in families if not family.name.startswith(DCGM))
