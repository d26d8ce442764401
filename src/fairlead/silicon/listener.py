"""Tells one start of a program that listens on this machine from the next, where its protocol does not.

Who listens on a unix socket is the kernel's word about this process' own connection to it: a pid, which with its start
time and the boot is one start. Of TCP the kernel says no such thing, so the listening socket is looked up by its
address, and the processes that have it open by its number. Sockets' numbers are given once in a boot and count as well:
a program that begins to listen again has another. What is not sure is not told: then the caller takes each connection
for a start. A socket of process 1 alone is one that systemd keeps over the starts of the program behind it.
Source: unix(7), SO_PEERCRED; proc(5), /proc/PID/net/tcp, /proc/PID/net/unix.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import itertools
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fairlead.wire.text import procstat

_CREDENTIALS: Final = struct.Struct("iII")
_LISTENS: Final = 0x10000
"""`__SO_ACCEPTCON`, of the flags in /proc/net/unix."""
_TCP_LISTENS: Final = "0A"
_LARGEST: Final = 16 << 20
_PIECE: Final = 1 << 16
_WORD: Final = 8
"""Characters of one word of an address in /proc/net/tcp, in the machine's own order of bytes."""
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def find_start(*, path: str = "", host: str = "", port: int = 0, root: Path = Path("/")) -> str:
    """Return a text that is another one after each start of what listens there; empty: that cannot be told.

    Args: path: of a unix socket that this process is connected to.   host, port: of TCP, where there is no path.
          root: where /proc is.
    """
    proc = root / "proc"
    if path:
        numbers, pids = _unix_numbers(proc, path), _peers(proc, path)
    else:
        numbers = _tcp_numbers(proc, host, port)
        pids = _owners(proc, numbers) if len(numbers) == 1 else set()
    starts = sorted(f"{pid}@{_started(proc, pid)}" for pid in pids)
    boot_id = _read(proc / "sys/kernel/random/boot_id").strip()
    if not boot_id or pids <= {0, 1} or any(one.endswith("@") for one in starts):
        return ""
    return hashlib.sha256(repr((boot_id, starts, sorted(numbers))).encode()).hexdigest()[:32]


def _peers(proc: Path, path: str) -> set[int]:
    """Return the pids of those who listen at the other end of this process' own connections to a unix socket."""
    found = set[int]()
    for name in _names(proc / "self/fd"):
        # The library that connected keeps the descriptor to itself, so every socket of this process is looked at.
        with contextlib.suppress(OSError, ValueError):
            if not str((proc / "self/fd" / name).readlink()).startswith("socket:["):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family == socket.AF_UNIX and one.getpeername() == path:
                    data = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                    found.add(_CREDENTIALS.unpack(data)[0])
    return found


def _unix_numbers(proc: Path, path: str) -> set[str]:
    """Return the numbers of the sockets that listen at a path, as far as this network namespace has them."""
    found = set[str]()
    for line in _read(proc / "self/net/unix").splitlines():
        words = line.split(None, 7)
        if len(words) == 8 and words[7] == path and _is_hex(words[3]) and int(words[3], 16) & _LISTENS:
            found.add(words[6])
    return found


def _tcp_numbers(proc: Path, host: str, port: int) -> set[str]:
    """Return the numbers of the sockets that listen at an address: of those bound to it, else of those bound to all."""
    try:
        wanted = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return set()
    bound, wide = set[str](), set[str]()
    for at, number in _tcp_listeners(proc, port):
        if at == wanted:
            bound.add(number)
        elif at.is_unspecified:
            wide.add(number)
    return bound or wide


def _tcp_listeners(proc: Path, port: int) -> Iterator[tuple[IPAddress, str]]:
    """Yield address and number of each socket that listens on a port."""
    for name in ("tcp", "tcp6"):
        for line in _read(proc / "self/net" / name).splitlines()[1:]:
            words = line.split()
            if len(words) < 10 or words[3] != _TCP_LISTENS:
                continue
            address, _, own_port = words[1].partition(":")
            if _is_hex(address) and _is_hex(own_port) and int(own_port, 16) == port and len(address) in {8, 32}:
                parts = (int(address[at : at + _WORD], 16) for at in range(0, len(address), _WORD))
                yield ipaddress.ip_address(b"".join(one.to_bytes(4, sys.byteorder) for one in parts)), words[9]


def _owners(proc: Path, numbers: set[str]) -> set[int]:
    """Return the pids of the processes that have one of some sockets open."""
    wanted = {f"socket:[{one}]" for one in numbers}
    found = set[int]()
    for pid in filter(str.isdecimal, _names(proc)):
        for name in _names(proc / pid / "fd"):
            with contextlib.suppress(OSError):
                if str((proc / pid / "fd" / name).readlink()) in wanted:
                    found.add(int(pid))
                    break
    return found


def _started(proc: Path, pid: int) -> str:
    """Return when a process began, in the kernel's ticks; empty: it is gone."""
    return procstat.started(_read(proc / str(pid) / "stat"))


def _names(folder: Path) -> list[str]:
    try:
        return [one.name for one in folder.iterdir()]
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        with path.open("rb", buffering=0) as opened:
            # In pieces: the kernel makes room for a read of one of its settings, and refuses a large one.
            parts = itertools.islice(iter(lambda: opened.read(_PIECE), b""), _LARGEST // _PIECE)
            return b"".join(parts).decode(errors="replace")
    except OSError:
        return ""


def _is_hex(word: str) -> bool:
    return bool(word) and all(one in "0123456789ABCDEFabcdef" for one in word)
