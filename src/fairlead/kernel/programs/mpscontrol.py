"""Stands in for `nvidia-cuda-mps-control` on simulated machines: the same commands and files, and no GPU.

`-f` runs the daemon in the foreground, `-d` in the background; without either it is the client: each line of its input
goes to the daemon of CUDA_MPS_PIPE_DIRECTORY, and the answer to its output. The daemon keeps the default limits and
starts a stand-in of `nvidia-cuda-mps-server` for each user who asks. How the two talk through the file `control` is the
driver's secret and different here; everything else is held to `tests/contract/test_mps_control.py`, which a real
program passes, too. Standard library only, and run as a file: nothing of the package is imported.
Source: nvidia-cuda-mps-control(1); NVIDIA Multi-Process Service, "Tools and Interface Reference".
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path

_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
_LOG = "CUDA_MPS_LOG_DIRECTORY"
_MEMORY = re.compile(r"[0-9]+[KMG]?", re.IGNORECASE)
_NO_DAEMON = "Cannot find MPS control daemon process"
_LARGEST = 1 << 16
_MOST_FILES = 1 << 12


class _QuitError(Exception):
    """The daemon was told to end."""


class Control:
    """The daemon's state and its commands; each takes words and returns the lines to print."""

    def __init__(self) -> None:
        self.percentage = 100.0
        self.memory: dict[str, str] = {}
        self.servers: dict[int, tuple[int, int]] = {}
        """By pid: user and the descriptor whose end ends the server."""
        self.server_limits: dict[tuple[str, ...], str] = {}
        """Percentage by (server,), memory by (server, device); else the defaults of the server's start."""

    def answer(self, line: str) -> str:
        """Carry out one command. Raises: _QuitError."""
        name, *words = line.split() or [""]
        command = _COMMANDS.get(name)
        if command is None:
            return f"Unknown command: {name}\n" if name else ""
        try:
            return command(self, *words)
        except (TypeError, ValueError):
            return f"Invalid arguments: {line.strip()}\n"

    def set_percentage(self, value: str) -> str:
        number = float(value)
        if not 0 < number <= 100:
            raise ValueError
        self.percentage = number
        return f"{number:.1f}\n"

    def get_percentage(self) -> str:
        return f"{self.percentage:.1f}\n"

    def set_memory(self, device: str, value: str) -> str:
        if not device.isdigit() or not _MEMORY.fullmatch(value):
            raise ValueError
        self.memory[device] = value.upper()
        return ""

    def get_memory(self, device: str) -> str:
        return f"{self.memory.get(device, '0M')}\n"

    def set_server_percentage(self, server: str, value: str) -> str:
        self._find(server)
        if not 0 < float(value) <= 100:
            raise ValueError
        self.server_limits[server,] = f"{float(value):.1f}"
        return f"{float(value):.1f}\n"

    def get_server_percentage(self, server: str) -> str:
        self._find(server)
        return self.server_limits[server,] + "\n"

    def set_server_memory(self, server: str, device: str, value: str) -> str:
        self._find(server)
        if not device.isdigit() or not _MEMORY.fullmatch(value):
            raise ValueError
        self.server_limits[server, device] = value.upper()
        return ""

    def get_server_memory(self, server: str, device: str) -> str:
        self._find(server)
        return self.server_limits.get((server, device), "0M") + "\n"

    def _find(self, server: str) -> None:
        if int(server) not in self.servers:
            raise ValueError

    def start_server(self, flag: str, user: str) -> str:
        if flag != "-uid":
            raise ValueError
        if not any(owner == int(user) for owner, _ in self.servers.values()):
            number, end = _start_server()
            pid = str(number)
            self.servers[number] = int(user), end
            self.server_limits[pid,] = f"{self.percentage:.1f}"
            for device, value in self.memory.items():
                self.server_limits[pid, device] = value
        return ""

    def list_servers(self) -> str:
        return "".join(f"{pid}\n" for pid in self.servers)

    def list_clients(self, server: str) -> str:
        return "" if int(server) in self.servers else f"Server {server} is not found\n"

    def status(self, server: str) -> str:
        return "ACTIVE\n" if int(server) in self.servers else f"Server {server} is not found\n"

    def shut_down(self, server: str, *_: str) -> str:
        found = self.servers.pop(int(server), None)
        if found is not None:
            os.close(found[1])
        return ""

    def quit(self, *_: str) -> str:
        raise _QuitError


_COMMANDS: dict[str, Callable[..., str]] = {
    "set_default_active_thread_percentage": Control.set_percentage,
    "get_default_active_thread_percentage": Control.get_percentage,
    "set_default_device_pinned_mem_limit": Control.set_memory,
    "get_default_device_pinned_mem_limit": Control.get_memory,
    "set_active_thread_percentage": Control.set_server_percentage,
    "get_active_thread_percentage": Control.get_server_percentage,
    "set_device_pinned_mem_limit": Control.set_server_memory,
    "get_device_pinned_mem_limit": Control.get_server_memory,
    "start_server": Control.start_server,
    "get_server_list": Control.list_servers,
    "get_client_list": Control.list_clients,
    "get_server_status": Control.status,
    "shutdown_server": Control.shut_down,
    "quit": Control.quit,
}


def _start_server() -> tuple[int, int]:
    """Start a process that lives until the other end of a pipe is closed, by us or by our death."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(reading, 0)
        os.closerange(1, _MOST_FILES)  # who waits for the end of a connection must see it
        os.read(0, 1)
        os._exit(0)
    os.close(reading)
    return pid, writing


def _folder(variable: str, usual: str) -> Path:
    return Path(os.environ.get(variable) or usual)  # noqa: TID251 - the real program's variables


def _serve(pipe: Path, log: Path) -> int:
    """Serve until `quit`; returns the exit code."""
    for folder in (pipe, log):
        folder.mkdir(parents=True, exist_ok=True)
    if _ask(pipe, "get_server_list") is not None:
        sys.stderr.write("An instance of this daemon is already running\n")
        return 1
    for name in ("control", "control_lock"):
        (pipe / name).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener, (log / "control.log").open("a") as journal:
        listener.bind(str(pipe / "control"))
        (pipe / "control").chmod(0o666)
        listener.listen()
        (pipe / "control_lock").touch()
        number = pipe / "nvidia-cuda-mps-control.pid"
        number.write_text(f"{os.getpid()}\n")
        journal.write(f"[Control {os.getpid()}] Starting control daemon using socket {pipe}/control\n")
        journal.flush()
        control = Control()
        with contextlib.suppress(_QuitError):
            while True:
                _take(listener, control)
        for name in ("control", "control_lock", number.name):
            (pipe / name).unlink(missing_ok=True)
    return 0


def _take(listener: socket.socket, control: Control) -> None:
    """Answer the command of one connection. Raises: _QuitError."""
    connection, _ = listener.accept()
    with connection, contextlib.suppress(OSError):
        connection.settimeout(5)
        text = b""
        while not text.endswith(b"\n") and len(text) < _LARGEST and (piece := connection.recv(4096)):
            text += piece
        connection.sendall(control.answer(text.decode(errors="replace")).encode())


def _ask(pipe: Path, line: str) -> str | None:
    """Send one command; None: no daemon answers."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        try:
            connection.connect(str(pipe / "control"))
            connection.sendall(f"{line.strip()}\n".encode())
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return None


def main(arguments: list[str]) -> int:
    """Be the daemon or its client."""
    pipe, log = _folder(_PIPE, "/tmp/nvidia-mps"), _folder(_LOG, "/var/log/nvidia-mps")  # noqa: S108 - the real ones
    if arguments == ["-f"]:
        return _serve(pipe, log)
    if arguments == ["-d"]:
        if os.fork():
            return 0
        os.setsid()
        return _serve(pipe, log)
    if arguments:
        sys.stderr.write("usage: nvidia-cuda-mps-control [-d | -f]\n")
        return 1
    for line in sys.stdin:
        said = _ask(pipe, line)
        if said is None:
            sys.stdout.write(f"{_NO_DAEMON}\n")
            return 1
        sys.stdout.write(said)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
