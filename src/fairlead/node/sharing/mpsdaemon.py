"""Runs one GPU's MPS control daemon: its folders, its process, its commands.

The daemon puts itself into the background, so it outlives us: an agent that was killed finds it again by the pid file
in its pipe folder, and knows it by the folder in its environment. Everything else goes through the program's own text
commands, as an operator would type them. Its /dev/shm is a folder of its own, which its clients get as theirs: they
reach no other file of the node's shared memory. Clients have the pipe folder, too, and root among them may change what
is in it: nothing that lies there is waited for, followed or believed without asking the kernel.
Source: nvidia-cuda-mps-control(1); NVIDIA Multi-Process Service, "Tools and Interface Reference".
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import command, errors, files
from fairlead.kernel.programs import mpsenter
from fairlead.model.ids import GPUUUID
from fairlead.plan.sharing import mps
from fairlead.silicon.port import MPSProgram

FOREIGN: Final = "MPSFolderForeign"
_PID_FILE: Final = "nvidia-cuda-mps-control.pid"
_LONGEST_PID: Final = 20
_ANSWER_S: Final = 5.0
_START_S: Final = 10.0
_END_S: Final = 10.0
_LOOK_S: Final = 0.05
_LARGEST: Final = 1 << 16
_LAST_LINES: Final = 1 << 12
_ENTER: Final = (sys.executable, "-I", "-S", str(mpsenter.__file__))


@dataclass(frozen=True, slots=True)
class Folders:
    """One GPU's folders below the root of all daemons."""

    base: Path

    @property
    def pipe(self) -> Path:
        """Where the daemon and its clients meet."""
        return self.base / "pipe"

    @property
    def log(self) -> Path:
        """Where the daemon and its servers log."""
        return self.base / "log"

    @property
    def shm(self) -> Path:
        """What is /dev/shm for the daemon and its clients."""
        return self.base / "shm"


def folders_of(root: Path, gpu: GPUUUID) -> Folders:
    """Return the folders of a GPU's daemon."""
    return Folders(root.absolute() / gpu)


def find_intruder(folders: Folders) -> str:
    """Return why the folders must not be used: another user made them, or a link leads away; empty: they may."""
    for path in (folders.base.parent, folders.base, folders.pipe, folders.log, folders.shm):
        try:
            facts = path.lstat()
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(facts.st_mode):
            return f"{path} is not a folder"
        if facts.st_uid != os.geteuid():
            return f"{path} belongs to user {facts.st_uid}"
    return ""


def find_daemon(folders: Folders) -> int | None:
    """Return the pid of the living daemon that serves a pipe folder, None where there is none.

    A process of another PID namespace is a client that claims to be the daemon.
    """
    try:
        pid = int(_read_regular(folders.pipe / _PID_FILE))
        process = Path(f"/proc/{pid}")
        environment = files.read_beginning(process / "environ").split(b"\0")
        state = (process / "stat").read_bytes().rpartition(b")")[2].split()[0]
        is_here = (process / "ns/pid").readlink() == Path("/proc/self/ns/pid").readlink()
    except (OSError, ValueError, IndexError):
        return None
    wanted = f"{mps.PIPE_VARIABLE}={folders.pipe}".encode()
    return pid if is_here and wanted in environment and state not in {b"Z", b"X"} else None


def _read_regular(path: Path) -> bytes:
    """Return the beginning of a regular file. Raises: OSError: it is a link, or anything that could keep us waiting."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return os.read(file, _LONGEST_PID)
    finally:
        os.close(file)


class Control:
    """Starts, asks and ends the daemon of one GPU."""

    def __init__(self, gpu: GPUUUID, folders: Folders, program: MPSProgram) -> None:
        """Take how to call the program; nothing runs yet."""
        self._gpu, self._folders, self._program = gpu, folders, program
        self._env = {
            **command.base_env(),
            mps.PIPE_VARIABLE: str(folders.pipe),
            mps.LOG_VARIABLE: str(folders.log),
            "CUDA_VISIBLE_DEVICES": gpu,
        }

    async def start(self) -> None:
        """Start the daemon, and return once it answers. Raises: Unavailable: it cannot start, or does not answer."""
        await asyncio.to_thread(self._prepare)
        done = await command.run(self._argv("-d", starts=True), env=self._env, timeout_s=_START_S, largest=_LARGEST)
        if done.code:
            raise await self._not_started(done.last_line or f"exit code {done.code}")
        end = asyncio.get_running_loop().time() + _START_S
        while True:
            try:
                await self.check()
            except errors.Unavailable as error:
                if asyncio.get_running_loop().time() > end:
                    raise await self._not_started(error.message) from error
            else:
                return
            await asyncio.sleep(_LOOK_S)

    async def _not_started(self, said: str) -> errors.Unavailable:
        words = await asyncio.to_thread(self._last_words)
        message = f"the MPS control daemon of {self._gpu} does not start: {words or said}"
        hint = f"look into {self._folders.log}"
        return errors.Unavailable(message, reason="MPSDaemonNotStarted", hint=hint)

    def _last_words(self) -> str:
        with contextlib.suppress(OSError), (self._folders.log / "fairlead.log").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_LINES))
            lines = file.read().decode(errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ""

    def _prepare(self) -> None:
        """Make the folders. Those of an earlier daemon stay, since containers have them mounted; its pipes go."""
        folders = self._folders
        try:
            folders.base.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            for path in (folders.base, folders.pipe, folders.log, folders.shm):
                path.mkdir(exist_ok=True)
                path.chmod(0o1777 if path == folders.shm else 0o755)  # /dev/shm is for clients of any user
            for stale in folders.pipe.iterdir():
                if stale.is_dir() and not stale.is_symlink():
                    shutil.rmtree(stale)
                else:
                    stale.unlink()
        except OSError as error:
            message = f"cannot make the folders of an MPS daemon below {self._folders.base}: {error.strerror}"
            hint = "set FAIRLEAD_PLUGIN_MPS_ROOT to a folder that may be written"
            raise errors.Unavailable(message, reason="MPSFolderRefused", hint=hint) from error

    def _argv(self, *arguments: str, starts: bool = False) -> list[str]:
        """Return what starts the daemon, or a client of it; the agent's image has no program but Python."""
        program = [*self._program.argv, *arguments]
        if not starts and self._program.root == "/":
            return program
        how = "ask" if not starts else "apart" if self._program.has_own_memory else "start"
        return [*_ENTER, str(self._folders.base), self._program.root, how, *program]

    async def check(self) -> None:
        """Return if the daemon answers. Raises: Unavailable: it does not."""
        await self.ask("get_default_active_thread_percentage", must_answer=True)

    async def ask(self, line: str, *, must_answer: bool = False) -> str:
        """Give the daemon one command; returns what it says. Raises: Unavailable: there is none, or it is silent."""
        reading, writing = os.pipe()
        try:
            os.write(writing, f"{line}\n".encode())  # shorter than any pipe is wide
            os.close(writing)
            done = await command.run(self._argv(), env=self._env, timeout_s=_ANSWER_S, stdin=reading, largest=_LARGEST)
        finally:
            os.close(reading)
        said = done.stdout.decode(errors="replace").strip()
        if done.code or (must_answer and not _is_number(said)):
            message = f"the MPS control daemon of {self._gpu} does not answer: {said or done.last_line or done.code}"
            raise errors.Unavailable(message, reason="MPSDaemonSilent", hint=f"look into {self._folders.log}")
        return said

    async def set_limits(self, wanted: mps.Daemon) -> None:
        """Make the limits those of all clients to come, of servers that run too. Raises: Unavailable."""
        percent = 100 if wanted.percent is None else wanted.percent
        servers = [word for word in (await self.ask("get_server_list")).split() if word.isdigit()]
        await self.ask(f"set_default_active_thread_percentage {percent}")
        for server in servers:
            await self.ask(f"set_active_thread_percentage {server} {percent}")
        if wanted.memory_mib is None:
            return
        # The daemon sees one GPU, its own: that is device 0.
        await self.ask(f"set_default_device_pinned_mem_limit 0 {wanted.memory_mib}M")
        for server in servers:
            await self.ask(f"set_device_pinned_mem_limit {server} 0 {wanted.memory_mib}M")

    async def end(self) -> None:
        """End the daemon, by its own command or else by force, and remove its folders; none is fine too."""
        pid = await asyncio.to_thread(find_daemon, self._folders)
        if pid is not None:
            with contextlib.suppress(errors.Unavailable):
                await self.ask("quit")
            if not await wait_end(pid, within_s=_END_S):
                kill(pid)
                await wait_end(pid, within_s=_END_S)
        await asyncio.to_thread(shutil.rmtree, self._folders.base, ignore_errors=True)


def kill(pid: int) -> None:
    """End a daemon by force."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def wait_end(pid: int, *, within_s: float, wake: asyncio.Event | None = None) -> bool:
    """Wait until a process, which need not be our child, has ended; returns whether it has.

    Args: wake: ends the waiting when it is set, and is clear afterwards.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    loop, sign, ended = asyncio.get_running_loop(), wake or asyncio.Event(), False

    def note() -> None:
        nonlocal ended
        ended = True
        loop.remove_reader(handle)
        sign.set()

    loop.add_reader(handle, note)
    try:
        async with asyncio.timeout(within_s):
            await sign.wait()
    except TimeoutError:
        return False
    finally:
        sign.clear()
        loop.remove_reader(handle)
        os.close(handle)
    return ended


def _is_number(text: str) -> bool:
    try:
        float(text.rsplit(maxsplit=1)[-1])
    except (ValueError, IndexError):
        return False
    return True
