"""Sets the time slices of NVIDIA's GPUs by the driver's `nvidia-smi`: its library has no public call for it.

Source: `nvidia-smi compute-policy --help`, driver 580; NVIDIA dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/nvlib.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fairlead import command, errors
from fairlead.model.ids import GPUUUID
from fairlead.silicon.nvidia.files import library

INTERVALS: Final = range(4)
"""Default, short, medium, long."""
_PROGRAM: Final = "usr/bin/nvidia-smi"
_TIMEOUT_S: Final = 15.0
_LARGEST: Final = 1 << 16


def find_program(root: Path, driver_root: Path) -> tuple[str, ...] | None:
    """Return how nvidia-smi is called; None: it is not installed. In another root than ours it runs there."""
    found = library.find_program(root, driver_root, _PROGRAM)
    if found is None:
        return None
    return (found,) if root == Path("/") else ("chroot", str(root), found)


class SMITimeSlices:
    """Sets time slices by calling nvidia-smi."""

    def __init__(self, argv: Sequence[str]) -> None:
        """Take how it is called."""
        self._argv = tuple(argv)

    async def set_time_slice(self, gpu: GPUUUID, interval: int) -> None:
        """Set the interval; see the port."""
        if interval not in INTERVALS:
            raise ValueError(f"interval {interval} is none of {list(INTERVALS)}")
        argv = (*self._argv, "compute-policy", "-i", gpu, "--set-timeslice", str(interval))
        done = await command.run(argv, env=command.base_env(), timeout_s=_TIMEOUT_S, largest=_LARGEST)
        if done.code:
            said = done.last_line or done.stdout.decode(errors="replace").strip()[-200:] or f"exit code {done.code}"
            message = f"nvidia-smi does not set the time slice of GPU {gpu} to {interval}: {said}"
            raise errors.Unavailable(message, reason="TimeSliceRefused", hint="GPUs before Volta have no time slices")
