"""Finds which GPU, or MIG device on it, a device id of any plugin stands for. Pure.

A kubelet's list names devices in the words of the plugin that offers them. Ours are UUIDs and their replicas `ID::N`.
Other plugins write a UUID with a number behind it, a PCI address, the name of a device node, an index, or a CDI name;
DRA drivers write a device's name and CDI names. Every such word becomes keys of one table of this machine's GPUs.

A bare number says nothing by itself: plugins of network cards and of /dev/fuse count their devices too. It is an index
only where the resource or the CDI kind is of the GPU's vendor and is about GPUs. What matches nothing is on none of our
GPUs.

Source: device ids of NVIDIA k8s-device-plugin (internal/rm), of GKE's gpu plugin (pkg/gpu/nvidia: nvidia0/gi1,
nvidia0/vgpu1), of HAMi and Volcano (UUID-N), of Aliyun's gpushare (UUID-_-N), of AMD's plugin (PCI address); NVIDIA
dra-driver-nvidia-gpu, names of devices (gpu-MINOR,
gpu-MINOR-mig-PROFILE-ID-START); nvidia-ctk cdi generate, --device-name-strategy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.model import cdikind, replica
from fairlead.model.device import Device
from fairlead.model.gpu import GPU, Vendor
from fairlead.model.ids import GPUUUID

_UUID: Final = re.compile(r"(?:gpu|mig)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PCI: Final = re.compile(r"\b(?:[0-9a-f]{4})?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\b")
_NODE: Final = re.compile(r"(?:/dev/)?nvidia([0-9]{1,4})(?:/gi([0-9]{1,3}))?(?:/.*)?")
_DRA: Final = re.compile(r"(?:.*-)?gpu-([0-9]{1,4})(?:-mig-[0-9a-z-]{1,40}-[0-9]{1,3}-([0-9]{1,3}))?(?:/.*)?")
_INDEX: Final = re.compile(r"(?:gpu|mig)?([0-9]{1,4}(?::[0-9]{1,3})?)")
_DRA_NVIDIA: Final = "gpu.nvidia.com"
_ABOUT_GPUS: Final = re.compile(r"gpu|mig-")
_VENDORS: Final = {"nvidia.com": Vendor.NVIDIA, "amd.com": Vendor.AMD, "intel.com": Vendor.INTEL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A GPU, or one MIG device or vGPU on it."""

    gpu: GPUUUID
    mig: str | None = None
    """UUID of a MIG device, or name of a vGPU; None: the whole GPU."""

    def overlaps(self, other: Part) -> bool:
        """Return whether who has the one can reach something of the other."""
        return self.gpu == other.gpu and (self.mig == other.mig or None in {self.mig, other.mig})


Table = Mapping[str, tuple[Part, ...]]
"""This machine's GPUs and MIG devices by every word that a plugin may have for them."""


def make_table(gpus: Iterable[GPU], advertised: Iterable[Device] = ()) -> Table:
    """Return the words for some GPUs, later ones first in doubt, and for devices that are or were advertised."""
    found: dict[str, tuple[Part, ...]] = {}
    for device in advertised:
        found[device.name.lower()] = (Part(gpu=device.gpu, mig=device.part),)
    whole: dict[str, dict[Part, None]] = {}
    for gpu in gpus:
        here = Part(gpu=gpu.uuid)
        vendor = gpu.vendor.value
        words = [gpu.uuid.lower(), f"index {vendor} {gpu.index}"]
        if not gpu.uuid.startswith(f"{gpu.pci_bus_id}."):  # of a board's partitions the first has its address
            words.append(f"pci {gpu.pci_bus_id.lower()}")
        if gpu.vendor is Vendor.NVIDIA:
            words.append(f"minor {gpu.minor}")
        found.update(dict.fromkeys(words, (here,)))
        whole.setdefault(f"all {vendor}", {})[here] = None
        for mig in gpu.mig_devices:
            part = Part(gpu=gpu.uuid, mig=mig.uuid)
            names = (
                str(mig.uuid).lower(),
                f"index {vendor} {gpu.index}:{mig.index}",
                f"instance {gpu.minor} {mig.gpu_instance}",
                f"place {gpu.minor} {mig.placement_start}",
            )
            found.update(dict.fromkeys(names, (part,)))
    return {**found, **{word: tuple(parts) for word, parts in whole.items()}}


def find_parts(resource: str, device_id: str, table: Table) -> tuple[Part, ...]:
    """Return what a device id of a resource (or of a DRA driver) stands for; none: not one of the table's GPUs."""
    return next((table[word] for word in _words(resource, device_id) if word in table), ())


def slot_word(resource: str, device_id: str) -> str:
    """Return the word for a device whose id means something in its own resource alone."""
    return f"{resource.lower()}={device_id.lower()}"


def _words(resource: str, device_id: str) -> Iterator[str]:
    """Yield what an id may mean, most certain first."""
    kind, is_cdi, name = device_id.partition("=")
    if not is_cdi:
        kind, name = resource, device_id
    name = replica.origin(name.lower())
    yield slot_word(kind, name)
    yield name
    yield from (found.group() for found in _UUID.finditer(name))
    yield from (f"pci {found.group(1)}" for found in _PCI.finditer(name))
    if (node := _NODE.fullmatch(name)) is not None:
        if node.group(2):
            yield f"instance {int(node.group(1))} {int(node.group(2))}"
        yield f"minor {int(node.group(1))}"
    if (kind == _DRA_NVIDIA or kind.startswith(f"k8s.{_DRA_NVIDIA}/")) and (found := _DRA.fullmatch(name)):
        if found.group(2):
            yield f"place {int(found.group(1))} {int(found.group(2))}"
        yield f"minor {int(found.group(1))}"
    vendor = _vendor_of(kind)
    if vendor is None:
        return
    if (index := _INDEX.fullmatch(name)) is not None:
        yield f"index {vendor.value} {':'.join(str(int(part)) for part in index.group(1).split(':'))}"
    if is_cdi and name == "all":
        yield f"all {vendor.value}"


def _vendor_of(kind: str) -> Vendor | None:
    """Return whose GPUs a resource or a CDI kind is about; None: it is about something else, or it is not known."""
    domain, _, name = kind.partition("/")
    if not _ABOUT_GPUS.search(name):
        return None
    ours = {cdikind.kind_of(own).partition("/")[0]: Vendor(vendor) for vendor, own in cdikind.ALLOCATED.items()}
    return ours.get(domain) or next(
        (vendor for end, vendor in _VENDORS.items() if domain == end or domain.endswith(f".{end}")), None
    )
