"""Reads and writes how much CPU and memory a container may use, in its cgroup: version 1 or 2.

The folders are those of the container itself, by its id in their names: its first process may be in a folder below. An
OCI runtime's own update would write the container's device rules anew, those that were changed since among them; here
nothing but the two limits is written. A systemd that reads its units again may write its own limits over them, which
whoever keeps the limits has to look for.
Source: Linux Documentation/scheduler/sched-bwc.rst; cgroup-v1/memory.rst ("limit_in_bytes", "memsw"); cgroup-v2.rst
("cpu.max", "memory.max").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors

NO_LIMIT: Final = 1 << 60
"""Bytes that are read as no limit: version 1 has its largest number where there is none."""
_PERIOD_US: Final = 100_000
_LEAST_QUOTA_US: Final = 1000
"""The kernel's.  Source: kernel/sched/core.c, min_cfs_quota_period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a container may use; None: there is no limit."""

    cpu: float | None = None
    """CPUs."""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """A container's cgroups; None: that controller is not there."""

    cpu: Path | None
    memory: Path | None
    version: int

    def limits(self) -> Limits:
        """Return the limits in force. Raises: Unavailable (`LimitsUnreadable`)."""
        try:
            return self._limits()
        except (OSError, ValueError) as error:
            message = f"the limits of {self.cpu or self.memory} cannot be read: {error}"
            raise errors.Unavailable(message, reason="LimitsUnreadable", hint="it may have ended") from error

    def _limits(self) -> Limits:
        cpu: float | None = None
        memory: int | None = None
        if self.cpu is not None and self.version == 1:
            quota = int((self.cpu / "cpu.cfs_quota_us").read_text())
            cpu = quota / int((self.cpu / "cpu.cfs_period_us").read_text()) if quota > 0 else None
        elif self.cpu is not None:
            word, period = (self.cpu / "cpu.max").read_text().split()
            cpu = None if word == "max" else int(word) / int(period)
        if self.memory is not None:
            file = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
            text = (self.memory / file).read_text().strip()
            memory = None if text == "max" or int(text) >= NO_LIMIT else int(text)
        return Limits(cpu=cpu, memory_bytes=memory)

    def used_bytes(self) -> int:
        """Return the memory in use that the kernel would not give up by itself; 0: it is not counted here."""
        if self.memory is None:
            return 0
        name = "memory.usage_in_bytes" if self.version == 1 else "memory.current"
        key = "total_inactive_file" if self.version == 1 else "inactive_file"
        try:
            used = int((self.memory / name).read_text())
            found = re.search(rf"^{key} ([0-9]+)$", (self.memory / "memory.stat").read_text(), re.MULTILINE)
        except (OSError, ValueError):
            return 0
        return max(0, used - (int(found[1]) if found else 0))

    def write(self, wanted: Limits) -> None:
        """Write the limits that are given; those that are None stay as they are.

        Raises: Unavailable (`LimitRefused`): the kernel refuses, or has no such controller.
        """
        try:
            if wanted.cpu is not None:
                self._write_cpu(wanted.cpu)
            if wanted.memory_bytes is not None:
                self._write_memory(wanted.memory_bytes)
        except OSError as error:
            where = error.filename or self.memory or self.cpu
            message = f"the kernel does not take the limit: {where}: {error.strerror}"
            raise errors.Unavailable(message, reason="LimitRefused", hint="it is tried again") from error

    def _write_cpu(self, cpus: float) -> None:
        folder = _there(self.cpu, "cpu")
        if self.version == 2:
            period = int((folder / "cpu.max").read_text().split()[1])
            (folder / "cpu.max").write_text(f"{_quota(cpus, period)} {period}")
            return
        period = int((folder / "cpu.cfs_period_us").read_text()) or _PERIOD_US
        (folder / "cpu.cfs_quota_us").write_text(str(_quota(cpus, period)))

    def _write_memory(self, limit: int) -> None:
        folder = _there(self.memory, "memory")
        if self.version == 2:
            (folder / "memory.max").write_text(str(limit))
            return
        files = [folder / "memory.limit_in_bytes", folder / "memory.memsw.limit_in_bytes"]
        now = int(files[0].read_text())
        # Memory with swap is never below memory alone, so the larger one is written first.
        for file in files if limit < now else reversed(files):
            if file.exists():  # no memsw where the kernel does not count swap
                file.write_text(str(limit))


def _quota(cpus: float, period: int) -> int:
    return max(_LEAST_QUOTA_US, round(cpus * period))


def _there(folder: Path | None, controller: str) -> Path:
    if folder is None:
        message = f"the container is in no cgroup with the controller {controller}"
        raise errors.Unavailable(message, reason="LimitRefused", hint=f"mount or enable {controller} for containers")
    return folder


def of_container(pid: int, container: str, root: Path = Path("/")) -> Folders:
    """Return the cgroups of a container.

    Args:   pid: a process of it.   container: its id, which the folders' names have: a pid is used again.
    Raises: NotFound (`CgroupUnknown`): the process is gone, or is not of that container.
    """
    base = root / "sys/fs/cgroup"
    found = dict[str, Path]()
    try:
        text = (root / f"proc/{pid}/cgroup").read_text(errors="surrogateescape")
    except OSError:
        text = ""
    for line in filter(None, text.split("\n")):  # a container may give cgroups of its own any other name
        _, controllers, path = line.split(":", 2)
        parts = path.strip("/").split("/")
        at = next((number for number, part in enumerate(parts) if container and container in part), None)
        if at is None:
            continue
        inside = Path(*parts[: at + 1])
        if not controllers:
            unified = base / "unified" if (base / "unified").is_dir() else base
            found[""] = unified / inside
        for one in controllers.split(","):
            if one:
                found[one] = base / controllers / inside
    if "cpu" in found or "memory" in found:
        return Folders(cpu=found.get("cpu"), memory=found.get("memory"), version=1)
    if (folder := found.get("")) is None:
        message = f"process {pid} is not of container {container[:12]}"
        raise errors.NotFound(message, reason="CgroupUnknown", hint="it has ended")
    cpu = folder if (folder / "cpu.max").exists() else None
    return Folders(cpu=cpu, memory=folder if (folder / "memory.max").exists() else None, version=2)
