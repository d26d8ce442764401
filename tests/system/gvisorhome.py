"""A service on this machine whose podman has gVisor, real runsc built by tests/system/gvisor/setup.sh.

Each command runs in a mount namespace with a copy of /etc/containers over the host's own, which is never touched.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import pytest
from home import Home

from tools.cluster import build

KNOWN: Final = "550.90.12"
"""A driver that this gVisor knows; that of the simulated H100s, 550.163.01, is none."""
UNSHARED: Final = ("unshare", "-m", "--propagation", "unchanged", "sh", "-c")
_ETC: Final = Path("/etc/containers")


def programs() -> Path:
    """Return the folder of runsc and its shim; skips where they were not built."""
    folder = build.folder_of(build.GVISOR)
    if not (folder / "runsc").exists():
        pytest.skip("gVisor has not been built: tests/system/gvisor/setup.sh")
    return folder


def with_own_configuration(home: Home) -> Path:
    """Let every command of a home see a copy of podman's configuration; returns the copy."""
    own = home.folder / "containers"
    shutil.copytree(_ETC, own, symlinks=True)
    # Namespaces of networks stay visible to every podman of the machine: one that sees a container without its network
    # lists none at all.
    inside = f'mount --make-private / && mount --bind {own} {_ETC} && exec "$@"'
    home.prefix = (*UNSHARED, inside, "sh")
    return own


def configure(home: Home, *flags: str) -> None:
    """Run `fairlead runtime configure` for podman with gVisor, whose GPUs are the simulated ones."""
    nodes = home.state / "silicon/root/dev"
    places = ("--folder", str(home.folder / "libexec"), "--policy", str(home.folder / "runtime.json"))
    ours = ("--gvisor", "--gvisor-program", str(programs() / "runsc"), "--gvisor-dev", str(nodes))
    options = [word for flag in flags for word in ("--gvisor-flag", flag)]
    home.ok("runtime", "configure", "--engine", "podman", *places, *ours, *options)
