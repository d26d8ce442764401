"""GPUs that are passed through, scanned on an HGX board of made-up files, and reset by whatever a test has for it."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fairlead import errors
from fairlead.kernel import uevent
from fairlead.model.driver import PassthroughGPU
from fairlead.model.vfio import Snapshot
from fairlead.node.inventory import health
from fairlead.node.vfio import busevents, gpus, modules, numbers
from fairlead.silicon.vfio import discovery
from tests.unit.silicon.vfio import pcitree

_MODULES = {5, 7, 6, 8, 1, 3, 2, 4}


def _region(module: int) -> bytes:
    return pcitree.registers(pcitree.module_registers(module), size=0x22000)


class Held:
    """What keeps a node; counts who asked."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.open = 0
        self.is_in_use = False

    def take(self, gpu: PassthroughGPU) -> Held:
        if self.is_in_use:
            raise errors.Conflict("/dev/vfio/1 is in use", reason="VFIONodeInUse")
        self.taken.append(str(gpu.key))
        self.open += 1
        return self

    def close(self) -> None:
        self.open -= 1


class World:
    """An HGX machine and the agent's part that looks at it."""

    def __init__(self, folder: Path) -> None:
        self.tree = pcitree.build_hgx(folder / "root", driver="vfio-pci")
        for address, module in pcitree.HGX_MODULES.items():
            (self.tree.folder(address) / "resource0").write_bytes(_region(module))
        self.nodes, self.state, self.ours = Held(), folder / "state", set[str]()
        self.resets: list[str] = []
        self.bus = busevents.BusEvents(lambda: None)
        self.gpus = self.agent()

    def agent(self) -> gpus.PassthroughGPUs:
        memory = modules.ModuleMemory(self.state)
        made = gpus.PassthroughGPUs(
            self.tree.root, memory, self.nodes.take, self.reset, held=lambda: self.ours, bus=self.bus
        )
        made.numbers = numbers.GPUNumbers(self.state)
        return made

    async def reset(self, address: str) -> None:
        self.resets.append(address)

    async def scan(self) -> tuple[PassthroughGPU, ...]:
        return tuple(gpu for driver in await self.gpus.scan() for gpu in driver.passthrough)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_boards_gpus_are_listed_with_modules_that_were_read_while_nobody_had_them(world: World) -> None:
    found = await world.scan()
    assert {gpu.module for gpu in found} == _MODULES
    assert {gpu.problem for gpu in found} == {""}
    assert sorted(world.nodes.taken) == sorted(str(gpu.key) for gpu in found)
    assert world.nodes.open == 0


async def test_a_module_is_asked_once_and_known_after_a_restart(world: World) -> None:
    first = await world.scan()
    world.nodes.taken.clear()
    world.nodes.is_in_use = True
    assert await world.scan() == first
    world.gpus = world.agent()
    assert await world.scan() == first
    assert world.nodes.taken == []


async def test_a_gpu_in_use_whose_module_was_never_read_is_kept_back_until_it_comes_back(world: World) -> None:
    world.nodes.is_in_use = True
    found = await world.scan()
    assert all(gpu.module is None and "in use" in gpu.problem for gpu in found)
    world.nodes.is_in_use = False
    assert all(gpu.module is not None and not gpu.problem for gpu in await world.scan())


async def test_a_gpu_that_the_third_gate_holds_is_read_without_its_node(world: World) -> None:
    world.nodes.is_in_use = True
    found = await world.scan()
    world.ours = {str(gpu.key) for gpu in found}
    assert {gpu.module for gpu in await world.scan()} == _MODULES


async def test_a_gpu_that_vanished_stays_listed_without_nodes_and_one_that_comes_back_is_well(world: World) -> None:
    before = await world.scan()
    place = (world.tree.root / "sys/bus/pci/devices" / before[0].address).resolve()
    link = world.tree.root / "sys/bus/pci/devices" / before[0].address
    target = link.readlink()
    link.unlink()
    after = {gpu.key: gpu for gpu in await world.scan()}
    assert len(after) == len(before)
    assert "not on the bus" in after[before[0].key].problem
    assert after[before[0].key].group_nodes == ()
    link.symlink_to(target)
    assert place.exists()
    assert await world.scan() == before


async def test_a_gpu_that_stops_answering_keeps_its_key_and_module_and_says_so(world: World) -> None:
    before = await world.scan()
    config = (world.tree.root / "sys/bus/pci/devices" / before[0].address).resolve() / "config"
    readable = config.read_bytes()
    config.write_bytes(b"\xff" * len(readable))
    after = {gpu.key: gpu for gpu in await world.scan()}
    assert after.keys() == {gpu.key for gpu in before}
    assert "does not answer" in after[before[0].key].problem
    assert after[before[0].key].module == before[0].module
    config.write_bytes(readable)
    assert await world.scan() == before


@pytest.mark.parametrize(
    ("loss", "said"), [(gpus.Loss.REMOVED, "not on the bus"), (gpus.Loss.SILENT, "does not answer")]
)
async def test_a_gpu_that_is_lost_is_told_without_a_scan_until_a_scan_finds_it(
    world: World, loss: gpus.Loss, said: str
) -> None:
    before = await world.scan()
    lost = world.gpus.lose({before[2].address: loss})
    assert lost is not None
    after = tuple(gpu for driver in lost for gpu in driver.passthrough)
    assert said in after[2].problem
    assert after[2].is_lost
    assert (after[2].key, after[2].module) == (before[2].key, before[2].module)
    assert after[:2] + after[3:] == before[:2] + before[3:]
    assert world.gpus.lose({before[2].address: gpus.Loss.REMOVED}) is None, "it is told once"
    assert await world.scan() == before


async def test_a_gpu_that_is_lost_while_a_scan_runs_stays_lost_until_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await world.scan()
    has_read, may_end = threading.Event(), threading.Event()
    scan = discovery.scan

    def slow(root: Path) -> Snapshot:
        found = scan(root)
        has_read.set()
        may_end.wait(20)
        return found

    monkeypatch.setattr(discovery, "scan", slow)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(world.scan())
        await asyncio.to_thread(has_read.wait, 20)
        assert world.gpus.lose({before[0].address: gpus.Loss.REMOVED}) is not None
        may_end.set()
    after = running.result()
    assert after[0].is_lost
    assert after[0].group_nodes == ()
    assert await world.scan() == before


async def test_a_function_that_is_no_gpu_of_this_machine_is_not_lost(world: World) -> None:
    await world.scan()
    assert world.gpus.lose({"0000:ff:00.0": gpus.Loss.REMOVED}) is None


async def test_why_a_gpu_is_not_handed_out_is_said_once_in_log_and_events(world: World) -> None:
    said: list[health.Change] = []
    world.gpus.changed = said.append
    world.nodes.is_in_use = True
    with capture_logs() as logs:
        await world.scan()
        await world.scan()
        world.nodes.is_in_use = False
        await world.scan()
    assert [(one.is_healthy, one.reason, "in use" in one.message) for one in said] == [
        (is_healthy, "PassthroughUnusable", True) for is_healthy in (False, True) for _ in range(8)
    ]
    kept = [line for line in logs if line["event"] == "gpu cannot be passed through"]
    assert (len(kept), "in use" in kept[0]["error"], kept[0]["pci"]) == (8, True, "0000:0f:00.0")
    assert sum(line["event"] == "gpu can be passed through again" for line in logs) == 8


async def test_a_gpu_that_goes_to_another_driver_is_gone_at_once(world: World) -> None:
    before = await world.scan()
    driver = (world.tree.root / "sys/bus/pci/devices" / before[0].address).resolve() / "driver"
    driver.unlink()
    assert before[0].key not in {gpu.key for gpu in await world.scan()}


async def test_a_damaged_memory_of_modules_is_set_aside_and_read_anew(world: World) -> None:
    first = await world.scan()
    path = world.state / modules.FILE
    path.write_bytes(b'{"modules": {"a"')
    world.gpus = world.agent()
    assert await world.scan() == first
    assert [one.name for one in world.state.iterdir() if "damaged" in one.name]


async def test_what_a_newer_agent_added_does_not_make_an_older_one_forget(tmp_path: Path) -> None:
    text = '{"modules": {"a": 3}, "cc_modes": {"a": "off"}, "surprise": {"a": [1]}}'
    (tmp_path / modules.FILE).write_text(text)
    memory = modules.ModuleMemory(tmp_path)
    assert (memory.known(), memory.cc_modes()) == ({"a": 3}, {"a": "off"})


async def test_a_reset_asks_the_board_again_who_it_is(world: World) -> None:
    (first, *_) = await world.scan()
    await world.gpus.reset(first)
    assert world.resets == [first.address]
    region = (world.tree.root / "sys/bus/pci/devices" / first.address).resolve() / "resource0"
    region.write_bytes(_region(9 - (first.module or 0)))
    with pytest.raises(errors.DeviceFault) as caught:
        await world.gpus.reset(first)
    assert caught.value.reason == gpus.MODULE_MOVED


async def test_a_gpu_that_is_no_longer_bound_is_not_reset(world: World) -> None:
    (first, *_) = await world.scan()
    shutil.rmtree((world.tree.root / "sys/bus/pci/devices" / first.address).resolve())
    with pytest.raises(errors.NotFound):
        await world.gpus.reset(first)
    assert world.resets == []


async def test_a_gpu_that_reported_an_error_is_kept_back_until_it_was_reset(world: World) -> None:
    first, *others = await world.scan()
    fields = {"SUBSYSTEM": "pci", "PCI_SLOT_NAME": first.address, "ERROR_EVENT": "FAILED_RECOVERY"}
    said = uevent.UEvent(action="change", path="/devices/x", fields=fields)

    async def watch() -> AsyncIterator[uevent.UEvent]:
        yield said
        await asyncio.Event().wait()

    world.bus = busevents.BusEvents(lambda: None, watch=watch)
    world.gpus = world.agent()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(world.bus.run())
        while not world.bus.problem(first.address):  # noqa: ASYNC110  (what is waited for is a plain value)
            await asyncio.sleep(0)
        problems = {gpu.key: gpu.problem for gpu in await world.scan()}
        assert "could not recover from" in problems[first.key]
        assert {problems[gpu.key] for gpu in others} == {""}
        world.ours = {str(gpu.key) for gpu in await world.scan()}
        await world.gpus.reset(first)
        assert {gpu.problem for gpu in await world.scan()} == {""}
        following.cancel()


def _in_mode(world: World, address: str, word: int) -> None:
    words = {**pcitree.module_registers(pcitree.HGX_MODULES[address]), 0x1182CC: word}
    (world.tree.folder(address) / "resource0").write_bytes(pcitree.registers(words, size=0x119000))


async def test_a_mode_of_confidential_computing_that_a_tenant_changed_keeps_the_gpu_back(world: World) -> None:
    one = (await world.scan())[0]
    _in_mode(world, one.address, 0)
    await world.gpus.reset(one)
    for word, name in ((5, "on"), (3, "devtools"), (0xFFFFFFFF, "one that cannot be read")):
        _in_mode(world, one.address, word)
        world.gpus = world.agent()  # what it was is remembered over a restart
        await world.scan()
        with pytest.raises(errors.DeviceFault, match=f"was in the mode off .* left it in {name}") as caught:
            await world.gpus.reset(one)
        assert (caught.value.reason, "--set-cc-mode=off" in str(caught.value.hint)) == (gpus.CC_CHANGED, True)
    _in_mode(world, one.address, 0)
    await world.gpus.reset(one)


async def test_numbers_follow_the_bus_at_first_and_stay_with_their_gpus(world: World) -> None:
    """They are NVIDIA's driver's, which counts GPUs that have a driver too."""
    addresses = sorted(pcitree.HGX_MODULES)
    world.tree.bind(addresses[3], "")
    link = world.tree.folder(addresses[0])
    target = link.readlink()
    link.unlink()  # put in later
    first = {gpu.address: gpu.number for gpu in await world.scan()}
    assert first == {address: number for number, address in enumerate(addresses[1:]) if address != addresses[3]}
    link.symlink_to(target)
    world.tree.bind(addresses[3], "vfio-pci")
    both = {gpu.address: gpu.number for gpu in await world.scan()}
    assert both == {**first, addresses[3]: 2, addresses[0]: 7}
    world.gpus = world.agent()
    assert {gpu.address: gpu.number for gpu in await world.scan()} == both


async def test_a_gpu_without_a_number_that_is_kept_has_none(world: World) -> None:
    (world.state / numbers.FILE).mkdir(parents=True)  # nothing can be written in its place
    found = await world.scan()
    assert {gpu.number for gpu in found} == {None}
    assert {gpu.problem for gpu in found} == {""}


@pytest.mark.parametrize("data", ["{", '{"numbers": {"a": 1, "b": 1}}', '{"numbers": {"a": -1}}', "\xff"])
async def test_damaged_numbers_are_set_aside_and_given_anew(world: World, data: str) -> None:
    world.state.mkdir()
    (world.state / numbers.FILE).write_bytes(data.encode("latin-1"))
    assert sorted(gpu.number or 0 for gpu in await world.scan()) == list(range(8))
    assert (world.state / f"{numbers.FILE}.damaged-1").read_bytes() == data.encode("latin-1")


async def test_two_gpus_of_one_group_are_kept_back_since_who_has_one_has_both(tmp_path: Path) -> None:
    world = World(tmp_path)
    one, two, *_ = sorted(pcitree.HGX_MODULES)
    (world.tree.folder(two) / "iommu_group").unlink()
    world.tree.join(two, int(one.split(":")[1], 16))
    problems = {gpu.address: gpu.problem for gpu in await world.scan()}
    assert f"with {two}: who opens the group has all of them" in problems[one]
    assert f"with {one}: who opens the group has all of them" in problems[two]
    assert {why for address, why in problems.items() if address not in {one, two}} == {""}


async def test_what_sysfs_says_of_a_board_is_what_claims_read_of_it(world: World) -> None:
    address = next(iter(pcitree.HGX_MODULES))
    lines = (
        "0xd0000000 0xd0ffffff 0x140204",
        "0x0 0x0 0x0",
        "0x4000000000 0x5fffffffff 0x14220c",
        "0xe000 0xe07f 0x40101",
    )
    (world.tree.folder(address) / "resource").write_text("\n".join(lines))
    by_address = {gpu.address: gpu for gpu in await world.scan()}
    one = by_address[address]
    assert (one.vendor_id, one.device_id, one.pcie_root) == (0x10DE, 0x2330, "pci0000:0e")
    assert one.addressable_bytes == 256 << 30  # 128 GiB and 16 MiB, as the next power of two
    assert by_address[next(reversed(pcitree.HGX_MODULES))].addressable_bytes == 0


@pytest.mark.parametrize(
    "lines", ["", "0x1", "nonsense here now", "0x0 0xffffffffffffffff 0x4", "0x5 0x1 0x4", "\0" * 9]
)
async def test_regions_that_nobody_believes_are_no_memory(world: World, lines: str) -> None:
    for address in pcitree.HGX_MODULES:
        (world.tree.folder(address) / "resource").write_text(lines)
    assert {gpu.addressable_bytes for gpu in await world.scan()} == {0}


def make_b200(world: World) -> str:
    """Make one GPU of the board a B200, whose registers do not say its module; returns its address."""
    address = next(iter(pcitree.HGX_MODULES))
    (world.tree.folder(address) / "device").write_text("0x2901\n")
    world.gpus = world.agent()
    return address


async def test_a_module_that_only_its_driver_can_ask_for_is_noted_once_and_outlasts_resets(world: World) -> None:
    address = make_b200(world)
    asked = list[str]()
    world.gpus.learned = lambda: asked.append("scan")
    found = {gpu.address: gpu for gpu in await world.scan()}
    one, other = found.pop(address), next(iter(found.values()))
    assert (one.module, one.problem) == (None, "")
    await world.gpus.note_module(one, None)
    await world.gpus.note_module(other, 16)
    assert asked == [], "its registers have said another"
    await world.gpus.note_module(one, 7)
    await world.gpus.note_module(one, 8)
    assert asked == ["scan"]
    assert {gpu.address: gpu.module for gpu in await world.scan()}[address] == 7
    await world.gpus.reset(one)
    world.gpus = world.agent()
    assert {gpu.address: gpu.module for gpu in await world.scan()}[address] == 7


async def test_nvlink_5_is_told_by_the_gpus_name_or_by_what_manages_its_switches(world: World) -> None:
    address = make_b200(world)
    assert {gpu.address for gpu in await world.scan() if gpu.is_nvlink5} == {address}
    vpd = pcitree.vpd("ConnectX-7", PN="X", V1="SW_MNG")
    bridge = world.tree.add("0000:50:00.0", ids=(0x15B3, 0x1021), pci_class=0x020700, files={"vpd": vpd})
    assert all(gpu.is_nvlink5 for gpu in await world.scan())
    (bridge / "vpd").unlink()  # its machine has it, and it does not answer
    assert all(gpu.is_nvlink5 for gpu in await world.scan())
