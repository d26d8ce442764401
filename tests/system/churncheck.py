"""Reads from the kernel, the ledger's file and the reports who has which GPU, and finds what must not be.

A program of its own that loads nothing of Fairlead's. It looks again and again until a SIGTERM, then judges all that it
saw and prints one JSON object; exit code 1 where anything is wrong.

- The kernel: device nodes in each container's mount namespace, as far as its cgroup's device list (cgroup v1) lets it
  open them; open files of NVIDIA's numbers; namespaces; writable mounts; packets and names that it tries itself from
  inside the containers' network namespaces. With cgroup v2 a node counts as reached.
- The ledger: every step of its history as it is written, each against the one before.
- The reports: each possession must name one that passed, of this GPU, and newer than the possession before.

    python tests/system/churncheck.py --state FOLDER --mark PREFIX --gpus UUID,UUID,… [--every SECONDS]
                                      [--bundles FOLDER] [--without-packets]

Podman's containers are told apart by names `fl-PREFIX-TENANCY-…`. With `--bundles`, a folder of containerd's bundles,
they are those of pods in namespaces that begin with PREFIX, each a tenancy. GPUs are given in the order of their minor
numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import itertools
import json
import os
import random
import re
import signal
import socket
import sqlite3
import stat
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STORAGE = Path("/var/lib/containers/storage/overlay-containers")
NAMESPACES = ("mnt", "pid", "net", "ipc", "uts")
NVIDIA = 195
PORT = 7000
"""What listens in every container of the churn."""
MOST = 20
"""Findings of a kind that are kept."""
_CLONE_NEWNET = 0x40000000
_LISTEN = "0A"
"""TCP_LISTEN of net/tcp_states.h, as /proc/net/tcp has it."""
_KERNELS_OWN = {"proc", "sysfs", "cgroup", "cgroup2", "overlay"}
_CONTAINER = re.compile(r"/(?:libpod-|kubepods/\S*)([0-9a-f]{64})\b")
"""In the cgroup that podman, or a kubelet without systemd, makes for a container."""
_OURS = (b"/fairlead/inject/", b"/fairlead/kernel/")
"""The hook, and what joins a container's cgroup to try what its rules allow."""
_BUNDLE = "io.kubernetes.cri"
"""What containerd's annotations of a bundle begin with: pkg/cri/annotations of containerd."""
_NODE = re.compile(r"nvidia([0-9]+)\Z")
_FLAGS = re.compile(r"^flags:\s*([0-7]+)", re.MULTILINE)
_RULE = re.compile(r"c 195:([0-9]+) [rwm]*r")
_ADDRESS = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")


@dataclass
class Container:
    """One container as the kernel has it now."""

    identity: str
    name: str
    tenancy: str
    pid: int
    start: str
    program: str = ""
    gpus: set[str] = field(default_factory=set)
    namespaces: dict[str, str] = field(default_factory=dict)
    mounts: set[str] = field(default_factory=set)

    @property
    def is_same(self) -> bool:
        """Whether the process that was looked at is still there."""
        return start_of(self.pid) == self.start


@dataclass
class Holding:
    """A GPU in a container's reach, as the kernel showed it."""

    gpu: str
    container: str
    tenancy: str
    first: float
    last: float
    program: str = ""
    has_begun: bool = False
    """Whether anything but the runtime was seen in it. Where a service is killed while podman makes a container, podman
    goes on, and what it holds before its first instruction is thrown away: no tenant had that."""


# the kernel


def start_of(pid: int) -> str:
    """Return when a process began; "": it is gone, or a zombie."""
    with contextlib.suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state == "Z" else fields[18]
    return ""


def tagged(mark: str) -> dict[str, tuple[str, str]]:
    """Return name and tenancy of each container with the mark, by id, from podman's storage."""
    found = {}
    for path in STORAGE.glob("*containers.json"):
        with contextlib.suppress(OSError, ValueError):  # written meanwhile
            for row in json.loads(path.read_bytes()):
                for name in row["names"]:
                    if name.startswith(f"fl-{mark}-"):
                        found[row["id"]] = (name, name.split("-")[2])
    return found


def bundled(folder: Path, mark: str) -> dict[str, tuple[str, str]]:
    """Return name and tenancy of each container of pods in marked namespaces, by id, from containerd's bundles."""
    found = {}
    for path in folder.glob("*/config.json"):
        with contextlib.suppress(OSError, ValueError):  # written, or removed, meanwhile
            said = json.loads(path.read_bytes())["annotations"]
            space, pod = said[f"{_BUNDLE}.sandbox-namespace"], said[f"{_BUNDLE}.sandbox-name"]
            kind = "sandbox-" if said[f"{_BUNDLE}.container-type"] == "sandbox" else ""
            if space.startswith(mark):
                found[path.parent.name] = (f"fl-{pod}-{kind}{path.parent.name[:8]}", space)
    return found


def containers(known: dict[str, tuple[str, str]]) -> dict[str, Container]:
    """Return the containers that have a process now, by id."""
    found: dict[str, Container] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            inside = _CONTAINER.search((path / "cgroup").read_text())
            if inside is None or inside[1] not in known:
                continue
            pid, start = int(path.name), start_of(int(path.name))
            there = found.get(inside[1])
            if start and (there is None or int(start) < int(there.start)):
                name, tenancy = known[inside[1]]
                found[inside[1]] = Container(inside[1], name, tenancy, pid, start)
    for one in found.values():
        one.program = program(one.pid)
        # A runtime that is still making the container has the host's namespaces; nothing of a tenant runs in it yet.
        one.gpus = reach(one.pid)
        if not is_runtime(one.pid):
            one.namespaces, one.mounts = namespaces(one.pid), mounts(one.pid)
    return {key: one for key, one in found.items() if one.is_same}


def has(one: Container, what: str) -> bool:
    """Return whether a container still has a namespace or a mount: numbers of those that are gone are given again."""
    return what in mounts(one.pid) | set(namespaces(one.pid).values()) and one.is_same


def program(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:60]
    return ""


def is_runtime(pid: int) -> bool:
    """Return whether a process is the runtime's or ours; one that is just ending has no words any more."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return (
            not words[0] or words[0].endswith((b"runc", b"crun")) or any(one in word for word in words for one in _OURS)
        )
    return True


def reach(pid: int) -> set[str]:
    """Return the minor numbers of GPUs that a process could open."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/root/dev").iterdir():
            if _NODE.match(path.name):
                found.add(str(os.minor(path.lstat().st_rdev)))
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            rules = Path(f"/sys/fs/cgroup/devices{place}/devices.list")
            if "devices" in controllers.split(",") and rules.exists():
                text = rules.read_text()
                found = found if "a *:*" in text else found & set(_RULE.findall(text))
    return found


def opened(pid: int) -> set[str]:
    """Return the minor numbers of GPUs that a process has open; runc has what it binds by name alone (O_PATH)."""
    found = set()
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError, ValueError):
                about = path.stat()
                if int(_FLAGS.findall(Path(f"/proc/{pid}/fdinfo/{path.name}").read_text())[0], 8) & os.O_PATH:
                    continue
                if os.major(about.st_rdev) == NVIDIA and os.minor(about.st_rdev) < 128:
                    found.add(str(os.minor(about.st_rdev)))
    return found


def namespaces(pid: int) -> dict[str, str]:
    found = {}
    with contextlib.suppress(OSError):
        for kind in NAMESPACES:
            found[kind] = str(Path(f"/proc/{pid}/ns/{kind}").readlink())
    return found


def mounts(pid: int) -> set[str]:
    """Return what a process could write of file systems beside its root: device and path within it.

    Device nodes are left out: with a user namespace they are bound from the host, and `reach` judges those of GPUs.
    """
    found = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            fields, kind = before.split(), after.split()[0]
            if kind in _KERNELS_OWN or "rw" not in fields[5].split(","):
                continue
            if not stat.S_ISCHR(Path(f"/proc/{pid}/root{fields[4]}").stat().st_mode):
                found.add(f"{kind} {fields[2]} {fields[3]}")
    return found


def addresses(pid: int) -> list[str]:
    """Return a network namespace's addresses of both families, without loopback and link-local ones."""
    found = []
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/net/fib_trie").read_text()
        found += [one for one in sorted(set(_ADDRESS.findall(text))) if not one.startswith("127.")]
        for line in Path(f"/proc/{pid}/net/if_inet6").read_text().splitlines():
            packed = bytes.fromhex(line.split()[0])
            if line.split()[3] == "00":  # scope: global
                found.append(socket.inet_ntop(socket.AF_INET6, packed))
    return found


def inside(pid: int, attempt: Any) -> int:
    """Return what `attempt` returns in the network namespace of a process; -1: it could not be tried."""
    child = os.fork()
    if child == 0:
        code = 255
        with contextlib.suppress(BaseException):
            libc = ctypes.CDLL(None, use_errno=True)
            there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            if libc.setns(there, _CLONE_NEWNET) == 0:
                code = int(attempt())
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return -1 if code in {255, -9} else code


def connects(address: str) -> bool:
    """Return whether anything comes back: a refusal is an answer too."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as sock:
        sock.settimeout(1.5)
        try:
            sock.connect((address, PORT))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True


def listens(pid: int) -> bool:
    """Return whether something listens on the churn's port in a process's network namespace. Source: proc_net(5)."""
    with contextlib.suppress(OSError):
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(f":{PORT:04X}") and fields[3] == _LISTEN:
                    return True
    return False


def resolves(server: str, name: str) -> bool:
    """Return whether a name server answers with an address. Source: RFC 1035, 4.1."""
    labels = b"".join(bytes([len(one)]) + one.encode() for one in name.split("."))
    query = struct.pack(">6H", 0x4642, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 1, 1)
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with contextlib.closing(socket.socket(family, socket.SOCK_DGRAM)) as sock:
        sock.settimeout(1.5)
        try:
            sock.sendto(query, (server, 53))
            answer = sock.recv(2048)
        except OSError:
            return False
    return len(answer) > 7 and struct.unpack(">H", answer[6:8])[0] > 0


def hostname(pid: int) -> tuple[str, str]:
    """Return a container's host name and the name server that it asks."""
    with contextlib.suppress(OSError):
        name = Path(f"/proc/{pid}/root/etc/hostname").read_text().strip()
        for line in Path(f"/proc/{pid}/root/etc/resolv.conf").read_text().splitlines():
            if line.startswith("nameserver "):
                return name, line.split()[1]
        return name, ""
    return "", ""


# ledger and reports


class Ledger:
    """The history of a ledger's file, read as it grows, each step held against the one before."""

    def __init__(self, folder: Path) -> None:
        self.path, self.reports_path = folder / "ledger.db", folder / "reports.jsonl"
        self.newest = 0
        self.steps: list[dict[str, Any]] = []
        self.wrong: list[str] = []
        self.rows: dict[str, dict[str, Any]] = {}
        self._reports: dict[str, dict[str, Any]] = {}
        self._previous = ""

    def read(self) -> None:
        """Take the steps that came since, and the rows as they are."""
        with contextlib.suppress(sqlite3.OperationalError, OSError):
            uri = f"{self.path.as_uri()}?mode=rw"
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=2.0)) as db:
                db.execute("PRAGMA query_only = ON")
                line = "SELECT id, document FROM history WHERE id > ? ORDER BY id"
                fresh = db.execute(line, (self.newest,)).fetchall()
                rows = db.execute("SELECT key, document FROM gpu").fetchall()
            self.rows = {key: json.loads(text) for key, text in rows}
            for number, text in fresh:
                if number != self.newest + 1:
                    self.wrong.append(f"the history skips from {self.newest} to {number}")
                self.newest = number
                self.steps.append(json.loads(text))

    def read_reports(self) -> dict[str, dict[str, Any]]:
        """Return the reports by id, their chain held."""
        previous = ""
        for line in self.reports_path.read_bytes().splitlines():
            report = json.loads(json.loads(line)["body"])
            if report["previous"] != previous:
                self.wrong.append(f"report {report['id']} does not name the one before")
            previous = hashlib.sha256(json.loads(line)["body"].encode()).hexdigest()
            self._reports[report["id"]] = report
        return self._reports

    def judge(self) -> dict[str, list[dict[str, Any]]]:
        """Hold every step against the one before; return the possessions of each GPU."""
        reports = self.read_reports() if self.reports_path.exists() else {}
        possessions: dict[str, list[dict[str, Any]]] = {}
        last: dict[str, dict[str, Any]] = {}
        for step in self.steps:
            row, before = step["row"], step["before"]
            key, after = row["key"], row["state"]
            what = f"{key}: {before} -> {after} by {step['event']}, epoch {row['epoch']}"
            if key in last and (before != last[key]["state"] or row["epoch"] < last[key]["epoch"]):
                self.wrong.append(f"{what}, after {last[key]['state']}, epoch {last[key]['epoch']}")
            if after == "Free" != before and (before, step["event"]) != ("Verifying", "passed"):
                self.wrong.append(f"{what}: free without a verification")
            if after == "Held" != before:
                if (before, step["event"]) != ("Free", "allocated"):
                    self.wrong.append(f"{what}: held and was not free")
                given = possessions.setdefault(key, [])
                self.wrong += [f"{what}: {why}" for why in verdict_problem(row, reports, given)]
                given.append({"from": step["at"], "until": None, "epoch": row["epoch"], "pods": set()})
            if before == "Held" != after and after != "Releasing":
                self.wrong.append(f"{what}: left the holder's hands without a release")
            if key in possessions and after in {"Held", "Releasing"}:
                possessions[key][-1]["pods"] |= {one["pod"] for one in row["claims"] if one.get("pod")}
            if before == "Releasing" != after and key in possessions:
                possessions[key][-1]["until"] = step["at"]
            last[key] = row
        return possessions


def verdict_problem(row: dict[str, Any], reports: dict[str, Any], given: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what is wrong with the report by which a GPU was free when it was given away."""
    report = reports.get(row.get("verdict", ""))
    if report is None:
        yield f"no report {row.get('verdict')!r}"
    elif report["gpu"] != row["key"] or report["verdict"] != "pass":
        yield f"report {report['id']} is of {report['gpu']}: {report['verdict']}"
    elif report["epoch"] != row.get("verdict_epoch") or (given and report["epoch"] <= given[-1]["epoch"]):
        yield f"report {report['id']} of epoch {report['epoch']} is of before the last possession"


class Checker:
    """What was seen, and what of it must not be."""

    def __init__(
        self, state: Path, mark: str, gpus: list[str], bundles: Path | None = None, *, tries: bool = True
    ) -> None:
        self.mark, self.gpus, self.bundles, self.tries = mark, gpus, bundles, tries
        self.ledger = Ledger(state / "lease")
        self.known: dict[str, tuple[str, str]] = {}
        self.holdings: dict[tuple[str, str], Holding] = {}
        self.counts: Counter[str] = Counter()
        self.wrong: dict[str, list[str]] = {}
        self.tenancies: set[str] = set()
        self.seen: set[str] = set()
        self.random = random.Random(1)
        self.trying = threading.Thread()
        """Sends the packets of one look."""

    def note(self, kind: str, what: str) -> None:
        self.counts[f"wrong: {kind}"] += 1
        if len(self.wrong.setdefault(kind, [])) < MOST:
            self.wrong[kind].append(what)

    def look(self) -> None:
        """Look once at everything."""
        self.known |= bundled(self.bundles, self.mark) if self.bundles else tagged(self.mark)
        before = time.time()
        found = containers(self.known)
        self.counts["looks"] += 1
        self.counts["most containers at once"] = max(self.counts["most containers at once"], len(found))
        for one in found.values():
            self.seen.add(one.identity)
            self.tenancies.add(one.tenancy)
        self._hands(found, before, time.time())
        self._apart(found)
        self.ledger.read()
        if self.tries and not self.trying.is_alive():  # what is not answered takes seconds, in which hands change
            alone = [one for one in found.values() if "-sandbox-" not in one.name]
            self.trying = threading.Thread(target=self._packets, args=(alone,), daemon=True)
            self.trying.start()

    def _hands(self, found: dict[str, Container], before: float, after: float) -> None:
        held: dict[str, Container] = {}
        for one in found.values():
            for gpu in one.gpus:
                other = held.setdefault(gpu, one)
                if other is not one and other.is_same and one.is_same:
                    self.note("in two hands", f"GPU {gpu}: {other.name} and {one.name}")
                seen = self.holdings.setdefault(
                    (gpu, one.identity), Holding(gpu, one.name, one.tenancy, after, before, one.program)
                )
                seen.last = max(seen.last, before)
                seen.has_begun = seen.has_begun or not is_runtime(one.pid)
            for gpu in opened(one.pid) - one.gpus:
                self.note("open and not given", f"GPU {gpu}: {one.name}")

    def _apart(self, found: dict[str, Container]) -> None:
        """Namespaces and writable mounts of two tenancies never meet, nor with the host's."""
        hosts = set(namespaces(os.getpid()).values())
        owner: dict[str, Container] = {}
        for one in found.values():
            for what in (*one.namespaces.values(), *one.mounts):
                other = owner.setdefault(what, one)
                if what in hosts:
                    self.note("shared", f"{what}: {one.name} ({one.program}) and the host")
                elif other.tenancy != one.tenancy and has(other, what) and has(one, what):
                    self.note("shared", f"{what}: {one.name} ({one.program}) and {other.name} ({other.program})")

    def _packets(self, found: list[Container]) -> None:
        """Try one pair across tenancies and one within: packets in each family, and the other's name."""
        pairs = [(a, b) for a in found for b in found if a.identity != b.identity and listens(b.pid)]
        self.random.shuffle(pairs)
        for kind, is_kind in (("across", lambda a, b: a.tenancy != b.tenancy), ("within", _is_one)):
            pair = next(((a, b) for a, b in pairs if is_kind(a, b)), None)
            if pair is not None:
                self._try(kind, *pair)

    def _try(self, kind: str, one: Container, other: Container) -> None:
        """Try from `one` what `other` answers to itself at the same time: only then does silence say anything."""
        (own, server), (name, others_server) = hostname(one.pid), hostname(other.pid)
        for target in addresses(other.pid):
            is_there = bool(inside(other.pid, lambda target=target: connects(target)) == 1)
            what = f"IPv{6 if ':' in target else 4} {kind}"
            self._count(what, is_there, one, other, lambda target=target: connects(target))
        if name and own and server and others_server:
            is_there = inside(other.pid, lambda: resolves(others_server, name)) == 1
            is_asked = inside(one.pid, lambda: resolves(server, own)) == 1
            self._count(f"name {kind}", is_there and is_asked, one, other, lambda: resolves(server, name))

    def _count(self, what: str, is_there: bool, one: Container, other: Container, attempt: Any) -> None:
        code = inside(one.pid, attempt)
        if code < 0 or not (one.is_same and other.is_same):
            return
        self.counts[what if is_there else f"{what}, not there"] += 1
        self.counts[f"{what}, answered"] += code
        if code and "across" in what:
            self.note("answered across", f"{what}: {one.name} -> {other.name}")

    def judge(self) -> dict[str, Any]:
        """Hold what the kernel showed against what the ledger says."""
        self.ledger.read()
        possessions = self.ledger.judge()
        for what in self.ledger.wrong:
            self.note("ledger", what)
        passed = {
            gpu: [step["at"] for step in self.ledger.steps if step["row"]["key"] == uuid and step["event"] == "passed"]
            for gpu, uuid in ((str(number), uuid) for number, uuid in enumerate(self.gpus))
        }
        begun = [one for one in self.holdings.values() if one.has_begun]
        self.counts["never begun"] = len(self.holdings) - len(begun)
        for gpu, uuid in ((str(number), uuid) for number, uuid in enumerate(self.gpus)):
            order = sorted((one for one in begun if one.gpu == gpu), key=lambda one: one.first)
            for one, following in itertools.pairwise(order):
                if _attempts(one.container) == _attempts(following.container):
                    continue  # the same pod's, made again
                self.counts["handed on"] += 1
                self.counts["handed to another tenancy"] += one.tenancy != following.tenancy
                if not any(one.last < at <= following.first for at in passed[gpu]):
                    self.note("handed on unverified", f"GPU {gpu}: {one.container} -> {following.container}")
            for one in order:
                if not any(_covers(span, one) for span in possessions.get(uuid, [])):
                    near = [step for step in self.ledger.steps if step["row"]["key"] == uuid and _is_near(step, one)]
                    told = ", ".join(f"{step['event']} {step['at']:.2f}" for step in near)
                    seen = f"GPU {gpu}: {one.container} ({one.program}) {one.first:.2f} to {one.last:.2f}"
                    self.note("held past the ledger", f"{seen}; the ledger: {told}")
        states = Counter(row["state"] for row in self.ledger.rows.values())
        return {
            "good": not self.wrong,
            "wrong": self.wrong,
            "tenancies": len(self.tenancies),
            "containers": len(self.seen),
            "possessions": sum(map(len, possessions.values())),
            "steps": len(self.ledger.steps),
            "reports": len(self.ledger._reports),
            "states": dict(states),
            "counts": dict(sorted(self.counts.items())),
        }


def _is_one(one: Container, other: Container) -> bool:
    return one.tenancy == other.tenancy


def _attempts(name: str) -> str:
    """Return a container's name without its attempt; the name has its pod's uid."""
    return name.rpartition("-")[0]


def _covers(span: dict[str, Any], one: Holding) -> bool:
    """Return whether a possession is of this container and spans the time in which the kernel showed it."""
    is_its = not span["pods"] or any(one.container.startswith(f"fl-{pod[:60]}-") for pod in span["pods"])
    return is_its and span["from"] <= one.first and (span["until"] is None or one.last <= span["until"])


def _is_near(step: dict[str, Any], one: Holding) -> bool:
    return bool(one.first - 20 < step["at"] < one.last + 20)


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--state", type=Path, required=True)
    asked.add_argument("--mark", required=True)
    asked.add_argument("--gpus", required=True)
    asked.add_argument("--every", type=float, default=0.5)
    asked.add_argument("--bundles", type=Path, help="containerd's, of its namespace k8s.io; else podman's storage")
    asked.add_argument("--without-packets", action="store_true", help="where nothing enforces the policies")
    asked.add_argument("--tried", type=Path, help="a file that says all the time what was tried how often")
    given = asked.parse_args()
    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: over.append(number))
    tries = not given.without_packets
    checker = Checker(given.state, given.mark, given.gpus.split(","), given.bundles, tries=tries)
    while not over:
        checker.look()
        if given.tried is not None:
            draft = given.tried.with_suffix(".new")
            draft.write_text(json.dumps(dict(checker.counts)))
            draft.replace(given.tried)
        time.sleep(given.every)
    if checker.trying.ident:
        checker.trying.join()
    found = checker.judge()
    sys.stdout.write(f"{json.dumps(found)}\n")
    return 0 if found["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
