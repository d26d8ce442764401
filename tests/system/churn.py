"""Churns containers in many tenancies on simulated silicon and kills every process at random, under a checker's eyes.

    python tests/system/churn.py --state FOLDER --image IMAGE [--tenancies 200] [--containers 20] [--seconds 600]
                                 [--clients 8] [--pause 4] [--recycle 30] [--seed N]

The service keeps a ledger and verifies each GPU between two tenants. Clients ask for `--containers` containers in every
tenancy, most with GPUs, let them live a moment and delete them; tenancies are deleted with what runs in them and made
again under their names. Meanwhile something is killed every `--pause` seconds at most: the service, any of its
processes, all of them, a podman or runc at work, a container's monitor, a container's own process. What happened
is judged by `churncheck.py`, which shares nothing with the product. Prints one JSON object; exit code 1 where a GPU was
in two hands, lost or handed on unverified, where anything crossed a tenancy's border, or anything is left over.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kernelseen
import killloop

CHECKER = Path(__file__).with_name("churncheck.py")
ENDED = {"succeeded", "failed", "stopped", "gone"}
SETTINGS = {"FAIRLEAD_LEASE_LEDGER": "on", "FAIRLEAD_LEASE_REUSE": "verify", "FAIRLEAD_LEASE_APPROVALS": "1"}
KINDS = {"service": 3, "its processes": 4, "tree": 2, "at work": 3, "monitor": 2, "container": 4}
"""What is killed, and how often in proportion."""
LISTEN = "nc -ll -p 7000 -e echo heard & exec sleep"
PROVED = ("IPv4 across", "IPv6 across", "name across", "IPv4 within", "IPv6 within", "name within")
"""What must have been tried on containers that were up at once and answered themselves."""
_MOST = 5
"""How often as long as asked it may take until that was tried."""


class Churn(killloop.Loop):
    """The service with its tenancies, clients, and what is killed of it."""

    def __init__(self, state: Path, image: str, *, seed: int) -> None:
        super().__init__(state, image, seed=seed)
        self.mark = f"ch{os.getpid()}-"
        self.kills: Counter[str] = Counter()
        self.names: list[str] = []
        self.spaces: dict[str, str] = {}
        """Namespace of each tenancy that stands."""
        self.work: queue.Queue[tuple[str, int]] = queue.Queue()
        self.done: Counter[str] = Counter()
        self.recycled = 0

    def env(self) -> dict[str, str]:
        return {**super().env(), **SETTINGS}

    def command(self, *words: str) -> str:
        line = (sys.executable, "-m", "fairlead.cli.main", *words)
        done = subprocess.run(line, env=self.env(), capture_output=True, text=True, check=False, timeout=120)
        return done.stdout

    # before

    def approve(self) -> list[str]:
        """Approve the firmware of the simulated boards; return the UUIDs of GPUs in the order of their indices."""

        def boards() -> list[str]:
            with contextlib.suppress(ValueError):
                return [one["board"] for one in json.loads(self.command("lease", "baseline", "list", "-o", "json"))]
            return []

        assert self.until(boards), "no board was seen"
        for board in boards():
            self.command("lease", "baseline", "approve", board)
        assert self.until(lambda: self.ask("/v1/gpus") is not None), "the service lists no GPUs"
        gpus = [one["gpu"] for one in self.ask("/v1/gpus")["gpus"]]
        return [str(one["uuid"]) for one in sorted(gpus, key=lambda one: int(one["minor"]))]

    def make(self, name: str) -> bool:
        """Make a tenancy and wait until it is ready."""
        self.ask("/v1/tenancies", "POST", {"name": name, "quota": {"pods": "20"}})
        found = self.ask(f"/v1/tenancies/{name}/wait?state=ready&timeout=15", timeout=20)
        if found is not None and found["phase"] == "Ready":
            self.spaces[name] = found["namespace"]
            return True
        return False

    def make_all(self, count: int) -> float:
        began = time.monotonic()
        self.names = [f"t{number}" for number in range(count)]
        for name in self.names:
            assert self.until(lambda name=name: self.make(name)), f"tenancy {name} is never ready"
        return time.monotonic() - began

    # clients

    def fill(self, containers: int) -> None:
        """Hand out one round: every container of every tenancy once."""
        every = [(name, number) for name in self.names for number in range(containers)]
        self.random.shuffle(every)
        for one in every:
            self.work.put(one)

    def churn_tenancies(self, number: int, containers: int) -> None:
        chance = random.Random(f"{number}-{self.random.random()}")
        while not self.over.is_set():
            try:
                tenancy, count = self.work.get_nowait()
            except queue.Empty:
                self.fill(containers)
                continue
            self.live(chance, tenancy, f"{self.mark}{tenancy}-{count}-{number}{chance.randrange(10**6)}")

    def live(self, chance: random.Random, tenancy: str, name: str) -> None:
        """Ask for one container, let it live a moment, and delete it."""
        seconds = chance.choice((1, 3, 1000))
        body = {
            "name": name,
            "image": self.image,
            "tenancy": tenancy,
            "command": ["sh", "-c", f"{LISTEN} {seconds}"],
            "gpus": chance.choice((0, 1, 1, 1, 2, 4)),
        }
        made = self.ask("/v1/containers", "POST", body)
        self.asked += 1
        if made is None:
            self.done["refused or not answered"] += 1
            time.sleep(0.2)
        space = made["namespace"] if made else self.spaces.get(tenancy, "default")
        where = f"/v1/containers/{name}"
        if made is not None:
            found = self.ask(f"{where}/wait?state=started&timeout=15&namespace={space}", timeout=20)
            self.done[told(found) if found else "no answer"] += 1
            time.sleep(chance.uniform(0.0, 2.5))
        # A client that gave up during a long outage would leave what nobody deletes.
        while self.call("DELETE", f"{where}?grace=0&namespace={space}") not in killloop.GONE:
            time.sleep(0.1)

    def reside(self, tenancies: int) -> None:
        """Keep two containers without GPUs up in some tenancies, so that the checker has pairs to send packets between.

        One that a kill ended, or whose tenancy was deleted, is deleted and asked for again.
        """
        while not self.over.wait(2.0):
            for tenancy in self.names[:tenancies]:
                space = self.space_of(tenancy)
                for number in range(2 if space else 0):
                    name = f"{self.mark}{tenancy}-resident{number}"
                    where = f"/v1/containers/{name}?namespace={space}"
                    found = self.ask(where)
                    if found is not None and found["state"] not in ENDED:
                        continue
                    self.call("DELETE", f"{where}&grace=0")
                    command = ["sh", "-c", f"{LISTEN} 100000"]
                    body = {"name": name, "image": self.image, "tenancy": tenancy, "command": command, "gpus": 0}
                    self.ask("/v1/containers", "POST", body)

    def recycle(self, every_s: float) -> None:
        """Delete a tenancy with what runs in it and make it again under its name."""
        while not self.over.wait(every_s):
            name = self.random.choice(self.names)
            while self.call("DELETE", f"/v1/tenancies/{name}") not in killloop.GONE:
                time.sleep(0.5)
            if not self.until(lambda name=name: self.call("GET", f"/v1/tenancies/{name}") == 404):
                self.seen.append(f"tenancy {name} never ends")
                continue
            if not self.until(lambda name=name: self.make(name)):
                self.seen.append(f"tenancy {name} is never ready again")
            self.recycled += 1

    def dismiss(self, tenancies: int) -> None:
        self.until(lambda: all(self.space_of(name) for name in self.names[:tenancies]))
        for tenancy in self.names[:tenancies]:
            for number in range(2):
                name = f"{self.mark}{tenancy}-resident{number}"
                where = f"/v1/containers/{name}?grace=0&namespace={self.space_of(tenancy)}"
                self.until(lambda where=where: self.call("DELETE", where) in killloop.GONE)

    def space_of(self, tenancy: str) -> str:
        """Return the namespace that a tenancy has now, which is another one after it was made again."""
        found = self.ask(f"/v1/tenancies/{tenancy}")
        return str(found["namespace"]) if found else ""

    # what is killed

    def victims(self, kind: str) -> list[int]:
        assert self.process is not None
        own = kernelseen.descendants(self.process.pid)
        if kind == "service":
            return [self.process.pid]
        if kind == "tree":
            return [self.process.pid, *own]
        if kind == "its processes":
            found = [pid for pid in own if b"fairlead" in kernelseen.words(pid)]
        elif kind == "at work":
            found = [
                pid for pid in kernelseen.pids() if program(pid) in {"podman", "runc", "netavark"} and self.is_ours(pid)
            ]
        elif kind == "monitor":
            found = [pid for pid in kernelseen.pids() if program(pid) == "conmon" and self.is_ours(pid)]
        else:
            found = [
                pid
                for pid in kernelseen.pids()
                if program(pid) in {"sleep", "nc", "sh", "busybox"} and self.is_ours(pid)
            ]
        return [self.random.choice(found)] if found else []

    def is_ours(self, pid: int) -> bool:
        identity = kernelseen.container_of(pid)
        return (bool(identity) and identity not in self.others) or self.mark.encode() in kernelseen.words(pid)

    def strike(self) -> None:
        assert self.process is not None
        kind = self.random.choices(tuple(KINDS), tuple(KINDS.values()))[0]
        victims = self.victims(kind)
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.kills[kind] += bool(victims)
        if kind in {"service", "tree"}:
            self.process.wait()
        if self.process.poll() is not None:
            self.up()

    # the whole

    def play(self, given: argparse.Namespace) -> dict[str, Any]:
        self.up()
        gpus = self.approve()
        made_s = self.make_all(given.tenancies)
        line = (sys.executable, "-I", str(CHECKER), f"--state={self.state / 'state'}", f"--mark={self.mark[:-1]}")
        tried = self.state / "tried.json"
        checker = subprocess.Popen((*line, f"--gpus={','.join(gpus)}", f"--tried={tried}"), stdout=subprocess.PIPE)
        clients = [
            threading.Thread(target=self.churn_tenancies, args=(number, given.containers), daemon=True)
            for number in range(given.clients)
        ]
        clients.append(threading.Thread(target=self.reside, args=(given.residents,), daemon=True))
        if given.recycle:
            clients.append(threading.Thread(target=self.recycle, args=(given.recycle,), daemon=True))
        began = time.monotonic()
        for thread in clients:
            thread.start()
        # On a busy machine few containers are up at once: it goes on until there was one try of each kind.
        while (age_s := time.monotonic() - began) < _MOST * given.seconds:
            if age_s > given.seconds and not untried(json.loads(tried.read_bytes())):
                break
            time.sleep(self.random.uniform(0.3, given.pause))
            self.strike()
            self.note_others()
        self.over.set()
        for thread in clients:
            thread.join(killloop.PATIENCE_S)
        self.dismiss(given.residents)
        return {**self.end(checker), "made_s": round(made_s, 1)}

    def end(self, checker: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert self.process is not None
        if self.process.poll() is not None:
            self.up()
        gone = self.until(lambda: not self.containers())
        left = [] if gone else self.orphans()
        free = self.all_free()
        self.until(lambda: not self.containers())
        self.until(lambda: not self.kept_back())
        kept = self.kept_back()
        checker.send_signal(signal.SIGTERM)
        judged = json.loads(checker.communicate(timeout=120)[0])
        open_ends = self.remove_tenancies()
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        return {
            "kills": dict(self.kills),
            "asked": self.asked,
            "clients saw": dict(self.done),
            "recycled": self.recycled,
            "lost": killloop.GPUS - free,
            "kept back": kept,
            "seen": self.seen,
            "orphans": [*left, *self.orphans()],
            "left of tenancies": open_ends,
            "whole": self.is_whole(),
            "not proved": untried(judged["counts"]),
            "checker": judged,
        }

    def kept_back(self) -> list[str]:
        """Return the GPUs that are not free again, and as what the ledger has them."""
        listed = (self.ask("/v1/gpus") or {"gpus": []})["gpus"]
        found = {one["gpu"]["uuid"]: one["lease"] for one in listed}
        return [f"{key}: {state}" for key, state in found.items() if state != "Free"] if found else ["no answer"]

    def remove_tenancies(self) -> list[str]:
        """Delete every tenancy; return what is left of them: objects, networks, rules."""
        for name in self.names:
            self.until(lambda name=name: self.call("DELETE", f"/v1/tenancies/{name}") in killloop.GONE)
        patience_s = killloop.PATIENCE_S + 3 * len(self.names)  # podman removes one network after another
        self.until(lambda: (self.ask("/v1/tenancies") or {"items": [1]})["items"] == [], patience_s)
        left = [one["name"] for one in (self.ask("/v1/tenancies") or {"items": []})["items"]]
        home = (self.state / "state" / "kubelet" / "home-id").read_text().strip()[:8]
        listed = subprocess.run(("podman", "network", "ls", "-q"), capture_output=True, text=True, check=False).stdout
        left += [one for one in listed.split() if one.startswith(f"fl-{home}-")]
        for family in ("iptables", "ip6tables"):
            table = subprocess.run((f"{family}-save", "-t", "mangle"), capture_output=True, text=True, check=False)
            left += [one for one in table.stdout.splitlines() if f"FL-{home}" in one]
        return left


def told(found: Any) -> str:
    """Return how a container stands, and why where the node refused it."""
    why = f": {found['message']}" if found["reason"] == "UnexpectedAdmissionError" else ""
    return f"{found['state']} {found['reason']}{why}".strip()


def untried(counts: Mapping[str, int]) -> list[str]:
    """Return what the checker has not tried yet, by what it has counted."""
    return [what for what in PROVED if not counts.get(f"{what}{_heard(what)}")]


def _heard(what: str) -> str:
    """Return what to count of a kind of tries: across, that they were made; within, that they came through."""
    return ", answered" if "within" in what else ""


def program(pid: int) -> str:
    return kernelseen.words(pid).split(b"\0")[0].rpartition(b"/")[2].decode(errors="replace")


def is_good(found: dict[str, Any]) -> bool:
    return not (
        found["lost"]
        or found["kept back"]
        or found["orphans"]
        or found["left of tenancies"]
        or found["seen"]
        or found["not proved"]
        or not found["whole"]
    ) and bool(found["checker"]["good"])


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--state", type=Path, required=True)
    asked.add_argument("--image", required=True)
    asked.add_argument("--tenancies", type=int, default=200)
    asked.add_argument("--containers", type=int, default=20)
    asked.add_argument("--seconds", type=float, default=600)
    asked.add_argument("--clients", type=int, default=8)
    asked.add_argument("--pause", type=float, default=4.0, help="longest seconds between two kills")
    asked.add_argument("--recycle", type=float, default=30.0, help="seconds between two deleted tenancies; 0: none")
    asked.add_argument("--residents", type=int, default=4, help="tenancies with two containers that stay, for packets")
    asked.add_argument("--seed", type=int, default=int(time.time()))
    given = asked.parse_args()
    churn = Churn(given.state, given.image, seed=given.seed)
    try:
        found = {"seed": given.seed, **churn.play(given)}
    finally:
        if churn.process is not None and churn.process.poll() is None:
            churn.process.kill()
        for item in sorted(churn.containers(), key=lambda item: "-sandbox-" in item["Names"][0]):
            subprocess.run(("podman", "--runtime", "runc", "rm", "-f", "-t", "0", item["Id"]), check=False)
    sys.stdout.write(f"{json.dumps(found)}\n")
    return 0 if is_good(found) else 1


if __name__ == "__main__":
    sys.exit(main())
