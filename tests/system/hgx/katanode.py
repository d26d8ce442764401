"""Brings containerd and Kata's stand-in into an HGX node: what is packed, and how the engine is started there.

The stand-in's machines have KVM, vsock and GPUs by VFIO, all real in the node; its kernel is the node's own.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from hgx import emulator, fabricworld, tenant
from hgx.node import Node

from tests import partitionchecker
from tests.cluster import katahost
from tests.katastandin import guest
from tools.cluster import build, image

PLACE: Final = "/run/kata"
SOCK: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"
_TESTS: Final = Path(__file__).parents[2]
_PACKED: Final = (
    *("katastandin/coldplug.py", "katastandin/container.py", "katastandin/runtime.py", "katastandin/sandbox.py"),
    *(
        "katastandin/monitor.py",
        "katastandin/stops.py",
        "katastandin/waterfall.py",
        "katastandin/wire.py",
        "cluster/cri.py",
        "cluster/cripod.py",
        "cluster/proto/cri_pb2.py",
    ),
)
_PARAMETERS: Final = f"{guest.PARAMETERS} no_timer_check"


@contextmanager
def running() -> Iterator[fabricworld.World]:
    """Boot a node with all of that and start containerd; skips where its parts are not there."""
    engine = build.folder_of(next(one for one in build.SHARED if one.name == "containerd"))
    if not engine.is_dir():
        pytest.skip("containerd has not been built: tests/cluster/setup.sh")
    emulator.require()
    guest.require()
    with tempfile.TemporaryDirectory(prefix="kata-") as name:
        folder = Path(name)
        image.write_pause(folder / "pause.tar")
        image.write_busybox(folder / "busybox.tar")
        guest.initramfs(folder / "initramfs")
        shared = {f"kata/{one}": folder / one for one in ("pause.tar", "busybox.tar", "initramfs")}
        shared |= {f"engine/{path.name}": path for path in engine.iterdir()}
        files = {f"stub/tests/{one}": (_TESTS / one).read_bytes() for one in _PACKED}
        own = [
            Path(__file__).parent / "crinode.py",
            Path(__file__).parent / "turns.py",
            Path(partitionchecker.__file__),
        ]
        with fabricworld.running(files=files, modules=own, tenants=3, memory_mib=3072, shared=shared) as world:
            start(world.node)
            yield world


def start(node: Node) -> None:
    """Write the engine's configuration and the stand-in's, start the engine, and load its images."""
    qemu = shlex.join(emulator.program(tenant.MOUNTED / "qemu"))
    paths = [*node.output("echo $PYTHONPATH").strip().split(":"), "/stub"]
    config = guest.configuration(
        emulator=f"{PLACE}/qemu",
        kernel=str(tenant.MOUNTED / "vmlinux"),
        initrd=str(tenant.MOUNTED / "kata/initramfs"),
        sock=SOCK,
        accelerator="kvm",
        default_memory=tenant.MEMORY_MIB,
        enable_hugepages=True,
        kernel_params=_PARAMETERS,
        own={"stops": f"{PLACE}/stops"},
    )
    files: dict[str, Any] = {
        "qemu": f'#!/bin/sh\nexec {qemu} "$@"\n',
        "configuration.toml": config,
        "runtime": guest.script(str(fabricworld.PYTHON), f"{PLACE}/configuration.toml", *paths),
        "containerd.toml": _engine_config(),
    }
    node.output(f"mkdir -p {PLACE}/stops && echo '127.0.0.1 localhost' >/etc/hosts && touch /etc/resolv.conf")
    for name, text in files.items():
        node.call("facts", "write_text", f"{PLACE}/{name}", text)
    node.output(f"chmod 755 {PLACE}/qemu {PLACE}/runtime")
    folder = tenant.MOUNTED / "engine"
    node.spawn("containerd", f"export PATH={folder}:$PATH; exec containerd --config {PLACE}/containerd.toml")
    node.call("crinode", "wait_ready", 120)
    for one in ("pause", "busybox"):
        node.output(f"{folder}/ctr -n k8s.io images import {tenant.MOUNTED}/kata/{one}.tar", limit_s=180)


def _engine_config() -> str:
    handler = katahost.handler(f"{PLACE}/runtime").replace(katahost.STATE, f"{PLACE}/state")
    return f"""\
version = 3
root = "/run/containerd-root"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
[plugins."io.containerd.cri.v1.runtime"]
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{image.PAUSE}"
{handler}"""
