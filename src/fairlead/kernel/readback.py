"""Reads back what the kernel enforces for one container: device rules, device nodes, results of `open()`.

Given the host pid of a container's process (a created one, still held before its first instruction, will do):

- the device rules in force in its cgroups, of both versions: see `kernel.cgroup`.
- the character devices under /dev of its mount namespace, with their numbers.
- what `open()` says there, for paths and for bare device numbers, asked by `kernel.probeprocess`, a process that joins
  the container's device cgroups and mount namespace.

Nothing is claimed that was not read: whatever could not be is named in `unread`, with the reason. Reading changes
nothing in the container. Opening a node asks its driver, which may take its time on a GPU that no process has open; the
probe has a time limit. So has every read, each in a thread of its own: /proc and cgroups may hang, and a thread that
does is left behind, where no other work of this process waits for its turn.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import signal
import stat
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Final, TypeVar

from fairlead import command, daemonthread, errors
from fairlead.kernel import cgroup as devicecgroup
from fairlead.kernel import probeprocess
from fairlead.kernel.programs import openprobe
from fairlead.model.devicerule import DeviceRules
from fairlead.wire.text import typedjson

T = TypeVar("T")

READ_S: Final = 5.0
"""How long one read may take; it takes milliseconds."""
_MOST: Final = 256
"""Threads that may read, those that hang included."""
_FREE: Final = threading.BoundedSemaphore(_MOST)
_PROBE_S: Final = 6.0
_ENDED_S: Final = 15.0
"""Longest wait for a probe, its forced end included; one that takes longer hangs in a driver, and is left."""
_CAP_MKNOD: Final = 27  # include/uapi/linux/capability.h
_JOINED_BY: Final = {1: "tasks", 2: "cgroup.procs"}
"""The file by which the probe enters a cgroup of each version: `openprobe` says why they differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A character device in the container's /dev."""

    path: str
    """As the container sees it."""
    major: int
    minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What was read of one container."""

    rules: tuple[str, ...]
    """Device cgroup rules in force, in the kernel's words (`c 195:0 rwm`); those of BPF programs in the same form."""
    in_force: DeviceRules | None
    """The same as values; None where they could not all be read."""
    nodes: tuple[DeviceNode, ...]
    """By path."""
    opens: Mapping[str, str]
    """What `open()` said, by path or by `major:minor`: `OK`, an errno name, or `mknod:` and an errno name. Of a VFIO
    node, which has one opener: what `access()` said."""
    unread: tuple[str, ...]
    """What could not be read, and why."""


class Held:
    """A container held open: its namespace and folders can be read after its process has ended."""

    def __init__(
        self, process: Path, cgroups: tuple[devicecgroup.Cgroup, ...], namespace: int | None, root: int | None
    ) -> None:
        self.cgroups = cgroups
        self._handles = (namespace, root)
        # By this process's own number: the probe, which opens it, is another one.
        self.namespace = Path(f"/proc/{os.getpid()}/fd/{namespace}") if namespace is not None else process / "ns/mnt"
        self.devices = Path(f"/proc/self/fd/{root}/dev") if root is not None else process / "root/dev"

    def close(self) -> None:
        """Let go."""
        for handle in self._handles:
            if handle is not None:
                os.close(handle)


def hold(pid: int, root: Path = Path("/")) -> Held:
    """Take hold of the container of a process: a few system calls, so that one of milliseconds can be caught.

    Args:    root: where /proc is.   What cannot be held is read by the process's number, while it lives.
    Raises:  NotFound (`ProcessGone`): there is no such process.
    """
    process = root / "proc" / str(pid)
    namespace, folder = _open(process / "ns/mnt", os.O_RDONLY), _open(process / "root", os.O_PATH | os.O_DIRECTORY)
    try:
        return Held(process, devicecgroup.of_process(process, root), namespace, folder)
    except OSError as error:
        for handle in (namespace, folder):
            if handle is not None:
                os.close(handle)
        if not isinstance(error, FileNotFoundError | ProcessLookupError):
            raise
        raise gone(pid) from error


def gone(pid: int) -> errors.NotFound:
    """Return what is raised where a container's process has ended."""
    message = f"process {pid} is gone: nothing of its container can be read"
    return errors.NotFound(message, reason="ProcessGone", hint="its container has ended")


def _open(path: Path, flags: int) -> int | None:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError:
        return None


async def read_back(
    pid: int,
    *,
    paths: tuple[str, ...],
    numbers: tuple[tuple[int, int], ...],
    root: Path = Path("/"),
    waiting: probeprocess.ProbeProcess | None = None,
) -> Isolation:
    """Read what the kernel enforces for the container of a process.

    Args:    pid: host pid of the container's process, created or running.   paths: device paths as the container sees
             them.   numbers: (major, minor) of character devices to try beside any path.   root: where /proc is.
             waiting: a probe that waits for its orders; None: one is started.
    Raises:  NotFound (`ProcessGone`): there is no such process.
    """
    try:
        held = await _in_time(lambda: hold(pid, root), dropped=_let_go)
    except TimeoutError:
        unread = (_late("device rules"), _late("device nodes"), _late("what open() says"))
        return Isolation(rules=(), in_force=None, nodes=(), opens={}, unread=unread)
    try:
        return await read_held(held, paths=paths, numbers=numbers, waiting=waiting)
    finally:
        held.close()


async def read_held(
    held: Held,
    *,
    paths: tuple[str, ...],
    numbers: tuple[tuple[int, int], ...],
    waiting: probeprocess.ProbeProcess | None = None,
    is_short_lived: bool = False,
) -> Isolation:
    """Read what the kernel enforces for a container that is held; arguments as `read_back`.

    Args:    is_short_lived: the container may end any moment: `waiting`, which may be in its cgroup already, is asked
             before the rules are read.
    """
    async with asyncio.TaskGroup() as group:
        ruled = group.create_task(_read_rules(held))
        listed = group.create_task(_read_nodes(held))
        first = None if is_short_lived else ruled
        probed = group.create_task(_probe(held, first, paths, numbers, waiting))
    rules, (nodes, unlisted) = ruled.result(), listed.result()
    opens, more = probed.result()
    unread = (*rules.unread, *unlisted, *more)
    return Isolation(rules=rules.lines, in_force=rules.rules, nodes=nodes, opens=opens, unread=unread)


async def _in_time(
    call: Callable[[], T], *, dropped: Callable[[concurrent.futures.Future[T]], object] = lambda _: None
) -> T:
    """Return what a call returns, in a daemon thread of its own.

    Args:   dropped: gets what comes after the wait has ended.
    Raises: TimeoutError: it takes too long, or as many as may hang do so already.
    """
    if not _FREE.acquire(blocking=False):
        raise TimeoutError
    future = daemonthread.start("readback", call, ended=_FREE.release)
    try:
        async with asyncio.timeout(READ_S):
            return await asyncio.wrap_future(future)
    except BaseException:
        future.add_done_callback(dropped)
        raise


def _let_go(done: concurrent.futures.Future[Held]) -> None:
    if done.exception() is None:
        done.result().close()


def _late(what: str) -> str:
    return f"{what}: the kernel does not answer reads within {READ_S:g} s"


async def _read_rules(held: Held) -> devicecgroup.Reading:
    try:
        return await _in_time(lambda: devicecgroup.read(held.cgroups))
    except TimeoutError:
        unknown = tuple(cgroup for cgroup in held.cgroups if not cgroup.is_root)  # any of them may deny something
        return devicecgroup.Reading(lines=(), rules=None, restricting=unknown, unread=(_late("device rules"),))


async def _read_nodes(held: Held) -> tuple[tuple[DeviceNode, ...], tuple[str, ...]]:
    # A read that comes too late may use a descriptor number that was given away again: its answer is dropped.
    try:
        return await _in_time(lambda: list_nodes(held.devices)), ()
    except TimeoutError:
        return (), (_late("device nodes"),)
    except OSError as error:
        return (), (f"device nodes: /dev of the container: {error.strerror}",)


def list_nodes(folder: Path) -> tuple[DeviceNode, ...]:
    """Return the character devices below a /dev, its folders included, never through a link."""
    found: list[DeviceNode] = []
    waiting = [(folder, "/dev")]
    while waiting:
        here, name = waiting.pop()
        with os.scandir(here) as entries:
            for entry in entries:
                path, status = f"{name}/{entry.name}", entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    waiting.append((Path(entry.path), path))
                elif stat.S_ISCHR(status.st_mode):
                    number = status.st_rdev
                    found.append(DeviceNode(path=path, major=os.major(number), minor=os.minor(number)))
    return tuple(sorted(found, key=lambda node: node.path))


async def _probe(
    held: Held,
    ruled: asyncio.Task[devicecgroup.Reading] | None,
    paths: tuple[str, ...],
    numbers: tuple[tuple[int, int], ...],
    waiting: probeprocess.ProbeProcess | None,
) -> tuple[dict[str, str], tuple[str, ...]]:
    told: tuple[str, ...] = ()
    if numbers and not await asyncio.to_thread(_may_make_nodes):
        numbers, told = (), ("what open() says of numbers without a node: making one needs CAP_MKNOD",)
    keys = [*paths, *(f"{major}:{minor}" for major, minor in numbers)]
    if not keys:
        return {}, told
    joined = (ruled is not None and (await ruled).restricting) or held.cgroups[:1]
    where = [*cgroup_files(joined), "--", str(held.namespace)]
    words = [*where, *paths, "--", *keys[len(paths) :]]
    try:
        async with asyncio.timeout(_ENDED_S):
            code, said = await (waiting.ask(words) if waiting is not None else _run(words))
    except errors.Unavailable as error:
        return {}, (*told, f"what open() says: {error.message}")
    except TimeoutError:
        return {}, (*told, f"what open() says: the kernel did not end the probe within {_ENDED_S:g} s")
    # Its answer is the last thing it does: one that is whole counts, whatever ended it then.
    if code != 0 and not said.endswith("]"):
        ended = "its container ended meanwhile and took the probe along" if code == -signal.SIGKILL else ""
        return {}, (*told, f"what open() says: {said or ended or f'the probe ended with {code}'}")
    return dict(zip(keys, typedjson.decode(said, type=list[str]), strict=True)), told


def cgroup_files(cgroups: Sequence[devicecgroup.Cgroup]) -> list[str]:
    """Return the files by which a probe enters cgroups."""
    return [str(cgroup.folder / _JOINED_BY[cgroup.version]) for cgroup in cgroups]


def _may_make_nodes() -> bool:
    """Return whether this process has CAP_MKNOD, so that a refused mknod is the container's rule."""
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_MKNOD & 1)


async def _run(words: list[str]) -> tuple[int, str]:
    result = await command.run([*_command(), *words], env={}, timeout_s=_PROBE_S)
    return result.code, result.last_line if result.code else result.stdout.decode()


@contextlib.asynccontextmanager
async def started_ahead(*, is_wanted: bool) -> AsyncIterator[probeprocess.ProbeProcess | None]:
    """Start a probe for a container that is being made; its interpreter starts while the block does that.

    Yields: the probe; None: none is wanted, or none can be started, and `read_back` says why.
    """
    probe = None
    with contextlib.suppress(errors.Unavailable):
        probe = await probeprocess.ProbeProcess.start([*_command(), "-"]) if is_wanted else None
    try:
        yield probe
    finally:
        if probe is not None:
            await probe.close()


def standby() -> probeprocess.StandbyProbe:
    """Return what keeps a probe waiting for containers that are about to be there."""
    return probeprocess.StandbyProbe([*_command(), "-"])


def _command() -> list[str]:
    return [sys.executable, "-I", "-S", _program()]


def _program() -> str:
    """Return the probe's compiled file if there is one (spares its compilation on every run), else its source."""
    source = Path(str(openprobe.__file__))
    compiled = Path(util.cache_from_source(str(source)))
    return str(compiled if compiled.exists() and compiled.stat().st_mtime >= source.stat().st_mtime else source)
