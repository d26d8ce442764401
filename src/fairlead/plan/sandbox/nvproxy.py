"""Judges whether gVisor knows the driver of a node, before a container is placed there. Pure.

gVisor passes a container's calls to the NVIDIA driver through `nvproxy`, which knows some releases of the driver. With
another one the sandbox ends while it starts, and all that is said is `cannot read client sync file: … EOF`.
Source: gVisor g3doc/user_guide/gpu.md; `runsc nvproxy list-supported-drivers`; gVisor issue 12773.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fairlead import errors

_DRIVER: Final = re.compile(r"\d{3,4}(?:\.\d{1,4}){1,3}")
_TOLD: Final = re.compile(r"--nvproxy-driver-version[= ]['\"]?(\d[\d.]*)")
_TRUSTED: Final = re.compile(r"--nvproxy-allow-unsupported-driver(?!=false)")
_SHOWN: Final = 4
CONTROL: Final = "/dev/nvidiactl"
"""Device by which gVisor knows that a container is to call the driver.  Source: runsc/specutils/nvidia.go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GVisor:
    """gVisor as it is installed on a node."""

    program: str
    """What the engine starts."""
    version: str = ""
    drivers: tuple[str, ...] = ()
    """Releases of NVIDIA's driver that it knows."""
    told: str = ""
    """Release of the driver that its options name in place of the host's; empty: the driver is asked."""
    is_trusting: bool = False
    """Whether its options let it take a driver that it does not know."""
    joins: bool = True
    """Whether the program puts the containers of a pod into one sandbox, for an engine that does not."""


def parse_drivers(text: str) -> tuple[str, ...]:
    """Return the releases that `runsc nvproxy list-supported-drivers` prints, one a line, in its order."""
    return tuple(line for word in text.splitlines() if _DRIVER.fullmatch(line := word.strip()))


def parse_options(text: str) -> tuple[str, bool]:
    """Return the driver that a script's options for runsc name, and whether they take any other one."""
    told = _TOLD.search(text)
    return (told[1] if told else "", _TRUSTED.search(text) is not None)


def refusal(found: GVisor, driver: str) -> errors.FairleadError | None:
    """Return why a container with NVIDIA GPUs cannot run on gVisor; None: it can.

    Args: driver: release of the node's driver; empty: it has none.
    """
    wanted = found.told or driver
    if not wanted or found.is_trusting or wanted in found.drivers:
        return None
    if not found.drivers:
        message = f"{found.program} does not say which drivers it knows: it has no nvproxy"
        return errors.Unavailable(message, reason="DriverUnsupported", hint="install a gVisor of 2024 or newer")
    close = _closest(wanted, found.drivers)
    message = f"driver {wanted} is none that gVisor {found.version} knows (closest: {', '.join(close)})"
    hint = f"install driver {close[0]} or another gVisor; `runsc nvproxy list-supported-drivers` has all"
    return errors.Unavailable(message, reason="DriverUnsupported", hint=hint)


def _closest(wanted: str, drivers: Sequence[str]) -> list[str]:
    """Return the releases nearest to one: of its branch first, then by number."""
    target = _numbers(wanted)
    return sorted(drivers, key=lambda one: (abs(_numbers(one)[0] - target[0]), abs(_rest(one) - _rest(wanted))))[
        :_SHOWN
    ]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal()) or (0,)


def _rest(text: str) -> int:
    found = (*_numbers(text)[1:3], 0, 0)
    return found[0] * 10_000 + found[1]
