"""Holds VFIO nodes open, so that no other process can use the devices behind them.

The node of an IOMMU group takes one opener: the next open ends in EBUSY, and so does binding one of the group's devices
to an iommufd; where a device is bound, opening its group ends in EBUSY, and binding it again in EINVAL. An open group
that no container was attached to does no DMA and resets nothing. So one descriptor shuts a device for everybody, and
that it could be opened proves that nobody had it: also not a kernel thread of a machine that is gone, which no walk
through /proc finds.

A kernel without groups has the devices' own nodes alone (`/dev/vfio/devices/vfioN`). Any process may open one of those;
what excludes others is binding it to an iommufd, which this module does there.
Source: linux drivers/vfio/group.c (vfio_group_fops_open), drivers/vfio/device_cdev.c (vfio_df_ioctl_bind_iommufd),
include/uapi/linux/vfio.h (VFIO_DEVICE_BIND_IOMMUFD).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fairlead import errors

IN_USE: Final = "VFIONodeInUse"
DENIED: Final = "VFIONodeDenied"
GONE: Final = "VFIONodeGone"
FAILED: Final = "VFIONodeFailed"
_BIND_IOMMUFD: Final = (ord(";") << 8) | 118
"""_IO(VFIO_TYPE, VFIO_BASE + 18)."""
_BIND: Final = struct.Struct("=IIiI")
"""struct vfio_device_bind_iommufd: argsz, flags, iommufd, out_devid."""
_TAKEN: Final = frozenset({errno.EBUSY, errno.EINVAL})
_REFUSED: Final = frozenset({errno.EPERM, errno.EACCES})
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENXIO, errno.ENODEV})


class Hold:
    """Descriptors that keep devices from everybody else until they are closed."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        """Own these descriptors."""
        self._descriptors = list(descriptors)

    def close(self) -> None:
        """Let go of the devices; idempotent."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def hold_group(node: Path) -> Hold:
    """Hold an IOMMU group by its node.

    Raises: Conflict (`VFIONodeInUse`): somebody has it.   Unavailable (`VFIONodeDenied`, `VFIONodeFailed`).
            NotFound (`VFIONodeGone`): there is no such node, or no group behind it.
    """
    return Hold([_open(node)])


def hold_devices(nodes: Sequence[Path], iommu: Path) -> Hold:
    """Hold devices by their own nodes, each bound to one iommufd context. Raises: as `hold_group`.

    Args: iommu: the node that makes such contexts, `/dev/iommu`.
    """
    with contextlib.ExitStack() as undone:
        context = _open(iommu)
        undone.callback(os.close, context)
        found = [context]
        for node in nodes:
            found.append(_open(node))
            undone.callback(os.close, found[-1])
            _bind(node, found[-1], context)
        undone.pop_all()
    return Hold(found)


def _bind(node: Path, device: int, context: int) -> None:
    try:
        fcntl.ioctl(device, _BIND_IOMMUFD, _BIND.pack(_BIND.size, 0, context, 0))
    except OSError as error:
        raise _translated(node, error) from error


def _open(node: Path) -> int:
    """Return a descriptor of a character device. A pipe in its place would wait, and a file would prove nothing."""
    try:
        descriptor = os.open(node, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise _translated(node, error) from error
    if not stat.S_ISCHR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        message, hint = (
            f"{node} is not a character device",
            "remove it: the kernel makes the node anew at the next bind",
        )
        raise errors.Unavailable(message, reason=FAILED, hint=hint)
    return descriptor


def _translated(node: Path, error: OSError) -> errors.FairleadError:
    if error.errno in _TAKEN:
        more = " or cannot be bound to an iommufd" if error.errno == errno.EINVAL else ""
        return errors.Conflict(f"{node} is in use{more}", reason=IN_USE, hint="`fairlead vfio list` names who has it")
    if error.errno in _REFUSED:
        hint = "give the agent's container the right to open VFIO's nodes, as the chart's manifest does"
        return errors.Unavailable(f"{node} may not be opened: {error.strerror}", reason=DENIED, hint=hint)
    if error.errno in _ABSENT:
        return errors.NotFound(f"{node} is not there", reason=GONE, hint="`fairlead vfio list` shows what is bound")
    return errors.Unavailable(f"{node} cannot be held: {error.strerror}", reason=FAILED)
