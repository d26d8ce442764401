"""Plays a Fabric Manager in a process of its own, or in a thread: what the stub of its library forwards is done here.

Bytes are written from the published table, with `struct`, and not from the package's statement. Faults come by command
over the same socket, so that a process can be told too. What it did stays in `journal`; active partitions
are in memory, and in a file where one is named: that stands for the switches, which go on when the Manager ends. A list
of active partitions that a client sets changes what the Manager believes, and no switch.

    python -I manager.py unix:/run/fm.sock h100 [restart] [state FILE] [abort SECONDS] [fault NAME=VALUE …]
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

HELLO, LIST, ACTIVATE, DEACTIVATE, SET, FAILED, UNSUPPORTED = range(1, 8)
COMMAND = 100
CRASH = 0x7FFFFFFF
OK, VERSION, LOST, IN_USE, ACTIVE, INACTIVE, NOT_READY = 0, -6, -9, -12, -17, -18, -22
GPU, HEAD = struct.Struct("<I80s32sIII"), struct.Struct("<III")
PARTITION_BYTES, LIST_BYTES = 2060, 131852
V1, V2 = 0x0100010C, 0x02000110


class Manager:
    """One Manager: its partitions, which are active, and what is wrong with it."""

    def __init__(
        self,
        partitions: dict[int, tuple[int, ...]],
        links: int,
        *,
        is_restarted: bool = False,
        state: Path | None = None,
        abort_s: float = 60,
    ) -> None:
        self.partitions, self.links, self.state = partitions, links, state
        self.faults: dict[str, str] = {}
        self.journal: list[str] = []
        self.lock = threading.RLock()
        self.is_dead = False
        self.active: set[int] = set()
        self.is_waiting = is_restarted
        self.has_aborted = False
        self.listener: socket.socket | None = None
        self.open: set[socket.socket] = set()
        self.switched: Callable[[int, bool], None] = lambda _partition, _is_on: None
        """Called with each partition that is switched, and whether on."""
        if is_restarted:
            timer = threading.Timer(abort_s, self.abort)
            timer.daemon = True
            timer.start()
        elif state is not None:
            self.active = set(switched_on(state))

    def abort(self) -> None:
        """End as a Manager does that was started again and not told what had been active."""
        if self.is_waiting:
            self.has_aborted = True
            self.stop()
            if __name__ == "__main__":
                os._exit(3)

    # serving

    def listen(self, address: str) -> None:
        """Listen on unix:PATH, tcp:HOST:PORT or vsock:CID:PORT, in threads."""
        kind, _, rest = address.partition(":")
        family = {"unix": socket.AF_UNIX, "tcp": socket.AF_INET, "vsock": socket.AF_VSOCK}[kind]
        self.listener = socket.socket(family, socket.SOCK_STREAM)
        if kind == "unix":
            with contextlib.suppress(FileNotFoundError):
                Path(rest).unlink()
            self.listener.bind(rest)
        else:
            host, _, port = rest.rpartition(":")
            if kind == "tcp":
                self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.listener.bind((int(host) if kind == "vsock" else host, int(port)))
        self.listener.listen(16)
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    @property
    def port(self) -> int:
        assert self.listener is not None
        return int(self.listener.getsockname()[1])

    def stop(self) -> None:
        """End as a process does that is killed: every connection breaks, and nothing is switched any more."""
        with self.lock:
            self.is_dead = True
        if self.listener is not None:
            with contextlib.suppress(OSError):  # wakes the thread that accepts
                self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
        self.hang_up()

    def hang_up(self) -> None:
        """Break every connection, and go on: what was done for one that is gone stays done."""
        for one in list(self.open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            self.open.add(one)
            threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one: socket.socket) -> None:
        with one, contextlib.suppress(OSError, EOFError):
            while True:
                what, argument, size = struct.unpack("<III", _read(one, 12))
                code, body = self.answer(what, argument, _read(one, size))
                one.sendall(struct.pack("<iI", code, len(body)) + body)
        self.open.discard(one)

    # answering

    def answer(self, what: int, argument: int, body: bytes) -> tuple[int, bytes]:
        if what == COMMAND:
            return OK, self.command(body.decode()).encode()
        name = {HELLO: "hello", LIST: "list", ACTIVATE: "activate", DEACTIVATE: "deactivate", SET: "set"}.get(what, "")
        if delay := self.faults.get("slow"):
            time.sleep(float(delay))
        if "crash" in self.faults:  # the library itself ends the process that loaded it
            return CRASH, b""
        if name == self.faults.get("die"):
            self._end()
        if code := self.faults.get(f"{name} fails"):
            return int(code), b""
        if what == HELLO:
            return (VERSION if str(argument) in self.faults.get("versions", "").split() else OK), b""
        if "not ready" in self.faults:
            return NOT_READY, b""
        with self.lock:
            if self.is_dead:
                raise EOFError
            return self._do(what, argument, body)

    def _end(self) -> None:
        self.stop()
        if __name__ == "__main__":
            os._exit(9)
        raise EOFError

    def _do(self, what: int, argument: int, body: bytes) -> tuple[int, bytes]:
        if what == LIST:
            return OK, self.list_bytes()
        if what == SET:
            ids = struct.unpack(f"<{argument}I", body)
            self.journal.append(f"set {sorted(ids)}")
            self.active, self.is_waiting = set(ids), False
            return OK, b""
        if what in {ACTIVATE, DEACTIVATE}:
            return self._switch(argument, is_on=what == ACTIVATE), b""
        none = bytes(10428 if what == FAILED else 4616)
        return OK, self._failed(what) if "links" in self.faults else none

    def _switch(self, partition: int, *, is_on: bool) -> int:
        if self.is_waiting:
            return NOT_READY
        if partition not in self.partitions:
            return -1
        if (partition in self.active) is is_on:
            return ACTIVE if is_on else INACTIVE
        members = set(self.partitions[partition])
        if is_on and any(members & set(self.partitions[one]) for one in self.active):
            return IN_USE
        self.journal.append(f"{'activate' if is_on else 'deactivate'} {partition}")
        self.switched(partition, is_on)
        (self.active.add if is_on else self.active.discard)(partition)
        self._program(partition, is_on=is_on)
        if "answer lost" in self.faults:
            self._end()
        return OK

    def _program(self, partition: int, *, is_on: bool) -> None:
        """Switch: what is programmed goes over what another partition had of the same GPUs."""
        if self.state is not None:
            members = set(self.partitions[partition])
            others = {one for one in switched_on(self.state) if is_on and not members & set(self.partitions[one])}
            now = others | {partition} if is_on else set(switched_on(self.state)) - {partition}
            self.state.with_suffix(".new").write_text(json.dumps(sorted(now)))
            self.state.with_suffix(".new").replace(self.state)

    def _failed(self, what: int) -> bytes:
        one = (
            b"GPU-1".ljust(80, b"\0") + b"00000000:0f:00.0".ljust(32, b"\0") + struct.pack("<I64I", 2, 3, 7, *[0] * 62)
        )
        if what == FAILED:
            return struct.pack("<III", 0, 1, 1) + one + bytes(372 * 15) + one + bytes(372 * 11)
        return struct.pack("<II", 0, 1) + struct.pack("<II16I", 1, 2, 1, 3, *[0] * 14) + bytes(72 * 63)

    def list_bytes(self) -> bytes:
        listed = [(one, gpus) for one, gpus in self.partitions.items()]
        if "twice" in self.faults:
            listed.append(listed[0])
        if "elsewhere" in self.faults:
            listed.append((63, (int(self.faults["elsewhere"]),)))
        if "same gpu" in self.faults:
            listed.append((63, (1, 1)))
        active = {*self.active, *map(int, self.faults.get("also active", "").split())}
        text = b"x" * 80 if "endless" in self.faults else b""
        body = b"".join(self._partition(one, gpus, one in active, text) for one, gpus in listed)
        count = int(self.faults.get("count", len(listed)))
        return (HEAD.pack(0, count, 64) + body).ljust(LIST_BYTES, b"\0")

    def _partition(self, one: int, gpus: tuple[int, ...], is_active: bool, text: bytes) -> bytes:
        links = self.links if len(gpus) > 1 else 0
        items = b"".join(GPU.pack(gpu, text, text[:32], links, self.links, 26562) for gpu in gpus)
        count = int(self.faults.get("gpus", len(gpus)))
        return (HEAD.pack(one, is_active, count) + items).ljust(PARTITION_BYTES, b"\0")

    # commands

    def command(self, text: str) -> str:
        """Obey `fault NAME VALUE`, `mend`, `journal`, `active`."""
        word, _, rest = text.partition(" ")
        if word == "fault":
            name, _, value = rest.partition("=")
            self.faults[name] = value
        elif word == "mend":
            self.faults.clear()
        elif word == "journal":
            return json.dumps(self.journal)
        elif word == "active":
            return json.dumps(sorted(self.active))
        return ""


def switched_on(state: Path) -> list[int]:
    """Return the partitions that the switches have, whatever a Manager believes."""
    return [int(one) for one in json.loads(state.read_text())] if state.exists() else []


def _read(one: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = one.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return found


def ask(path: str, command: str) -> str:
    """Give a command to the Manager of a unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.connect(path)
        body = command.encode()
        one.sendall(struct.pack("<III", COMMAND, 0, len(body)) + body)
        _, size = struct.unpack("<iI", _read(one, 8))
        return _read(one, size).decode()


def main(address: str, lattice: str, *words: str) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.fabricstub.lattice import LATTICES

    chosen = LATTICES[lattice]
    state = Path(words[words.index("state") + 1]) if "state" in words else None
    abort_s = float(words[words.index("abort") + 1]) if "abort" in words else 60
    made = Manager(chosen.partitions, chosen.links, is_restarted="restart" in words, state=state, abort_s=abort_s)
    for fault in words[words.index("fault") + 1 :] if "fault" in words else ():
        made.command(f"fault {fault}")
    made.listen(address)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
