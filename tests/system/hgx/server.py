"""A board that QEMU's `vfio-user-pci` devices are connected to: one socket a function, all served by one thread.

`Board` is a context manager. A test commands faults and reads counters by `board[NAME]`, in its own process; the board
goes on while machines come and go. A message that breaks the protocol ends its connection and no other; what was wrong
with it is in the function's events. A request that the protocol allows and the function refuses is answered with an
error number.

Source: QEMU 11, docs/interop/vfio-user.rst; linux/vfio.h.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import selectors
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from hgx.function import Event, Function, Reset
from hgx.layout import Layout

HEADER: Final = struct.Struct("<HHIII")
"""Message id, command, size with this header, flags, error number."""
LARGEST_TRANSFER: Final = 1 << 20
REPLY, NO_REPLY, ERROR = 0x1, 0x10, 0x20
VERSION, DMA_MAP, DMA_UNMAP, GET_INFO, GET_REGION_INFO = 1, 2, 3, 4, 5
GET_IRQ_INFO, SET_IRQS, REGION_READ, REGION_WRITE, DEVICE_RESET = 7, 8, 9, 10, 13
_REGIONS, _IRQS = 9, 5
_TYPE = 0xF
_INFO_FLAGS = 0b11  # a PCI device that can be reset
_MOST_DESCRIPTORS = 16
_LARGEST_MESSAGE = HEADER.size + 16 + LARGEST_TRANSFER
_SEND_LIMIT_S = 5


class _BrokenError(Exception):
    """What a client sent is no message."""


class _Refused(Exception):
    """The protocol allows it; this function does not."""

    def __init__(self, number: int) -> None:
        super().__init__(errno.errorcode[number])
        self.number = number


@dataclass(frozen=True, kw_only=True)
class Window:
    """A part of the machine's memory that a function can reach by DMA."""

    size: int
    file: int = 0
    """Number (inode) of the file that is the memory; 0: none came along, as for firmware."""
    offset: int = 0
    """Where it begins in that file."""


class _Connection:
    """One client of one function."""

    def __init__(self, peer: socket.socket, function: Function) -> None:
        self.peer, self.function = peer, function
        self.windows: dict[int, Window] = {}
        """Of the machine's memory, as it was shown to the function, by address."""
        self._descriptors: list[int] = []
        """Files of memory that came along, each number told once, and closed: one for each message that maps."""
        self._buffer = b""
        self._is_greeted = self._was_reset = False
        self._calls: dict[int, Callable[[bytes], bytes]] = {
            VERSION: self._version,
            DMA_MAP: self._map,
            DMA_UNMAP: self._unmap,
            GET_INFO: self._info,
            GET_REGION_INFO: self._region_info,
            GET_IRQ_INFO: self._irq_info,
            SET_IRQS: self._set_irqs,
            REGION_READ: self._read,
            REGION_WRITE: self._write,
            DEVICE_RESET: self._reset,
        }

    def receive(self) -> bool:
        """Take what has come and answer whole messages; returns whether the connection goes on."""
        try:
            data, ancillary, _, _ = self.peer.recvmsg(1 << 16, socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS))
            self._descriptors += _close_descriptors(ancillary)
            self._buffer += data
            while (message := self._next()) is not None:
                self._answer(*message)
        except BlockingIOError:
            return True
        except (_BrokenError, struct.error) as problem:
            self.function.note(f"connection ended: {problem}")
            return False
        except OSError:
            return False
        return data != b""

    def _next(self) -> tuple[int, int, int, bytes] | None:
        if len(self._buffer) < HEADER.size:
            return None
        identity, command, size, flags, _ = HEADER.unpack_from(self._buffer)
        if not HEADER.size <= size <= _LARGEST_MESSAGE:
            raise _BrokenError(f"a message of {size} bytes")
        if flags & _TYPE:
            raise _BrokenError(f"no command: type {flags & _TYPE}")
        if len(self._buffer) < size:
            return None
        body, self._buffer = self._buffer[HEADER.size : size], self._buffer[size:]
        return identity, command, flags, body

    def _answer(self, identity: int, command: int, flags: int, body: bytes) -> None:
        if command != VERSION and not self._is_greeted:
            raise _BrokenError(f"command {command} before the version")
        number, reply = 0, b""
        try:
            if command not in self._calls:
                raise _Refused(errno.EOPNOTSUPP)
            reply = self._calls[command](body)
        except _Refused as refused:
            number = refused.number
        if not flags & NO_REPLY:
            kind = REPLY | (ERROR if number else 0)
            self.peer.settimeout(
                _SEND_LIMIT_S
            )  # a client that does not read ends its connection, and delays the others
            self.peer.sendall(HEADER.pack(identity, command, HEADER.size + len(reply), kind, number) + reply)
            self.peer.settimeout(0)

    def _version(self, body: bytes) -> bytes:
        major, minor = struct.unpack_from("<HH", body)
        if major != 0:
            raise _BrokenError(f"version {major}.{minor}")
        self._is_greeted = True
        capabilities = {"max_msg_fds": _MOST_DESCRIPTORS, "max_data_xfer_size": LARGEST_TRANSFER}
        return struct.pack("<HH", 0, min(minor, 1)) + json.dumps({"capabilities": capabilities}).encode() + b"\0"

    def _map(self, body: bytes) -> bytes:
        offset, address, size = struct.unpack_from("<8xQQQ", body)
        file = self._descriptors.pop(0) if self._descriptors else 0
        if address in self.windows:
            raise _Refused(errno.EEXIST)
        self.windows[address] = Window(size=size, file=file, offset=offset)
        return b""

    def _unmap(self, body: bytes) -> bytes:
        """Take windows away that lie within a range: QEMU ends many by one message, where the protocol says one each.

        It does when the IOMMU of its machine lets go of a function; then the machine's own windows come back.
        """
        address, size = struct.unpack_from("<8xQQ", body)
        known = {at: at + window.size for at, window in self.windows.items()}
        within = [at for at, end in known.items() if address <= at and end <= address + size]
        if not within or any(at < address + size and end > address for at, end in known.items() if at not in within):
            raise _Refused(errno.ENOENT)
        for at in within:
            del self.windows[at]
        return body

    def _info(self, body: bytes) -> bytes:
        return struct.pack("<IIII", 16, _INFO_FLAGS, _REGIONS, _IRQS)

    def _region_info(self, body: bytes) -> bytes:
        (index,) = struct.unpack_from("<8xI", body)
        if index >= _REGIONS:
            raise _Refused(errno.EINVAL)
        size = self.function.region_size(index)
        return struct.pack("<IIIIQQ", 32, 0b11 if size else 0, index, 0, size, 0)

    def _irq_info(self, body: bytes) -> bytes:
        (index,) = struct.unpack_from("<8xI", body)
        if index >= _IRQS:
            raise _Refused(errno.EINVAL)
        return struct.pack("<IIII", 16, 1, index, 0)

    def _set_irqs(self, body: bytes) -> bytes:
        _, _, index, _, count = struct.unpack_from("<IIIII", body)
        if index >= _IRQS or count:
            raise _Refused(errno.EINVAL)
        return b""

    def _read(self, body: bytes) -> bytes:
        offset, region, size = self._place(body)
        return body[:16] + self.function.read(region, offset, size)

    def _write(self, body: bytes) -> bytes:
        offset, region, size = self._place(body)
        if len(body) != 16 + size:
            raise _BrokenError(f"a write of {size} bytes with {len(body) - 16}")
        self.function.write(region, offset, body[16:])
        return body[:16]

    def _place(self, body: bytes) -> tuple[int, int, int]:
        offset, region, size = struct.unpack_from("<QII", body)
        if size > LARGEST_TRANSFER or offset + size > self.function.region_size(region):
            raise _Refused(errno.EINVAL)
        return offset, region, size

    def _reset(self, body: bytes) -> bytes:
        """QEMU resets each device once when it starts a machine; later ones come from the bridge above."""
        self.function.reset(Reset.BUS if self._was_reset else Reset.POWER)
        self._was_reset = True
        return b""


def _close_descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """Close what came along: memory to reach by DMA, and interrupts, of which these functions have none.

    Returns the number of each file.
    """
    numbers: list[int] = []
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors = array.array("i")
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
            for descriptor in descriptors:
                numbers.append(os.fstat(descriptor).st_ino)
                os.close(descriptor)
    return numbers


class Board:
    """Serves a board's functions on sockets in a folder, from entering to leaving."""

    def __init__(self, layout: Layout, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.layout, self.folder = layout, folder
        scrub_s = layout.scrub_s
        self._functions = {table.name: Function(table, scrub_s=scrub_s, clock=clock) for table in layout.functions()}
        self._selector = selectors.DefaultSelector()
        self._connections: dict[str, _Connection] = {}
        self._listeners: list[socket.socket] = []
        self._bell, self._rope = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name=f"board {layout.name}", daemon=True)

    def __enter__(self) -> Self:
        for name in self._functions:
            listener = socket.socket(socket.AF_UNIX)
            listener.setblocking(False)
            listener.bind(str(self.path(name)))
            listener.listen()
            self._listeners.append(listener)
            self._selector.register(listener, selectors.EVENT_READ, name)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rope.close()
        self._thread.join()
        for connection in self._connections.values():
            connection.peer.close()
        for listener in self._listeners:
            listener.close()
        for name in self._functions:
            self.path(name).unlink(missing_ok=True)
        self._selector.close()
        self._bell.close()

    def __getitem__(self, name: str) -> Function:
        return self._functions[name]

    def __iter__(self) -> Iterator[Function]:
        return iter(self._functions.values())

    def gpus(self) -> list[Function]:
        """In order of PCI addresses."""
        return [self[table.name] for table in self.layout.gpus()]

    def gpu(self, module: int) -> Function:
        """Return the GPU with a module number."""
        (found,) = (gpu for gpu in self.gpus() if gpu.table.module == module)
        return found

    def path(self, name: str) -> Path:
        """Return where a function listens."""
        return self.folder / f"{name}.sock"

    def events(self) -> list[Event]:
        """Return what happened to all functions, oldest first."""
        return sorted((event for function in self for event in function.events()), key=lambda event: event.at_s)

    def windows(self, name: str) -> dict[int, int]:
        """Return the parts of the machine's memory that a function can reach by DMA: address → size."""
        return {address: window.size for address, window in self._windows(name).items()}

    def translated(self, name: str) -> dict[int, int]:
        """Return those of a function's windows in which its addresses are not the machine's own: address → size.

        As long as a function is used by the machine itself, or by nobody, its IOMMU hands addresses on as they are
        (`iommu=pt`), and the machine's whole memory is in its windows. A machine within the machine has addresses of
        its own. Where each file of the machine's memory begins is what most functions say, which no tenant has.
        """
        votes = Counter(
            said
            for function in self._functions
            for said in {(window.file, address - window.offset) for address, window in self._windows(function).items()}
        )
        begins: dict[int, int] = {}
        for (file, begin), _ in votes.most_common():
            begins.setdefault(file, begin)
        return {
            address: window.size
            for address, window in self._windows(name).items()
            if window.file and address - window.offset != begins[window.file]
        }

    def _windows(self, name: str) -> dict[int, Window]:
        connection = self._connections.get(name)
        return dict(connection.windows) if connection else {}

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._bell:
                    return
                if isinstance(key.data, _Connection):
                    if not key.data.receive():
                        self._close(key.data)
                elif isinstance(key.fileobj, socket.socket):
                    self._accept(key.fileobj, key.data)

    def _accept(self, listener: socket.socket, name: str) -> None:
        with contextlib.suppress(BlockingIOError):
            peer, _ = listener.accept()
            peer.setblocking(False)
            if (before := self._connections.get(name)) is not None and not before.receive():
                self._close(before)  # its machine has ended, and this is the next
            if name in self._connections:
                self[name].note("second connection refused")
                peer.close()
                return
            connection = _Connection(peer, self[name])
            self._connections[name] = connection
            self._selector.register(peer, selectors.EVENT_READ, connection)

    def _close(self, connection: _Connection) -> None:
        if self._connections.get(connection.function.table.name) is connection:
            del self._connections[connection.function.table.name]
            self._selector.unregister(connection.peer)
            connection.peer.close()
