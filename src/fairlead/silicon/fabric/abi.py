"""States the binary interface of NVIDIA's `libnvfm.so.1` as ctypes structures.

A structure that is handed over begins with a version word: its size, and its number in the highest byte. The list of
partitions is the second structure of that name and still says number 1. All fields are 32 bits or characters, in the
machine's order, without padding.
Source: NVIDIA go-nvfm (Apache-2.0), pkg/nvfm/types_gen.go and const.go.
"""

from __future__ import annotations

import ctypes
from typing import Final

MOST_GPUS: Final = 16
MOST_SWITCHES: Final = 12
MOST_PARTITIONS: Final = 64
MOST_PORTS: Final = 64
UUID_BYTES: Final = 80
PCI_BYTES: Final = 32
ADDRESS_BYTES: Final = 256

INET, UNIX, VSOCK = 1, 2, 3
"""Kinds of address; the second version of the connection's parameters names them, the first knows no vsock."""

LIBRARY: Final = "libnvfm.so.1"
_U32 = ctypes.c_uint32


class ConnectParamsV1(ctypes.Structure):
    """Where the Manager listens, as Managers before vsock take it."""

    _fields_ = (
        ("version", _U32),
        ("address", ctypes.c_char * ADDRESS_BYTES),
        ("timeout_ms", _U32),
        ("is_unix_socket", _U32),
    )


class ConnectParamsV2(ctypes.Structure):
    """Where the Manager listens."""

    _fields_ = (*ConnectParamsV1._fields_, ("address_type", _U32))


class GPUInfo(ctypes.Structure):
    """One GPU of a partition."""

    _fields_ = (
        ("physical_id", _U32),
        ("uuid", ctypes.c_char * UUID_BYTES),
        ("pci", ctypes.c_char * PCI_BYTES),
        ("links", _U32),
        ("most_links", _U32),
        ("link_mbps", _U32),
    )


class PartitionInfo(ctypes.Structure):
    """One partition."""

    _fields_ = (("id", _U32), ("is_active", _U32), ("gpu_count", _U32), ("gpus", GPUInfo * MOST_GPUS))


class PartitionList(ctypes.Structure):
    """Every partition of the fabric."""

    _fields_ = (
        ("version", _U32),
        ("count", _U32),
        ("most", _U32),
        ("partitions", PartitionInfo * MOST_PARTITIONS),
    )


class ActivatedList(ctypes.Structure):
    """The partitions that were active before the Manager started again."""

    _fields_ = (("version", _U32), ("count", _U32), ("ids", _U32 * MOST_PARTITIONS))


class FailedInfo(ctypes.Structure):
    """One GPU or switch, and its ports whose links failed."""

    _fields_ = (
        ("uuid", ctypes.c_char * UUID_BYTES),
        ("pci", ctypes.c_char * PCI_BYTES),
        ("port_count", _U32),
        ("ports", _U32 * MOST_PORTS),
    )


class FailedDevices(ctypes.Structure):
    """GPUs, then switches, with links that failed."""

    _fields_ = (
        ("version", _U32),
        ("gpu_count", _U32),
        ("switch_count", _U32),
        ("gpus", FailedInfo * MOST_GPUS),
        ("switches", FailedInfo * MOST_SWITCHES),
    )


class UnsupportedInfo(ctypes.Structure):
    """One partition that cannot be offered."""

    _fields_ = (("id", _U32), ("gpu_count", _U32), ("physical_ids", _U32 * MOST_GPUS))


class UnsupportedList(ctypes.Structure):
    """Every partition that cannot be offered."""

    _fields_ = (("version", _U32), ("count", _U32), ("partitions", UnsupportedInfo * MOST_PARTITIONS))


VERSIONED: Final[dict[type[ctypes.Structure], int]] = {
    ConnectParamsV1: 1,
    ConnectParamsV2: 2,
    PartitionList: 1,
    ActivatedList: 1,
    FailedDevices: 1,
    UnsupportedList: 1,
}
"""Structures that begin with a version word, and the number in it."""


def version_word(kind: type[ctypes.Structure]) -> int:
    """Return what a structure's version word must say."""
    return ctypes.sizeof(kind) | VERSIONED[kind] << 24


_HANDLE = ctypes.c_void_p
FUNCTIONS: Final[dict[str, tuple[type, ...]]] = {
    "fmLibInit": (),
    "fmLibShutdown": (),
    "fmConnect": (ctypes.c_void_p, ctypes.POINTER(_HANDLE)),
    "fmDisconnect": (_HANDLE,),
    "fmGetSupportedFabricPartitions": (_HANDLE, ctypes.c_void_p),
    "fmActivateFabricPartition": (_HANDLE, _U32),
    "fmDeactivateFabricPartition": (_HANDLE, _U32),
    "fmSetActivatedFabricPartitions": (_HANDLE, ctypes.c_void_p),
    "fmGetNvlinkFailedDevices": (_HANDLE, ctypes.c_void_p),
    "fmGetUnsupportedFabricPartitions": (_HANDLE, ctypes.c_void_p),
}
"""The functions that are called and their arguments; each returns a signed code, 0 for success."""
