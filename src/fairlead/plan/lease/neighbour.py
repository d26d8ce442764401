"""Says what programs that Fairlead did not start do with a GPU, which of them keep it from tenants, and who they are.

What a program does follows from what the driver tells and from the device nodes that it has open. A program that uses
CUDA has `/dev/nvidia-uvm` open beside the GPU's node; one that reads a GPU's state, or draws, has `/dev/nvidiactl` and
no `nvidia-uvm`; a display server has `/dev/nvidia-modeset` too. CUDA opens every GPU that it can see: where the driver
says that a program calculates on another GPU, its open node here is not work here. Pure.
Source: NVIDIA open-gpu-kernel-modules, kernel-open/nvidia-uvm (UVM is opened by cuInit and by nothing of NVML).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.model.neighbour import GPUProcess, Neighbour, Use

REASON: Final = "UsedByNeighbour"
"""Why a GPU is not given away."""
REFUSE, REFUSE_ALL, SHARE, IGNORE = "refuse", "refuse-all", "share", "ignore"
POLICIES: Final = (REFUSE, REFUSE_ALL, SHARE, IGNORE)
_WORKS: Final = frozenset({Use.COMPUTE, Use.OPEN, Use.UNREAD})
_REFUSED: Final = {
    REFUSE: _WORKS,
    REFUSE_ALL: _WORKS | {Use.GRAPHICS, Use.MONITOR},
    SHARE: frozenset[Use](),
    IGNORE: frozenset[Use](),
}
_SERVICES: Final = frozenset(
    {
        "nvidia-persiste",  # nvidia-persistenced: the kernel keeps 15 bytes of a name
        "nvidia-powerd",
        "nv-fabricmanage",
        "nv-hostengine",
        "nvidia-imex",
    }
)
_DISPLAYS: Final = frozenset({"Xorg", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland", "sway", "weston", "gdm-x"})
_FIRST_PERSON: Final = 1000
"""Uids below are of the system's accounts. Source: login.defs(5), UID_MIN."""
_LISTED: Final = 3
OUTSIDE: Final = "a program that Fairlead did not start"
"""What is said to those who may not know more of it."""
HIDDEN: Final = f"used by {OUTSIDE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What one process has open of a vendor's driver beside a GPU."""

    name: str
    uid: int | None
    nodes: Collection[str] = ()
    """Names of device nodes, `/dev/nvidiactl`."""


def use_of(opened: Opened, told: GPUProcess | None, *, is_told_elsewhere: bool) -> Use:
    """Return what a process does with a GPU.

    Args: told: what the driver says of it on this GPU; None: nothing, or the driver does not answer.
          is_told_elsewhere: whether the driver says that it is on another GPU.
    """
    if told is not None:
        return Use.GRAPHICS if told.is_graphics else Use.COMPUTE
    is_service = opened.name in _SERVICES and opened.uid is not None and opened.uid < _FIRST_PERSON
    rules = (
        (opened.name in _DISPLAYS, Use.GRAPHICS),
        (is_told_elsewhere, Use.MONITOR),
        (bool({"/dev/nvidia-uvm", "/dev/kfd"} & set(opened.nodes)), Use.COMPUTE),
        (is_service, Use.SERVICE),
        ("/dev/nvidia-modeset" in opened.nodes, Use.GRAPHICS),
        ("/dev/nvidiactl" in opened.nodes, Use.MONITOR),
    )
    return next((use for is_so, use in rules if is_so), Use.OPEN)


def judge(policy: str, found: Iterable[Neighbour]) -> tuple[Neighbour, ...]:
    """Return neighbours with whether each keeps its GPU from tenants. Args: policy: one of `POLICIES`."""
    return tuple(dataclasses.replace(one, keeps=one.use in _REFUSED[policy]) for one in found)


def why_not_ended(one: Neighbour) -> str:
    """Return why a neighbour is not ended on demand; empty: it may be.

    Never ended are the first process, the driver's own daemons, whatever is Fairlead's, and what cannot be identified.
    """
    rules = (
        (one.pid <= 1, "it is the machine's first process"),
        (not one.started, "who it is cannot be read"),
        (one.use is Use.SERVICE, "it is the driver's own: stop its service"),
        (one.name.startswith("fairlead") or one.unit.startswith("fairlead"), "it is Fairlead's"),
        (one.use in {Use.MONITOR, Use.GRAPHICS} and not one.keeps, "it does not keep the GPU from tenants"),
    )
    return next((why for is_so, why in rules if is_so), "")


def identity(one: Neighbour) -> str:
    """Return what names this process and never another one that gets its pid."""
    return f"{one.pid}-{one.started}"


def who(one: Neighbour, now: float) -> str:
    """Return a neighbour in words: `python (pid 4242, user ann, since 10:02)`."""
    if not one.name:
        return f"a program that cannot be read (pid {one.pid})"
    facts = [f"pid {one.pid}", f"user {one.user}" if one.user and not one.user.startswith("uid ") else one.user]
    facts += [one.container or one.unit, _since(one.since, now), one.doubt]
    return f"{one.name} ({', '.join(filter(None, facts))})"


def message(found: Sequence[Neighbour], now: float) -> str:
    """Return why a GPU is not given away: `used by python (…), not started by Fairlead`."""
    named = ", ".join(who(one, now) for one in found[:_LISTED])
    rest = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return f"used by {named}{rest}, not started by Fairlead"


def _since(at: float | None, now: float) -> str:
    """Return since when, by the machine's clock; with the day where that is another one."""
    if at is None:
        return ""
    then, today = (dt.datetime.fromtimestamp(one, dt.UTC).astimezone() for one in (at, now))
    return f"since {then:%H:%M}" if then.date() == today.date() else f"since {then:%Y-%m-%d %H:%M}"
