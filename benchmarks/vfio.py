"""What it costs to find all that passthrough concerns on a machine with an HGX board.

The tree has eight GPUs, four NVSwitches and their bridges, and lists of PCI ids and module aliases as long as those of
a distribution. Binding is measured on a tree too: eight GPUs, three writes each, against a shell that does the same
writes. A kernel's own part, which is most of a real binding, is in neither.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import frame
from fairlead.plan.vfio import step
from fairlead.silicon.vfio import discovery, writer
from tests.unit.silicon.vfio import pcitree

RUNS = 20
_IDS, _ALIASES = 36_000, 30_000


def machine(folder: Path) -> pcitree.Tree:
    tree = pcitree.build_hgx(folder / "root")
    ids = "".join(f"\t{number:04x}  A device of this number\n" for number in range(_IDS))
    tree.write("usr/share/misc/pci.ids", f"{pcitree.PCI_IDS}0001  Another vendor\n{ids}")
    aliases = "".join(f"alias pci:v00008086d{number:08X}sv*sd*bc*sc*i* module\n" for number in range(_ALIASES))
    tree.write(f"lib/modules/{pcitree.KERNEL}/modules.alias", pcitree.ALIASES + aliases)
    return tree


@frame.benchmark("vfio")
def vfio_rows() -> Iterator[frame.Row | frame.Unmeasured]:
    if lacking := frame.needs("vfio: scan of an HGX board"):
        yield lacking
        return
    with tempfile.TemporaryDirectory(prefix="fl-bench-") as name:
        tree = machine(Path(name))
        snapshot = discovery.scan(tree.root)
        assert len(snapshot.gpus) == len(pcitree.HGX_MODULES)
        scan = frame.best_of(lambda: discovery.scan(tree.root), RUNS)
        yield frame.Row(name="vfio: scan of an HGX board", ours=scan, unit="ms", bar=20)
        writes = [(tree.root / step.DEVICES / one.address / "driver_override") for one in snapshot.gpus] * 3
        shell = frame.best_of(lambda: _by_shell(writes), RUNS)
        ours = min(asyncio.run(_by_child(writes)) for _ in range(RUNS)) * 1000
        yield frame.Row(
            name="vfio: 24 writes to sysfs, with the start of the process that does them",
            ours=ours,
            unit="ms",
            peer=shell,
            peer_name="a loop in sh",
            peer_source="this run",
        )


def _by_shell(paths: list[Path]) -> None:
    script = 'for path in "$@"; do echo vfio-pci > "$path"; done'
    subprocess.run(["/bin/sh", "-c", script, "sh", *map(str, paths)], check=True)


async def _by_child(paths: list[Path]) -> float:
    began = time.perf_counter()
    async with writer.opened() as writing:
        for path in paths:
            await writing.write(path, "vfio-pci", 5)
        return time.perf_counter() - began
