"""An HGX node, ready to be commanded: board, machine and disks together, in a folder of their own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hgx import emulator, image, tenant
from hgx.layout import HGX_H100, Layout
from hgx.node import Node
from hgx.server import Board


@contextlib.contextmanager
def hgx_node(
    layout: Layout = HGX_H100,
    *,
    kernel: emulator.Kernel | None = None,
    modules: Sequence[Path] = (),
    packages: Sequence[str] = (),
    programs: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
    tenants: int = 0,
    memory_mib: int = 1024,
    shared: Mapping[str, Path] | None = None,
) -> Iterator[Node]:
    """Boot a node with a board; skips where its parts could not be had.

    `/state` is a disk that outlives a power cut, and `/var/lib` lies on it; the rest is memory. After `node.cut_off()`,
    `power_on` starts the node again.

    Args: kernel: the one with iommufd, if None.   modules: Python files that the test calls in the node, by name.
        packages: of Python, that they need (`image.AGENT`: Fairlead's agent).   programs: of this machine, by path.
        tenants: how many tenants' machines run at once.   shared: further files and folders of the tenants' disk.
    """
    kernel = kernel or emulator.own_kernel()
    with tempfile.TemporaryDirectory(prefix="hgx-") as name:  # short, because it has sockets
        folder = Path(name)
        initramfs = image.initramfs(
            folder / "initramfs", kernel, modules=modules, packages=packages, programs=programs, files=files
        )
        disks = [
            image.state_disk(folder / "state"),
            *([tenant.disk(folder / "tenants", folder, shared or {})] if tenants else []),
        ]
        with (
            Board(layout, folder) as board,
            Node(board, folder, kernel=kernel, initramfs=initramfs, disks=disks, memory_mib=memory_mib) as node,
        ):
            yield power_on(node, tenants=tenants)


def power_on(node: Node, *, tenants: int = 0) -> Node:
    """Start a node, the first time or after its power was cut, and mount its disks."""
    node.start()
    node.output("mkdir -p /state /var/lib && mount -t ext4 /dev/vda /state && ifconfig lo up")
    node.output("mkdir -p /state/lib && mount -o bind /state/lib /var/lib")
    if tenants:
        tenant.prepare(node, at_once=tenants)
    return node
