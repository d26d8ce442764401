"""Declares the settings of idle GPUs: what becomes of a container that holds GPUs and does not use them."""

from __future__ import annotations

from typing import Final

from fairlead.frozen import frozen
from fairlead.settings.row import row

ACTIONS: Final = ("off", "warn", "stop", "requeue")
"""What a policy does about idle GPUs."""


@frozen
class IdleSettings:
    """Containers of one machine whose GPUs are idle; a queue may say otherwise."""

    action: str = row(
        "off",
        text="what becomes of a container whose GPUs are idle: warn tells its owner; stop also ends it after "
        "idle.warn_min; requeue ends it and, where it may be restarted, puts it behind those that wait",
        choices=ACTIONS,
    )
    below_percent: float = row(5, unit="%", text="GPUs are idle while the load of each stays below this")
    after_min: float = row(60, unit="min", text="for so long without a break, before the owner is warned")
    warn_min: float = row(30, unit="min", text="how long after the warning a container is ended, if it is idle still")
    cpu_percent: float = row(
        0,
        unit="%",
        text="a container that uses so much of a CPU on average is not idle (100: one CPU); 0: CPUs do not count",
    )
    io_kib: float = row(
        0,
        unit="KiB/s",
        text="one that reads, writes, sends and receives so much on average is not idle; 0: that does not count",
    )
    exempt: str = row(
        "",
        text="what is left alone, joined by commas: a namespace, a tenancy, an account of the machine, or "
        "NAMESPACE/CONTAINER",
    )
