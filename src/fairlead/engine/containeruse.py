"""Reads what a container uses from inside it: a command for a shell, and what its output means. Pure.

A container sees its own cgroup at `/sys/fs/cgroup`: version 2 by its cgroup namespace, version 1 by a mount.
Source: cgroup-v2.rst "cpu.stat", "memory.stat", "memory.max"; cgroup-v1/memory.rst, cpuacct.rst, pids.rst;
proc_pid_net(5), `dev`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairlead.engine.access import Usage

_ROOT: Final = "/sys/fs/cgroup"
_FILES: Final = (
    "cpu.stat",
    "memory.current",
    "memory.max",
    "memory.stat",
    "pids.current",
    "cpuacct/cpuacct.usage",
    "memory/memory.usage_in_bytes",
    "memory/memory.limit_in_bytes",
    "memory/memory.stat",
    "pids/pids.current",
)
_NETWORK: Final = "/proc/net/dev"
_MARK: Final = "@"
COMMAND: Final = (
    "sh",
    "-c",
    f'for one in "$@"; do [ -r "$one" ] && echo "{_MARK}$one" && cat "$one"; done; true',
    "sh",
    *(f"{_ROOT}/{name}" for name in _FILES),
    _NETWORK,
)
"""Writes each file that is there behind a line with its name."""
_NO_LIMIT: Final = 1 << 60
"""Version 1 writes a larger number where there is no limit."""
_DIGITS: Final = 20
"""Of 64 bits. What the container says is its tenant's word: Python reads no number of thousands of digits."""


def parse(text: bytes) -> Usage:
    """Return what the command's output says; what no file says is not known."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.decode(errors="replace").splitlines():
        if line.startswith(f"{_MARK}/"):
            lines = found.setdefault(line.removeprefix(f"{_MARK}{_ROOT}/").removeprefix(_MARK), [])
        else:
            lines.append(line)
    received, sent = _network(found.get(_NETWORK))
    return Usage(
        cpu_ns=_cpu(found),
        memory_bytes=_memory(found),
        memory_limit_bytes=_limit(found),
        processes=_first(found, "pids.current", "pids/pids.current"),
        received_bytes=received,
        sent_bytes=sent,
    )


def _first(found: Mapping[str, list[str]], *names: str) -> int | None:
    """Return the number that the first of the files there says."""
    for name in names:
        for line in found.get(name, ()):
            number = line.strip()
            return int(number) if _is_number(number) else None
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS


def _table(lines: list[str]) -> dict[str, int]:
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and _is_number(pair[1])}


def _cpu(found: Mapping[str, list[str]]) -> int | None:
    used_us = _table(found.get("cpu.stat", [])).get("usage_usec")
    return used_us * 1000 if used_us is not None else _first(found, "cpuacct/cpuacct.usage")


def _memory(found: Mapping[str, list[str]]) -> int | None:
    """Return the memory in use, without the page cache that the kernel would drop first."""
    used = _first(found, "memory.current", "memory/memory.usage_in_bytes")
    if used is None:
        return None
    table = _table(found.get("memory.stat", found.get("memory/memory.stat", [])))
    return max(0, used - table.get("total_inactive_file", table.get("inactive_file", 0)))


def _limit(found: Mapping[str, list[str]]) -> int | None:
    limit = _first(found, "memory.max", "memory/memory.limit_in_bytes")
    return None if limit is None or limit >= _NO_LIMIT else limit


def _network(lines: list[str] | None) -> tuple[int | None, int | None]:
    """Return what all interfaces but the loopback received and sent."""
    if lines is None:
        return None, None
    counts = [rest.split() for name, _, rest in (line.partition(":") for line in lines) if name.strip() != "lo"]
    found = [(int(one[0]), int(one[8])) for one in counts if len(one) > 8 and _is_number(one[0]) and _is_number(one[8])]
    return sum(one for one, _ in found), sum(one for _, one in found)
