"""Simulates NVML's calls about how GPUs reach each other: NVLinks, NVSwitches and the PCIe tree."""

from __future__ import annotations

from typing import Any, Final

from fairlead.silicon.sim import machine, profile
from fairlead.silicon.sim.nvml import abi, device, scope

_NOT_STARTED: Final = 1
_COMPLETED: Final = 3
"""Source: nvml.h, NVML_GPU_FABRIC_STATE_*."""
_LEVELS: Final = {"PSB": 0, "PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40}
_SYSTEM: Final = 50
_TYPE_GPU: Final = 0
_TYPE_SWITCH: Final = 2
_SWITCH_DEVICE_ID: Final = 0x22A3
_SWITCHES: Final = 4
_MAX_LINKS: Final = 36


def nvmlDeviceGetTopologyCommonAncestor(host: machine.Machine, one: Any, other: Any, level: Any) -> None:
    a, b = scope.whole_gpu_of(host, one).board, scope.whole_gpu_of(host, other).board
    if a.group == b.group:
        abi.put(level, _LEVELS[a.pcie] if a.index != b.index else 0)
    else:
        abi.put(level, _LEVELS["NODE"] if a.numa == b.numa else _SYSTEM)


def far_end(host: machine.Machine, board: profile.Board, link: int) -> tuple[int, str, int] | None:
    """Return where one NVLink leads: (device type, PCI address, PCI device id); None for a link that is not there.

    A mesh gives every other GPU of the group the same number of links; what cannot be shared evenly stays down.
    """
    if board.nvlink == "none" or link >= board.part.nvlinks:
        return None
    if board.nvlink == "switch":
        return _TYPE_SWITCH, f"0000:{0x05 + link % _SWITCHES:02x}:00.0", _SWITCH_DEVICE_ID
    peers = [other for other in host.profile.boards if other.group == board.group and other.index != board.index]
    share = board.part.nvlinks // len(peers) if peers else 0
    if not share or link >= share * len(peers):
        return None
    peer = peers[link // share]
    return _TYPE_GPU, peer.pci, peer.part.device_id


def _link(host: machine.Machine, handle: Any, link: Any) -> tuple[int, str, int]:
    board = scope.whole_gpu_of(host, handle).board
    if not 0 <= abi.number(link) < _MAX_LINKS:
        raise abi.RefusedError(abi.INVALID_ARGUMENT)
    found = far_end(host, board, abi.number(link))
    if found is None:
        raise abi.RefusedError(abi.NOT_SUPPORTED)
    return found


def nvmlDeviceGetNvLinkState(host: machine.Machine, handle: Any, link: Any, is_active: Any) -> None:
    _link(host, handle, link)
    abi.put(is_active, 1)


def nvmlDeviceGetNvLinkRemoteDeviceType(host: machine.Machine, handle: Any, link: Any, kind: Any) -> None:
    abi.put(kind, _link(host, handle, link)[0])


def nvmlDeviceGetNvLinkRemotePciInfo_v2(host: machine.Machine, handle: Any, link: Any, info: Any) -> None:
    _, pci, device_id = _link(host, handle, link)
    device.put_pci(info, pci, device_id)


def nvmlDeviceGetGpuFabricInfoV(host: machine.Machine, handle: Any, info: Any) -> None:
    board = scope.whole_gpu_of(host, handle).board
    struct = abi.target(info)
    if board.nvlink != "switch":
        raise abi.RefusedError(abi.NOT_SUPPORTED)
    if board.clique is None:
        struct.state = _NOT_STARTED
        return
    struct.clusterUuid[:] = host.profile.cluster
    struct.cliqueId, struct.status, struct.state = board.clique, abi.SUCCESS, _COMPLETED
