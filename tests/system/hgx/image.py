"""What the machines are started from: the node's initramfs, and disks that outlive it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
from hgx import emulator

HERE = Path(__file__).parent
AGENT = ("grpc", "google", "h11")
"""Packages of Python that Fairlead's agent loads besides those of layer commands."""


def verifying() -> dict[str, Any]:
    """Return what a node packs whose agent verifies GPUs in machines, as arguments of `hgx_node`."""
    (cffi,) = machine.SITE.glob("_cffi_backend.*.so")  # what signs reports needs it
    return {
        "packages": (*AGENT, "cryptography"),
        "programs": ("/usr/bin/setpriv",),
        "files": {str(cffi).strip("/"): cffi.read_bytes()},
    }


def initramfs(
    target: Path,
    kernel: emulator.Kernel,
    *,
    modules: Sequence[Path] = (),
    programs: Sequence[str] = (),
    packages: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """Write an initramfs with Python, Fairlead, `commanded` and `facts`, which takes commands as `Node` gives them.

    Args: modules: Python files, to be called by name.   packages: of Python, besides those of layer commands.
    """
    own = {f"tests/{path.name}": path.read_bytes() for path in (HERE / "commanded.py", HERE / "facts.py", *modules)}
    contents = machine.Contents(
        guest=HERE / "guest.py",
        modules=kernel.modules,
        programs=programs,
        packages=packages,
        files={**own, **(files or {})},
    )
    return machine.pack(target, contents)


def state_disk(path: Path, *, mib: int = 64) -> Path:
    """Make an empty disk with ext4, which a node mounts and a power cut leaves as it is."""
    with path.open("wb") as file:
        file.truncate(mib << 20)
    subprocess.run(("mkfs.ext4", "-q", "-F", str(path)), check=True)
    return path
