"""Joins what several vendors' scans found, no vendor's failure hiding another's GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead import errors
from fairlead.model.gpu import Inventory


def join(answers: Sequence[Inventory | errors.Unavailable]) -> tuple[Inventory, list[errors.Unavailable]]:
    """Return one inventory of all vendors in their order, and the errors of those whose driver refused.

    Raises:  Unavailable: a vendor's driver refuses to start and no other vendor has a GPU.
    """
    found = [answer for answer in answers if isinstance(answer, Inventory)]
    failed = [answer for answer in answers if isinstance(answer, errors.Unavailable)]
    joined = Inventory(
        gpus=tuple(gpu for item in found for gpu in item.gpus),
        unreadable=tuple(gpu for item in found for gpu in item.unreadable),
        links=tuple(link for item in found for link in item.links),
        drivers=tuple(driver for item in found for driver in item.drivers),
        is_simulated=any(item.is_simulated for item in found),
    )
    if failed and not joined.gpus and not joined.unreadable:
        raise failed[0]
    return joined, failed
