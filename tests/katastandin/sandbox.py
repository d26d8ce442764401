"""One sandbox of Kata's stand-in: QEMU, the way to the agent in it, and who may speak to it. A process of its own.

It plays the part of Kata's shim: it boots the machine, waits for the agent, and carries frames between containers'
processes and the agent. QEMU has a session of its own and outlives it when it is killed, as Kata's does.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from tests.katastandin import coldplug, monitor, stops, wire

PORT_NAME: Final = "org.fairlead.katastandin"
_VSOCK: Final = Path("/dev/vhost-vsock")
_VSOCK_PORT: Final = 1024
_END_S: Final = 120.0
"""How long the kernel may take to end QEMU: it unpins memory and resets GPUs meanwhile."""
_TURN_S: Final = 0.2
_TIMES_S: Final = 5.0


class Timeline:
    """The phases of a start, each from the end of the one before; times are Unix seconds."""

    def __init__(self, begin: float) -> None:
        self._reached = begin
        self.phases: list[tuple[str, float, float]] = []

    def end(self, name: str, at: float | None = None) -> None:
        """Note that a phase has ended, now or at a time that is not before the last one's."""
        at = max(self._reached, time.time() if at is None else at)
        self.phases.append((name, self._reached, at))
        self._reached = at


class Sandbox:
    """A machine that runs."""

    def __init__(self, folder: Path, config: coldplug.Config, timeline: Timeline, cgroup: str) -> None:
        self.folder, self.config, self.timeline, self.cgroup = folder, config, timeline, cgroup
        self.process: subprocess.Popen[bytes]
        self._agent: socket.socket
        self._lock = threading.Lock()
        self._clients: dict[int, socket.socket] = {}
        self._over = threading.Event()
        self._channels = itertools.count(1)

    def boot(self, functions: Sequence[coldplug.Function]) -> None:
        """Start QEMU and return once the agent has spoken. Raises: coldplug.Refused: with the reason."""
        qmp, qmp_theirs = socket.socketpair()
        peer, peer_theirs = socket.socketpair()
        cid = secrets.randbelow(1 << 31) + 3 if _VSOCK.exists() and not self.config.root else None
        line = self._line(functions, qmp_theirs.fileno(), peer_theirs.fileno(), cid)
        (self.folder / "line.json").write_text(json.dumps(line))
        with (self.folder / "emulator").open("wb") as log:
            self.process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(qmp_theirs.fileno(), peer_theirs.fileno()),
                start_new_session=True,
            )
        (self.folder / "emulator.pid").write_text(str(self.process.pid))
        monitor.join(self.cgroup, self.folder.name, self.process.pid)
        stops.reach(self.config.stops, "emulator")
        qmp_theirs.close()
        peer_theirs.close()
        self._wait_made(qmp)
        self.timeline.end("QEMU")
        stops.reach(self.config.stops, "made")
        if cid is not None:
            peer.close()
            peer = self._connect(cid)
        peer.settimeout(self.config.dial_timeout)
        try:
            _, kind, said = wire.receive(peer)
        except (wire.Ended, TimeoutError) as error:
            why = "it ended" if isinstance(error, wire.Ended) else f"not within {self.config.dial_timeout:g} s"
            raise coldplug.Refused(f"the agent did not answer: {why}: {self._last_words()}") from None
        if kind != "R":
            raise coldplug.Refused(f"the agent's first frame is {kind!r}")
        now, (began, ready) = time.time(), map(float, said.split())
        self.timeline.end("firmware", now - ready)
        self.timeline.end("kernel", now - ready + began)
        self.timeline.end("init", now)
        peer.settimeout(None)
        self._agent = peer
        stops.reach(self.config.stops, "agent")

    def serve(self) -> int:
        """Carry frames until SIGTERM comes or the machine ends; returns the exit code. QEMU has ended then."""
        with (
            contextlib.closing(socket.socket(socket.AF_UNIX)) as listener,
            monitor.serving(self.config.root, self.folder.name, self._ask_times),
        ):
            listener.bind(str(self.folder / "agent"))
            listener.listen()
            threading.Thread(target=self._hear, daemon=True).start()
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
            came = None
            while came is None and not self._over.is_set() and self.process.poll() is None:
                came = signal.sigtimedwait({signal.SIGTERM, signal.SIGINT}, _TURN_S)
        stops.reach(self.config.stops, "ending")
        self.end()
        stops.reach(self.config.stops, "ended")
        return 1 if came is None else 128 + came.si_signo

    def end(self) -> None:
        """End QEMU."""
        self.process.kill()
        self.process.wait(_END_S)

    def _line(self, functions: Sequence[coldplug.Function], qmp: int, agent: int, cid: int | None) -> list[str]:
        config = self.config
        accelerator = config.accelerator or ("kvm" if os.access("/dev/kvm", os.R_OK | os.W_OK) else "tcg")
        words = [config.path, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        words += ["-name", f"sandbox-{self.folder.name}", "-machine", f"q35,accel={accelerator}"]
        words += ["-cpu", "host" if accelerator == "kvm" else "max", "-smp", str(config.default_vcpus)]
        words += ["-m", f"{config.default_memory}M"]
        if config.enable_hugepages:
            memory = f"memory-backend-memfd,id=memory,size={config.default_memory}M,hugetlb=on,hugetlbsize=2M"
            words += ["-machine", "memory-backend=memory", "-object", memory]
        append = f"console=ttyS0 panic=-1 {config.kernel_params}" + ("" if cid is None else " agent.vsock")
        words += ["-kernel", config.kernel, "-initrd", config.initrd, "-append", append]
        words += ["-chardev", f"file,id=console,path={self.folder / 'console'}", "-serial", "chardev:console"]
        words += ["-chardev", f"socket,id=qmp,fd={qmp}", "-mon", "chardev=qmp,mode=control"]
        words += ["-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,fd={agent}"]
        words += ["-device", f"virtserialport,chardev=agent,name={PORT_NAME}"]
        if cid is not None:
            words += ["-device", f"vhost-vsock-pci,guest-cid={cid}"]
        return [*words, *coldplug.device_words(config, functions)]

    def _wait_made(self, qmp: socket.socket) -> None:
        """Wait for QEMU's answer over QMP: it has made the machine, and pinned its memory for VFIO."""
        qmp.settimeout(self.config.dial_timeout)
        lines = qmp.makefile("rwb", buffering=0)
        with contextlib.suppress(OSError):
            if lines.readline():
                lines.write(b'{"execute":"qmp_capabilities"}\n')
                if b"return" in lines.readline():
                    self._qmp = lines  # kept open
                    return
        raise coldplug.Refused(f"QEMU did not start: {self._last_words()}")

    def _connect(self, cid: int) -> socket.socket:
        until = time.monotonic() + self.config.dial_timeout
        while time.monotonic() < until and self.process.poll() is None:
            peer = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
            peer.settimeout(2)
            try:
                peer.connect((cid, _VSOCK_PORT))
            except OSError:
                peer.close()
                time.sleep(0.05)
            else:
                return peer
        raise coldplug.Refused(f"no agent at vsock {cid}:{_VSOCK_PORT}: {self._last_words()}")

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.5)
        said = (self.folder / "emulator").read_text(errors="replace").strip()
        console = self.folder / "console"
        shown = console.read_text(errors="replace").strip() if console.exists() else ""
        return said[-600:] or shown[-600:] or "it says nothing"

    def _hear(self) -> None:
        try:
            while True:
                channel, kind, payload = wire.receive(self._agent)
                client = self._clients.get(channel)
                if client is not None:
                    with contextlib.suppress(wire.Ended):
                        wire.send(client, channel, kind, payload)
        except wire.Ended:
            self._over.set()

    def _ask_times(self) -> bytes:
        """Return what the guest's kernel says of itself. Raises: wire.Ended; TimeoutError."""
        ours, theirs = socket.socketpair()
        channel = next(self._channels)
        self._clients[channel] = theirs
        try:
            ours.settimeout(_TIMES_S)
            with self._lock:
                wire.send(self._agent, channel, "S")
            return wire.receive(ours)[2]
        finally:
            self._clients.pop(channel, None)
            ours.close()
            theirs.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            channel = next(self._channels)
            self._clients[channel] = client
            threading.Thread(target=self._carry, args=(channel, client), daemon=True).start()

    def _carry(self, channel: int, client: socket.socket) -> None:
        with contextlib.suppress(wire.Ended):
            while True:
                _, kind, payload = wire.receive(client)
                with self._lock:
                    wire.send(self._agent, channel, kind, payload)
        self._clients.pop(channel, None)


def run(
    folder: Path,
    config: coldplug.Config,
    functions: Sequence[coldplug.Function],
    timeline: Timeline,
    *,
    cgroup: str,
    told: int,
) -> NoReturn:
    """Be the sandbox's process.

    Args: cgroup: the sandbox's, in its pod's.   told: gets `{}` once the machine runs, or `{"refused": …}`.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    one, code = Sandbox(folder, config, timeline, cgroup), 1
    try:
        one.boot(functions)
        (folder / "phases.json").write_text(json.dumps(timeline.phases))
        os.write(told, b"{}")
        os.close(told)
        code = one.serve()
    except coldplug.Refused as error:
        if hasattr(one, "process"):
            one.end()
        os.write(told, json.dumps({"refused": str(error)}).encode())
    except BrokenPipeError:
        one.end()  # whoever asked for the sandbox was killed meanwhile
    os._exit(code)
