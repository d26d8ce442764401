"""What the CDI library costs with a hundred spec files: resolve and inject, and the look that keeps the files true.

Warm means what a long-lived process has: files read once, changes told by the watching cache. A process without a
watch pays the look, one `stat` a file. The runtime shim is neither; its cold start is in `inject`.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import frame
from fairlead_cdi import directory, emit, inject
from fairlead_cdi import spec as cdi
from fairlead_cdi.host import node

FILES, DEVICES, LIBRARIES, RUNS = 100, 8, 32, 300
BAR_MS = 1.0
NAMES = ("vendor50.example.com/gpu=0", "vendor50.example.com/gpu=7")
OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")


def write_files(folder: Path) -> None:
    """Write the spec files: each of 8 GPUs with their nodes, and 32 libraries."""
    for minor in range(DEVICES):
        os.mknod(folder / f"nvidia{minor}", stat.S_IFCHR | 0o666, os.makedev(195, minor))
    devices = tuple(
        cdi.Device(
            name=str(minor),
            edits=cdi.ContainerEdits(
                device_nodes=(
                    cdi.DeviceNode(
                        path=f"/dev/nvidia{minor}", host_path=str(folder / f"nvidia{minor}"), permissions="rw"
                    ),
                )
            ),
        )
        for minor in range(DEVICES)
    )
    mounts = tuple(
        cdi.Mount(host_path=f"/usr/lib/libpart{i}.so.1", container_path=f"/usr/lib/libpart{i}.so.1", options=OPTIONS)
        for i in range(LIBRARIES)
    )
    for number in range(FILES):
        kind = f"vendor{number}.example.com/gpu"
        made = cdi.Spec(cdi_version="", kind=kind, devices=devices, edits=cdi.ContainerEdits(mounts=mounts))
        (folder / emit.file_name(kind)).write_bytes(emit.emit_json(made))


@frame.benchmark("cdi")
def cdi_rows() -> Iterator[frame.Row | frame.Unmeasured]:
    if lacking := frame.needs("cdi: specs read and devices injected"):
        yield lacking
        return
    with tempfile.TemporaryDirectory(prefix="fl-bench-") as name:
        folder = Path(name)
        write_files(folder)
        started = time.perf_counter()
        registry = directory.scan([name])
        cold = (time.perf_counter() - started) * 1e3
        before: dict[str, Any] = {"ociVersion": "1.0.2", "process": {"env": ["PATH=/bin"]}, "linux": {}}
        times = _times_ms(lambda: inject.inject(before, registry.resolve(NAMES), stat=node.stat_node))
        # A file is left unread only once it has lain still for longer than the clock's tick.
        time.sleep(0.2)
        registry = directory.scan([name], previous=registry)
        looks = _times_ms(lambda: directory.scan([name], previous=registry))
    label = f"cdi: resolve and inject 2 GPUs of {FILES} spec files, warm"
    yield frame.Row(name=f"{label}, p50", ours=frame.percentile(times, 0.5), unit="ms", bar=BAR_MS)
    yield frame.Row(name=f"{label}, p99", ours=frame.percentile(times, 0.99), unit="ms")
    yield frame.Row(
        name=f"cdi: a look at {FILES} unchanged spec files, p50", ours=frame.percentile(looks, 0.5), unit="ms"
    )
    yield frame.Row(name=f"cdi: first reading of {FILES} spec files", ours=cold, unit="ms")


def _times_ms(act: Callable[[], object]) -> list[float]:
    found = []
    for _ in range(RUNS):
        started = time.perf_counter()
        act()
        found.append((time.perf_counter() - started) * 1e3)
    return found
