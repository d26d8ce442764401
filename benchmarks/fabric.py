"""What `fairlead fabric list` adds to a C client of the same library; what it costs to choose among 16 GPUs.

A listing is one call of the library on a connection that is open, its answer checked, and the table's lines made; the
client does the same. Neither counts the start of its process, which `cli.help` has, nor the connection. Ours goes
through the thread that keeps a library which hangs from the caller.

Library and Manager are the tests' stub. How long a real Manager takes to list is not known: the row with a bar has one
that takes two milliseconds; the row without has one that answers at once, which shows this program's own part.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import frame, vfio_node
from fairlead.cli.layer.fabric import group
from fairlead.model.fabric import FabricGPU, Partition
from fairlead.plan.fabric import packing
from fairlead.plan.fabric.lattice import Lattice
from fairlead.silicon.fabric import abi, address, connection, nvfm
from tests.fabricstub import library
from tests.fabricstub.lattice import A100
from tests.fabricstub.manager import ask
from tests.unit.node.fabric import fabricnode
from tests.unit.silicon.vfio import pcitree

RUNS = 100
ROUNDS = 20
_PAIR, _ONE = "x2-1.3", "x1-5"
_LOOK_S = 0.0002
_SLOW_S = 0.002


@frame.benchmark("fabric")
def fabric_rows() -> Iterator[frame.Row | frame.Unmeasured]:
    if lacking := frame.needs("fabric: list of 15 partitions", "gcc"):
        yield lacking
        return
    with tempfile.TemporaryDirectory(prefix="fl-bench-") as name:
        folder = Path(name)
        stub, client = library.compile_library(folder), library.compile_client(folder)
        path = folder / "fm.sock"
        command = ("python3", "-I", str(Path(library.__file__).parent / "manager.py"), f"unix:{path}", "h100")
        with subprocess.Popen(command, stdout=subprocess.PIPE) as manager:
            assert manager.stdout is not None
            manager.stdout.readline()
            try:
                yield _listing(stub, client, path, "fabric: list of 15 partitions by a Manager that answers at once")
                ask(str(path), f"fault slow={_SLOW_S}")
                yield _listing(
                    stub, client, path, "fabric: list of 15 partitions by a Manager that takes 2 ms", most=1.2
                )
                ask(str(path), "fault slow=0")
                yield _memory(folder, stub, path)
            finally:
                manager.kill()
        yield from asyncio.run(_activation(folder, stub))
    yield _packing()


def _listing(stub: Path, client: Path, path: Path, name: str, most: float | None = None) -> frame.Row:
    line = connection.Connection("fm", lambda: nvfm.NVFM(str(stub), address.parse(str(path)), timeout_s=5))
    took = list[float]()
    for _ in range(RUNS):
        began = time.perf_counter()
        assert len(group.table(line.run_here(lambda manager: manager.list_partitions(), timeout_s=5))) == 17
        took.append(time.perf_counter() - began)
    line.close()
    done = subprocess.run([client, stub, path, str(abi.UNIX), str(RUNS)], capture_output=True, text=True, check=True)
    peer = float(done.stdout) / 1000
    return frame.Row(
        name=name,
        ours=statistics.median(took) * 1000,
        unit="ms",
        peer=peer,
        peer_name="a C client of the same library",
        peer_source="this run",
        bar=peer * most if most else None,
    )


def _memory(folder: Path, stub: Path, path: Path) -> frame.Row:
    tree = pcitree.build_hgx(folder / "memory", driver="vfio-pci", regions=True)
    known = ((), (str(stub), str(path)))
    without, with_it = (
        min(vfio_node.agent_mib(tree.root, vfio="bound", fabric=one) for _ in range(2)) for one in known
    )
    return frame.Row(
        name="fabric: memory of an agent that switches partitions, beyond one that passes GPUs through",
        ours=with_it - without,
        unit="MiB",
        peer=without,
        peer_name="the agent without",
        peer_source="this run",
        bar=3,
    )


async def _activation(folder: Path, stub: Path) -> list[frame.Row]:
    """What NVLink adds to an Allocate, which does not wait for it, and how much later the slot's CDI entry is there."""
    place = folder / "node"
    place.mkdir()
    node = fabricnode.FabricNode(folder=place, stub=stub)
    node.start_manager()
    holds: dict[str, list[float]] = {_PAIR: [], _ONE: []}
    took, calls = list[float](), list[float]()
    try:
        async with node.agent():
            await node.until_known()
            await node.until_free()
            for _ in range(ROUNDS):
                for name, spent in holds.items():
                    began = time.perf_counter()
                    await node.give(name)
                    spent.append(time.perf_counter() - began)
                    while not node.is_shown(name):  # noqa: ASYNC110 - a file is no event
                        await asyncio.sleep(_LOOK_S)
                    if name == _PAIR:
                        took.append(time.perf_counter() - began)
                        calls.append((node.keeper.activation(name) or (0.0, 0.0))[1])
                    node.listed.clear()
                    await node.until_free()
    finally:
        node.manager.stop()
    assert node.violations == []
    alone = statistics.median(holds[_ONE]) * 1000
    return [
        frame.Row(
            name="fabric: Allocate of two GPUs with NVLink, p50",
            ours=statistics.median(holds[_PAIR]) * 1000,
            unit="ms",
            peer=alone,
            peer_name="Allocate of one GPU",
            peer_source="this run",
            bar=alone + 2,
        ),
        frame.Row(
            name="fabric: from that Allocate to its CDI entry, by a Manager that answers at once",
            ours=statistics.median(took) * 1000,
            unit="ms",
            peer=statistics.median(calls) * 1000,
            peer_name="the library's call",
            peer_source="this run",
        ),
    ]


def _packing() -> frame.Row:
    lattice = Lattice(
        [
            Partition(id=one, gpus=tuple(FabricGPU(module=module) for module in modules))
            for one, modules in A100.partitions.items()
        ]
    )
    worst = max(
        frame.best_of(lambda size=size: packing.rank(lattice, size, lattice.modules), RUNS)  # type: ignore[misc]
        for size in lattice.sizes
    )
    return frame.Row(name="fabric: choice of a partition among 16 GPUs, dearest size", ours=worst, unit="ms", bar=1)
