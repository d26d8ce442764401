"""The node's machine: a virtual machine whose PCI functions are a board's, kept running while a test commands it.

`Node` is started, cut off and started again; the board and the state disk outlive it, as hardware does. Commands go
over a virtio port to `guest.py`. Everything of one machine lies in one folder, its console included.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hgx import emulator
from hgx.layout import Layout
from hgx.server import Board

_APPEND = "console=ttyS0 loglevel=4 panic=-1 no_timer_check nowatchdog intel_iommu=on iommu=pt pci=realloc,no_e820"
"""QEMU reserves what lies above 0xfd00000000 in its memory map, and puts 64-bit regions there all the same: without
`no_e820` Linux finds no room for a function that is plugged in later."""
_ROOTS = (0x10, 0x80)
"""Bus numbers of the PCI roots, one a NUMA node."""


class NodeError(Exception):
    """The machine ended, did not answer in time, or refused a command."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """How a line of shell ended."""

    code: int | None
    """None: it ran past its limit, and was killed."""
    out: str
    err: str


def board_devices(board: Board) -> list[str]:
    """Return QEMU's arguments for a board: a root port for each slot, in order, and its functions below it."""
    line = []
    for node, root in enumerate(_ROOTS):
        line += ["-device", f"pxb-pcie,id=root{node},bus=pcie.0,addr={8 + node:#x},bus_nr={root},numa_node={node}"]
    for (slot, tables), (node, port) in zip(enumerate(board.layout.slots), _ports(board.layout), strict=True):
        place = f"id=port{slot},bus=root{node},addr={port:#x},chassis={slot + 1},slot={slot + 1}"
        line += ["-device", f"pcie-root-port,{place},x-speed=32,x-width=16"]
        for table in tables:
            line += ["-device", json.dumps(function_device(board, table.name))]
    return line


def function_device(board: Board, name: str) -> dict[str, Any]:
    """Return QEMU's description of a function's device, in its place below its port."""
    ((slot, number, size),) = (
        (slot, number, len(tables))
        for slot, tables in enumerate(board.layout.slots)
        for number, table in enumerate(tables)
        if table.name == name
    )
    place = {"bus": f"port{slot}", "addr": f"0.{number}", "multifunction": size > 1 and number == 0}
    return {"driver": "vfio-user-pci", "id": name, **place, "socket": {"type": "unix", "path": str(board.path(name))}}


def addresses(layout: Layout) -> dict[str, str]:
    """Return the PCI address of each function: ports count from 0 on their root, buses from 1 below them."""
    return {
        table.name: f"0000:{_ROOTS[node] + port + 1:02x}:00.{number}"
        for tables, (node, port) in zip(layout.slots, _ports(layout), strict=True)
        for number, table in enumerate(tables)
    }


def _ports(layout: Layout) -> list[tuple[int, int]]:
    """Return for each slot its NUMA node and its port there: the first half of the GPUs is near node 0."""
    half = len(layout.gpus()) // 2
    nodes = [0 if slot < half or slot - len(layout.gpus()) in range(half) else 1 for slot in range(len(layout.slots))]
    return [(node, nodes[:slot].count(node)) for slot, node in enumerate(nodes)]


class Node:
    """One machine with a board; a context manager that leaves no process behind."""

    def __init__(
        self,
        board: Board,
        folder: Path,
        *,
        kernel: emulator.Kernel,
        initramfs: Path,
        disks: Sequence[Path] = (),
        memory_mib: int = 1024,
        cpus: int = 2,
        more: Sequence[str] = (),
    ) -> None:
        self.board, self.folder, self.kernel, self.initramfs = board, folder, kernel, initramfs
        self.disks, self.memory_mib, self.cpus, self.more = tuple(disks), memory_mib, cpus, tuple(more)
        self.address = addresses(board.layout)
        self._process: subprocess.Popen[bytes] | None = None
        self._port: socket.socket | None = None
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut_off()

    def start(self, *, limit_s: float = 240) -> Self:
        """Switch the machine on, and return once it takes commands."""
        for path in (self._control, self._monitor):
            path.unlink(missing_ok=True)
        with (self.folder / "emulator").open("ab") as log:
            # It ends with whoever runs the tests, however that ends.
            line = ("setpriv", "--pdeathsig", "KILL", *self._line())
            self._process = subprocess.Popen(line, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        until = time.monotonic() + limit_s
        self._port = self._connect(self._control, until)
        self._receive(until, "booted")
        return self

    def cut_off(self) -> None:
        """Take its power away, as a pulled plug does: nothing is written back."""
        if self._port is not None:
            self._port.close()
            self._port = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._buffer = b""

    def do(self, what: str, *arguments: Any, limit_s: float = 120) -> Any:
        """Have `guest.py` carry out one of its commands; returns its answer."""
        if self._port is None:
            raise NodeError(f"{what}: the machine is off")
        self._port.settimeout(limit_s)
        try:
            self._port.sendall(json.dumps({"do": what, "with": arguments}).encode() + b"\n")
        except OSError as error:
            raise NodeError(self._problem(f"{what}: the machine has ended")) from error
        answer = self._receive(time.monotonic() + limit_s, what)
        if "problem" in answer:
            raise NodeError(f"{what} {arguments}: {answer['problem']}")
        return answer["value"]

    def sh(self, line: str, *, limit_s: float = 60) -> Done:
        """Run a line of shell (busybox) to its end."""
        return Done(**self.do("run", line, limit_s, limit_s=limit_s + 30))

    def output(self, line: str, *, limit_s: float = 60) -> str:
        """Run a line of shell that must succeed, and return what it printed."""
        done = self.sh(line, limit_s=limit_s)
        if done.code != 0:
            raise NodeError(f"{line}: exit code {done.code}: {done.err or done.out}")
        return done.out

    def spawn(self, name: str, line: str) -> int:
        """Start a line of shell that goes on; returns its pid. `log(name)` is its output."""
        return int(self.do("start", name, line))

    def kill(self, pid: int, number: int = signal.SIGKILL, *, limit_s: float = 30) -> int:
        """Send a signal to a background process and return its exit code; an error if it does not end."""
        self.do("kill", pid, number)
        code = self.do("wait", pid, limit_s, limit_s=limit_s + 30)
        if code is None:
            raise NodeError(f"process {pid} still runs {limit_s:.0f} s after signal {number}")
        return int(code)

    def wait(self, pid: int, *, limit_s: float) -> int | None:
        """Return the exit code of a background process, negative after a signal; None: it still runs."""
        code = self.do("wait", pid, limit_s, limit_s=limit_s + 30)
        return None if code is None else int(code)

    @contextlib.contextmanager
    def running(self, name: str, line: str) -> Iterator[int]:
        """Have a line of shell run during a block; yields its pid. It is killed at the end, unless it has ended."""
        pid = self.spawn(name, line)
        try:
            yield pid
        finally:
            if self._port is not None and self.wait(pid, limit_s=0) is None:
                self.kill(pid)

    def log(self, name: str) -> str:
        return str(self.do("log", name))

    def fairlead(self, *arguments: str, env: Mapping[str, str] | None = None, limit_s: float = 120) -> Done:
        """Run Fairlead's command line to its end."""
        return Done(**self.do("fairlead", arguments, dict(env or {}), limit_s=limit_s))

    def spawn_fairlead(self, name: str, *arguments: str, env: Mapping[str, str] | None = None) -> int:
        """Start Fairlead's command line; returns its pid. `log` has its output as NAME.out and NAME.err."""
        return int(self.do("fairlead_start", name, arguments, dict(env or {})))

    def call(self, module: str, function: str, *arguments: Any, limit_s: float = 120) -> Any:
        """Call a function of a module that was packed; returns what it returned."""
        return self.do("call", module, function, *arguments, limit_s=limit_s)

    def script(self, source: str, *arguments: Any, limit_s: float = 120) -> Any:
        """Run a program's text and return what its function `main` returned for these arguments."""
        return self.do("script", source, *arguments, limit_s=limit_s)

    def wait_for_log(self, name: str, text: str, *, limit_s: float) -> str:
        """Return a background process's output once it has a text."""
        until = time.monotonic() + limit_s
        while text not in (found := self.log(name)):
            if time.monotonic() > until:
                raise NodeError(f"{name}: no {text!r} in {limit_s:.0f} s: {found[-3000:]}")
            time.sleep(0.25)
        return found

    def monitor(self, command: str, **arguments: Any) -> Any:
        """Give QEMU a command, such as `device_del`. Source: QEMU, QMP reference manual."""
        with self._connect(self._monitor, time.monotonic() + 10) as peer, peer.makefile("rw") as lines:
            lines.readline()
            for step in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                lines.write(json.dumps(step) + "\n")
                lines.flush()
                while "event" in (answer := json.loads(lines.readline())):
                    pass
                if "error" in answer:
                    raise NodeError(f"{command}: {answer['error']['desc']}")
        return answer["return"]

    def unplug(self, name: str, *, limit_s: float = 60) -> None:
        """Take a function out as somebody does who presses the slot's button; Linux then waits five seconds."""
        self.monitor("device_del", id=name)
        until = time.monotonic() + limit_s
        while any(device["name"] == name for device in self.monitor("qom-list", path="/machine/peripheral")):
            if time.monotonic() > until:
                raise NodeError(f"{name} is still there {limit_s:.0f} s after it was to be taken out")
            time.sleep(0.2)

    def plug(self, name: str) -> None:
        """Put a function in again."""
        self.monitor("device_add", **function_device(self.board, name))

    def console(self) -> str:
        """Return what the kernel and process 1 have printed since this machine was switched on."""
        path = self.folder / "console"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def _control(self) -> Path:
        return self.folder / "control.sock"

    @property
    def _monitor(self) -> Path:
        return self.folder / "monitor.sock"

    def _line(self) -> list[str]:
        line = [*emulator.program(), "-M", "q35,accel=tcg,kernel-irqchip=split", "-cpu", "max"]
        line += ["-m", str(self.memory_mib), "-smp", str(self.cpus)]
        for node in range(len(_ROOTS)):
            size = self.memory_mib // len(_ROOTS)
            line += ["-object", f"memory-backend-memfd,id=memory{node},size={size}M,share=on"]
            line += ["-numa", f"node,nodeid={node},memdev=memory{node}" + (f",cpus={node}" if node < self.cpus else "")]
        # Hot plug by PCI Express itself, as boards have it: by ACPI, QEMU's ports never tell that their link is active.
        line += ["-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"]
        line += ["-device", "intel-iommu,intremap=on,caching-mode=on"]
        line += ["-kernel", str(self.kernel.image), "-initrd", str(self.initramfs), "-append", _APPEND]
        line += ["-serial", f"file:{self.folder / 'console'}", "-monitor", "none"]
        line += ["-qmp", f"unix:{self._monitor},server=on,wait=off"]
        line += ["-device", "virtio-serial-pci,addr=2"]
        line += ["-chardev", f"socket,id=control,path={self._control},server=on,wait=off"]
        line += ["-device", "virtserialport,chardev=control,name=control"]
        for number, disk in enumerate(self.disks):
            line += ["-drive", f"if=none,id=disk{number},file={disk},format=raw,cache=writethrough"]
            line += [
                "-device",
                f"virtio-blk-pci,drive=disk{number},addr=3.{number},multifunction={'off' if number else 'on'}",
            ]
        return [*line, *board_devices(self.board), *self.more]

    def _connect(self, path: Path, until: float) -> socket.socket:
        while True:
            peer = socket.socket(socket.AF_UNIX)
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                peer.connect(str(path))
                return peer
            peer.close()
            if self._has_ended() or time.monotonic() > until:
                raise NodeError(self._problem("no answer from the emulator"))
            time.sleep(0.02)

    def _receive(self, until: float, what: str) -> dict[str, Any]:
        assert self._port is not None
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0:
                raise NodeError(self._problem(f"{what}: no answer in time"))
            self._port.settimeout(min(left, 0.5))
            with contextlib.suppress(TimeoutError):
                part = self._port.recv(1 << 16)
                if not part:
                    raise NodeError(self._problem(f"{what}: the machine ended"))
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _problem(self, what: str) -> str:
        said = (self.folder / "emulator").read_text(errors="replace")[-2000:]
        return f"{what}; emulator: {said or 'silent'}; console:\n{self.console()[-4000:]}"
