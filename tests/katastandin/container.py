"""One command in a sandbox's machine, seen from the host: a process that writes its output and ends with its code.

The engine's shim watches that process as it would watch runc's. It is the shim's child, since its starter has ended.
"""

from __future__ import annotations

import io
import os
import socket
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from tests.katastandin import coldplug, wire

_KERNEL: Final = frozenset({"proc", "sysfs", "tmpfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2"})
"""Mounts that the guest's kernel makes for itself."""
START: Final = "start"
RUNS: Final = "runs"
_LOST: Final = 255


def connect(sandbox: Path) -> socket.socket:
    """Return a channel to the agent. Raises: coldplug.Refused: there is no such sandbox, or it has ended."""
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.connect(str(sandbox / "agent"))
    except OSError as error:
        peer.close()
        raise coldplug.Refused(f"sandbox {sandbox.name} does not run: {error.strerror}") from None
    return peer


def ask(peer: socket.socket, kind: str, payload: bytes = b"") -> None:
    """Have the agent do something. Raises: coldplug.Refused: with its words."""
    try:
        wire.send(peer, 0, kind, payload)
        _, answer, said = wire.receive(peer)
    except wire.Ended:
        raise coldplug.Refused("the machine has ended") from None
    if answer == "x":
        raise coldplug.Refused(said.decode(errors="replace"))


def load(peer: socket.socket, name: str, bundle: Path, spec: Mapping[str, Any]) -> None:
    """Copy a container's root and what is mounted into it; nothing is copied back. Raises: coldplug.Refused."""
    root = bundle / str(spec["root"]["path"])
    _stream(peer, name, "/", root)
    ask(peer, "m", wire.strings(name))
    for mount in spec.get("mounts", ()):
        source, target = Path(mount.get("source", "")), Path(mount["destination"])
        if mount.get("type") in _KERNEL and "bind" not in mount.get("options", ()):
            continue
        if source.is_file():
            _stream_file(peer, name, target, source)
        elif source.is_dir():
            _stream(peer, name, str(target), source)
        else:
            raise coldplug.Refused(f"Kata's stand-in shares no {mount.get('type')} from {source}")


def _stream(peer: socket.socket, name: str, target: str, folder: Path) -> None:
    ask(peer, "n", wire.strings(name, target))
    with subprocess.Popen(("busybox", "tar", "-c", "-f", "-", "-C", folder, "."), stdout=subprocess.PIPE) as packing:
        assert packing.stdout is not None
        while data := packing.stdout.read(wire.LARGEST):
            wire.send(peer, 0, "d", data)
    if packing.returncode:
        raise coldplug.Refused(f"{folder} cannot be packed")
    ask(peer, "e")


def _stream_file(peer: socket.socket, name: str, target: Path, source: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(source, target.name)
    ask(peer, "n", wire.strings(name, str(target.parent)))
    data = packed.getvalue()
    for at in range(0, len(data), wire.LARGEST):
        wire.send(peer, 0, "d", data[at : at + wire.LARGEST])
    ask(peer, "e")


def begin(peer: socket.socket, name: str, process: Mapping[str, Any]) -> None:
    """Start a command. Raises: coldplug.Refused: it cannot be started."""
    user = process.get("user", {})
    words = [str(one) for one in process["args"]]
    fixed = (name, process.get("cwd", "/"), str(user.get("uid", 0)), str(user.get("gid", 0)), str(len(words)))
    ask(peer, "r", wire.strings(*fixed, *words, *process.get("env", ())))


def follow(peer: socket.socket) -> NoReturn:
    """Write what the command writes, and end as it ends."""
    code = _LOST  # of one whose machine has ended
    try:
        while True:
            _, kind, payload = wire.receive(peer)
            if kind == "q":
                code = int(payload)
                break
            if kind in "OE":
                _write(1 if kind == "O" else 2, payload)
    except wire.Ended:
        pass
    os._exit(code)


def _write(to: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(to, data) :]
        except OSError:
            return  # nobody reads it any more


def wait_start(folder: Path) -> socket.socket:
    """Return whoever asks for the start, to be answered."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / START))
        listener.listen()
        return listener.accept()[0]
