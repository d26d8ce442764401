"""One CRI-O in a machine of its own; podman, which keeps images in the same place, loads what it runs."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import enginehost
from tools.cluster import build, image

MAIN = "/etc/crio/crio.conf.d/10-crio.conf"
"""The node's own settings; as in CRI-O's packages there is no file above it."""


def main_config() -> str:
    """Return a node's own file, as a package would have brought it, with what this kind of machine has."""
    return f"""\
# The node's own.
[crio]
storage_driver = "vfs"

[crio.image]
pause_image = "{image.PAUSE}"
pause_command = "/bin/sleep"

[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
default_runtime = "runc"  # mine

[crio.runtime.runtimes.runc]
runtime_path = "/usr/sbin/runc"
runtime_root = "{enginehost.RUNC_ROOT}"
"""


@dataclass
class Crio(enginehost.CRINode):
    """A machine with one CRI-O."""

    engine = "crio"
    folder = "/etc/crio"
    command = ("crio", "--log-level=info")
    loader = ("podman", "--storage-driver=vfs", "load", "--quiet", "--input")

    @property
    def socket(self) -> Path:
        return self.one.disk / "run" / "crio" / "crio.sock"

    def write_main(self) -> None:
        self.write(MAIN, main_config())

    def dump(self) -> dict[str, Any]:
        """Return the section on runtimes as CRI-O puts it together itself."""
        found: dict[str, Any] = tomllib.loads(self.one.run("crio", "config"))["crio"]["runtime"]
        return found


@contextlib.contextmanager
def booted() -> Iterator[Crio]:
    """Boot a machine with CRI-O's programs; nothing is configured and nothing runs."""
    folder = build.folder_of(next(module for module in build.OLDER if module.name == "crio"))
    if not folder.is_dir():
        pytest.fail(f"run tests/cluster/setup.sh first: {folder} is not built")
    with enginehost.machine_with(folder) as one:
        yield Crio(one)
