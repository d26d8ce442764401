"""Watches the cgroup tree for new containers of followed pods, holds their processes, and reads them back.

A kubelet reports a container up to seconds after it began, and a container may have ended by then. The cgroup tree
shows it at once: a runtime makes a folder for each container below its pod's, before the first instruction runs. The
folders of followed pods are watched (inotify); in a new one the first process is waited for, then the moment at which
it has the container's root (from there on its device nodes and rules are final), then it is held and read back. The
process itself is never touched or delayed.

Where the host's processes cannot be seen or entered, `unread` says so and nothing else is claimed. Which container of
the pod it was, is not known here: the runtime's id is the name that a status has later. What to try to open is asked
of the caller at the moment the container begins. The pod's sandbox is seen too and has none of it.

It runs in a process of its own (`watchprocess`): all of this reads /proc and cgroups, and some of it may hang.

Source: kubelet cm/pod_container_manager_linux.go and qos_container_manager_linux.go (names of folders); inotify(7).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

import asyncinotify

from fairlead import errors, telemetry
from fairlead.backoff import Backoff
from fairlead.kernel import cgroup as devicecgroup
from fairlead.kernel import probeprocess, processid, readback

POLL_S: Final = 0.002
BEGIN_S: Final = 10.0
"""How long a runtime may take from the container's folder to its root."""
REDISCOVER_S, REDISCOVER_LAST_S = 0.25, 5.0
"""First and longest wait for a followed pod's folder."""

_DEPTH: Final = 3
_LIMITED: Final = ("memory", "pids", "cpu")
_ID: Final = re.compile(r"[0-9a-f]{64}")
_CLASS: Final = re.compile(r"(besteffort|burstable)(\.slice)?$")
_MASK: Final = asyncinotify.Mask.CREATE | asyncinotify.Mask.ONLYDIR
_HINT: Final = "the agent needs the host's pids (hostPID) and CAP_SYS_PTRACE"


class Prepared(Protocol):
    """What a caller wants tried in a container of a pod."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Device nodes that some container of the pod was given."""
        ...

    @property
    def numbers(self) -> tuple[tuple[int, int], ...]:
        """(major, minor) of all devices to try beside any path."""
        ...


P = TypeVar("P", bound=Prepared)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundContainer(Generic[P]):
    """One container of a pod, as it was found."""

    id: str
    """The runtime's id."""
    pid: int
    began_at: float
    """Unix time at which it had its own root; for one found late, when its process was made."""
    is_late: bool
    """It ran already when it was found."""
    prepared: P | None
    found: readback.Isolation | None
    """None: it is late, has none of the pod's device nodes, or `unread` says why."""
    read_at: float = 0.0
    read_s: float = 0.0
    unread: str = ""


class ContainerWatch(Generic[P]):
    """Sees the containers of followed pods begin."""

    def __init__(
        self,
        *,
        prepare: Callable[[str], Coroutine[Any, Any, P | None]],
        seen: Callable[[str, FoundContainer[P]], None],
        looking: Callable[[str, bool], None] = lambda _container, _is_over: None,
        root: Path = Path("/"),
    ) -> None:
        """Prepare; nothing is watched before `run`.

        Args:    prepare: asked with the pod's uid when a container of it begins.   seen: gets uid and finding, once for
                 each container.   looking: gets a container's id, and False when it begins to be looked at, True when
                 that is over, after `seen`.   root: where /proc is.
        """
        self._looking_at = looking
        self._prepare = prepare
        self._seen = seen
        self._root = root
        self._parents: set[Path] = set()
        self._pods: dict[str, Path | None] = {}
        """Followed pods by uid, with their folder once there is one."""
        self._looking: set[str] = set()
        self._standby = readback.standby()
        self._lost = asyncio.Event()
        self._new: asyncio.Queue[tuple[str, Path, bool]] = asyncio.Queue()
        self._inotify: asyncinotify.Inotify | None = None

    def follow(self, uid: str) -> None:
        """See this pod's containers from now on; those that are there already are seen late. Idempotent."""
        if uid not in self._pods:
            self._pods[uid] = None
            self._standby.keep(True)
            self._find_folders(uid)
            if self._pods[uid] is None:
                self._lost.set()

    def forget(self, uid: str) -> None:
        """See no more of this pod."""
        self._pods.pop(uid, None)  # its watch ends with its folder
        self._standby.keep(bool(self._pods))

    def is_looking(self, container_id: str) -> bool:
        """Return whether a container is being read back right now."""
        return container_id in self._looking

    async def run(self) -> None:
        """Watch for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._discover_for_ever(), name="container watch: folders")
            tasks.create_task(self._standby.run(), name="container watch: probe")
            tasks.create_task(self._read_events(), name="container watch: events")
            while True:
                uid, folder, is_late = await self._new.get()
                tasks.create_task(self._see(uid, folder, is_late=is_late), name=f"container {folder.name}")

    # folders

    async def _discover_for_ever(self) -> None:
        """Look for the kubelet's folders while a followed pod has none: a kubelet makes its own after we began."""
        waits = Backoff(first_s=REDISCOVER_S, last_s=REDISCOVER_LAST_S, jitter=0)
        while True:
            self._lost.clear()
            for parent in await asyncio.to_thread(_parents, self._root):
                self._watch(parent)
            for uid in [uid for uid, folder in self._pods.items() if folder is None]:
                self._find_folders(uid)
            is_complete = self._parents and None not in self._pods.values()
            try:
                async with asyncio.timeout(None if is_complete else waits.next()):
                    await self._lost.wait()
                waits.reset()
            except TimeoutError:
                continue

    def _watch(self, folder: Path) -> None:
        if folder in self._parents or self._inotify is None:
            return
        with contextlib.suppress(OSError):
            self._inotify.add_watch(folder, _MASK)
            self._parents.add(folder)

    async def _read_events(self) -> None:
        with asyncinotify.Inotify() as inotify:
            self._inotify = inotify
            async for event in inotify:
                if event.mask & asyncinotify.Mask.IGNORED and event.watch is not None:
                    self._parents.discard(event.watch.path)
                elif event.mask & asyncinotify.Mask.CREATE and event.path is not None:
                    self._made(event.path)

    def _made(self, folder: Path) -> None:
        if _CLASS.search(folder.name) and folder.parent in self._parents:
            self._lost.set()  # a kubelet that begins makes its folders one after another
            return
        for uid, known in self._pods.items():
            if known == folder.parent:
                self._add(uid, folder, is_late=False)
            elif known is None and is_of_pod(folder.name, uid):
                self._enter(uid, folder)
                return

    def _find_folders(self, uid: str) -> None:
        for parent in self._parents:
            for folder in _folders(parent):
                if is_of_pod(folder.name, uid):
                    self._enter(uid, folder)
                    return

    def _enter(self, uid: str, folder: Path) -> None:
        if self._inotify is None:
            return
        with contextlib.suppress(OSError):
            self._inotify.add_watch(folder, _MASK)
            self._pods[uid] = folder
            for inner in _folders(folder):
                self._add(uid, inner, is_late=True)

    def _add(self, uid: str, folder: Path, *, is_late: bool) -> None:
        if name := _container_id(folder.name):
            self._looking.add(name)
            self._looking_at(name, False)
            self._new.put_nowait((uid, folder, is_late))

    # one container

    async def _see(self, uid: str, folder: Path, *, is_late: bool) -> None:
        name = _container_id(folder.name)
        try:
            container = await (self._find(name, folder) if is_late else self._catch(uid, name, folder))
            self._looking.discard(name)
            if container is not None:
                self._seen(uid, container)
        except errors.Unavailable as error:
            telemetry.log.warning("container not seen", container=name, reason=error.reason, error=error.message)
        finally:
            self._looking.discard(name)
            self._looking_at(name, True)

    async def _find(self, name: str, folder: Path) -> FoundContainer[P] | None:
        """Return a container that ran before the watch began; the caller reads it back when it wants to."""
        pid = await self._until_begun(folder)
        if pid is None:
            return None
        began_at = processid.made_at(pid, self._root) or time.time()
        return FoundContainer(id=name, pid=pid, began_at=began_at, is_late=True, prepared=None, found=None)

    async def _catch(self, uid: str, name: str, folder: Path) -> FoundContainer[P] | None:
        """Hold a container as it begins, and read it back."""
        waiting = await self._standby.take()
        try:
            async with asyncio.TaskGroup() as tasks:
                preparing = tasks.create_task(self._prepare(uid))
                pid = await self._until_begun(folder)
                if pid is None:
                    preparing.cancel()
                    return None
                return await self._hold(name, pid, preparing, waiting)
        finally:
            await waiting.close()
            self._standby.refill()

    async def _hold(
        self, name: str, pid: int, preparing: asyncio.Task[P | None], waiting: probeprocess.ProbeProcess
    ) -> FoundContainer[P] | None:
        container: FoundContainer[P] = FoundContainer(
            id=name, pid=pid, began_at=time.time(), is_late=False, prepared=None, found=None
        )
        try:
            held = readback.hold(pid, self._root)
        except errors.FairleadError as error:
            return _with(container, await preparing, unread=error.message)
        try:
            await waiting.enter(readback.cgroup_files(held.cgroups))
            return await self._read(container, held, await preparing, waiting)
        finally:
            held.close()

    async def _read(
        self, container: FoundContainer[P], held: readback.Held, prepared: P | None, waiting: probeprocess.ProbeProcess
    ) -> FoundContainer[P]:
        """Read a container back if it has any of the pod's device nodes."""
        if prepared is None:
            return container
        try:
            nodes = {node.path for node in readback.list_nodes(held.devices)}
        except OSError as error:
            return _with(container, prepared, unread=f"its /dev cannot be read: {error.strerror} ({_HINT})")
        if not nodes & set(prepared.paths):
            return _with(container, prepared)
        with telemetry.timed("isolation read", container=container.id) as timing:
            found = await readback.read_held(
                held, paths=prepared.paths, numbers=prepared.numbers, waiting=waiting, is_short_lived=True
            )
        return _with(container, prepared, found=found, read_s=timing.duration_s)

    async def _until_begun(self, folder: Path) -> int | None:
        """Return the container's first process once it has the container's root; None: it never came to that."""
        deadline = asyncio.get_running_loop().time() + BEGIN_S
        host = _identity((devicecgroup.host_process(self._root) or self._root / "proc/self") / "root")
        while asyncio.get_running_loop().time() < deadline:
            if _is_gone(folder):
                return None  # the container has ended
            pid = _first_process(folder)
            if pid is not None and _has_own_root(self._root / "proc" / str(pid), host):
                return pid
            await asyncio.sleep(POLL_S)
        return None


def _with(
    container: FoundContainer[P],
    prepared: P | None,
    *,
    found: readback.Isolation | None = None,
    read_s: float = 0.0,
    unread: str = "",
) -> FoundContainer[P]:
    return FoundContainer(
        id=container.id,
        pid=container.pid,
        began_at=container.began_at,
        is_late=container.is_late,
        prepared=prepared,
        found=found,
        read_at=time.time(),
        read_s=read_s,
        unread=unread,
    )


def _parents(root: Path) -> tuple[Path, ...]:
    """Return the folders that kubelets make pods' folders in: one for each class of service."""
    try:
        mounts = devicecgroup.mounts(root)
    except OSError:
        return ()
    if not mounts:
        return ()
    _, top = mounts["devices"] if "devices" in mounts else mounts["cgroup2"]
    if "devices" in mounts:
        # Kubelets make folders in the hierarchies they set limits in; runtimes make a container's in all of them.
        top = next((path for name in _LIMITED if (path := top.with_name(name)).is_dir()), top)
    found: list[Path] = []
    for base in _search(top, _DEPTH):
        found += [base, *(folder for folder in _folders(base) if _CLASS.search(folder.name))]
    return tuple(found)


def _search(folder: Path, depth: int) -> Iterator[Path]:
    for inner in _folders(folder):
        if inner.name == "kubepods" or inner.name.endswith("kubepods.slice"):
            yield inner
        elif depth > 1:
            yield from _search(inner, depth - 1)


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def is_of_pod(name: str, uid: str) -> bool:
    """Return whether a folder is the pod's, in the name of either cgroup driver."""
    return name == f"pod{uid}" or name.endswith(f"-pod{uid.replace('-', '_')}.slice")


def _container_id(name: str) -> str:
    """Return the runtime's id in a folder's name, empty for a folder of another kind (`crio-conmon-…`)."""
    found = _ID.search(name)
    return "" if found is None or "conmon" in name else found[0]


def _is_gone(folder: Path) -> bool:
    return not folder.exists()


def _first_process(folder: Path) -> int | None:
    # The kernel writes 0 for a process that is not in our pid namespace.
    try:
        words = (folder / "cgroup.procs").read_text().split()
    except OSError:
        return None
    return next((int(word) for word in words if word != "0"), None)


def _has_own_root(process: Path, host: tuple[int, int]) -> bool:
    """Return whether a process has left the host's root; True where that is forbidden: `hold` then reports it."""
    try:
        return _identity(process / "root") != host
    except PermissionError:
        return True
    except OSError:
        return False


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def find_process(container_id: str, root: Path = Path("/")) -> int | None:
    """Return a process of a container, found by its cgroup's name; None: none is to be seen.

    Works for both cgroup drivers and versions: the runtime's id is part of the path in all of them.
    """
    for entry in _folders(root / "proc"):
        if entry.name.isdecimal():
            try:
                text = (entry / "cgroup").read_text(errors="replace")
            except OSError:
                continue
            if container_id in text and "conmon" not in text:
                return int(entry.name)
    return None
