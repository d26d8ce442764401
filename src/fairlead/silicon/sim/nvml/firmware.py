"""Simulates NVML's calls about a board's firmware and its PCIe link."""

from __future__ import annotations

from typing import Any, Final

from fairlead.silicon.sim import machine
from fairlead.silicon.sim.nvml import abi, scope

_LANES: Final = 16


def nvmlDeviceGetVbiosVersion(host: machine.Machine, device: Any, buffer: Any, size: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    abi.put_text(buffer, size, gpu.vbios or f"96.00.{gpu.board.part.device_id >> 8:02X}.00.01")


def nvmlDeviceGetInforomImageVersion(host: machine.Machine, device: Any, buffer: Any, size: Any) -> None:
    gpu = scope.whole_gpu_of(host, device)
    abi.put_text(buffer, size, gpu.inforom or f"G{gpu.board.part.device_id >> 4:03X}.0200.00.05")


def nvmlDeviceGetBoardPartNumber(host: machine.Machine, device: Any, buffer: Any, size: Any) -> None:
    part = scope.whole_gpu_of(host, device).board.part
    abi.put_text(buffer, size, f"900-2{part.device_id:04X}-0000-000")


def nvmlDeviceGetCurrPcieLinkWidth(host: machine.Machine, device: Any, width: Any) -> None:
    abi.put(width, scope.whole_gpu_of(host, device).link_width or _LANES)


def nvmlDeviceGetMaxPcieLinkWidth(host: machine.Machine, device: Any, width: Any) -> None:
    scope.whole_gpu_of(host, device)
    abi.put(width, _LANES)
