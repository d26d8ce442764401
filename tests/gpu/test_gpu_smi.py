"""What nvidia-smi prints is read as it means it, and every difference from Fairlead's own facts is a check."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fairlead.model.gpu import Inventory
from fairlead.model.sample import Sample
from fairlead.silicon.sim import silicon
from tests import gpudouble
from tools.gpu import facts, outcome, smi

# As driver 580 prints it, shortened: elements, places and wording of the real document.
REAL = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
  <driver_version>580.82.07</driver_version>
  <cuda_version>13.0</cuda_version>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:65:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <serial>1650000000000</serial>
    <uuid>GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee</uuid>
    <minor_number>3</minor_number>
    <mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
    <mig_devices>None</mig_devices>
    <fb_memory_usage><total>81559 MiB</total><reserved>551 MiB</reserved><used>0 MiB</used></fb_memory_usage>
    <compute_mode>Exclusive_Process</compute_mode>
    <temperature><gpu_temp>31 C</gpu_temp><memory_temp>N/A</memory_temp></temperature>
    <gpu_power_readings>
      <average_power_draw>70.12 W</average_power_draw><current_power_limit>700.00 W</current_power_limit>
    </gpu_power_readings>
  </gpu>
</nvidia_smi_log>
"""


async def _read(folder: Path, name: str) -> tuple[Inventory, tuple[Sample, ...]]:
    made = silicon.SimulatedSilicon(folder, name)
    try:
        return await made.scan(), await made.sample(within_s=10)
    finally:
        await made.close()


def checks(log: outcome.Log) -> dict[str, outcome.Check]:
    return {check.name: check for check in outcome.read_log(log.path)[0]}


def test_the_real_document_is_read() -> None:
    (gpu,) = smi.parse(REAL).gpus
    assert smi.address_of(gpu) == "0000:65:00.0"
    assert {fact.name: fact.theirs(gpu) for fact in facts.FACTS} == {
        "uuid": "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
        "name": "NVIDIA H100 80GB HBM3",
        "pci address": "0000:65:00.0",
        "minor number": 3,
        "serial": "1650000000000",
        "memory in MiB": 81559,
        "MIG mode": False,
        "can do MIG": True,
        "compute mode": "EXCLUSIVE_PROCESS",
        "MIG devices": 0,
    }
    assert smi.number_of(gpu, "gpu_power_readings/power_draw", "gpu_power_readings/average_power_draw") == 70.12
    assert smi.number_of(gpu, "temperature/memory_temp") is None


@pytest.mark.parametrize(
    "text", ["", "No devices were found\n", "<nvidia_smi_log>", "<!DOCTYPE x [<!ENTITY a 'b'>]><x/>"]
)
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="nvidia-smi"):
        smi.parse(text)


def test_dmon_is_read_by_its_own_headings() -> None:
    text = "# gpu    pwr  gtemp\n# Idx      W      C\n    0     70     31\n    1      -     32\n"
    assert smi.parse_dmon(text) == [{"gpu": "0", "pwr": "70", "gtemp": "31"}, {"gpu": "1", "pwr": "-", "gtemp": "32"}]
    assert smi.parse_dmon("") == []


def test_equal_facts_are_ok_and_each_other_one_is_named(tmp_path: Path) -> None:
    inventory, samples = asyncio.run(_read(tmp_path / "sim", "h100x8"))
    document = gpudouble.document(inventory, {one.gpu: one for one in samples})
    same = outcome.Log(tmp_path / "same")
    facts.compare(inventory, smi.parse(document), same)
    facts.compare_readings(samples, inventory, smi.parse(document), same)
    assert not [check for check in checks(same).values() if check.state in outcome.BAD]

    other = outcome.Log(tmp_path / "other")
    wrong = document.replace("81559 MiB", "81000 MiB", 1).replace("<minor_number>4<", "<minor_number>9<")
    facts.compare(inventory, smi.parse(wrong), other)
    bad = {name: (check.ours, check.theirs) for name, check in checks(other).items() if check.state in outcome.BAD}
    assert bad == {"gpu 0: memory in MiB": ("81559", "81000"), "gpu 4: minor number": ("4", "9")}


def test_a_gpu_that_only_one_of_the_two_shows_is_named(tmp_path: Path) -> None:
    inventory, samples = asyncio.run(_read(tmp_path / "sim", "h100x8"))
    answer = smi.parse(gpudouble.document(inventory, {one.gpu: one for one in samples}))
    fewer = Inventory(gpus=inventory.gpus[1:], drivers=inventory.drivers)
    log = outcome.Log(tmp_path / "log")
    facts.compare(fewer, answer, log)
    facts.compare_readings(samples[1:], fewer, answer, log)
    bad = [name for name, check in checks(log).items() if check.state in outcome.BAD]
    assert bad == ["number of GPUs", "gpu 0", "gpu 0: readings"]
