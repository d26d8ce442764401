"""Process 1's program in a Service VM's machine: what stands in for the Fabric Manager, and the agent beside it.

It plays an image with NVIDIA's Manager. The Manager starts only where all switches of the board are there, as the
real one does. The agent takes secret and port from its host; with a secret of its own (`SECRET`) it listens by vsock,
as in a machine that libvirt starts.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

from fairlead.cli import main

BUS = Path("/sys/bus/pci/devices")
SECRET = Path("/etc/fabric.secret")
LISTEN = "4294967295:6667"
"""On vsock, whatever this machine's context id is."""


def begin() -> None:
    found = [one for one in BUS.iterdir() if (one / "device").read_text().strip() == "0x22a3"]
    (wanted,) = re.findall(r"switches=(\d+)", Path("/proc/cmdline").read_text())
    if len(found) != int(wanted):
        raise SystemExit(f"{len(found)} switches of {wanted}")
    stub = ("-I", "/stub/tests/fabricstub/manager.py", "unix:/run/fm.sock", "h100")
    subprocess.Popen((sys.executable, *stub))
    while not Path("/run/fm.sock").exists():
        time.sleep(0.05)
    words = ("fabric", "serve", "--address", "/run/fm.sock", "--library", "/stub/libnvfm.so.1")
    env = {"PATH": "/usr/bin:/bin", "FAIRLEAD_FABRIC_VERSION": "580.95.05", "FAIRLEAD_CONFIG": "/dev/null"}
    where = ("--listen", LISTEN) if SECRET.exists() else ("--machine-port", "/dev/vport0p1")
    if SECRET.exists():
        SECRET.chmod(0o600)
        env["FAIRLEAD_FABRIC_SECRET"] = str(SECRET)
    sys.exit(main.invoke((*words, *where), env=env))


if __name__ == "__main__":
    begin()
