"""One machine inside this one: namespaces, cgroups, folders and a network link of its own, for a node and its plane.

A cluster's processes share one machine, as on a single-node cluster. Its process 1 (`init`) holds the namespaces; its
folders lie below `folder/disk` and cover `/run`, `/var/lib`, `/var/log` and `/etc` inside, so that kubelet, container
runtime and device plugins use the paths they use in production (kubelet's device-plugin folder is a constant of its
source) and clusters side by side never meet. Everything else (`/usr`, `/tmp`, `/dev`, `/home`) is the host's.

A machine has a number, free on the host: link `flcN` with 10.213.N.1/24 here and 10.213.N.10/24 there, cgroup
`fairlead-cluster-N` in every hierarchy. Making the folder `/run/fairlead-cluster-N` is what reserves the number; the
link would not do: the kernel takes it away with the machine's network namespace, before the machine is cleared away.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors

_INIT: Final = Path(__file__).parent / "init.py"
_RANGE: Final = ipaddress.ip_network("10.213.0.0/16")
_COVERED: Final = (("run", "/run"), ("var-lib", "/var/lib"), ("var-log", "/var/log"))
# What kubelet sets for the whole kernel unless it finds it so; these files lie over the switches instead.
_SYSCTLS: Final = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_PATH: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(frozen=True, slots=True)
class Process:
    """A process by pid and start time, so that a reused pid is never taken for it."""

    pid: int
    started: int
    """Clock ticks after boot, field 22 of /proc/PID/stat."""

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return the process that has the pid now; raises ProcessLookupError."""
        started = _started(pid)
        if started is None:
            raise ProcessLookupError(pid)
        return cls(pid, started)

    @property
    def is_alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return _started(self.pid) == self.started

    def end(self, sign: signal.Signals, *, timeout_s: float) -> bool:
        """Signal it and wait; False: it was still there after that time."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if not self.is_alive:
                return True
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, sign)
            return bool(select.select([handle], [], [], timeout_s)[0])
        finally:
            os.close(handle)


def _started(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    words = text[text.rindex(")") + 2 :].split()
    return None if words[0] in "ZX" else int(words[19])


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine that runs, or ran."""

    folder: Path
    number: int
    hostname: str
    init: Process
    paths: tuple[str, ...] = ()
    """Folders with programs, before the system's."""

    @property
    def address(self) -> str:
        """Its address, reachable from the host."""
        return str(_RANGE.network_address + self.number * 256 + 10)

    @property
    def disk(self) -> Path:
        """The host's view of what the machine has of its own."""
        return self.folder / "disk"

    @property
    def cgroup(self) -> str:
        """Name of its cgroup in every hierarchy."""
        return cgroup_name(self.number)

    @property
    def environment(self) -> dict[str, str]:
        """What a process of the machine is given."""
        return {"PATH": ":".join((*self.paths, *_PATH)), "HOME": "/root", "LANG": "C.UTF-8"}

    def command(self, *argv: str) -> tuple[str, ...]:
        """Return a command line for the host that runs `argv` in the machine, as its child and in its cgroup."""
        # Inside, the process writes "0": itself, whatever it is called out here.
        join = "".join(f"echo 0 > '{path}' && " for path in joined_files(self.number))
        script = f'{join}exec "$@"'
        namespaces = (f"--{kind}" for kind in ("mount", "pid", "net", "uts"))
        return ("nsenter", "--target", str(self.init.pid), *namespaces, "--", "/bin/sh", "-c", script, "sh", *argv)

    def run(self, *argv: str, timeout_s: float = 60) -> str:
        """Run a command in the machine and return what it printed; raises Unavailable when it fails."""
        return _run(self.command(*argv), env=self.environment, timeout_s=timeout_s)

    def start(self, argv: Sequence[str], log: Path) -> Process:
        """Start a long-lived process, a child of the machine's process 1, whose output is appended to `log`."""
        script = 'log=$1; shift; setsid "$@" >>"$log" 2>&1 </dev/null & echo $!'
        inner = int(self.run("/bin/sh", "-c", script, "sh", str(log), *argv))
        # a container's process may be called the same in its own namespace
        space = str(Path(f"/proc/{self.init.pid}/ns/pid").readlink())
        for process in processes(self.number):
            if _inner_pid(process.pid) == (space, inner):
                return process
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise errors.Unavailable(f"{argv[0]} ended at once:\n{tail}", reason="ProcessEnded", hint=f"see {log}")


def _inner_pid(pid: int) -> tuple[str, int] | None:
    """Return the pid namespace a process is in and what it is called there; None: it is gone."""
    try:
        space = Path(f"/proc/{pid}/ns/pid").readlink()
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    names = next(line.split()[1:] for line in text.splitlines() if line.startswith("NSpid:"))
    return str(space), int(names[-1])


# made


def boot(folder: Path, *, hostname: str, paths: tuple[str, ...], number: int) -> Machine:
    """Start a machine in a folder that may hold the disk of an earlier one; its number must be reserved.

    Raises: Unavailable: the kernel refuses (no root, no namespaces, a folder on overlayfs).
    """
    _make_disk(folder)
    _make_cgroups(number)
    plan = {
        "hostname": hostname,
        "cgroups": [str(path) for path in joined_files(number)],
        "etc": {"upper": str(folder / "disk" / "etc"), "work": str(folder / "work")},
        "binds": [(str(folder / "disk" / name), target) for name, target in _COVERED],
        "sysctls": [(str(folder / "sysctl" / name.replace("/", ".")), f"/proc/sys/{name}") for name in _SYSCTLS],
    }
    begun = subprocess.Popen(
        (sys.executable, "-I", "-S", str(_INIT)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    output, problem = begun.communicate(json.dumps(plan).encode(), timeout=60)
    # Two processes say one line each, and either may be the first on a loaded machine.
    said = dict(line.partition(" ")[::2] for line in output.decode().splitlines())
    if not {"pid", "ready"} <= said.keys():
        message = f"the machine {hostname} did not start: {problem.decode(errors='replace').strip()[-600:]}"
        raise errors.Unavailable(message, reason="MachineFailed", hint="root and a disk that is no overlay are needed")
    one = Machine(folder=folder, number=number, hostname=hostname, init=Process.of(int(said["pid"])), paths=paths)
    _connect(one)
    return one


def reserve_number() -> int:
    """Return a number no machine has, taken by making its link; raises Unavailable when none is left."""
    routes = json.loads(_run(("ip", "-j", "-4", "route", "show", "table", "all")))
    taken = [_network(route.get("dst", "")) for route in routes]
    for number in range(256):
        network = ipaddress.IPv4Network((int(_RANGE.network_address) + number * 256, 24))
        if any(other is not None and other.overlaps(network) for other in taken):
            continue
        with contextlib.suppress(FileExistsError):
            _reservation(number).mkdir()
            with contextlib.suppress(errors.Conflict):
                _make_link(number)
                return number
            _reservation(number).rmdir()
    message = f"no free network in {_RANGE}"
    raise errors.Unavailable(message, reason="NoNetwork", hint="end a cluster: python -m tools.cluster list")


def _reservation(number: int) -> Path:
    return Path(f"/run/fairlead-cluster-{number}")


def _make_link(number: int) -> None:
    """Make both ends; raises Conflict when the number is taken."""
    ends = ("ip", "link", "add", link(number), "type", "veth", "peer", "name", f"{link(number)}p")
    made = subprocess.run(ends, check=False, capture_output=True, text=True)
    if "exists" in made.stderr:
        raise errors.Conflict(f"there is a link {link(number)}", reason="NumberTaken")
    if made.returncode:
        hint = "run as root, on a kernel with veth"
        raise errors.Unavailable(f"no link: {made.stderr.strip()}", reason="LinkRefused", hint=hint)


def _remove_link(number: int) -> None:
    """Remove both ends; the kernel may have done so with the machine's network namespace."""
    subprocess.run(("ip", "link", "del", link(number)), check=False, capture_output=True)


def _network(text: str) -> ipaddress.IPv4Network | None:
    try:
        found = ipaddress.IPv4Network(text)
    except ValueError:
        return None  # "default", "broadcast"
    return found if found.prefixlen else None


def _make_disk(folder: Path) -> None:
    names = [name for name, _ in _COVERED]
    for name in (*(f"disk/{name}" for name in names), "disk/etc", "work", "sysctl", "disk/run/lock"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, value in _SYSCTLS.items():
        (folder / "sysctl" / name.replace("/", ".")).write_text(f"{value}\n")


def _connect(one: Machine) -> None:
    """Move the link's other end into the machine and give both ends their addresses."""
    near, far = link(one.number), f"{link(one.number)}p"
    gateway = str(_RANGE.network_address + one.number * 256 + 1)
    _run(("ip", "link", "set", far, "netns", str(one.init.pid)))
    _run(("ip", "address", "add", f"{gateway}/24", "dev", near))
    _run(("ip", "link", "set", near, "up"))
    one.run(
        "/bin/sh",
        "-ec",
        f"""ip link set lo up
        ip link set {far} name eth0
        ip address add {one.address}/24 dev eth0
        ip link set eth0 up
        ip route add default via {gateway}
        echo 1 > /proc/sys/net/ipv4/ip_forward
        if [ -e /proc/sys/net/bridge ]; then echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables; fi""",
    )


# ended


def shut_down(number: int) -> None:
    """Kill everything in the machine at once, as a power cut would; idempotent. Its number stays reserved.

    Goes by cgroup, which only a machine's own processes join: whatever a failed start left is found too.
    """
    for one in processes(number):
        one.end(signal.SIGKILL, timeout_s=30)
    _remove_cgroups(number)


def reboot(one: Machine) -> Machine:
    """Cut the power and boot the same machine again: its disk stays, `/run` is empty, nothing runs.

    The kernel is the host's and goes on, so its boot id and uptime say nothing of this.
    """
    shut_down(one.number)
    shutil.rmtree(one.disk / "run")
    _remove_link(one.number)
    _make_link(one.number)
    return boot(one.folder, hostname=one.hostname, paths=one.paths, number=one.number)


def processes(number: int) -> list[Process]:
    """Return everything that runs in a machine, its pods' containers too; process 1 comes first."""
    found: set[int] = set()
    for folder in cgroup_folders(number):
        for place, _, names in os.walk(folder):  # passes over what is removed meanwhile
            if "cgroup.procs" in names:
                with contextlib.suppress(OSError):
                    found.update(int(line) for line in Path(place, "cgroup.procs").read_text().split())
    alive = ((pid, _started(pid)) for pid in found)
    return sorted((Process(pid, when) for pid, when in alive if when is not None), key=lambda one: one.started)


def forget(folder: Path, number: int) -> None:
    """Give the number back and remove the folder of a machine that was shut down; idempotent."""
    _remove_link(number)
    _remove_cgroups(number)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():  # what could not be removed is an error, what was gone already is not
        shutil.rmtree(folder)
    with contextlib.suppress(FileNotFoundError):
        _reservation(number).rmdir()


# names and cgroups


def link(number: int) -> str:
    """Return the name of the host's end of the link."""
    return f"flc{number}"


def cgroup_name(number: int) -> str:
    """Return the name of a machine's cgroup."""
    return f"fairlead-cluster-{number}"


def cgroup_folders(number: int) -> Iterator[Path]:
    """Yield the machine's cgroup in every mounted hierarchy, v1 and v2."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ", 1)
        if right.split()[0] in {"cgroup", "cgroup2"}:
            yield Path(left.split()[4]) / cgroup_name(number)


def joined_files(number: int) -> list[Path]:
    """Return the files a process of the machine, its pods apart, writes itself into."""
    # a leaf of its own: version 2 keeps processes out of cgroups that have children with controllers
    return [folder / "machine" / "cgroup.procs" for folder in cgroup_folders(number)]


def _make_cgroups(number: int) -> None:
    for folder in cgroup_folders(number):
        for one in (folder, folder / "machine"):
            one.mkdir(exist_ok=True)
            # version 1 starts a cpuset empty, and an empty one takes no process
            for name in ("cpuset.cpus", "cpuset.mems"):
                path = one / name
                if path.exists() and not path.read_text().strip():
                    path.write_text((one.parent / name).read_text())


def _remove_cgroups(number: int) -> None:
    deadline = time.monotonic() + 10
    for folder in cgroup_folders(number):
        for one in (*sorted(folder.rglob("*/"), key=lambda path: -len(path.parts)), folder):
            _remove_cgroup(one, deadline)


def _remove_cgroup(folder: Path, deadline: float) -> None:
    """Remove one; the kernel takes a moment to let go of processes that were killed."""
    while folder.is_dir():
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _run(argv: Sequence[str], *, env: dict[str, str] | None = None, timeout_s: float = 60) -> str:
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env=env, timeout=timeout_s)
    if done.returncode:
        message = f"{' '.join(argv[-6:])} ended with {done.returncode}: {done.stderr.strip()[-1500:]}"
        raise errors.Unavailable(message, reason="CommandFailed", hint="run as root")
    return done.stdout
