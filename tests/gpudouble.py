"""A stand-in of the driver's nvidia-smi over simulated silicon, for what `tools/gpu/check` asks it.

Unlike the script in a simulated device tree, which is for containers, this one prints the documents that the real one
prints: `-q -x`, `dmon`, `topo -m`. Written from the document type that the driver names, not from our own reader.
"""

from __future__ import annotations

import asyncio
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from fairlead.model.gpu import GPU, Inventory
from fairlead.model.sample import Sample
from fairlead.silicon.sim import silicon


def install(folder: Path, state: str, profile: str) -> Path:
    """Write the program. Args: state: shell text that names the folder of the simulated silicon."""
    path = folder / "nvidia-smi"
    here = Path(__file__).resolve().parents[1]
    path.write_text(
        f'#!/bin/sh\ncd "{here}" && exec "{sys.executable}" -m tests.gpudouble "{state}" "{profile}" "$@"\n'
    )
    path.chmod(0o755)
    return path


async def _read(folder: Path, profile: str) -> tuple[Inventory, dict[str, Sample]]:
    made = silicon.SimulatedSilicon(folder, profile)
    try:
        inventory = await made.scan()
        samples = await made.sample(within_s=10)
        return inventory, {one.gpu: one for one in samples if one.mig is None}
    finally:
        await made.close()


def _add(parent: ET.Element, place: str, value: object) -> None:
    *folders, last = place.split("/")
    for name in folders:
        found = parent.find(name)
        parent = ET.SubElement(parent, name) if found is None else found
    ET.SubElement(parent, last).text = str(value)


def document(inventory: Inventory, samples: dict[str, Sample]) -> str:
    """Return what `nvidia-smi -q -x` prints."""
    root = ET.Element("nvidia_smi_log")
    driver = inventory.drivers[0]
    _add(root, "driver_version", driver.version)
    _add(root, "cuda_version", ".".join(map(str, driver.cuda_version or ())))
    _add(root, "attached_gpus", len(inventory.gpus))
    for gpu in inventory.gpus:
        domain, _, rest = gpu.pci_bus_id.partition(":")
        element = ET.SubElement(root, "gpu", id=f"{int(domain, 16):08X}:{rest.upper()}")
        _gpu(element, gpu, samples.get(gpu.uuid))
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
    return head + ET.tostring(root, encoding="unicode") + "\n"


def _gpu(element: ET.Element, gpu: GPU, sample: Sample | None) -> None:
    mode = {True: "Enabled", False: "Disabled"}[gpu.mig_enabled] if gpu.mig_capable else "N/A"
    _add(element, "product_name", gpu.name)
    _add(element, "mig_mode/current_mig", mode)
    _add(element, "serial", gpu.serial or "N/A")
    _add(element, "uuid", gpu.uuid)
    _add(element, "minor_number", gpu.minor)
    _add(element, "fb_memory_usage/total", f"{gpu.memory_bytes >> 20} MiB")
    _add(element, "compute_mode", "Default" if gpu.compute_mode and gpu.compute_mode.value == "DEFAULT" else "N/A")
    if sample is None:
        return
    _add(element, "temperature/gpu_temp", f"{sample.temperature_c} C")
    _add(element, "gpu_power_readings/instant_power_draw", f"{(sample.power_mw or 0) / 1000:.2f} W")
    _add(element, "clocks/sm_clock", f"{sample.sm_clock_mhz} MHz")
    _add(element, "fb_memory_usage/used", f"{(sample.memory_used_bytes or 0) >> 20} MiB")


def dmon(inventory: Inventory, samples: dict[str, Sample]) -> str:
    """Return what `nvidia-smi dmon -s pucm -c 1` prints."""
    lines = [
        "# gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk     fb",
        "# Idx      W      C      C      %      %    MHz    MHz     MB",
    ]
    for gpu in inventory.gpus:
        one = samples[gpu.uuid]
        values = (
            gpu.index,
            round((one.power_mw or 0) / 1000),
            one.temperature_c,
            "-" if one.memory_temperature_c is None else one.memory_temperature_c,
            one.utilization_percent,
            one.memory_copy_percent,
            one.memory_clock_mhz,
            one.sm_clock_mhz,
            (one.memory_used_bytes or 0) >> 20,
        )
        lines.append(" ".join(f"{value!s:>6}" for value in values))
    return "\n".join(lines) + "\n"


def main(words: list[str]) -> int:
    folder, profile, *asked = words
    inventory, samples = asyncio.run(_read(Path(folder), profile))
    if asked[:2] == ["-q", "-x"]:
        sys.stdout.write(document(inventory, samples))
    elif asked[:1] == ["dmon"]:
        sys.stdout.write(dmon(inventory, samples))
    elif asked[:1] == ["topo"]:
        sys.stdout.write("(links of simulated GPUs are not drawn here)\n")
    else:
        sys.stderr.write(f"this stand-in does not know {asked}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
