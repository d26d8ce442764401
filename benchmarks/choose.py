"""Preferred allocation alone, without sockets: the search that the peer makes exponential."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from benchmarks import frame
from fairlead.model.device import Device
from fairlead.model.gpu import GPU, Inventory, Link, LinkKind
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.plan.gpu.allocation import choose

ALLOCATOR = "NVIDIA go-gpuallocator 876e7b7"
SOURCE = "docs/design/peers.md, go-gpuallocator"
RUNS = 5


def machine(count: int, kind: LinkKind | None = LinkKind.NVSWITCH) -> Inventory:
    """Return `count` GPUs on two sockets; kind None: an uneven mesh of direct links."""
    dice = random.Random(count)
    gpus = tuple(
        GPU(
            uuid=GPUUUID(f"GPU-{i:02}"),
            index=i,
            minor=i,
            pci_bus_id=f"0000:{i:02x}:00.0",
            name="bench",
            memory_bytes=1,
            numa_node=i * 2 // count,
        )
        for i in range(count)
    )
    links = tuple(
        Link(a=a.uuid, b=b.uuid, kind=kind or LinkKind.XGMI, lanes=18 if kind else dice.randint(1, 4))
        for a, b in itertools.combinations(gpus, 2)
    )
    return Inventory(gpus=gpus, links=links)


def worst_ms(inventory: Inventory, free: int, size: int) -> float:
    """Return the slowest, over several sets of `free` GPUs, of the best time to choose `size`."""
    dice = random.Random(size)
    devices = {
        DeviceID(gpu.uuid): Device(id=DeviceID(gpu.uuid), cdi_name=f"fairlead.dev/gpu={gpu.uuid}", gpu=gpu.uuid)
        for gpu in inventory.gpus
    }
    topology = choose.plan_topology(inventory)
    sets = {tuple(sorted(dice.sample(list(devices), free))) for _ in range(RUNS)}
    return max(
        frame.best_of(
            lambda: choose.choose_devices(available, (), size, devices=devices, topology=topology),  # noqa: B023
            RUNS,
        )
        for available in sets
    )


@frame.benchmark("choose")
def choose_rows() -> Iterator[frame.Row]:
    eight, sixteen, mesh = machine(8), machine(16), machine(16, None)
    yield frame.Row(
        name="choose 1..8 of 8 GPUs, slowest size",
        ours=max(worst_ms(eight, free, size) for free in (7, 8) for size in range(1, free + 1)),
        unit="ms",
        peer=0.053,
        peer_name=f"{ALLOCATOR}, 2 of 8",
        peer_source=SOURCE,
        bar=0.5,
    )
    yield frame.Row(
        name="choose 3 of 16 GPUs",
        ours=worst_ms(sixteen, 16, 3),
        unit="ms",
        peer=28_300.0,
        peer_name=ALLOCATOR,
        peer_source=SOURCE,
        bar=5.0,
    )
    for label, inventory in (("NVSwitch", sixteen), ("uneven mesh", mesh)):
        yield frame.Row(
            name=f"choose any of 16 GPUs, {label}, slowest size",
            ours=max(worst_ms(inventory, free, size) for free in (13, 15, 16) for size in range(1, free + 1)),
            unit="ms",
            peer=14.5,
            peer_name=f"{ALLOCATOR}, 8 of 16",
            peer_source=SOURCE,
            bar=5.0,
        )
