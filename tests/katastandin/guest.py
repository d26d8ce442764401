"""The guest of Kata's stand-in: an initramfs with its agent; and a configuration in Kata's form, the runtime's script.

`initramfs` needs gcc and a static busybox; the kernel is the caller's. Nothing here runs in a node.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

AGENT: Final = Path(__file__).parent / "agent.c"
DEBIAN: Final = Path.home() / ".cache/fairlead/debian/linux-cloud"
MODULES: Final = ("virtio_pci", "virtio_console")
PARAMETERS: Final = "cgroup_no_v1=all pci=realloc pci=nocrs pci=assign-busses loglevel=3 no_timer_check nowatchdog"
"""Kata's own for GPUs, and what makes a kernel quick where it is emulated."""


def require() -> None:
    """Skip where its parts are not there."""
    for program in ("gcc", "busybox"):
        if shutil.which(program) is None:
            pytest.skip(f"Kata's stand-in needs {program}")


def debian_kernel() -> Path:
    """Return a kernel of Debian's, whose modules `initramfs` packs; skips where it is not there."""
    if not DEBIAN.is_dir():
        pytest.skip(f"Kata's stand-in needs a kernel in {DEBIAN}: run tests/system/setup.sh as root")
    (found,) = (DEBIAN / "boot").glob("vmlinuz-*")
    return found


def initramfs(target: Path, *, modules: Path | None = None) -> Path:
    """Write the guest's file system. Args: modules: where a kernel's modules lie; None: it needs none."""
    top = target.with_name(f"{target.name}.d")
    for name in ("bin", "dev", "proc", "sys", "modules"):
        (top / name).mkdir(parents=True)
    line = ("gcc", "-O2", "-static", "-o", top / "init", AGENT)
    subprocess.run(line, check=True, capture_output=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, top / "bin/busybox")
    order = _copy_modules(modules, top / "modules") if modules is not None else []
    (top / "modules/order").write_text("".join(f"{name}\n" for name in order))
    names = "\n".join(str(path.relative_to(top)) for path in sorted(top.rglob("*")))
    with target.open("wb") as file:
        packing = ("busybox", "cpio", "-o", "-H", "newc")
        subprocess.run(packing, input=names.encode(), stdout=file, stderr=subprocess.PIPE, cwd=top, check=True)
    shutil.rmtree(top)
    return target


def _copy_modules(kernel: Path, target: Path) -> list[str]:
    """Copy modules and those that they need; returns their names, each after its own."""
    known = {path.stem.replace("-", "_"): path for path in (kernel / "lib/modules").rglob("*.ko")}
    order: list[str] = []

    def need(name: str) -> None:
        depends = re.search(rb"\0depends=([^\0]*)", known[name].read_bytes())
        for other in (depends.group(1).decode() if depends else "").split(","):
            if other:
                need(other.replace("-", "_"))
        if name not in order:
            order.append(name)

    for name in MODULES:
        need(name)
    for name in order:
        shutil.copy(known[name], target / name)
    return order


def configuration(
    *,
    emulator: str,
    kernel: str,
    initrd: str,
    sock: str,
    accelerator: str = "",
    own: Mapping[str, str] | None = None,
    **machine: Any,
) -> str:
    """Return a configuration as Kata's `configuration-qemu-nvidia-gpu.toml` is.

    Args: own: more of the stand-in's own keys.   machine: keys to be changed.
    """
    keys = {
        "path": emulator,
        "kernel": kernel,
        "initrd": initrd,
        "kernel_params": PARAMETERS,
        "default_memory": 256,
        "default_vcpus": 1,
        "cold_plug_vfio": "root-port",
        "hot_plug_vfio": "no-port",
        "pcie_root_port": 8,
        "enable_annotations": [],
        **machine,
    }
    parts: Mapping[str, Mapping[str, Any]] = {
        "hypervisor.qemu": keys,
        "agent.kata": {"dial_timeout": 120},
        "runtime": {"pod_resource_api_sock": sock, "create_container_timeout": 1200},
        "stand_in": {"accelerator": accelerator, **(own or {})},
    }
    # JSON's strings, numbers, truth values and lists are TOML's.
    return "\n".join(
        "\n".join((f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in part.items()), ""))
        for name, part in parts.items()
    )


def script(python: str, config: str, *paths: str) -> str:
    """Return the program that a handler of containerd names. Args: paths: where Python finds `tests` and Fairlead."""
    words: Sequence[str] = (python, "-m", "tests.katastandin.runtime", "--config", config)
    return f'#!/bin/sh\nexport PYTHONPATH={shlex.quote(":".join(paths))}\nexec {shlex.join(words)} "$@"\n'
