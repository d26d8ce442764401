"""Kills the service, its kubelet or the whole tree at random under churning clients, and counts what is wrong.

A program of its own: what containers hold it reads from the kernel (the device nodes in their mount namespaces, and
their cgroup's device list where cgroup v1 has one), as well as what is left of containers in the end (processes in
their cgroups, conmons, OCI runtimes); which containers there are it asks podman. Our API only gives it work to do.
Containers that others run on the machine meanwhile are told from its own by the names that podman's storage has.

    python tests/system/killloop.py --state FOLDER --image IMAGE --kills 100 [--clients 8] [--pause 4] [--seconds N]

A kill counts where it met a service and its kubelet alive, and where clients had seen a container start since the kill
before. Most kills wait for that; the others strike whatever is there, and are counted apart. A service that ends by
itself is started again, and counted. The loop goes on until so many kills have counted, or for so many seconds.

Prints one JSON object: kills that counted and that did not by target, kills that met containers with GPUs, containers
asked for, seen started and seen with GPUs, GPUs held twice, lost, orphans, whether the database is whole. Exit code 1
where any of the last four is wrong, or too few kills counted.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
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

import kernelseen

GPUS = 8
ACCEPTED = frozenset({200, 201, 202})
GONE = frozenset({200, 202, 204, 404})
PATIENCE_S = 180.0
_STORAGE = Path("/var/lib/containers/storage/overlay-containers")
_EARLY = 0.1
"""Share of the kills that do not wait for the service."""
_HASTY = 0.25
"""Share of the containers that are deleted without a look at whether they started."""
_STARTED = frozenset({"running", "crashed", "succeeded", "failed", "stopped"})
_START_S = 20.0
"""For so long a client waits for its container: others may hold the GPUs."""


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
        self.counted: Counter[str] = Counter()
        self.uncounted: Counter[str] = Counter()
        self.under_load = 0
        """Kills that counted while a container had GPUs."""
        self.ended = 0
        """Times that the service ended by itself."""
        self.asked = 0
        self.started: list[str] = []
        """Containers that a client has seen started."""
        self.before_kill = 0
        """How many of them at the last kill."""
        self.met: set[str] = set()
        """Ids of containers that were seen with GPUs."""
        self.looks = 0
        """How often it was looked whether a GPU is held twice."""
        self.twice: list[str] = []
        self.seen: list[str] = []
        """What was there instead of a container with every GPU."""
        self.last: Any = None
        """What the service says of the container that asks for every GPU in the end."""
        self.over = threading.Event()
        self.before = kernelseen.remains()
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

    def stand(self) -> None:
        """Start a service that has ended by itself, as a process supervisor does."""
        assert self.process is not None
        if self.process.poll() is not None:
            self.ended += 1
            time.sleep(1)
            self.up()

    def kubelet(self) -> list[int]:
        assert self.process is not None
        return [pid for pid in kernelseen.descendants(self.process.pid) if kernelseen.is_kubelet(pid)]

    def strike(self) -> None:
        """Kill one of three at once: the service, its kubelet, or all that it started but containers."""
        assert self.process is not None
        has_held = bool(self.look())
        service, tree, kubelet = self.process.pid, kernelseen.descendants(self.process.pid), self.kubelet()
        kind = self.random.choices(("service", "kubelet", "tree"), (5, 3, 2))[0]
        victims = {"service": [service], "kubelet": kubelet, "tree": [service, *tree]}[kind]
        is_living = bool(kubelet) and all(map(kernelseen.is_alive, (service, *kubelet)))
        counts = is_living and len(self.started) > self.before_kill
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        (self.counted if counts else self.uncounted)[kind if victims else "nothing"] += 1
        self.before_kill = len(self.started)
        self.under_load += counts and has_held
        if kind != "kubelet":
            self.process.wait()
            self.up()

    # clients

    def call(self, method: str, path: str, body: object = None, timeout: float = 20) -> int:
        return self.answer(method, path, body, timeout)[0]

    def ask(self, path: str, method: str = "GET", body: object = None, timeout: float = 20) -> Any:
        """Return what the service answers; None where nobody does, or it refuses."""
        status, found = self.answer(method, path, body, timeout)
        return found if status in ACCEPTED else None

    def answer(self, method: str, path: str, body: object, timeout: float) -> tuple[int, Any]:
        connection = Unix(self.state / "run" / "api.sock")
        connection.timeout = timeout
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        except (OSError, http.client.HTTPException, ValueError):
            return 0, None
        finally:
            connection.close()

    def churn(self, number: int) -> None:
        chance = random.Random(f"{number}-{self.random.random()}")
        count = 0
        while not self.over.is_set():
            count += 1
            name = f"{self.mark}{number}-{count}"
            command = chance.choice((["true"], ["sleep", "2"], ["sleep", "1000"]))
            body = {"name": name, "image": self.image, "command": command, "gpus": chance.choice((1, 1, 1, 2, 2, 4))}
            self.asked += 1
            if self.call("POST", "/v1/containers", body) not in ACCEPTED:
                time.sleep(0.2)
            elif chance.random() > _HASTY and self.has_started(name):
                self.started.append(name)
            time.sleep(chance.uniform(0.0, 1.5))
            # A client that gave up during a long outage would leave what nobody deletes.
            while self.call("DELETE", f"/v1/containers/{name}?grace=0") not in GONE:
                time.sleep(0.1)

    def has_started(self, name: str) -> bool:
        where = f"/v1/containers/{name}/wait?state=started&timeout={_START_S:g}"
        found = self.ask(where, timeout=_START_S + 5)
        return found is not None and found["state"] in _STARTED

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

    def look(self) -> dict[str, tuple[int, str, str]]:
        """Note GPUs that two containers alive at once can both reach; returns who has which, from the kernel alone."""
        held: dict[str, tuple[int, str, str]] = {}
        for pid, began, identity in kernelseen.contained():
            if identity in self.others:
                continue
            for gpu in kernelseen.gpus_of(pid):
                first = held.setdefault(gpu, (pid, began, identity))
                if first[2] != identity and self.still_has(first, gpu):
                    self.twice.append(f"{gpu}: {first} and {(pid, began, identity)}")
        self.met |= {identity for _, _, identity in held.values()}
        self.looks += 1
        return held

    def still_has(self, first: tuple[int, str, str], gpu: str) -> bool:
        """Return whether the first still has a GPU that a second was just seen with: then both had it at once."""
        pid, began, identity = first
        if gpu not in kernelseen.gpus_of(pid) or kernelseen.start_of(pid) != began:
            return False
        self.note_others()
        return identity not in self.others

    def watch(self) -> None:
        """Look all the time, kills or not."""
        while not self.over.wait(0.3):
            self.look()

    def is_served(self) -> bool:
        """Return whether the service answers, has its kubelet, and has started something since the last kill."""
        self.stand()
        if len(self.started) == self.before_kill or not self.kubelet():
            return False
        return self.call("GET", "/v1/status") == 200

    def until(self, holds: Any, seconds: float = PATIENCE_S) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if holds():
                return True
            time.sleep(0.25)
        return False

    def all_free(self) -> int:
        """Ask for every GPU at once and count, in the kernel, what the container got."""
        body = {"name": f"{self.mark}last", "image": self.image, "command": ["sleep", "1000"], "gpus": GPUS}

        def is_taken() -> bool:
            self.stand()
            return self.call("POST", "/v1/containers", body) in {200, 201, 202, 409}

        self.until(is_taken)
        found: list[int] = [0]

        def is_there() -> bool:
            self.last = self.ask(f"/v1/containers/{self.mark}last") or self.last
            pids = [int(item.get("Pid") or 0) for item in self.containers()]
            found[0] = max((len(kernelseen.gpus_of(pid)) for pid in pids if pid), default=0)
            return found[0] == GPUS

        if not self.until(is_there):
            self.seen = [
                f"asked for all GPUs: {self.last}" if self.last else "nobody answered who was asked for all GPUs",
                *(
                    f"{item['Names'][0]} {item['State']} {sorted(kernelseen.gpus_of(item['Pid']))}"
                    for item in self.containers()
                ),
            ]
        self.call("DELETE", f"/v1/containers/{self.mark}last?grace=0")
        return found[0]

    def is_clear(self) -> bool:
        self.stand()
        return not self.containers()

    def is_whole(self) -> bool:
        whole = True
        for path in (self.state / "state").rglob("*.db"):
            with contextlib.closing(sqlite3.connect(path)) as db:
                whole = whole and db.execute("pragma integrity_check").fetchall() == [("ok",)]
        return whole

    def orphans(self) -> list[str]:
        """Return what is left of containers that nobody asks for: podman's entries and the kernel's processes."""
        names = [item["Names"][0] for item in self.containers()]
        left = {key: what for key, what in kernelseen.remains().items() if key not in self.before}
        self.note_others()
        return [*names, *(what for (pid, _), what in left.items() if kernelseen.container_of(pid) not in self.others)]

    def note_others(self) -> None:
        """Learn from podman's storage which containers are not of this loop; one without an entry may be ours."""
        for path in _STORAGE.glob("*containers.json"):
            with contextlib.suppress(OSError, ValueError):  # written meanwhile
                rows = json.loads(path.read_bytes())
                self.others |= {row["id"] for row in rows if not any(self.mark in name for name in row["names"])}

    def run(self, kills: int, clients: int, pause_s: float, limit_s: float) -> dict[str, Any]:
        self.note_others()
        self.up()
        threads = [threading.Thread(target=self.churn, args=(number,), daemon=True) for number in range(clients)]
        threads.append(threading.Thread(target=self.watch, daemon=True))
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + limit_s
        while self.counted.total() < kills and time.monotonic() < deadline:
            if self.random.random() > _EARLY:
                self.until(self.is_served, min(PATIENCE_S, max(0.0, deadline - time.monotonic())))
            time.sleep(self.random.uniform(0.1, pause_s))
            self.stand()
            self.strike()
            self.note_others()
        self.over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        gone = self.until(self.is_clear)
        left = [] if gone else self.orphans()
        free = self.all_free()
        self.until(self.is_clear)
        assert self.process is not None
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        last: list[str] = []

        def is_clean() -> bool:
            last[:] = self.orphans()
            return not last

        self.until(is_clean, 30)
        return {
            "counted": dict(self.counted),
            "uncounted": dict(self.uncounted),
            "under_load": self.under_load,
            "ended_by_itself": self.ended,
            "asked": self.asked,
            "started": len(self.started),
            "met": len(self.met),
            "looks": self.looks,
            "held_twice": self.twice,
            "orphans": [*left, *last],
            "free": free,
            "lost": GPUS - free,
            "seen": self.seen,
            "whole": self.is_whole(),
        }


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--state", type=Path, required=True)
    asked.add_argument("--image", required=True)
    asked.add_argument("--kills", type=int, default=100)
    asked.add_argument("--clients", type=int, default=8)
    asked.add_argument("--pause", type=float, default=4.0, help="longest seconds between two kills")
    asked.add_argument("--seconds", type=float, default=3600.0, help="strike for no longer than this")
    asked.add_argument("--seed", type=int, default=int(time.time()))
    given = asked.parse_args()
    loop = Loop(given.state, given.image, seed=given.seed)
    try:
        found = {"seed": given.seed, **loop.run(given.kills, given.clients, given.pause, given.seconds)}
    finally:
        if loop.process is not None and loop.process.poll() is None:
            loop.process.kill()
        for item in sorted(loop.containers(), key=lambda item: "-sandbox-" in item["Names"][0]):
            subprocess.run(("podman", "--runtime", "runc", "rm", "-f", "-t", "0", item["Id"]), check=False)
    sys.stdout.write(f"{json.dumps(found)}\n")
    good = not found["held_twice"] and not found["orphans"] and found["lost"] == 0 and found["whole"]
    return 0 if good and found["counted"] else 1


if __name__ == "__main__":
    sys.exit(main())
