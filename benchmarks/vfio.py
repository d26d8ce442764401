"""What it costs to find all that passthrough concerns on a machine with an HGX board.

The tree has eight GPUs, four NVSwitches and their bridges, and lists of PCI ids and module aliases as long as those of
a distribution. Binding is measured on a tree too: eight GPUs, three writes each, against a shell that does the same
writes. A kernel's own part, which is most of a real binding, is in neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from benchmarks import frame, vfio_node
from fairlead.node.vfio import executor
from fairlead.plan.vfio import step
from fairlead.silicon.vfio import discovery, writer
from tests.unit.silicon.vfio import pcitree, sysfskernel

RUNS = 20
MEMORY = Path("/dev/shm")  # noqa: S108  the tmpfs itself; what is made in it has a name of its own
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
        yield _memory(Path(name))
    # In memory, as sysfs is: on a disk the shell, which cuts a file short before it writes, pays for the disk.
    with tempfile.TemporaryDirectory(prefix="fl-bench-", dir=MEMORY if MEMORY.is_dir() else None) as name:
        tree = pcitree.build_hgx(Path(name) / "root")
        snapshot = discovery.scan(tree.root)
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
        yield from _binding(Path(name))
    yield from _allocates()
    yield frame.Row(
        name="vfio: placement of a slot of four over 100 nodes", ours=vfio_node.placement_ms(100), unit="ms", bar=50
    )
    yield frame.Unmeasured(
        name="vfio: a GPU that is gone to Unhealthy at the kubelet, and back",
        why="needs a kernel's bus: tests/system/test_hgx_power.py prints it, on the emulated HGX node",
    )


def _binding(folder: Path) -> Iterator[frame.Row]:
    """Bind eight GPUs, whole: scan, looks, writes by a child, and the look whether it worked.

    What the stand-in for a kernel takes to move links of files is in neither figure. The two parts of ours that no
    other order of the steps makes shorter have rows of their own.
    """
    took, shell = list[float](), list[float]()
    for run in range(RUNS):
        tree = pcitree.build_hgx(folder / f"bind-{run}", driver="nvidia")
        kernel = sysfskernel.Kernel(tree)
        tree.write("written", "")
        addresses = list(pcitree.HGX_MODULES)
        acted = list[float]()
        made = executor.Executor(
            tree.root,
            kernel.find_users,
            dev_root=tree.root,
            open_writer=functools.partial(_written, kernel, acted),
        )
        began = time.perf_counter()
        outcomes = asyncio.run(made.bind(addresses))
        took.append((time.perf_counter() - began - sum(acted)) * 1e3)
        assert all(one.is_good for one in outcomes), outcomes
        paths = [tree.root / step.DEVICES / one / "driver_override" for one in addresses] * 3
        began = time.perf_counter()
        _by_shell(paths)
        shell.append((time.perf_counter() - began) * 1e3)
    yield frame.Row(
        name="vfio: binding eight GPUs, from scan to proof",
        ours=min(took),
        unit="ms",
        peer=min(shell),
        peer_name="a loop in sh that makes the same writes and no look",
        peer_source="this run",
        bar=min(shell) * 1.2,
    )
    yield frame.Row(
        name="vfio: of it, the scan",
        ours=frame.best_of(lambda: discovery.scan(tree.root), RUNS),
        unit="ms",
    )
    yield frame.Row(
        name="vfio: of it, the start of the process that writes, beside the scan",
        ours=min(asyncio.run(_until_up()) for _ in range(RUNS)) * 1e3,
        unit="ms",
    )


@contextlib.asynccontextmanager
async def _written(kernel: sysfskernel.Kernel, acted: list[float]) -> AsyncIterator[writer.Writer]:
    """Give a writer whose child really writes, beside a kernel of files that acts on what was written.

    Args: acted: takes the seconds of the stand-in for what a kernel does, which the shell's loop does not wait for.
    """
    async with writer.opened() as child:

        class Both:
            async def begin(self) -> None:
                await child.begin()

            async def announce(self, writes: Sequence[writer.Write]) -> None:
                await child.announce([(kernel.tree.root / "written", text) for _, text in writes])

            async def write(self, path: Path, text: str, limit_s: float) -> None:
                await child.write(kernel.tree.root / "written", text, limit_s)
                began = time.perf_counter()
                await kernel.write(path, text, limit_s)
                acted.append(time.perf_counter() - began)

        yield Both()


def _memory(folder: Path) -> frame.Row:
    tree = pcitree.build_hgx(folder / "memory", driver="vfio-pci", regions=True)
    without, with_them = (min(vfio_node.agent_mib(tree.root, vfio=one) for _ in range(2)) for one in ("off", "bound"))
    return frame.Row(
        name="vfio: memory of an agent that passes eight GPUs through, beyond one that does not",
        ours=with_them - without,
        unit="MiB",
        peer=without,
        peer_name="the agent without",
        peer_source="this run",
        bar=4,
    )


def _allocates() -> Iterator[frame.Row]:
    fours, wholes = vfio_node.allocate_ms()
    for share in (0.5, 0.9):
        peer = frame.percentile(wholes, share)
        yield frame.Row(
            name=f"vfio: Allocate of a slot of four with ledger, p{round(share * 100)}",
            ours=frame.percentile(fours, share),
            unit="ms",
            peer=peer,
            peer_name="Allocate of a GPU with a driver",
            peer_source="this run",
            bar=peer * 1.3 if share == 0.5 else None,
        )


def _by_shell(paths: list[Path]) -> None:
    script = 'for path in "$@"; do echo vfio-pci > "$path"; done'
    subprocess.run(["/bin/sh", "-c", script, "sh", *map(str, paths)], check=True)


async def _until_up() -> float:
    """Return after how many seconds a process that writes reads its orders."""
    began = time.perf_counter()
    async with writer.opened() as writing:
        await writing.write(Path("/dev/null"), "", 5)
        return time.perf_counter() - began


async def _by_child(paths: list[Path]) -> float:
    began = time.perf_counter()
    async with writer.opened() as writing:
        for path in paths:
            await writing.write(path, "vfio-pci", 5)
        return time.perf_counter() - began
