"""What `fairlead fabric list` adds to a C client of the same library; what it costs to choose among 16 GPUs.

Library and Manager are the tests' stub. How long a real Manager takes to list is not known: the row with a bar has one
that takes two milliseconds; the row without has one that answers at once, which shows this program's own part.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import frame
from fairlead.cli.layer.fabric import group
from fairlead.model.fabric import FabricGPU, Partition
from fairlead.plan.fabric import packing
from fairlead.plan.fabric.lattice import Lattice
from fairlead.silicon.fabric import abi, address, connection, nvfm
from tests.fabricstub import library
from tests.fabricstub.lattice import A100
from tests.fabricstub.manager import ask

RUNS = 100
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
            finally:
                manager.kill()
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
