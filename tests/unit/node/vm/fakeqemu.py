"""A program in QEMU's place: it speaks QMP, and its guest reports what a test says."""

from __future__ import annotations

import sys
from pathlib import Path

_PROGRAM = """#!{python} -IS
import json, os, socket, sys, time
words = [word for word in sys.argv if ",fd=" in word]
qmp, report = (socket.socket(fileno=int(word.rpartition("=")[2])) for word in words)
devices = [json.loads(sys.argv[at + 1]) for at, word in enumerate(sys.argv) if word == "-device"]
nonce = next((word.partition("=")[2] for word in sys.argv[sys.argv.index("-append") + 1].split()
              if word.startswith("fairlead.nonce=")), "")
functions = [one for one in devices if one["driver"] == "vfio-pci"]
def say(value): qmp.sendall(json.dumps(value).encode() + b"\\n")
def hear():
    line = b""
    while not line.endswith(b"\\n"):
        data = qmp.recv(1)
        if not data: sys.exit(3)
        line += data
    return json.loads(line)
def greet():
    say({{"QMP": {{"version": {{"qemu": {{"major": 11, "minor": 1, "micro": 3}}}}}}}})
    say({{"return": {{}}, "id": hear()["id"]}})
def buses():
    def device(at, one): return {{"bus": at + 1, "slot": 0, "function": 0, "qdev_id": one["id"]}}
    ports = [{{"bus": 0, "slot": at + 1, "function": 0, "qdev_id": "port%d" % at,
               "pci_bridge": {{"bus": {{"number": 0}}, "devices": [device(at, one)]}}}}
             for at, one in enumerate(functions)]
    return [{{"bus": 0, "devices": [{{"bus": 0, "slot": 0, "function": 0, "qdev_id": ""}}, *ports]}}]
def gpus(**more):
    return [{{"pci": "0000:%02x:00.0" % (at + 1), "serial": "s-" + one["host"], "device": "233010de",
              "vbios": "96.00", "inforom": "G520", "mig_mode": False, **more}} for at, one in enumerate(functions)]
def tell(**more):
    value = {{"version": "fairlead.guest-report/1", "nonce": nonce, "driver": "580.1", "gpus": gpus(), **more}}
    report.sendall(json.dumps(value).encode() + b"\\n")
def listen():
    line = b""
    while not line.endswith(b"\\n"):
        data = report.recv(1)
        if not data: sys.exit(3)
        line += data
    return json.loads(line)
def beat(number): report.sendall(json.dumps({{"version": "fairlead.service-vm/1", "beat": number}}).encode() + b"\\n")
def serve():
    while True:
        asked = hear()
        if asked["execute"] == "quit":
            say({{"return": {{}}, "id": asked["id"]}})
            say({{"event": "SHUTDOWN", "data": {{"reason": "host-qmp-quit"}}}})
            sys.exit(0)
        if asked["execute"] == "query-status":
            say({{"return": {{"status": "running"}}, "id": asked["id"]}})
        elif asked["execute"] == "query-pci":
            say({{"return": buses(), "id": asked["id"]}})
        elif asked["execute"] != "nothing":
            say({{"error": {{"class": "CommandNotFound", "desc": "no \\x1b[2Jsuch"}}, "id": asked["id"]}})
{rest}
"""


def write(folder: Path, rest: str) -> Path:
    """Write the program. Args: rest: what it does, by the functions above."""
    program = folder / "qemu"
    program.write_text(_PROGRAM.format(python=sys.executable, rest=rest))
    program.chmod(0o700)
    return program
