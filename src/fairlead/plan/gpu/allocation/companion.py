"""Decides what a container gets beside its GPUs where the configuration asks: GDRCopy, GDS, InfiniBand, IMEX. Pure.

What a machine does not have is left out, as NVIDIA's runtime leaves it out; IMEX channels that are required and absent
are an error. `plan.cdi.companion` makes the specs of what is named here.
Source: NVIDIA k8s-device-plugin README (gdrcopyEnabled, gdsEnabled, mofedEnabled) and api/config/v1 imex.go; container
toolkit, NVIDIA_GDRCOPY, NVIDIA_GDS, NVIDIA_MOFED, NVIDIA_IMEX_CHANNELS.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.model import cdikind

IMEX: Final = "imex"
VARIABLES: Final = {"gdrcopy": "NVIDIA_GDRCOPY", "gds": "NVIDIA_GDS", "mofed": "NVIDIA_MOFED"}
"""What NVIDIA's runtime and ours read, by mode."""
_NODES: Final = {
    "gdrcopy": "/dev/gdrdrv",
    "gds": "/dev/nvidia-fs",
    "mofed": "/dev/infiniband/uverbs",
    IMEX: "/dev/nvidia-caps-imex-channels/channel",
}
"""How the paths of each mode's nodes begin."""
_ALL: Final = "all"
CHANNELS_VARIABLE: Final = "NVIDIA_IMEX_CHANNELS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the configuration asks for."""

    modes: tuple[str, ...] = ()
    """Keys of `VARIABLES`."""
    channels: tuple[int, ...] = ()
    """Of IMEX."""
    requires_channels: bool = False


NOTHING: Final = Wanted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What of it the machine has."""

    modes: tuple[str, ...] = ()
    channels: tuple[int, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Qualified CDI names."""
        kinds = cdikind.COMPANIONS
        return (
            *(cdikind.qualified(kinds[mode], _ALL) for mode in self.modes),
            *(cdikind.qualified(kinds[IMEX], str(channel)) for channel in self.channels),
        )

    @property
    def variables(self) -> dict[str, str]:
        """Variables that make a runtime add the devices of `modes`; IMEX channels are not among them."""
        return {VARIABLES[mode]: "enabled" for mode in self.modes}


def choose(wanted: Wanted, there: Collection[str]) -> Given:
    """Return what is wanted and there.

    Args:    there: paths of the machine's device nodes.
    Raises:  Unavailable (`IMEXChannelMissing`): a channel is required, and the machine has none of that number.
    """
    found = Given(
        modes=tuple(mode for mode in wanted.modes if any(path.startswith(_NODES[mode]) for path in there)),
        channels=tuple(channel for channel in wanted.channels if f"{_NODES[IMEX]}{channel}" in there),
    )
    if wanted.requires_channels and (missing := sorted({*wanted.channels} - {*found.channels})):
        message = f"IMEX channel {missing[0]} is required and not on this node"
        hint = "create it (nvidia-modprobe -c), or set imex.required to false"
        raise errors.Unavailable(message, reason="IMEXChannelMissing", hint=hint)
    return found
