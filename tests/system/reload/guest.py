"""Runs in the virtual machine of `test_systemd_reload.py`: two containers under its systemd, and what befalls them.

Nothing is judged here; reports and command lines are those of `onboard.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

from onboard import fairlead, report

from fairlead.cli.container import attach_pid
from fairlead.cli.layer import isolate, runtime
from fairlead.cli.layer.cdi import group, read
from fairlead.kernel import bpf
from fairlead.settings import Settings

LOADED = (group, read, isolate, runtime)
"""The verbs' modules."""
KIND = "nvidia.com/gpu"
SYSTEMCTL = shutil.which("systemctl", path="/usr/bin:/bin") or "systemctl"
NODES = (*((f"nvidia{minor}", minor) for minor in range(3)), ("nvidiactl", 255))


def call(*line: str) -> dict[str, Any]:
    # A container inherits what `run` was given: a pipe would stay open for as long as it lives.
    with Path("/run/said").open("w+") as said:
        done = subprocess.run(line, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False)
        said.seek(0)
        return {"code": done.returncode, "said": said.read(), "line": line, "at": time.monotonic()}


def look(name: str) -> Any:
    """What `open()` says inside of each GPU, by its name and by its number."""
    done = call("/usr/sbin/runc", "exec", name, "/bin/probe", "look")
    return json.loads(done["said"]) if done["code"] == 0 else done


def audit(name: str, *options: str) -> dict[str, Any]:
    done = fairlead("isolate", "audit", name, *options, "-o", "json")
    return {"code": done["code"], "err": done["err"], "report": json.loads(done["out"] or "[null]")[0]}


def unit(name: str) -> str:
    return str(call(SYSTEMCTL, "show", "-p", "DeviceAllow,DevicePolicy", f"fl-{name}.scope")["said"])


def programs(name: str) -> int:
    """How many programs decide about the container's devices."""
    return len(bpf.attached(Path(f"/sys/fs/cgroup/system.slice/fl-{name}.scope")).programs)


def run(name: str, gpu: str) -> dict[str, Any]:
    bundle = Path("/run/bundle", name)
    bundle.mkdir(parents=True)
    document = json.loads(Path("/etc/runtime-spec.json").read_text())
    document["linux"]["cgroupsPath"] = f"system.slice:fl:{name}"
    config = bundle / "config.json"
    config.write_text(json.dumps(document))
    edited = fairlead("cdi", "inject", str(config), f"{KIND}={gpu}", "--spec-dir", "/etc/cdi")
    config.write_text(edited["out"])
    # The root file system is the initramfs, from which no runtime can pivot.
    started = call("/usr/sbin/runc", "--systemd-cgroup", "run", "--detach", "--no-pivot", "--bundle", str(bundle), name)
    return {"inject": edited["err"], "run": started}


def reload() -> None:
    done = call(SYSTEMCTL, "daemon-reload")
    if done["code"]:
        raise RuntimeError(done["said"])


def attach(name: str, gpu: str) -> None:
    """What `fairlead attach --pid` calls; the verb itself imports more than is packed here."""
    pid = int(json.loads(call("/usr/sbin/runc", "state", name)["said"])["pid"])
    device = f"{KIND}={gpu}"
    asyncio.run(attach_pid.change(Settings(), "attach", pid, device, folders=("/etc/cdi",), is_forced=False))


def without_links() -> None:
    report("bare run", run("bare", "0"))
    report("bare started", {"look": look("bare"), "audit": audit("bare"), "unit": unit("bare")})
    counts = [programs("bare")]
    reload()
    counts.append(programs("bare"))
    report("bare reloaded", {"look": look("bare"), "audit": audit("bare")})
    report("bare repaired", {"audit": audit("bare", "--repair"), "look": look("bare")})
    report("programs", [*counts, programs("bare")])
    reload()
    report("bare reloaded again", {"look": look("bare")})


def with_links() -> None:
    report("links", fairlead("runtime", "char-links"))
    reload()
    report("links came late", {"look": look("bare")})
    report("linked run", run("linked", "1"))
    report("linked started", {"look": look("linked"), "unit": unit("linked")})
    reload()
    report("linked reloaded", {"look": look("linked"), "audit": audit("linked")})


def made_to_last() -> None:
    """Tell the unit what runc did not; the links are gone again, which nobody needs any more."""
    shutil.rmtree("/dev/char")
    rules = [f"DeviceAllow=/dev/char/195:{minor} rw" for minor in (0, 255)]
    report("property", call(SYSTEMCTL, "set-property", "--runtime", "fl-bare.scope", *rules))
    report("told", {"look": look("bare"), "unit": unit("bare")})
    reload()
    report("told and reloaded", {"look": look("bare"), "audit": audit("bare")})
    report("links gone", {"look": look("linked")})


def attached() -> None:
    """A GPU that came while the container ran: neither runc nor the unit knows of it."""
    both = ("--device", f"{KIND}=1", "--device", f"{KIND}=2")
    attach("linked", "2")
    report("attached", {"look": look("linked")})
    reload()
    report("attached and reloaded", {"look": look("linked"), "audit": audit("linked", *both)})
    report("attached and repaired", {"audit": audit("linked", *both, "--repair"), "look": look("linked")})
    done = call("/usr/sbin/runc", "--systemd-cgroup", "update", "--pids-limit", "100", "linked")
    report("updated", {"code": done["code"], "look": look("linked"), "audit": audit("linked", *both)})


def work() -> None:
    for name, minor in NODES:
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(195, minor))
    report("systemd", call(SYSTEMCTL, "--version")["said"])
    without_links()
    with_links()
    made_to_last()
    attached()
    report("done", time.monotonic())


if __name__ == "__main__":
    work()
