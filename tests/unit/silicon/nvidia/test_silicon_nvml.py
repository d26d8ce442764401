"""Our NVML code where a library misbehaves: starts that fail, drivers that come and go, waits that fail at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from fairlead.model.gpu import EventKind, LinkKind
from fairlead.silicon.nvidia import nvml
from fairlead.silicon.sim import elf, fault, machine, profile, trees
from fairlead.silicon.sim.nvml import library


def open_on(
    host: machine.Machine, root: Path, lib: object | None = None, *, call_timeout_s: float = 10.0
) -> nvml.NVMLSilicon:
    chosen = library.SimulatedNVML(host) if lib is None else lib
    return nvml.NVMLSilicon(root, Path("/"), call_timeout_s=call_timeout_s, library=chosen, probe_s=0.1)


@pytest.fixture
def host() -> machine.Machine:
    return machine.Machine(profile.load("h100x8"))


class Lacking:
    """A library of an older or odd driver: some functions are absent or answer otherwise."""

    def __init__(self, host: machine.Machine, **other: Callable[..., int] | None) -> None:
        self._base, self._other = library.SimulatedNVML(host), other

    def __getattr__(self, name: str) -> Callable[..., int]:
        found = self._other[name] if name in self._other else getattr(self._base, name)
        if found is None:
            raise AttributeError(name)
        return found


async def test_no_library_and_no_driver_is_an_empty_machine(tmp_path: Path) -> None:
    silicon = nvml.NVMLSilicon(tmp_path, Path("/"), call_timeout_s=1)
    assert (await silicon.scan()).gpus == ()
    assert await silicon.scan_driver() == ()


async def test_a_driver_without_library_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    silicon = nvml.NVMLSilicon(tmp_path, Path("/"), call_timeout_s=1)
    with pytest.raises(errors.Unavailable) as caught:
        await silicon.scan()
    assert caught.value.reason == "DriverLibraryMissing"


@pytest.mark.parametrize(
    ("code", "reason"),
    [(9, "DriverNotLoaded"), (18, "DriverVersionMismatch"), (4, "DriverNoPermission"), (999, "DriverUnavailable")],
)
async def test_a_library_that_refuses_to_start_says_why(
    host: machine.Machine, tmp_path: Path, code: int, reason: str
) -> None:
    silicon = open_on(host, tmp_path)
    host.init_code = code
    with pytest.raises(errors.Unavailable) as caught:
        await silicon.scan()
    assert (caught.value.reason, bool(caught.value.hint)) == (reason, True)
    host.init_code = 0
    assert len((await silicon.scan()).gpus) == 8


async def test_a_file_that_is_no_nvml_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "libnvidia-ml.so.1"
    path.write_bytes(elf.library(path.name))
    with pytest.raises(errors.Unavailable) as caught:
        await nvml.NVMLSilicon(tmp_path, Path("/"), call_timeout_s=1, library=path).scan()
    assert caught.value.reason == "DriverUnavailable"


async def test_a_mig_device_that_vanishes_while_it_is_read_is_left_out(host: machine.Machine, tmp_path: Path) -> None:
    for name, value in (("mig-mode", "on"), ("mig-create", "1g.10gb@0"), ("mig-create", "3g.40gb@4")):
        fault.inject(host, name, gpu=0, value=value)
    read = library.SimulatedNVML(host).nvmlDeviceGetComputeInstanceId
    codes = iter([6, 0])
    silicon = open_on(host, tmp_path, Lacking(host, nvmlDeviceGetComputeInstanceId=lambda *a: next(codes) or read(*a)))
    inventory = await silicon.scan()
    assert len(inventory.gpus) == 8
    assert len(inventory.gpus[0].mig_devices) == 1


async def test_a_library_that_hangs_at_its_start_is_unavailable(host: machine.Machine, tmp_path: Path) -> None:
    release = threading.Event()
    silicon = open_on(
        host, tmp_path, Lacking(host, nvmlInitWithFlags=lambda _flags: int(release.wait()) * 0), call_timeout_s=0.2
    )
    with pytest.raises(errors.Unavailable) as caught:
        await silicon.scan()
    assert caught.value.reason == "DriverHangs"
    release.set()


async def test_a_driver_that_failed_as_a_whole_is_opened_anew(host: machine.Machine, tmp_path: Path) -> None:
    codes = iter([0, 999, 0])
    counter = library.SimulatedNVML(host).nvmlDeviceGetCount_v2

    def count(pointer: object) -> int:
        return next(codes) or counter(pointer)

    silicon = open_on(host, tmp_path, Lacking(host, nvmlDeviceGetCount_v2=count))
    assert len((await silicon.scan()).gpus) == 8
    with pytest.raises(errors.Unavailable):
        await silicon.scan()
    assert len((await silicon.scan()).gpus) == 8


async def test_an_old_library_gives_what_it_can(host: machine.Machine, tmp_path: Path) -> None:
    lacks = (
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetBrand",
    )
    silicon = open_on(host, tmp_path, Lacking(host, **dict.fromkeys(lacks)))
    inventory = await silicon.scan()
    assert len(inventory.gpus) == 8
    assert inventory.gpus[0].health.temperature_c is None
    assert inventory.gpus[0].health.recovery_action is None
    assert inventory.gpus[0].brand is None


@pytest.mark.parametrize(("number", "word"), [(None, "nvidia"), (2, "tesla"), (0, "unknown"), (12, "quadrortx")])
async def test_a_brand_is_told_in_the_word_that_images_require(tmp_path: Path, number: int | None, word: str) -> None:
    mine = tmp_path / "mine.toml"
    brand = "" if number is None else f"brand = {number}"
    mine.write_text(
        'title = "one"\ndriver = "550.163.01"\ncuda = [12, 4]\n'
        f'[parts.own]\nname = "X"\ndevice_id = 1\nmemory_mib = 1\ncompute_capability = [8, 6]\n{brand}\n'
        '[[groups]]\npart = "own"\npci = ["0000:01:00.0"]\n'
    )
    (gpu,) = (await open_on(machine.Machine(profile.load(str(mine))), tmp_path).scan()).gpus
    assert (gpu.brand, gpu.compute_capability) == (word, (8, 6))


FABRIC = """title = "two of a rack"
driver = "580.95.02"
cuda = [13, 0]
cluster = "5f1c5a0e-2b7d-4f0a-9d53-fa1e1ead0001"
[[groups]]
part = "b200-180"
pci = ["0000:01:00.0"]
nvlink = "switch"
clique = 7
[[groups]]
part = "b200-180"
pci = ["0000:02:00.0"]
nvlink = "switch"
[[groups]]
part = "t4-16"
pci = ["0000:03:00.0"]
"""


async def test_the_clique_of_a_fabric_is_told_once_a_gpu_has_joined_it(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(FABRIC)
    gpus = (await open_on(machine.Machine(profile.load(str(mine))), tmp_path).scan()).gpus
    assert [gpu.clique for gpu in gpus] == ["5f1c5a0e-2b7d-4f0a-9d53-fa1e1ead0001.7", "", ""]


async def test_a_driver_before_fabrics_has_no_clique_and_one_of_their_first_days_is_asked_in_its_way(
    tmp_path: Path,
) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(FABRIC)
    host = machine.Machine(profile.load(str(mine)))

    def first(_handle: object, info: Any) -> int:
        info._obj.state, info._obj.cliqueId = 3, 9
        info._obj.clusterUuid[0] = 1
        return 0

    (old, *_) = (await open_on(host, tmp_path, Lacking(host, nvmlDeviceGetGpuFabricInfoV=None)).scan()).gpus
    lacking = Lacking(host, nvmlDeviceGetGpuFabricInfoV=None, nvmlDeviceGetGpuFabricInfo=first)
    (early, *_) = (await open_on(host, tmp_path, lacking).scan()).gpus
    assert (old.clique, early.clique) == ("", "01000000-0000-0000-0000-000000000000.9")


async def test_a_level_the_driver_does_not_tell_is_read_from_the_tree(tmp_path: Path) -> None:
    host = machine.Machine(profile.load("l40sx8"))
    for board in host.profile.boards:
        under = f"pci0000:{board.pci[5:7]}/0000:{board.pci[5:7]}:01.0"
        attributes = {"vendor": "0x10de", "class": "0x030200", "numa_node": str(board.numa)}
        trees.add_device(tmp_path, board.pci, under=under, driver="nvidia", attributes=attributes)
    silicon = open_on(host, tmp_path, Lacking(host, nvmlDeviceGetTopologyCommonAncestor=None))
    inventory = await silicon.scan()
    assert len(inventory.links) == 28
    assert [gpu.pcie_root for gpu in inventory.gpus] == [f"pci0000:{gpu.pci_bus_id[5:7]}" for gpu in inventory.gpus]
    assert {link.kind for link in inventory.links} == {LinkKind.SAME_NODE, LinkKind.SYSTEM}


async def test_the_addressing_mode_is_read_where_the_driver_reports_it(host: machine.Machine, tmp_path: Path) -> None:
    def ats(device: Any, mode: Any) -> int:
        mode._obj.value = 2
        return 0

    (known, *_) = (await open_on(host, tmp_path, Lacking(host, nvmlDeviceGetAddressingMode=ats)).scan()).gpus
    (unknown, *_) = (await open_on(host, tmp_path).scan()).gpus
    assert (known.addressing_mode, unknown.addressing_mode) == ("ATS", None)


async def test_a_gpu_nvml_does_not_list_is_told_by_its_address(host: machine.Machine, tmp_path: Path) -> None:
    attributes = {"vendor": "0x10de", "class": "0x030200"}
    for address, bound in (("0000:f1:00.0", "nvidia"), ("0000:f2:00.0", "vfio-pci")):
        trees.add_device(tmp_path, address, under="pci0000:f0", driver=bound, attributes=attributes)
    inventory = await open_on(host, tmp_path).scan()
    assert [(gpu.index, gpu.pci_bus_id, gpu.reason) for gpu in inventory.unreadable] == [
        (8, "0000:f1:00.0", "Unreadable")
    ]


async def test_waits_that_fail_at_once_cost_next_to_nothing(host: machine.Machine, tmp_path: Path) -> None:
    waits = 0

    def fail(*_arguments: object) -> int:
        nonlocal waits
        waits += 1
        return 999

    silicon = open_on(host, tmp_path, Lacking(host, nvmlEventSetWait_v2=fail))
    events = silicon.watch_events()
    started = time.monotonic()
    async with asyncio.timeout(50):
        while waits < 4:
            assert (await anext(events)).kind is EventKind.CHANGED
    assert time.monotonic() - started > 0.05 + 0.1 + 0.2
    await silicon.close()


async def test_two_libraries_live_side_by_side(host: machine.Machine, tmp_path: Path) -> None:
    other = machine.Machine(profile.load("t4x4"))
    one, two = open_on(host, tmp_path), open_on(other, tmp_path)
    for _ in range(2):
        assert {gpu.name for gpu in (await one.scan()).gpus} == {"NVIDIA H100 80GB HBM3"}
        assert {gpu.name for gpu in (await two.scan()).gpus} == {"Tesla T4"}


async def test_closing_ends_the_event_thread(host: machine.Machine, tmp_path: Path) -> None:
    before = set(threading.enumerate())  # of whatever else runs in this worker
    silicon = open_on(host, tmp_path)
    await anext(silicon.watch_events())
    assert [thread.name for thread in set(threading.enumerate()) - before if thread.name == "nvml-events"]
    host.close()
    await silicon.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "nvml-events"]


async def test_closing_does_not_wait_for_a_hanging_gpu(host: machine.Machine, tmp_path: Path) -> None:
    silicon = open_on(host, tmp_path, call_timeout_s=0.6)
    host.gpus[0].slow_s = 60
    assert len((await silicon.scan()).unreadable) == 1
    async with asyncio.timeout(20):
        await silicon.close()
    host.close()


def test_the_binding_is_not_imported_before_a_driver_is_there() -> None:
    program = "import sys, fairlead.silicon.machine; print([m for m in sys.modules if 'pynvml' in m])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
