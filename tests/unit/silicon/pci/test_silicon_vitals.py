"""Health of AMD's and Intel's GPUs from sysfs: sensors against their own limits, bad memory, a device off the bus."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.model.gpu import GPU, Inventory
from fairlead.plan.gpu import health
from fairlead.silicon import hardware
from fairlead.silicon.pci import pci, vitals
from fairlead.silicon.sim import trees


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("sensors", "wanted"),
    [
        ({}, (None, None)),
        ({"temp1_input": "41000"}, (41, None)),
        ({"temp1_input": "41000", "temp2_input": "90000", "temp2_crit": "110000"}, (90, 110)),
        (
            {"temp1_input": "80000", "temp1_crit": "85000", "temp3_input": "99000", "temp3_crit": "120000"},
            (80, 85),
        ),
        ({"temp1_input": "garbage", "temp2_input": "50000", "temp2_crit": "0"}, (50, None)),
    ],
)
def test_the_sensor_nearest_to_its_limit_counts(
    tmp_path: Path, sensors: dict[str, str], wanted: tuple[int | None, int | None]
) -> None:
    write(tmp_path / "hwmon/hwmon3", **sensors)
    assert vitals.read_temperature(tmp_path) == wanted


async def amd(root: Path) -> Inventory:
    return await hardware.open_amd(root).scan()


def judged(gpu: GPU) -> str:
    found = health.find_in_reading(gpu)
    return found.reason if found is not None else ""


async def test_an_uncorrected_error_in_any_block_takes_an_amd_gpu_out_and_no_other(tmp_path: Path) -> None:
    addresses = trees.build_amd(tmp_path)
    write(pci.folder(tmp_path, addresses[1]), ras__sdma_err_count="ue: 2\nce: 7\n")
    gpus = (await amd(tmp_path)).gpus
    assert [judged(gpu) for gpu in gpus] == ["", "ECCUncorrected", "", ""]


@pytest.mark.parametrize(
    ("pages", "reason"),
    [
        ("0x1 : 0x1000 : R\n", ""),
        ("0x1 : 0x1000 : R\n0x2 : 0x1000 : P\n", "RowRemapPending"),
        ("0x1 : 0x1000 : F\n", "RowRemapFailed"),
    ],
)
async def test_bad_pages_of_an_amd_gpu_are_read_by_their_state(tmp_path: Path, pages: str, reason: str) -> None:
    addresses = trees.build_amd(tmp_path)
    write(pci.folder(tmp_path, addresses[0]), ras__gpu_vram_bad_pages=pages)
    assert judged((await amd(tmp_path)).gpus[0]) == reason


async def test_an_intel_gpu_is_too_hot_at_its_own_limit(tmp_path: Path) -> None:
    addresses = trees.build_intel(tmp_path, driver="xe")
    write(pci.folder(tmp_path, addresses[0]) / "hwmon/hwmon9", temp2_input="88000", temp2_crit="88000")
    first, *others = (await hardware.open_intel(tmp_path).scan()).gpus
    assert judged(first) == "TemperatureHigh"
    assert {judged(gpu) for gpu in others} <= {""}


@pytest.mark.parametrize("vendor", ["amd", "intel"])
async def test_a_gpu_off_the_bus_is_lost_alone(tmp_path: Path, vendor: str) -> None:
    addresses = trees.build_amd(tmp_path) if vendor == "amd" else trees.build_intel(tmp_path)
    (pci.folder(tmp_path, addresses[0]) / "config").write_bytes(b"\xff" * 64)
    (pci.folder(tmp_path, addresses[1]) / "config").write_bytes(b"\x02\x10" + b"\0" * 62)
    silicon = hardware.open_amd(tmp_path) if vendor == "amd" else hardware.open_intel(tmp_path)
    found = await silicon.scan()
    assert [(one.uuid, one.reason) for one in found.unreadable] == [(addresses[0], "Lost")]
    assert len(found.gpus) == len(addresses) - 1
