"""Plays QEMU and the guest in it for Kata's stand-in, where no kernel is to boot and no GPU is there.

It is not a virtual machine.

What it does as QEMU: opens the VFIO node of each function, which one process can have at a time (`flock` here), keeps
them to its end, has a session of its own, answers QMP. As the guest: the agent's frames (`agent.c`); a command runs
until it is killed, but for `/bin/true`. In a GPU's memory it leaves its name, and it writes down what must never
happen: another tenant's bytes, and NVLink partitions of its GPUs that are not its own slot's.

    python -I emulatordouble.py ROOT [QEMU's words]

ROOT has `dev/vfio/GROUP`, `sys`, `memory/ADDRESS`, `read/ADDRESS` (there once a GPU was read since its last tenant),
`switches` (partitions that are active; where `switches-lost` is there a machine may run without its own),
`partitions.json` (modules by partition), `modules.json` (module by address), `listed.json` (pod by slot, as the
kubelet lists them).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import socket
import struct
import sys
import time
from pathlib import Path

HEAD = struct.Struct("<IBI")
LOOK_S = 0.01


def main(root: Path, words: list[str]) -> int:
    """Be a machine until it is killed."""
    sockets = dict(re.findall(r"socket,id=(qmp|agent),fd=(\d+)", " ".join(words)))
    addresses = re.findall(r"vfio-pci,host=([0-9a-f:.]+)", " ".join(words))
    Path(words[words.index("-serial") - 1].partition("path=")[2]).touch()
    held = []
    for address in addresses:
        group = (root / "sys/bus/pci/devices" / address / "iommu_group").resolve().name
        handle = os.open(root / "dev/vfio" / group, os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write(f"vfio {address}: error opening /dev/vfio/{group}: Device or resource busy\n")
            return 1
        held.append(handle)
    me = tenant(root, addresses)
    for address in addresses:
        take(root, address, me)
    qmp, agent = (socket.socket(fileno=int(sockets[one])) for one in ("qmp", "agent"))
    qmp.sendall(b'{"QMP": {}}\n')
    agent.sendall(frame(0, b"R", b"0.0 0.0"))
    serve(root, me, addresses, qmp, agent)
    return 0


def tenant(root: Path, addresses: list[str]) -> str:
    """Return the pod that the kubelet gave the slot with these GPUs to."""
    known, listed = (json.loads((root / name).read_text()) for name in ("modules.json", "listed.json"))
    own = sorted(known[address] for address in addresses)
    for slot, pod in listed.items():
        if sorted(map(int, slot.partition("-")[2].split("."))) == own:
            return str(pod)
    return f"a stranger with {own}"


def take(root: Path, address: str, me: str) -> None:
    """Write into a GPU's memory. Whoever reads it from now on has to clean and read it first."""
    found = (root / "memory" / address).read_text()
    if found == me:
        return  # another attempt of the same pod
    if found:
        note(root, f"{me} reads what {found} left in {address}")
    if not (root / "read" / address).exists():
        note(root, f"{me} has {address}, which nobody has read since its last tenant")
    (root / "read" / address).unlink(missing_ok=True)
    (root / "memory" / address).write_text(me)


def note(root: Path, violation: str) -> None:
    """Write down what must never happen."""
    with (root / "violations").open("a") as file:
        file.write(f"{violation}\n")


def look(root: Path, addresses: list[str], me: str) -> None:
    """Hold the active partitions against this machine's GPUs: its own partition, whole, and no other."""
    known = json.loads((root / "modules.json").read_text())
    own = {known[address] for address in addresses}
    partitions = json.loads((root / "partitions.json").read_text())
    active = json.loads((root / "switches").read_text()) if (root / "switches").exists() else []
    for one in active:
        members = set(partitions[str(one)])
        if members & own and members != own and len(members) > 1:
            note(root, f"partition {one} is active, of which {me} has only {sorted(members & own)}")
    if (
        len(own) > 1
        and not (root / "switches-lost").exists()
        and not any(set(partitions[str(one)]) == own for one in active)
    ):
        note(root, f"{me} with {sorted(own)} runs without its partition; active: {active}")


def serve(root: Path, me: str, addresses: list[str], qmp: socket.socket, agent: socket.socket) -> None:
    """Answer, for ever: as a machine does whose host's process has died."""
    runs: dict[str, int] = {}
    peers = [qmp, agent]
    while True:
        ready, _, _ = select.select(peers, [], [], LOOK_S)
        look(root, addresses, me)
        for one in ready:
            try:
                if one is qmp:
                    alive = bool(data := qmp.recv(4096))
                    if data:
                        qmp.sendall(b'{"return": {}}\n')
                else:
                    alive = answer(agent, runs)
            except OSError:
                alive = False
            if not alive:
                peers.remove(one)
        if not peers:
            time.sleep(LOOK_S)


def answer(agent: socket.socket, runs: dict[str, int]) -> bool:
    """Answer one frame; returns whether the other end is there."""
    head = exactly(agent, HEAD.size)
    if not head:
        return False
    channel, kind, size = HEAD.unpack(head)
    words = exactly(agent, size).split(b"\0")
    what = chr(kind)
    if what in "nem":
        agent.sendall(frame(channel, b"o"))
    elif what == "r":
        agent.sendall(frame(channel, b"p") + frame(channel, b"O", b"runs\n"))
        if words[5] == b"/bin/true":
            agent.sendall(frame(channel, b"q", b"0"))
        else:
            runs[words[0].decode()] = channel
    elif what == "k":
        agent.sendall(frame(channel, b"o"))
        if (running := runs.pop(words[0].decode(), None)) is not None:
            agent.sendall(frame(running, b"q", str(128 + int(words[1])).encode()))
    elif what != "d":
        agent.sendall(frame(channel, b"x", b"an unknown frame"))
    return True


def frame(channel: int, kind: bytes, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return HEAD.pack(channel, kind[0], len(payload)) + payload


def exactly(peer: socket.socket, size: int) -> bytes:
    """Return so many bytes; fewer at the end."""
    data = b""
    while len(data) < size and (part := peer.recv(size - len(data))):
        data += part
    return data


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
