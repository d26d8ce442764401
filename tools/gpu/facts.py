"""Holds Fairlead's facts of GPUs against nvidia-smi's, field by field; a table of both."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fairlead.model.gpu import GPU, Inventory
from fairlead.model.sample import Sample
from tools.gpu import smi
from tools.gpu.outcome import Log

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One fact of a GPU, ours and theirs."""

    name: str
    ours: Callable[[GPU], object]
    theirs: Callable[[ET.Element], object]
    within: float = 0.0
    is_required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One counter of a GPU that moves by itself."""

    name: str
    ours: Callable[[Sample], float | None]
    theirs: tuple[str, ...]
    """Places in nvidia-smi's document."""
    within: float
    is_required: bool = True
    """False for what may leap between two questions: clocks and power of an idle GPU that is woken."""


def _text(*places: str) -> Callable[[ET.Element], str | None]:
    return lambda element: smi.text_of(element, *places)


def _whole(*places: str) -> Callable[[ET.Element], int | None]:
    def read(element: ET.Element) -> int | None:
        found = smi.number_of(element, *places)
        return None if found is None else int(found)

    return read


def _is_on(*places: str) -> Callable[[ET.Element], bool]:
    return lambda element: smi.text_of(element, *places) == "Enabled"


def _mode(element: ET.Element) -> str:
    return (smi.text_of(element, "compute_mode") or "").upper().replace(" ", "_").replace("E._", "EXCLUSIVE_")


FACTS: Final = (
    Fact(name="uuid", ours=lambda gpu: str(gpu.uuid), theirs=_text("uuid")),
    Fact(name="name", ours=lambda gpu: gpu.name, theirs=_text("product_name")),
    Fact(name="pci address", ours=lambda gpu: gpu.pci_bus_id, theirs=smi.address_of),
    Fact(name="minor number", ours=lambda gpu: gpu.minor, theirs=_whole("minor_number")),
    Fact(name="serial", ours=lambda gpu: gpu.serial, theirs=_text("serial")),
    Fact(name="memory in MiB", ours=lambda gpu: gpu.memory_bytes // MIB, theirs=_whole("fb_memory_usage/total")),
    Fact(name="MIG mode", ours=lambda gpu: gpu.mig_enabled, theirs=_is_on("mig_mode/current_mig")),
    Fact(
        name="can do MIG",
        ours=lambda gpu: gpu.mig_capable,
        theirs=lambda element: smi.text_of(element, "mig_mode/current_mig") is not None,
    ),
    Fact(
        name="compute mode",
        ours=lambda gpu: gpu.compute_mode.value if gpu.compute_mode else "",
        theirs=_mode,
    ),
    Fact(
        name="MIG devices",
        ours=lambda gpu: len(gpu.mig_devices),
        theirs=lambda element: len(element.findall("mig_devices/mig_device")),
    ),
)

READINGS: Final = (
    Reading(name="temperature in C", ours=lambda one: one.temperature_c, theirs=("temperature/gpu_temp",), within=5),
    Reading(
        name="memory temperature in C",
        ours=lambda one: one.memory_temperature_c,
        theirs=("temperature/memory_temp",),
        within=5,
    ),
    Reading(
        name="power in W",
        ours=lambda one: None if one.power_mw is None else one.power_mw / 1000,
        theirs=(
            "gpu_power_readings/average_power_draw",
            "gpu_power_readings/instant_power_draw",
            "gpu_power_readings/power_draw",
            "power_readings/power_draw",
        ),
        within=60,
        is_required=False,
    ),
    Reading(
        name="power limit in W",
        ours=lambda one: None if one.power_limit_mw is None else one.power_limit_mw / 1000,
        theirs=("gpu_power_readings/current_power_limit", "power_readings/power_limit"),
        within=1,
    ),
    Reading(
        name="sm clock in MHz",
        ours=lambda one: one.sm_clock_mhz,
        theirs=("clocks/sm_clock",),
        within=150,
        is_required=False,
    ),
    Reading(
        name="memory clock in MHz",
        ours=lambda one: one.memory_clock_mhz,
        theirs=("clocks/mem_clock",),
        within=50,
        is_required=False,
    ),
    Reading(
        name="memory used in MiB",
        ours=lambda one: None if one.memory_used_bytes is None else one.memory_used_bytes / MIB,
        theirs=("fb_memory_usage/used",),
        within=256,
    ),
    Reading(
        name="memory reserved in MiB",
        ours=lambda one: None if one.memory_reserved_bytes is None else one.memory_reserved_bytes / MIB,
        theirs=("fb_memory_usage/reserved",),
        within=16,
    ),
    Reading(
        name="PCIe replays",
        ours=lambda one: one.pcie_replays,
        theirs=("pci/replay_counter",),
        within=0,
    ),
    Reading(
        name="ECC errors, uncorrected",
        ours=lambda one: one.ecc_double_bit,
        theirs=("ecc_errors/volatile/dram_uncorrectable", "ecc_errors/volatile/double_bit/total"),
        within=0,
    ),
)


def compare(inventory: Inventory, answer: smi.Answer, log: Log) -> None:
    """Compare the machine and each GPU; every difference is a check."""
    driver = next((one for one in inventory.drivers if one.vendor.value == "nvidia"), None)
    log.compare("driver version", driver.version if driver else None, answer.text("driver_version"))
    cuda = ".".join(map(str, driver.cuda_version)) if driver and driver.cuda_version else None
    log.compare("CUDA version", cuda, answer.text("cuda_version"))
    log.compare("number of GPUs", len(inventory.gpus), len(answer.gpus))
    ours = {gpu.pci_bus_id: gpu for gpu in inventory.gpus}
    for index, element in enumerate(answer.gpus):
        gpu = ours.get(smi.address_of(element))
        if gpu is None:
            log.fail(f"gpu {index}", f"nvidia-smi shows {smi.address_of(element)}, Fairlead does not")
            continue
        for fact in FACTS:
            log.compare(
                f"gpu {index}: {fact.name}",
                fact.ours(gpu),
                fact.theirs(element),
                within=fact.within,
                required=fact.is_required,
            )


def compare_readings(samples: tuple[Sample, ...], inventory: Inventory, answer: smi.Answer, log: Log) -> None:
    """Compare what moves by itself, within a tolerance; what one of the two does not tell is noted."""
    places = {gpu.uuid: gpu.pci_bus_id for gpu in inventory.gpus}
    ours = {places.get(one.gpu): one for one in samples if one.mig is None}
    for index, element in enumerate(answer.gpus):
        sample = ours.get(smi.address_of(element))
        if sample is None:
            log.fail(f"gpu {index}: readings", "Fairlead has no reading of this GPU")
            continue
        for reading in READINGS:
            name, mine = f"gpu {index}: {reading.name}", reading.ours(sample)
            theirs = smi.number_of(element, *reading.theirs)
            if mine is None and theirs is None:
                continue
            if mine is None or theirs is None:
                log.note(name, f"ours {mine}, nvidia-smi's {theirs}")
            else:
                log.compare(name, mine, theirs, within=reading.within, required=reading.is_required)
