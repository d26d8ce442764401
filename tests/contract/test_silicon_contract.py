"""What every silicon must do: simulated machines, fake sysfs trees, all of them joined, and any real NVML.

`FAIRLEAD_TEST_NVML` names a libnvidia-ml.so.1 to be held to the same suite (a GPU machine's own, or another build), and
`FAIRLEAD_TEST_NVML_ROOT` the root under which its /dev, /proc and /sys lie, where that is not `/`, and
`FAIRLEAD_TEST_NVML_LIBRARIES` more folders of the driver's libraries, joined by colons.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import stat
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from fairlead import errors
from fairlead.model.gpu import EventKind, GPUEvent, Inventory, LinkKind, Vendor
from fairlead.silicon import composite, hardware
from fairlead.silicon.nvidia import nvml
from fairlead.silicon.nvidia.files import driver
from fairlead.silicon.port import SampledSilicon
from fairlead.silicon.sim import profile, trees
from fairlead.silicon.sim import silicon as simulation

CALL_TIMEOUT_S = 3.0
WITH_LANES = {LinkKind.NVLINK, LinkKind.NVSWITCH, LinkKind.XGMI}
REAL = os.environ.get("FAIRLEAD_TEST_NVML", "")  # noqa: TID251 - chooses what the suite runs on, no setting of ours


@dataclass(frozen=True, slots=True)
class Subject:
    """One silicon under test, and the faults of its simulated part."""

    silicon: SampledSilicon
    faults: simulation.SimulatedSilicon | None = None


def simulated(name: str, *, call_timeout_s: float = 10.0) -> Callable[[Path], Subject]:
    def build(folder: Path) -> Subject:
        try:
            made = simulation.SimulatedSilicon(folder / "sim", name, call_timeout_s=call_timeout_s)
        except errors.Unavailable as error:
            pytest.skip(errors.sentence(error))
        return Subject(made, made)

    return build


def amd_tree(folder: Path) -> Subject:
    trees.build_amd(folder / "amd")
    return Subject(hardware.open_amd(folder / "amd"))


def intel_tree(folder: Path) -> Subject:
    trees.build_intel(folder / "intel")
    return Subject(hardware.open_intel(folder / "intel"))


REAL_ROOT = Path(os.environ.get("FAIRLEAD_TEST_NVML_ROOT", "/"))  # noqa: TID251 - as above
REAL_LIBRARIES = os.environ.get("FAIRLEAD_TEST_NVML_LIBRARIES", "")  # noqa: TID251 - as above


def joined(*, call_timeout_s: float = 10.0) -> Callable[[Path], Subject]:
    def build(folder: Path) -> Subject:
        one = simulated("mixed", call_timeout_s=call_timeout_s)(folder)
        others = amd_tree(folder).silicon, intel_tree(folder).silicon
        return Subject(composite.CompositeSilicon([one.silicon, *others]), one.faults)

    return build


def real(_folder: Path) -> Subject:
    if not REAL:
        pytest.skip("FAIRLEAD_TEST_NVML names no libnvidia-ml.so.1")
    search = driver.Search(libraries=tuple(Path(part) for part in REAL_LIBRARIES.split(":") if part))
    return Subject(nvml.NVMLSilicon(REAL_ROOT, Path("/"), call_timeout_s=30.0, library=Path(REAL), search=search))


BUILDERS = {
    **{f"simulated-{name}": simulated(name) for name in profile.list_names()},
    "amd-tree": amd_tree,
    "intel-tree": intel_tree,
    "composite": joined(),
    "real-nvml": real,
}
WITH_FAULTS = {
    "simulated-h100x8": simulated("h100x8", call_timeout_s=CALL_TIMEOUT_S),
    "simulated-mixed": simulated("mixed", call_timeout_s=CALL_TIMEOUT_S),
    "composite": joined(call_timeout_s=CALL_TIMEOUT_S),
}


@pytest_asyncio.fixture(params=list(BUILDERS))
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    made = BUILDERS[request.param](tmp_path)
    yield made
    await made.silicon.close()


@pytest_asyncio.fixture(params=list(WITH_FAULTS))
async def breakable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    made = WITH_FAULTS[request.param](tmp_path)
    yield made
    await made.silicon.close()


def inject(subject: Subject, fault: str, *, gpu: int, value: str | None = None) -> None:
    assert subject.faults is not None
    subject.faults.inject(fault, gpu=gpu, value=value)


def uuid_at(inventory: Inventory, index: int) -> str:
    return next(gpu.uuid for gpu in inventory.gpus if gpu.index == index and gpu.vendor is Vendor.NVIDIA)


async def listen(subject: Subject) -> AsyncIterator[GPUEvent]:
    """Begin to watch and come back once nothing is missed any more."""
    events = subject.silicon.watch_events()
    async with asyncio.timeout(50):
        first = await anext(events)
    assert first.kind is EventKind.CHANGED
    return events


async def next_of(events: AsyncIterator[GPUEvent], kind: EventKind, *, within_s: float = 50.0) -> GPUEvent:
    async with asyncio.timeout(within_s):
        async for event in events:
            if event.kind is kind:
                return event
    raise AssertionError("the iterator ended")


async def test_gpus_are_told_apart_by_uuid_and_address(subject: Subject) -> None:
    inventory = await subject.silicon.scan()
    assert inventory.gpus
    assert len({gpu.uuid for gpu in inventory.gpus}) == len(inventory.gpus)
    assert all(
        re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", gpu.pci_bus_id) for gpu in inventory.gpus
    )


async def test_gpus_come_in_index_order_vendor_by_vendor(subject: Subject) -> None:
    inventory = await subject.silicon.scan()
    for _, group in itertools.groupby(inventory.gpus, key=lambda gpu: gpu.vendor):
        indexes = [gpu.index for gpu in group]
        assert indexes == sorted(set(indexes))


async def test_every_gpu_names_its_product_and_memory(subject: Subject) -> None:
    inventory = await subject.silicon.scan()
    assert all(gpu.name and gpu.memory_bytes > 1 << 30 for gpu in inventory.gpus)
    assert {driver.vendor for driver in inventory.drivers} == {gpu.vendor for gpu in inventory.gpus}


async def test_every_pair_of_a_vendor_has_one_link(subject: Subject) -> None:
    inventory = await subject.silicon.scan()
    place = {gpu.uuid: (number, gpu.vendor) for number, gpu in enumerate(inventory.gpus)}
    wanted = {(a.uuid, b.uuid) for a, b in itertools.combinations(inventory.gpus, 2) if a.vendor is b.vendor}
    assert {(link.a, link.b) for link in inventory.links} == wanted
    assert len(inventory.links) == len(wanted)
    assert all(place[link.a] < place[link.b] for link in inventory.links)


async def test_lanes_are_counted_where_there_are_any(subject: Subject) -> None:
    inventory = await subject.silicon.scan()
    assert all((link.lanes > 0) is (link.kind in WITH_LANES) for link in inventory.links)


async def test_a_second_scan_finds_the_same_machine(subject: Subject) -> None:
    first, second = await subject.silicon.scan(), await subject.silicon.scan()
    assert [(g.uuid, g.minor, g.pci_bus_id) for g in first.gpus] == [
        (g.uuid, g.minor, g.pci_bus_id) for g in second.gpus
    ]
    assert first.links == second.links


async def test_scans_may_overlap(subject: Subject) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(subject.silicon.scan()) for _ in range(4)]
    assert len({tuple(gpu.uuid for gpu in task.result().gpus) for task in tasks}) == 1


async def test_every_device_node_of_a_gpu_is_a_device_of_its_driver(subject: Subject) -> None:
    inventory, files = await subject.silicon.scan(), await subject.silicon.scan_driver()
    nodes = {(item.vendor, node.path): node for item in files for node in item.nodes}
    for gpu in inventory.gpus:
        for path in gpu.device_nodes:
            node = nodes[gpu.vendor, path]
            state = Path(node.host_path).stat()
            assert stat.S_ISCHR(state.st_mode)
            assert (os.major(state.st_rdev), os.minor(state.st_rdev)) == (node.major, node.minor)


async def test_a_gpus_node_carries_its_minor_number(subject: Subject) -> None:
    inventory, files = await subject.silicon.scan(), await subject.silicon.scan_driver()
    minors = {(item.vendor, node.path): node.minor for item in files for node in item.nodes}
    for gpu in inventory.gpus:
        name = f"/dev/nvidia{gpu.minor}" if gpu.vendor is Vendor.NVIDIA else f"/dev/dri/renderD{gpu.minor}"
        assert name in gpu.device_nodes
        assert minors[gpu.vendor, name] == gpu.minor


async def test_the_driver_on_disk_is_the_driver_that_answers(subject: Subject) -> None:
    inventory, files = await subject.silicon.scan(), await subject.silicon.scan_driver()
    assert {(d.vendor, d.version) for d in inventory.drivers} == {(f.vendor, f.version) for f in files}


async def test_libraries_are_there_and_complete(subject: Subject) -> None:
    for files in await subject.silicon.scan_driver():
        assert all(Path(file.host_path).exists() for file in files.files)
        assert all((Path(f.host_path).parent / link).is_symlink() for f in files.files for link in f.links)


async def test_watching_never_ends_by_itself(subject: Subject) -> None:
    async def watch() -> None:
        async for event in subject.silicon.watch_events():
            assert isinstance(event, GPUEvent)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch(), timeout=0.2)


async def test_close_may_be_called_twice(subject: Subject) -> None:
    await subject.silicon.scan()
    await subject.silicon.close()
    await subject.silicon.close()


async def test_a_lost_gpu_is_named_and_hides_no_other(breakable: Subject) -> None:
    before = await breakable.silicon.scan()
    inject(breakable, "lost", gpu=2)
    after = await breakable.silicon.scan()
    assert [gpu for gpu in after.gpus if gpu.uuid != uuid_at(before, 2)] == list(after.gpus)
    assert len(after.gpus) == len(before.gpus) - 1
    (lost,) = after.unreadable
    assert (lost.uuid, lost.index, lost.reason) == (uuid_at(before, 2), 2, "Lost")


async def test_a_gpu_lost_before_the_first_scan_is_listed_without_uuid(breakable: Subject) -> None:
    inject(breakable, "lost", gpu=0)
    (lost,) = (await breakable.silicon.scan()).unreadable
    assert (lost.index, lost.uuid, lost.reason) == (0, None, "Lost")


async def scanned(subject: Subject, is_wanted: Callable[[Inventory], bool]) -> Inventory:
    """Scan until it is as wanted: on a loaded machine the library and healthy GPUs take longer than a call may, too."""
    while True:
        with contextlib.suppress(errors.Unavailable):
            if is_wanted(found := await subject.silicon.scan()):
                return found


def failed(inventory: Inventory) -> list[tuple[int, str]]:
    return [(gpu.index, gpu.reason) for gpu in inventory.unreadable]


async def test_a_hanging_gpu_times_out_alone(breakable: Subject) -> None:
    before = await scanned(breakable, lambda found: not found.unreadable)
    inject(breakable, "slow", gpu=1, value="3600")
    after = await scanned(breakable, lambda found: failed(found) == [(1, "Timeout")])
    assert len(after.gpus) == len(before.gpus) - 1
    assert after.unreadable[0].uuid == uuid_at(before, 1)


async def test_a_gpu_that_still_hangs_costs_later_scans_no_time(breakable: Subject) -> None:
    inject(breakable, "slow", gpu=1, value="3600")
    await scanned(breakable, lambda found: (1, "Timeout") in failed(found))
    took = []
    for _ in range(5):  # the fastest: a loaded machine makes others slow
        started = time.monotonic()
        await scanned(breakable, lambda found: (1, "Timeout") in failed(found))
        took.append(time.monotonic() - started)
    assert min(took) < CALL_TIMEOUT_S


async def test_a_hanging_gpu_leaves_the_event_loop_free(breakable: Subject) -> None:
    inject(breakable, "slow", gpu=1, value="3600")
    turns = 0
    async with asyncio.TaskGroup() as group:
        scan = group.create_task(scanned(breakable, lambda found: (1, "Timeout") in failed(found)))
        while not scan.done():
            await asyncio.sleep(0.001)
            turns += 1
    assert turns > 10  # one, where the call holds the loop


async def test_a_gpu_answers_again_once_it_no_longer_hangs(breakable: Subject) -> None:
    before = await scanned(breakable, lambda found: not found.unreadable)
    events = await listen(breakable)
    inject(breakable, "slow", gpu=1, value="60")
    await scanned(breakable, lambda found: (1, "Timeout") in failed(found))
    inject(breakable, "slow", gpu=1, value="0")
    while (await next_of(events, EventKind.RECOVERED)).uuid != uuid_at(before, 1):
        pass  # a healthy one that a loaded machine made slow
    await scanned(breakable, lambda found: not found.unreadable)


async def test_an_xid_arrives_at_once_with_its_gpu(breakable: Subject) -> None:
    inventory = await breakable.silicon.scan()
    events = await listen(breakable)
    inject(breakable, "xid", gpu=3, value="48")
    event = await next_of(events, EventKind.XID)
    assert (event.uuid, event.xid, event.gpu_instance) == (uuid_at(inventory, 3), 48, None)


async def test_an_xid_of_an_instance_names_the_instance(breakable: Subject) -> None:
    events = await listen(breakable)
    inject(breakable, "xid", gpu=0, value="94@5/1")
    event = await next_of(events, EventKind.XID)
    assert (event.xid, event.gpu_instance, event.compute_instance) == (94, 5, 1)


async def test_every_subscriber_gets_every_event(breakable: Subject) -> None:
    one, other = await listen(breakable), await listen(breakable)
    inject(breakable, "ecc", gpu=1)
    assert await next_of(one, EventKind.ECC_DOUBLE_BIT) == await next_of(other, EventKind.ECC_DOUBLE_BIT)


async def test_losing_a_gpu_is_told_and_the_others_are_still_heard(breakable: Subject) -> None:
    inventory = await breakable.silicon.scan()
    events = await listen(breakable)
    inject(breakable, "lost", gpu=2)
    assert (await next_of(events, EventKind.LOST)).uuid == uuid_at(inventory, 2)
    await next_of(events, EventKind.CHANGED)
    inject(breakable, "xid", gpu=0, value="31")
    assert (await next_of(events, EventKind.XID)).uuid == uuid_at(inventory, 0)


async def test_a_lost_gpu_that_comes_back_is_told_and_heard_again(breakable: Subject) -> None:
    inventory = await breakable.silicon.scan()
    events = await listen(breakable)
    inject(breakable, "lost", gpu=2)
    await next_of(events, EventKind.LOST)
    inject(breakable, "recover", gpu=2)
    assert (await next_of(events, EventKind.RECOVERED)).uuid == uuid_at(inventory, 2)
    inject(breakable, "xid", gpu=2, value="63")
    assert (await next_of(events, EventKind.XID)).xid == 63


async def test_failing_event_waits_are_survived(breakable: Subject) -> None:
    events = await listen(breakable)
    inject(breakable, "event-errors", gpu=0, value="2")
    await next_of(events, EventKind.CHANGED)
    await next_of(events, EventKind.CHANGED)
    inject(breakable, "xid", gpu=0, value="79")
    assert (await next_of(events, EventKind.XID)).xid == 79


async def test_every_readable_gpu_is_sampled_before_its_mig_devices(subject: Subject) -> None:
    inventory = await subject.silicon.scan()
    samples = await subject.silicon.sample(within_s=5.0)
    wanted = [(gpu.uuid, mig) for gpu in inventory.gpus for mig in (None, *(item.uuid for item in gpu.mig_devices))]
    assert [(sample.gpu, sample.mig) for sample in samples] == wanted
    totals = {gpu.uuid: gpu.memory_bytes for gpu in inventory.gpus}
    assert all(sample.memory_total_bytes == totals[sample.gpu] for sample in samples if sample.mig is None)


async def test_a_hanging_or_lost_gpu_is_left_out_of_samples_and_scans_go_on(breakable: Subject) -> None:
    healthy = await scanned(breakable, lambda found: not found.unreadable)
    first, second = healthy.gpus[0].uuid, healthy.gpus[1].uuid
    wanted = {gpu.uuid for gpu in healthy.gpus} - {first, second}
    inject(breakable, "slow", gpu=0, value="3600")
    inject(breakable, "lost", gpu=1)
    # A sample that waited for the hanging GPU would not end within this test.
    while {sample.gpu for sample in await breakable.silicon.sample(within_s=0.3)} != wanted:
        pass
    inject(breakable, "slow", gpu=0, value="0")
    await scanned(breakable, lambda found: first in {gpu.uuid for gpu in found.gpus})


async def test_readings_that_decide_health_are_read(breakable: Subject) -> None:
    for fault, value in (("temperature", "91"), ("power", "700"), ("ecc", "3"), ("remap", "failed")):
        inject(breakable, fault, gpu=0, value=value)
    inject(breakable, "recovery-action", gpu=0, value="2")
    health = (await breakable.silicon.scan()).gpus[0].health
    assert (health.temperature_c, health.power_mw, health.ecc_uncorrected) == (91, 700_000, 3)
    assert (health.remap_pending, health.remap_failed, health.recovery_action) == (False, True, 2)


async def test_mig_devices_carry_their_placement_and_profile(breakable: Subject) -> None:
    events = await listen(breakable)
    inject(breakable, "mig-mode", gpu=0)
    inject(breakable, "mig-create", gpu=0, value="3g.40gb@4")
    inject(breakable, "mig-create", gpu=0, value="1g.10gb+me@0")
    assert (await next_of(events, EventKind.CHANGED)).uuid is not None
    gpu = (await breakable.silicon.scan()).gpus[0]
    assert gpu.mig_enabled
    assert {(m.profile, m.placement_start, m.placement_size) for m in gpu.mig_devices} == {
        ("3g.40gb", 4, 4),
        ("1g.10gb+me", 0, 1),
    }
    assert [m.index for m in gpu.mig_devices] == [0, 1]
    assert len({m.uuid for m in gpu.mig_devices}) == 2


async def test_mig_devices_have_their_capability_nodes(breakable: Subject) -> None:
    inject(breakable, "mig-mode", gpu=0)
    inject(breakable, "mig-create", gpu=0, value="2g.20gb@2")
    gpu = (await breakable.silicon.scan()).gpus[0]
    (device,) = gpu.mig_devices
    files = (await breakable.silicon.scan_driver())[0]
    minors, nodes = dict(files.mig_minors), {node.path: node for node in files.nodes}
    base = f"gpu{gpu.minor}/gi{device.gpu_instance}"
    for key in (f"{base}/access", f"{base}/ci{device.compute_instance}/access"):
        node = nodes[f"/dev/nvidia-caps/nvidia-cap{minors[key]}"]
        assert (node.major, node.minor) == (dict(files.majors)["nvidia-caps"], minors[key])
