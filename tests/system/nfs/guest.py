"""Runs inside the virtual machine of `test_nfs_machine.py`: a kernel's NFS server and client, and a tenancy's export.

Nothing is judged here; reports are those of `onboard.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from onboard import report

from fairlead import errors, telemetry
from fairlead.kernel.mounting import nfs
from fairlead.node.kubelet import volumes
from fairlead.node.tenancy import exports
from fairlead.plan.pod import volume
from fairlead.plan.tenancy import baseline
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta

SERVED, VOLUMES = Path("/srv/red"), Path("/run/volumes")
TENANT = 1879048192 + 1000
EXPORT = kind.NFSExport(server="nas", path="/", options=("vers=4.2", "soft", "timeo=50"))
RED = Tenancy(
    metadata=meta.ObjectMeta(name="red", uid="aaaaaaaa-0000-0000-0000-000000000001"),
    spec=kind.TenancySpec(
        storage=kind.TenancyStorage(
            nfs=kind.NFSExport(server="nas", path="/", options=("vers=4.2", "soft", "timeo=50"))
        )
    ),
)
SPACE = baseline.namespace_name(RED)
PLACE = VOLUMES / SPACE
ROOTFS = Path("/container")
CLAIM = core.PersistentVolumeClaim(metadata=meta.ObjectMeta(name="data", namespace=SPACE, uid="claim-1"))
POD = core.Pod(
    metadata=meta.ObjectMeta(name="train", namespace=SPACE),
    spec=core.PodSpec(volumes=(core.Volume(name="data", persistent_volume_claim=core.ClaimVolume(claim_name="data")),)),
)


def call(*argv: str) -> dict[str, Any]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    return {"argv": argv, "code": done.returncode, "err": (done.stdout + done.stderr)[-500:]}


def attempt(act: Callable[[], Coroutine[Any, Any, Any]]) -> dict[str, Any]:
    """Return what came of an act, or why nothing did, and how long it took."""
    began = time.monotonic()
    try:
        found: dict[str, Any] = {"value": asyncio.run(act())}
    except errors.FairleadError as error:
        found = {"reason": error.reason, "message": error.message}
    return {**found, "seconds": time.monotonic() - began}


def killed_at(point: str, act: Callable[[], Coroutine[Any, Any, Any]]) -> int:
    """Return how a process ended that was to die at a crash point."""
    pid = os.fork()
    if pid == 0:
        telemetry.arm_crash_point(point)
        asyncio.run(act())
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def as_tenant(act: Callable[[], Any]) -> str:
    """Have a tenant's user do something; returns what kept it from it."""
    read, write = os.pipe()
    if os.fork() == 0:
        text = ""
        try:
            os.setgroups([])
            os.setgid(TENANT)
            os.setuid(TENANT)
            act()
        except OSError as error:
            text = str(error.strerror)
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.wait()
    return text


def mounts() -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {PLACE} " in line]


def run_container(data: Path) -> dict[str, Any]:
    """Have podman run a container of the tenancy, with a volume of its export and a user namespace of its own."""
    for place, kind_of in (("/dev/shm", "tmpfs"), ("/dev/pts", "devpts"), ("/var/lib/containers", "tmpfs")):
        Path(place).mkdir(parents=True, exist_ok=True)
        call("/bin/busybox", "mount", "-t", kind_of, kind_of, place)
    for name in ("bin", "data", "dev", "etc", "proc", "run", "sys", "tmp"):
        (ROOTFS / name).mkdir(parents=True)
    for name in ("run/.containerenv", "etc/hosts", "etc/hostname", "etc/resolv.conf"):
        (ROOTFS / name).touch()
    (ROOTFS / "bin/busybox").write_bytes(Path("/bin/busybox").read_bytes())
    (ROOTFS / "bin/busybox").chmod(0o755)
    (ROOTFS / "bin/sh").symlink_to("busybox")
    range_ = f"0:{TENANT - 1000}:65536"
    # The machine's root is a ramfs without cgroup controllers: neither limits nor a pivot of the root.
    own = ("--network", "none", "--cgroups", "disabled", "--pids-limit", "-1", "--user", "1000:1000")
    users = ("--uidmap", range_, "--gidmap", range_)
    script = "echo by podman >/data/theirs; busybox id -u; busybox grep ' /data ' /proc/self/mountinfo"
    command = ("run", "--rm", *own, *users, "-v", f"{data}:/data", "--rootfs", str(ROOTFS), "/bin/sh", "-c", script)
    return call("/usr/bin/podman", "--runtime", "/usr/bin/crun", *command)


def serve() -> None:
    steps = [call("/bin/busybox", "ip", "link", "set", "lo", "up")]
    for path in (SERVED, Path("/var/lib/nfs/v4recovery"), Path("/run/rpc_pipefs")):
        path.mkdir(parents=True, exist_ok=True)
    steps.append(call("/bin/busybox", "mount", "-t", "tmpfs", "tmpfs", "/srv"))
    SERVED.mkdir()
    os.chown(SERVED, 65534, 65534)
    steps.append(call("/bin/busybox", "mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd"))
    for name in ("etab", "rmtab"):
        Path("/var/lib/nfs", name).write_text("")
    steps.append(call("/usr/sbin/exportfs", "-ra"))
    steps.append(call("/usr/sbin/rpc.mountd", "--no-nfs-version", "3"))
    steps.append(call("/usr/sbin/rpc.nfsd", "--no-nfs-version", "3", "--grace-time", "10", "--lease-time", "10", "4"))
    report("server", steps)
    end_grace()


def end_grace() -> None:
    """Let clients open files at once: nobody has state from before."""
    try:
        Path("/proc/fs/nfsd/v4_end_grace").write_text("Y")
    except OSError as error:
        report("grace", str(error))


def main() -> None:
    found = exports.Exports(VOLUMES)
    report("before", attempt(lambda: found.check(RED)))
    serve()
    report("not mounted", attempt(lambda: found.check(RED)))
    report("killed while mounting", killed_at("tenancy.export-mounted", lambda: found.ensure(RED)))
    report("ensured", attempt(lambda: found.ensure(RED)))
    report("mounted", {"found": nfs.mounted(PLACE), "lines": mounts()})
    report("checked", attempt(lambda: found.check(RED)))

    folder = volume.folder(VOLUMES, CLAIM)
    made = volumes.ensure(Path("/run/pod"), POD, {"data": folder}, 1879048192, is_exported=True)
    report("made", {name: str(path) for name, path in made.items()})
    # A container has the folder bound: its path from here is closed to everybody but root.
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    report("written", as_tenant(lambda: os.write(os.open("mine", os.O_CREAT | os.O_WRONLY, dir_fd=handle), b"of red")))
    served = SERVED / "claim-1"
    report("on the server", {one.name: [one.stat().st_uid, one.read_text()] for one in served.iterdir()})
    report("folder's owner", served.stat().st_uid)
    (folder / "roots").write_text("x")
    report("root's owner", (served / "roots").stat().st_uid)
    os.mknod(served / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (served / "null").chmod(0o666)
    report("device", as_tenant(lambda: os.open("null", os.O_RDONLY, dir_fd=handle)))
    os.close(handle)

    report("container", run_container(made["data"]))
    theirs = served / "theirs"
    report("of the container", [theirs.stat().st_uid, theirs.read_text()] if theirs.exists() else None)

    report("stopped", call("/usr/sbin/rpc.nfsd", "0"))
    report("silent", attempt(lambda: found.check(RED)))
    report("silent ensure", attempt(lambda: found.ensure(RED)))
    report("started", call("/usr/sbin/rpc.nfsd", "--no-nfs-version", "3", "--grace-time", "10", "4"))
    end_grace()
    report("back", attempt(lambda: found.check(RED)))

    report("killed while unmounting", killed_at("tenancy.export-unmounted", lambda: found.release(SPACE)))
    report("unmounted", mounts())
    report("released", attempt(lambda: found.release(SPACE)))
    report("place", PLACE.exists())
    report("kept on the server", sorted(one.name for one in served.iterdir()))
    report("again", attempt(lambda: found.ensure(RED)))
    report("found again", (folder / "mine").read_text())
    report("done", signal.SIGKILL)


main()
