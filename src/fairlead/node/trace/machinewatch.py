"""Watches the virtual machine of a followed pod start: finds its emulator and notes when it reached each part.

An emulator is a pod's if it runs in the pod's cgroup (Kata with `sandbox_cgroup_only`) or has one of the pod's VFIO
nodes open. Looked at are new processes that are called as emulators are, four times a second, only while a followed
pod's machine has not started. What the guest says (when its kernel and its agent began) is asked of Kata's shim, over
the socket that its own monitor asks; the emulator's name has the sandbox's id.

It runs in the process beside the agent (`watchprocess`). Everything that a machine says is limited in size and time,
and a machine that nothing is known of is one part of the start, `sandbox`.

Source: kata-containers src/runtime/virtcontainers/qemu.go (`sandbox-ID`), src/runtime/pkg/containerd-shim-v2/
shim_management.go and src/runtime-rs/crates/runtimes/src/shim_mgmt (`shim-monitor.sock`); proc_pid_stat(5), field 43.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

from fairlead import files, telemetry
from fairlead.kernel import cgroup as devicecgroup
from fairlead.kernel import processid
from fairlead.node.trace import containerwatch
from fairlead.plan.sandbox import machinestart
from fairlead.plan.sandbox.machinestart import MachineTimes

POLL_S: Final = 0.25
LONGEST_S: Final = 1800.0
"""How long a machine is waited for: eight GPUs without huge pages took Kata that long once."""
_ASK_S: Final = 2.0
_MOST_BYTES: Final = 1 << 20
_SETTLED_S: Final = 5.0
"""A process that is older and is called something else becomes no emulator."""
_EMULATORS: Final = ("qemu-", "cloud-hyper", "dragonball", "firecracker", "stratovirt")
"""Beginnings of the names of emulators that Kata starts; the kernel keeps 15 characters."""
_SANDBOX: Final = re.compile(rb"(?:^|[=,/])sandbox-([0-9a-f]{64})(?:,|/|$)")
PLACES: Final = ("run/vc/sbs", "run/kata")
"""Where Kata's shims have a folder for each sandbox: the one in Go, and the one in Rust."""
_MONITOR: Final = "shim-monitor.sock"
_PROCESSOR: Final = re.compile(r"CPU \d+/")

Nodes = Callable[[str], Coroutine[Any, Any, tuple[str, ...]]]
"""Returns the device nodes that a pod was given; waits until that is known, for some seconds. Args: the pod's uid."""


class MachineWatch:
    """Sees the machines of followed pods start."""

    def __init__(self, *, nodes: Nodes, seen: Callable[[str, MachineTimes], None], root: Path = Path("/")) -> None:
        """Watch nothing yet.

        Args: seen: gets uid and times, again each time more is known.   root: where /proc and /sys are.
        """
        self._nodes, self._seen, self._root = nodes, seen, root
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def follow(self, uid: str, tasks: asyncio.TaskGroup) -> None:
        """See this pod's machine from now on. Idempotent."""
        if uid not in self._tasks:
            self._tasks[uid] = tasks.create_task(self._follow(uid), name=f"machine of {uid}")

    def forget(self, uid: str) -> None:
        """See no more of this pod."""
        if (task := self._tasks.pop(uid, None)) is not None:
            task.cancel()

    async def _follow(self, uid: str) -> None:
        try:
            async with asyncio.timeout(LONGEST_S):
                await self._see(uid)
        except TimeoutError:
            telemetry.log.info("machine not seen to start", pod=uid, duration_s=LONGEST_S)
        except OSError as error:
            telemetry.log.info("machine not seen to start", pod=uid, error=error.strerror or "")

    async def _see(self, uid: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(self._nodes(uid), name=f"nodes of {uid}")
            pid = await self._find(uid, asking)
            asking.cancel()
        process = self._root / "proc" / str(pid)
        began_at = processid.made_at(pid, self._root)
        if began_at is None:
            return  # it has ended
        times = MachineTimes(began_at=began_at)
        self._seen(uid, times)
        sandbox = await asyncio.to_thread(_sandbox, process)
        vectors = await asyncio.to_thread(_vectors, process, self._root)
        while (now := await asyncio.to_thread(_look, process, vectors, times)) is not None:
            if sandbox and now.agent_at is None:
                now = await self._ask(sandbox, now)
            if now != times:
                self._seen(uid, times := now)
            if times.agent_at is not None or not sandbox:
                return
            await asyncio.sleep(POLL_S)

    async def _find(self, uid: str, asking: asyncio.Task[tuple[str, ...]]) -> int:
        """Return the pod's emulator, once there is one."""
        known: set[int] = set()
        while True:
            nodes = asking.result() if asking.done() and not asking.cancelled() else ()
            pid = await asyncio.to_thread(_find, self._root, uid, nodes, known)
            if pid is not None:
                return pid
            await asyncio.sleep(POLL_S)

    async def _ask(self, sandbox: str, times: MachineTimes) -> MachineTimes:
        """Return the times with what the guest says; the same where nothing is to be had yet."""
        before = time.time()
        try:
            async with asyncio.timeout(_ASK_S):
                text = await _metrics(sandbox, self._root)
        except (OSError, TimeoutError, ValueError):
            return times
        if not text:
            return times
        # Read somewhere between question and answer: both are milliseconds apart.
        asked_at = (before + time.time()) / 2
        kernel, agent = machinestart.parse_guest(text, asked_at=asked_at, began_at=times.began_at)
        return dataclasses.replace(times, kernel_at=kernel, agent_at=agent)


def _find(root: Path, uid: str, nodes: Iterable[str], known: set[int]) -> int | None:
    """Return the emulator of a pod. Args: known: processes that are none; those that end are taken out."""
    wanted = frozenset(nodes)
    present: set[int] = set()
    with contextlib.suppress(OSError):
        present = {int(one.name) for one in (root / "proc").iterdir() if one.name.isdigit()}
    known &= present
    for pid in sorted(present - known):
        process = root / "proc" / str(pid)
        if not processid.read_name(process).startswith(_EMULATORS):
            made = processid.made_at(pid, root)
            if made is not None and time.time() - made > _SETTLED_S:
                known.add(pid)
        elif _is_in(process, uid) or wanted & _opened(process):
            return pid
    return None


def _is_in(process: Path, uid: str) -> bool:
    """Return whether a process is in a cgroup of a pod's, or below it."""
    with contextlib.suppress(OSError):
        folders = re.split("[/\n]", (process / "cgroup").read_text(errors="replace"))
        return any(containerwatch.is_of_pod(name, uid) for name in folders)
    return False


def _opened(process: Path) -> frozenset[str]:
    """Return the paths of what a process has open."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(entry.readlink()))
    return frozenset(found)


def _sandbox(process: Path) -> str:
    """Return the sandbox's id, which Kata puts into the emulator's name or its paths; empty: there is none."""
    with contextlib.suppress(OSError):
        for word in files.read_beginning(process / "cmdline").split(b"\0"):
            if (found := _SANDBOX.search(word)) is not None:
                return found[1].decode()
    return ""


def _vectors(process: Path, root: Path) -> tuple[Path, ...]:
    """Return the folders that the kernel makes when a guest takes interrupt vectors of the machine's GPUs."""
    groups = [path.removeprefix("/dev/vfio/") for path in _opened(process) if path.startswith("/dev/vfio/")]
    found: list[Path] = []
    for group in groups:
        if group.isdigit():
            with contextlib.suppress(OSError):
                functions = sorted((root / "sys/kernel/iommu_groups" / group / "devices").iterdir())
                found += [root / "sys/bus/pci/devices" / one.name / "msi_irqs" for one in functions]
        elif group.startswith("devices/vfio"):
            name = group.removeprefix("devices/")
            with contextlib.suppress(OSError):
                found.append((root / "sys/class/vfio-dev" / name / "device").resolve() / "msi_irqs")
    return tuple(found)


def _look(process: Path, vectors: Iterable[Path], times: MachineTimes) -> MachineTimes | None:
    """Return the times with what the host sees now; None: the emulator has ended."""
    if not process.exists():
        return None
    if times.runs_at is None and _runs(process):
        times = dataclasses.replace(times, runs_at=time.time())
    if times.driver_at is None and any(folder.is_dir() for folder in vectors):
        times = dataclasses.replace(times, driver_at=time.time())
    return times


def _runs(process: Path) -> bool:
    """Return whether a guest has executed anything: one of its processors has used time."""
    with contextlib.suppress(OSError):
        for thread in os.scandir(process / "task"):
            with contextlib.suppress(OSError):
                text = (Path(thread.path) / "stat").read_text(errors="replace")
                name, _, rest = text.partition("(")[2].rpartition(")")
                fields = rest.split()
                # Fields 14 and 15: time in the program and in the kernel; 43: time in a guest.
                used = int(fields[11]) + int(fields[12])
                if int(fields[40]) > 0 or (_PROCESSOR.match(name) and used > 0):
                    return True
    return False


async def _metrics(sandbox: str, root: Path) -> str:
    """Return what Kata's shim says of a sandbox; empty: it says nothing, yet. Raises: OSError; ValueError."""
    host = devicecgroup.host_process(root) or root / "proc/self"
    for place in PLACES:
        folder = host / "root" / place / sandbox
        try:
            descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            # By the descriptor: the path of a socket may have 107 bytes, and these have more.
            reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{descriptor}/{_MONITOR}")
        finally:
            os.close(descriptor)
        try:
            writer.write(b"GET /metrics HTTP/1.0\r\nHost: shim\r\n\r\n")
            await writer.drain()
            answer = b""
            while len(answer) < _MOST_BYTES and (more := await reader.read(1 << 16)):
                answer += more
        finally:
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        if re.match(rb"HTTP/1\.[01] 200\b", head) is None:
            return ""
        return body.decode(errors="replace")
    return ""
