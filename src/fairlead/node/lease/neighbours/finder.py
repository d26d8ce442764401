"""Finds the programs on this machine's GPUs that Fairlead did not start: a person's own, or another engine's container.

Two sources, joined by pid: the driver, which says who calculates or draws on a GPU and with how much memory, and the
device nodes that processes have open, which a driver's list leaves out where nothing runs yet. Not counted are
processes of pods (whose GPUs are `gpuholders`' matter), this process, what it started, and the MPS servers it keeps.
A program that the driver names and that /proc does not show is one that cannot be read, and counts.

The driver is asked each time; the walk through /proc, some ten milliseconds, may be as old as the caller allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from fairlead.kernel import deviceusers
from fairlead.kernel.openfiles import Number
from fairlead.model.ids import GPUUUID
from fairlead.model.neighbour import GPUProcess, Neighbour, Use
from fairlead.node.lease.neighbours import names
from fairlead.plan.lease import neighbour
from fairlead.wire.text import cgroupplace

_AGAIN_S: Final = 0.05
"""After this a driver is asked again about a program that /proc does not show: it may just have ended."""
_MPS: Final = "nvidia-cuda-mps"
_PIPES: Final = b"CUDA_MPS_PIPE_DIRECTORY="
_MOST_ENVIRONMENT: Final = 64 << 10
_TICKS: Final = os.sysconf("SC_CLK_TCK")

ListPrograms = Callable[[Collection[GPUUUID]], Awaitable[Mapping[GPUUUID, tuple[GPUProcess, ...]]]]
"""Asks the driver which programs are on GPUs, as `port.Programs.list_programs` does."""
FindUsers = Callable[[Collection[Number], Mapping[Number, deviceusers.File]], tuple[deviceusers.DeviceUser, ...]]
"""Looks through the machine's processes, as `deviceusers.find_users` does; called in a thread."""
Found = Mapping[str, tuple[Neighbour, ...]]
"""Neighbours by the key of their GPU, of each GPU that was looked at."""


class Finder:
    """Finds neighbours of this machine."""

    def __init__(
        self,
        list_programs: ListPrograms | None,
        *,
        pod_of: Callable[[Iterable[str]], str],
        is_living: Callable[[str], bool],
        root: Path = Path("/"),
        mps_root: Path | None = None,
        find_users: FindUsers | None = None,
    ) -> None:
        """Take the sources.

        Args: list_programs: None: no driver here tells.   pod_of: returns the uid of the pod that cgroups name, or "".
              is_living: whether a pod is known and has not ended.   root: where /proc and /etc of the machine are.
              mps_root: where the pipes of our own MPS daemons are; None: there are none.
              find_users: None: by /proc below the root.
        """
        self._list_programs, self._pod_of, self._is_living = list_programs, pod_of, is_living
        self._root, self._mps_root = root, mps_root
        self._find_users = find_users or (
            lambda numbers, files: deviceusers.find_users(numbers, files=files, root=root)
        )
        self._names = names.Names(root)
        self._gpus: Mapping[str, frozenset[Number]] = {}
        self._shared: Mapping[Number, str] = {}
        self._files: Mapping[Number, deviceusers.File] = {}
        self._walked_at = float("-inf")
        self._users: tuple[deviceusers.DeviceUser, ...] = ()
        self._walking = asyncio.Lock()
        self._booted_at = 0.0

    def update(
        self,
        gpus: Mapping[str, frozenset[Number]],
        shared: Mapping[Number, str],
        files: Mapping[Number, deviceusers.File],
    ) -> None:
        """Know these GPUs from now on.

        Args: gpus: the numbers of each GPU's own nodes, by its key.   shared: the driver's other nodes, by number.
              files: see `deviceusers.find_users`.
        """
        if (gpus, shared, files) != (self._gpus, self._shared, self._files):
            self._gpus, self._shared, self._files = gpus, shared, files
            self._walked_at = float("-inf")

    async def find(self, keys: Collection[str], *, within_s: float = 0.0) -> dict[str, tuple[Neighbour, ...]]:
        """Return the neighbours on GPUs, none for a GPU that has none. Args: within_s: how old the walk may be."""
        users = await self._walk(within_s)
        told = await self._told(keys)
        missing = {
            one.pid for found in told.values() for one in found if deviceusers.read(one.pid, root=self._root) is None
        }
        if missing:
            await asyncio.sleep(_AGAIN_S)
            told = await self._told(keys)
        return await asyncio.to_thread(self._join, tuple(keys), users, told)

    async def _walk(self, within_s: float) -> tuple[deviceusers.DeviceUser, ...]:
        async with self._walking:
            if time.monotonic() - self._walked_at > within_s:
                begun = time.monotonic()
                numbers = frozenset(self._shared).union(*self._gpus.values())
                found = await asyncio.to_thread(self._find_users, numbers, self._files) if self._gpus else ()
                self._users, self._walked_at = found, begun
            return self._users

    async def _told(self, keys: Collection[str]) -> Mapping[str, tuple[GPUProcess, ...]]:
        if self._list_programs is None:
            return {}
        found = await self._list_programs({GPUUUID(key) for key in keys})
        return {str(gpu): told for gpu, told in found.items()}

    def _join(
        self,
        keys: tuple[str, ...],
        users: Collection[deviceusers.DeviceUser],
        told: Mapping[str, tuple[GPUProcess, ...]],
    ) -> dict[str, tuple[Neighbour, ...]]:
        """Join both sources (in a thread: it reads files)."""
        places: dict[int, set[str]] = {}
        for key, programs in told.items():
            for program in programs:
                places.setdefault(program.pid, set()).add(key)
        known = {one.pid: one for one in users}
        for pid in places:
            if pid not in known and (one := deviceusers.read(pid, root=self._root)) is not None:
                known[pid] = one
        parents: dict[int, bool] = {}
        ours = {pid for pid, one in known.items() if self._is_ours(one, parents)} | {os.getpid()}
        return {key: tuple(self._of(key, known, ours, told.get(key, ()), places)) for key in keys}

    def _of(
        self,
        key: str,
        known: Mapping[int, deviceusers.DeviceUser],
        ours: Collection[int],
        told: Iterable[GPUProcess],
        places: Mapping[int, set[str]],
    ) -> Iterator[Neighbour]:
        programs = {one.pid: one for one in told}
        numbers = self._gpus.get(key, frozenset())
        opened = {pid for pid, one in known.items() if numbers & set(one.devices) or one.doubt}
        for pid in sorted({*programs, *opened} - set(ours)):
            one, program = known.get(pid), programs.get(pid)
            memory = program.memory_bytes if program is not None else None
            if one is None:
                yield Neighbour(
                    pid=pid, name="", memory_bytes=memory, use=Use.UNREAD, doubt="the machine's /proc does not show it"
                )
                continue
            pod = self._pod_of(one.cgroups)
            if pod and (program is None or self._is_living(pod)):
                continue
            yield self._neighbour(one, program, is_told_elsewhere=bool(places.get(pid, set()) - {key}))

    def _neighbour(
        self, one: deviceusers.DeviceUser, program: GPUProcess | None, *, is_told_elsewhere: bool
    ) -> Neighbour:
        opened = neighbour.Opened(
            name=one.name, uid=one.uid, nodes={self._shared[number] for number in one.devices if number in self._shared}
        )
        place = cgroupplace.parse_place(one.cgroups)
        return Neighbour(
            pid=one.pid,
            name=one.name,
            uid=one.uid,
            user=self._names.account(one.uid),
            unit=place.unit if not place.container else "",
            container=self._names.container(place, one.uid),
            memory_bytes=program.memory_bytes if program is not None else None,
            since=self._since(one.started),
            use=Use.UNREAD if one.doubt else neighbour.use_of(opened, program, is_told_elsewhere=is_told_elsewhere),
            started=one.started,
            doubt=one.doubt,
        )

    def _is_ours(self, one: deviceusers.DeviceUser, parents: dict[int, bool]) -> bool:
        """Return whether a process is one that this agent started, or serves a daemon that it keeps.

        Args: parents: of the processes that were asked about, whether the agent started what they started.
        """
        if one.parent not in parents:
            parents[one.parent] = deviceusers.descends(one, os.getpid(), self._root)
        if parents[one.parent]:
            return True
        if self._mps_root is None or not one.name.startswith(_MPS):
            return False
        with contextlib.suppress(OSError), (self._root / "proc" / str(one.pid) / "environ").open("rb") as file:
            words = file.read(_MOST_ENVIRONMENT).split(b"\0")
            pipes = next((word.removeprefix(_PIPES) for word in words if word.startswith(_PIPES)), b"")
            return Path(os.fsdecode(pipes)).is_relative_to(self._mps_root) and b".." not in pipes.split(b"/")
        return False

    def _since(self, started: str) -> float | None:
        """Return when a process was started, in whole seconds since 1970."""
        if not self._booted_at:
            with contextlib.suppress(OSError, ValueError, StopIteration):
                lines = (self._root / "proc/stat").read_text().splitlines()
                self._booted_at = float(next(line.split()[1] for line in lines if line.startswith("btime ")))
        return float(int(self._booted_at + int(started) / _TICKS)) if self._booted_at and started.isdecimal() else None
