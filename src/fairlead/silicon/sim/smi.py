"""Writes the stand-in `nvidia-smi` of a simulated machine.

The table travels inside the script because a container that is given some GPUs sees nothing else of this machine.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fairlead.silicon.sim import machine, profile

_TEMPLATE: Final = Path(__file__).parent / "nvidia-smi.sh"


def cap_minor(gpu_minor: int, gpu_instance: int, compute_instance: int | None = None) -> int:
    """Return the minor number of a MIG capability node, by the driver's own numbering: 9 an instance, 15 a GPU."""
    return 3 + gpu_minor * 135 + gpu_instance * 9 + (0 if compute_instance is None else 1 + compute_instance)


def script(host: machine.Machine) -> str:
    """Return the script for the machine as it is; hold its lock."""
    major, minor = host.profile.cuda
    text = _TEMPLATE.read_text()
    for key, value in (
        ("@DRIVER@", shlex.quote(host.profile.driver)),
        ("@CUDA@", f"{major}.{minor}"),
        ("@TABLE@", "\n".join(line for gpu in host.gpus for line in _lines(gpu))),
    ):
        text = text.replace(key, value, 1)
    return text


def _lines(gpu: machine.GPUState) -> Iterator[str]:
    board, part = gpu.board, gpu.board.part
    major, minor = part.compute_capability
    mode = ("Enabled" if gpu.mig_enabled else "Disabled") if part.mig else "[N/A]"
    bus = f"0000{board.pci}".upper()
    words = (board.minor, board.uuid, part.name, part.memory_mib, bus, board.serial, f"{major}.{minor}", mode)
    yield f"\tgpu {shlex.join(str(word) for word in words)}"
    for _, item in sorted(gpu.partition.instances.items()):
        for number, made in sorted(item.computes.items()):
            uuid = profile.mig_uuid(board.uuid, item.id, number)
            caps = cap_minor(board.minor, item.id), cap_minor(board.minor, item.id, number)
            name, memory = item.compute_name(made), item.row.memory_mib
            yield f"\tmig {shlex.join(str(word) for word in (name, uuid, memory, *caps))}"
