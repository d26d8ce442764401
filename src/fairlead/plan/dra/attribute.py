"""Names the attributes and capacities of a GPU's devices as NVIDIA's DRA driver names them. Pure.

Claims, quotas and autoscalers select devices by these names and values, so they are kept to the letter; `index` and
`minor` stand beside them, since manifests of NVIDIA's own quickstart select by `index`. All values are scalars: a list
is dropped by a server whose gate for lists is off, which then refuses the whole slice.
Source: kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin (deviceinfo.go, mig.go, partitions.go); go-nvlib
pkg/nvlib/device, GetBrandAsString and GetArchitectureAsString.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Final

from fairlead.model.gpu import GPU, Driver, MIGEngines
from fairlead.plan.gpu import label
from fairlead.wire.kubernetes import quantity
from fairlead.wire.kubernetes.resource import device as wire
from fairlead.wire.kubernetes.resource.device import DeviceAttribute, DeviceCapacity

DRIVER: Final = "gpu.nvidia.com"
MEMORY: Final = "memory"
MIB: Final = 1 << 20
ENGINES: Final[Mapping[str, str]] = {
    "multiprocessors": "multiprocessors",
    "copyEngines": "copy",
    "decoders": "decoder",
    "encoders": "encoder",
    "jpegEngines": "jpeg",
    "ofaEngines": "ofa",
}
"""Capacities beside the memory, each with the field of `MIGEngines` that it is."""
_BRANDS: Final[Mapping[str, str]] = {
    "unknown": "Unknown",
    "quadro": "Quadro",
    "tesla": "Tesla",
    "nvs": "NVS",
    "grid": "Grid",
    "geforce": "GeForce",
    "titan": "Titan",
    "nvidiavapps": "NvidiaVApps",
    "nvidiavpc": "NvidiaVPC",
    "nvidiavcs": "NvidiaVCS",
    "nvidiavws": "NvidiaVWS",
    "nvidiacloudgaming": "NvidiaCloudGaming",
    "quadrortx": "QuadroRTX",
    "nvidiartx": "NvidiaRTX",
    "nvidia": "Nvidia",
    "geforcertx": "GeForceRTX",
    "titanrtx": "TitanRTX",
}
_LONGEST: Final = 64
"""Bytes of a text that a slice may have."""
_PCI: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_VERSION: Final = re.compile(r"v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?(?:\.\d{1,9})*", re.ASCII)


def of_gpu(gpu: GPU, driver: Driver | None) -> dict[str, DeviceAttribute]:
    """Return the attributes of a whole GPU. Args: driver: None: its versions are not known, and are left out."""
    return {"type": text("gpu"), "uuid": text(gpu.uuid), **_of_board(gpu, driver)}


def of_mig(gpu: GPU, driver: Driver | None, *, profile: str, uuid: str = "") -> dict[str, DeviceAttribute]:
    """Return the attributes of a MIG device. Args: uuid: empty: it is made when a claim is prepared."""
    own = {"uuid": text(uuid)} if uuid else {}
    named = {"type": text("mig"), "parentUUID": text(gpu.uuid), "profile": text(profile)}
    return {**named, **own, **_of_board(gpu, driver)}


def _of_board(gpu: GPU, driver: Driver | None) -> dict[str, DeviceAttribute]:
    major_minor = "" if gpu.compute_capability is None else ".".join(map(str, gpu.compute_capability))
    cuda = "" if driver is None or driver.cuda_version is None else ".".join(map(str, driver.cuda_version))
    texts = {
        "productName": gpu.name,
        "brand": _BRANDS.get(gpu.brand or "", ""),
        "architecture": architecture(major_minor),
        "addressingMode": gpu.addressing_mode or "",
        wire.PCI_BUS_ID: pci_bus_id(gpu.pci_bus_id),
        wire.PCIE_ROOT: gpu.pcie_root,
    }
    versions = {
        "cudaComputeCapability": semver(major_minor),
        "driverVersion": semver(driver.version) if driver is not None else "",
        "cudaDriverVersion": semver(cuda),
    }
    numbers = {"index": gpu.index, "minor": gpu.minor, wire.NUMA_NODE: gpu.numa_node}
    return {
        **{name: text(value) for name, value in texts.items() if value},
        **{name: DeviceAttribute(version=value) for name, value in versions.items() if value},
        **{name: DeviceAttribute(int_=value) for name, value in numbers.items() if value is not None and value >= 0},
    }


def pci_bus_id(address: str) -> str:
    """Return a PCI address as the standard attribute has it; empty: its domain has more than four digits."""
    return address if _PCI.fullmatch(address) else ""


def architecture(compute_capability: str) -> str:
    """Return the architecture as a DRA driver writes it, `Ada Lovelace`; empty: the capability is not known."""
    return label.family(compute_capability).replace("-", " ").title()


def semver(version: str) -> str:
    """Return a version in the three numbers of semver.org, `550.163.01` as `550.163.1`; empty: it is not numbers."""
    found = _VERSION.fullmatch(version.strip())
    return ".".join(str(int(part or 0)) for part in found.groups()) if found else ""


def text(value: str) -> DeviceAttribute:
    """Return a text as an attribute, cut to the bytes that a slice may have."""
    return DeviceAttribute(string=value.encode(errors="replace")[:_LONGEST].decode(errors="ignore"))


def capacities(*, memory_bytes: int, engines: MIGEngines | None = None) -> dict[str, int]:
    """Return capacities by name: those of the engines only where the driver reports them, the memory in bytes."""
    counted = {} if engines is None else {name: int(getattr(engines, field)) for name, field in ENGINES.items()}
    return {**counted, **({MEMORY: memory_bytes} if memory_bytes > 0 else {})}


def amounts(found: Mapping[str, int]) -> dict[str, DeviceCapacity]:
    """Return capacities as a slice has them."""
    return {name: DeviceCapacity(value=amount(value)) for name, value in found.items()}


@functools.lru_cache(maxsize=1024)
def amount(value: int) -> str:
    """Return a whole number as Kubernetes writes it in the binary form: `81559Mi`, `16`."""
    return quantity.emit_quantity(value, quantity.Form.BINARY)
