"""Hears what the kernel says of its devices (uevents), without udev, and reads each message with limits.

A message is `ACTION@DEVPATH`, then `KEY=VALUE` fields, each ended by a NUL. Only those that the kernel sent itself
count: their sender has port 0. The kernel drops messages where the socket's buffer is full, and says so once (ENOBUFS).
A pod hears them too, as its network namespace belongs to the machine's first user namespace.
Source: netlink(7), NETLINK_KOBJECT_UEVENT; linux lib/kobject_uevent.c; drivers/pci/pci-driver.c.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead import errors

_PROTOCOL: Final = 15
"""NETLINK_KOBJECT_UEVENT."""
_KERNEL_GROUP: Final = 1
_BUFFER: Final = 1 << 20
_LONGEST: Final = 8192
"""Bytes of a message: the kernel writes at most 2048 of fields after its head."""
_LONGEST_VALUE: Final = 512


@dataclass(frozen=True, slots=True)
class UEvent:
    """One message."""

    action: str
    """`add`, `remove`, `change`, `bind`, `unbind`, `move`, `online` or `offline`."""
    path: str
    """Of the device below /sys, as `/devices/pci0000:00/0000:00:01.0`."""
    fields: Mapping[str, str]
    """`SUBSYSTEM`, `PCI_SLOT_NAME`, `DRIVER`, `ERROR_EVENT` and others."""


LOST: Final = UEvent(action="", path="", fields={})
"""Stands for messages that were dropped: whoever follows looks at everything again."""


def parse(message: bytes) -> UEvent | None:
    """Read one message; None: it is not one of the kernel's (udev's own begin with `libudev`)."""
    head, _, rest = message[:_LONGEST].partition(b"\0")
    action, at, path = head.decode(errors="replace").partition("@")
    if not at or not action.isalpha() or not path.startswith("/"):
        return None
    fields = dict[str, str]()
    for part in rest.split(b"\0"):
        key, equals, value = part.decode(errors="replace").partition("=")
        if equals and key:
            fields.setdefault(key, value[:_LONGEST_VALUE])
    return UEvent(action=action, path=path, fields=fields)


def open_socket() -> socket.socket:
    """Return a socket that hears the kernel's messages. Raises: Unavailable (`UEventsDenied`)."""
    try:
        made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, _PROTOCOL)
    except OSError as error:
        raise _denied(error) from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        made.bind((0, _KERNEL_GROUP))
    except OSError as error:
        made.close()
        raise _denied(error) from error
    return made


async def watch() -> AsyncIterator[UEvent]:
    """Yield messages as they come, and `LOST` where the kernel dropped some. Raises: Unavailable (`UEventsDenied`)."""
    loop = asyncio.get_running_loop()
    with open_socket() as heard:
        while True:
            try:
                message, sender = await _receive(loop, heard)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise _denied(error) from error
                yield LOST
                continue
            if sender == 0 and (found := parse(message)) is not None:
                yield found


async def _receive(loop: asyncio.AbstractEventLoop, heard: socket.socket) -> tuple[bytes, int]:
    message, (sender, _) = await loop.sock_recvfrom(heard, _LONGEST)
    return message, sender


def _denied(error: OSError) -> errors.Unavailable:
    message = f"the kernel's messages about devices cannot be heard: {error.strerror}"
    return errors.Unavailable(message, reason="UEventsDenied", hint="allow netlink sockets of NETLINK_KOBJECT_UEVENT")
