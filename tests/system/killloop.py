"""Kills the service, its kubelet or the whole tree at random under churning clients, and counts what is wrong.

A program of its own: what containers hold it reads from the kernel (the device nodes in their mount namespaces, and
their cgroup's device list where cgroup v1 has one), as well as what is left of containers in the end (processes in
their cgroups, conmons, OCI runtimes); which containers there are it asks podman. Our API only gives it work to do.
Containers that others run on the machine meanwhile are told from its own by the names that podman's storage has.

    python tests/system/killloop.py --state FOLDER --image IMAGE --kills 100 [--clients 8] [--pause 4] [--seed N]

Most kills wait for a service that answers and has its kubelet: on a busy machine the others would only meet programs
that start, and no container. Prints one JSON object: kills by kind, how many of them met a start, containers asked for
and seen with GPUs, GPUs held twice, lost, orphans, whether the database is whole. Exit code 1 where any of the last
four is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

GPUS = 8
PATIENCE_S = 180.0
ACCEPTED = {200, 201, 202}
_NODE = re.compile(r"nvidia([0-9]+)\Z")
_CONTAINER = re.compile(r"/libpod-([0-9a-f]{64})")
_ID = re.compile(rb"\b[0-9a-f]{64}\b")
_STORAGE = Path("/var/lib/containers/storage/overlay-containers")
_KEEPERS = ("conmon", "runc", "crun")
_EARLY = 0.2
"""Share of the kills that do not wait for the service."""
_START = 18
"""Index of the start time among what follows a process's state in /proc/PID/stat (proc(5): field 22)."""
_RULE = re.compile(r"c 195:([0-9]+) [rwm]*r")


class Unix(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("fairlead", timeout=20)
        self.path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Loop:
    """The service, its clients, and what was seen."""

    def __init__(self, state: Path, image: str, *, seed: int) -> None:
        self.state, self.image, self.random = state, image, random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.early = 0
        """Kills that did not wait for the service."""
        self.asked = 0
        self.met: set[str] = set()
        """Containers that were seen with GPUs."""
        self.twice: list[str] = []
        self.seen: list[str] = []
        """What was there instead of a container with every GPU."""
        self.last: Any = None
        """What the service says of the container that asks for every GPU in the end."""
        self.over = threading.Event()
        self.before = remains()
        """Others' containers on this machine."""
        self.mark = f"kl{os.getpid()}-"
        """In the names of all containers that are asked for here."""
        self.others: set[str] = set()
        """Ids of containers that others have made since."""
        self.process: subprocess.Popen[bytes] | None = None

    # the service

    def env(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": "/root",
            "FAIRLEAD_STATE_FOLDER": str(self.state / "state"),
            "FAIRLEAD_STATE_RUN": str(self.state / "run"),
            "FAIRLEAD_LOG_LEVEL": "warning",
        }

    def up(self) -> None:
        line = (sys.executable, "-m", "fairlead.cli.main", "up", "--simulate", f"h100x{GPUS}")
        with (self.state / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                line, env=self.env(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def children(self) -> list[int]:
        assert self.process is not None
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        with contextlib.suppress(OSError):
            return [int(word) for word in path.read_text().split()]
        return []

    def strike(self) -> None:
        """Kill one of three at once: the service, its kubelet, or all that it started."""
        assert self.process is not None
        kind = self.random.choices(("service", "kubelet", "tree"), (5, 3, 2))[0]
        victims = {
            "service": [self.process.pid],
            "kubelet": [pid for pid in self.children() if b"kubelet" in words(pid)],
            "tree": [self.process.pid, *self.children()],
        }[kind]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if victims:
            self.kills[kind] += 1
        if kind != "kubelet":
            self.process.wait()
            self.up()

    # clients

    def call(self, method: str, path: str, body: object = None) -> int:
        connection = Unix(self.state / "run" / "api.sock")
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def ask(self, path: str, method: str = "GET", body: object = None, timeout: float = 20) -> Any:
        """Return what the service answers; None where nobody does, or it refuses."""
        connection = Unix(self.state / "run" / "api.sock")
        connection.timeout = timeout
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            return json.loads(text) if answer.status in ACCEPTED else None
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()

    def churn(self, number: int) -> None:
        chance = random.Random(f"{number}-{self.random.random()}")
        count = 0
        while not self.over.is_set():
            count += 1
            name = f"{self.mark}{number}-{count}"
            command = chance.choice((["true"], ["sleep", "2"], ["sleep", "1000"]))
            body = {"name": name, "image": self.image, "command": command, "gpus": chance.choice((1, 1, 2, 4, 8))}
            if self.call("POST", "/v1/containers", body) not in ACCEPTED:
                time.sleep(0.2)
            self.asked += 1
            time.sleep(chance.uniform(0.0, 2.5))
            # A client that gave up during a long outage would leave what nobody deletes.
            while self.call("DELETE", f"/v1/containers/{name}?grace=0") not in {200, 202, 204, 404}:
                time.sleep(0.1)

    # what is so, by podman and the kernel

    def containers(self) -> list[dict[str, Any]]:
        path = self.state / "state" / "kubelet" / "home-id"
        if not path.exists():
            return []
        wanted = f"label=fairlead.dev/home={path.read_text().strip()}"
        line = ("podman", "--runtime", "runc", "ps", "-a", "--format", "json", "--filter", wanted)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
            if done.returncode == 0:
                found: list[dict[str, Any]] = json.loads(done.stdout or "[]")
                return found
            # One container of the machine that is just ending fails podman's listing of all: that is not "none".
            if time.monotonic() > deadline:
                raise RuntimeError(f"podman lists nothing for {PATIENCE_S:g} s: {done.stderr[-500:]}")
            time.sleep(0.5)

    def look(self) -> None:
        """Note GPUs that two containers alive now can both reach."""
        self.note_others()
        held: dict[str, str] = {}
        for item in self.containers():
            pid, name = int(item.get("Pid") or 0), item["Names"][0]
            for gpu in gpus_of(pid) if pid else ():
                self.met.add(name)
                if gpu in held and Path(f"/proc/{pid}").exists() and held[gpu] != name:
                    self.twice.append(f"{gpu}: {held[gpu]} and {name}")
                held[gpu] = name

    def is_up(self) -> bool:
        """Return whether the service answers and has its kubelet."""
        return self.call("GET", "/v1/status") == 200 and any(b"kubelet" in words(pid) for pid in self.children())

    def until(self, holds: Any, seconds: float = PATIENCE_S) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if holds():
                return True
            time.sleep(0.5)
        return False

    def all_free(self) -> int:
        """Ask for every GPU at once and count, in the kernel, what the container got."""
        body = {"name": f"{self.mark}last", "image": self.image, "command": ["sleep", "1000"], "gpus": GPUS}
        self.until(lambda: self.call("POST", "/v1/containers", body) in {*ACCEPTED, 409})
        found: list[int] = [0]

        def is_there() -> bool:
            self.last = self.ask(f"/v1/containers/{self.mark}last") or self.last
            pids = [int(item.get("Pid") or 0) for item in self.containers()]
            found[0] = max((len(gpus_of(pid)) for pid in pids if pid), default=0)
            return found[0] == GPUS

        if not self.until(is_there):
            self.seen = [
                *(
                    [f"asked for all GPUs: {self.last}"]
                    if self.last
                    else ["nobody answered who was asked for all GPUs"]
                ),
                *(f"{item['Names'][0]} {item['State']} {sorted(gpus_of(item['Pid']))}" for item in self.containers()),
            ]
        self.call("DELETE", f"/v1/containers/{self.mark}last?grace=0")
        return found[0]

    def is_whole(self) -> bool:
        whole = True
        for path in (self.state / "state").rglob("*.db"):
            with contextlib.closing(sqlite3.connect(path)) as db:
                whole = whole and db.execute("pragma integrity_check").fetchall() == [("ok",)]
        return whole

    def orphans(self) -> list[str]:
        """Return what is left of containers that nobody asks for: podman's entries and the kernel's processes."""
        names = [item["Names"][0] for item in self.containers()]
        left = {key: what for key, what in remains().items() if key not in self.before}
        self.note_others()
        return [*names, *(what for (pid, _), what in left.items() if container_of(pid) not in self.others)]

    def note_others(self) -> None:
        """Learn from podman's storage which containers are not of this loop; one without an entry may be ours."""
        for path in _STORAGE.glob("*containers.json"):
            with contextlib.suppress(OSError, ValueError):  # written meanwhile
                rows = json.loads(path.read_bytes())
                self.others |= {row["id"] for row in rows if not any(self.mark in name for name in row["names"])}

    def run(self, kills: int, clients: int, pause_s: float) -> dict[str, Any]:
        self.up()
        threads = [threading.Thread(target=self.churn, args=(number,), daemon=True) for number in range(clients)]
        for thread in threads:
            thread.start()
        while self.kills.total() < kills:
            if self.random.random() < _EARLY:
                self.early += 1
            else:
                self.until(self.is_up)
            time.sleep(self.random.uniform(0.3, pause_s))
            self.strike()
            self.look()
        self.over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert self.process is not None
        if self.process.poll() is not None:
            self.up()
        gone = self.until(lambda: not self.containers())
        left = [] if gone else self.orphans()
        free = self.all_free()
        self.until(lambda: not self.containers())
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        last: list[str] = []

        def is_clean() -> bool:
            last[:] = self.orphans()
            return not last

        self.until(is_clean, 30)
        return {
            "kills": dict(self.kills),
            "early": self.early,
            "asked": self.asked,
            "met": len(self.met),
            "held_twice": self.twice,
            "orphans": [*left, *last],
            "free": free,
            "lost": GPUS - free,
            "seen": self.seen,
            "whole": self.is_whole(),
        }


def pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def words(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def container_of(pid: int) -> str:
    """Return the id of the container that a process is in or works for; "": it is gone, or of none."""
    with contextlib.suppress(OSError):
        if inside := _CONTAINER.search(Path(f"/proc/{pid}/cgroup").read_text()):
            return inside[1]
    named = _ID.search(words(pid))
    return named[0].decode() if named else ""


def remains() -> dict[tuple[int, str], str]:
    """Return what each process of containers is, by pid and start time, whatever podman knows of it.

    Conmons, OCI runtimes at work (`runc init` is a container that was never let go), and what is in a container's
    cgroup. A zombie holds nothing.
    """
    found = {}
    for pid in pids():
        with contextlib.suppress(OSError):
            state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            program = words(pid).split(b"\0")[0].rpartition(b"/")[2].decode(errors="replace")
            inside = _CONTAINER.search(Path(f"/proc/{pid}/cgroup").read_text())
            what = f"container {inside[1][:12]}" if inside else program if program in _KEEPERS else ""
            if what and state != "Z":
                found[pid, fields[_START]] = f"{what}: process {pid} {words(pid)[:200]!r}"
    return found


def gpus_of(pid: int) -> set[str]:
    """Return the GPUs a process could open: nodes in its /dev, as far as its cgroup's list (v1) lets it."""
    found = set()
    with contextlib.suppress(OSError):
        found = {match[1] for path in Path(f"/proc/{pid}/root/dev").iterdir() if (match := _NODE.match(path.name))}
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            rules = Path(f"/sys/fs/cgroup/devices{place}/devices.list")
            if "devices" in controllers.split(",") and rules.exists():
                found &= set(_RULE.findall(rules.read_text()))
    return found


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--state", type=Path, required=True)
    asked.add_argument("--image", required=True)
    asked.add_argument("--kills", type=int, default=100)
    asked.add_argument("--clients", type=int, default=8)
    asked.add_argument("--pause", type=float, default=4.0, help="longest seconds between two kills")
    asked.add_argument("--seed", type=int, default=int(time.time()))
    given = asked.parse_args()
    loop = Loop(given.state, given.image, seed=given.seed)
    try:
        found = {"seed": given.seed, **loop.run(given.kills, given.clients, given.pause)}
    finally:
        if loop.process is not None and loop.process.poll() is None:
            loop.process.kill()
        for item in sorted(loop.containers(), key=lambda item: "-sandbox-" in item["Names"][0]):
            subprocess.run(("podman", "--runtime", "runc", "rm", "-f", "-t", "0", item["Id"]), check=False)
    sys.stdout.write(f"{json.dumps(found)}\n")
    good = not found["held_twice"] and not found["orphans"] and found["lost"] == 0 and found["whole"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
