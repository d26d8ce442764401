"""Lists the metrics that carry DCGM's names, and makes their series from samples and holders. Pure.

Names, types and units are dcgm-exporter's, so that its dashboards and alerts go on. A device without a holder has one
series, a device with holders one for each of them: a shared GPU's figure then stands in several series, and
`max by (UUID)` has it once. A MIG device has its memory, and its instance's share of the units; what NVML reports of
the board stands with the GPU.

`DCGM_FI_PROF_*` are NVML's own figures of the same units, from Hopper on; what no GPU of a node reports has no series.
What DCGM measures and NVML does not (NVLink bandwidth) is left out.
Source: NVIDIA dcgm-exporter, etc/default-counters.csv and internal/pkg/rendermetrics; DCGM, dcgm_fields.h (units).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.model.gpu import GPU, Driver, MIGDevice, UnreadableGPU, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.model.sample import Sample
from fairlead.plan.gpu import health
from fairlead.plan.metrics.holder import Holder
from fairlead.wire.text import exposition

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One metric of DCGM's."""

    name: str
    kind: str
    """`gauge` or `counter`."""
    attribute: str
    """Of `Sample`, with a dot where it is a field's."""
    unit: int
    """How many of the sample's units are one of DCGM's."""
    text: str

    def value(self, sample: Sample) -> float | None:
        """Return the figure in DCGM's unit; None where the device reports none."""
        found: float | None = operator.attrgetter(self.attribute)(sample)
        if found is None:
            return None
        return found // _MIB if self.unit == _MIB else found / self.unit


_ROWS: Final = (
    ("SM_CLOCK", "gauge", "sm_clock_mhz", 1, "SM clock in MHz"),
    ("MEM_CLOCK", "gauge", "memory_clock_mhz", 1, "memory clock in MHz"),
    ("MEMORY_TEMP", "gauge", "memory_temperature_c", 1, "memory temperature in C"),
    ("GPU_TEMP", "gauge", "temperature_c", 1, "GPU temperature in C"),
    ("POWER_USAGE", "gauge", "power_mw", 1000, "power draw in W"),
    ("POWER_MGMT_LIMIT", "gauge", "power_limit_mw", 1000, "power limit in W"),
    ("TOTAL_ENERGY_CONSUMPTION", "counter", "energy_mj", 1, "energy since the driver was loaded, in mJ"),
    ("PCIE_REPLAY_COUNTER", "counter", "pcie_replays", 1, "PCIe retries"),
    ("GPU_UTIL", "gauge", "utilization_percent", 1, "share of time with a kernel running, in %"),
    ("MEM_COPY_UTIL", "gauge", "memory_copy_percent", 1, "share of time with memory in use, in %"),
    ("ENC_UTIL", "gauge", "encoder_percent", 1, "encoder utilization in %"),
    ("DEC_UTIL", "gauge", "decoder_percent", 1, "decoder utilization in %"),
    ("FB_TOTAL", "gauge", "memory_total_bytes", _MIB, "framebuffer memory in MiB"),
    ("FB_FREE", "gauge", "memory_free_bytes", _MIB, "framebuffer memory free, in MiB"),
    ("FB_USED", "gauge", "memory_used_bytes", _MIB, "framebuffer memory used, in MiB"),
    ("FB_RESERVED", "gauge", "memory_reserved_bytes", _MIB, "framebuffer memory kept by the driver, in MiB"),
    ("ECC_SBE_VOL_TOTAL", "counter", "ecc_single_bit", 1, "corrected ECC errors since the driver was loaded"),
    ("ECC_DBE_VOL_TOTAL", "counter", "ecc_double_bit", 1, "uncorrected ECC errors since the driver was loaded"),
    ("UNCORRECTABLE_REMAPPED_ROWS", "counter", "remapped_uncorrectable", 1, "rows remapped for uncorrectable errors"),
    ("CORRECTABLE_REMAPPED_ROWS", "counter", "remapped_correctable", 1, "rows remapped for correctable errors"),
    ("ROW_REMAP_FAILURE", "gauge", "remap_failed", 1, "1 where remapping of rows has failed"),
)
_PROFILED: Final = (
    ("GR_ENGINE_ACTIVE", "graphics_active", "share of time with the graphics or compute engine active, 0 to 1"),
    ("SM_ACTIVE", "sm_active", "share of time with a warp on a multiprocessor, 0 to 1"),
    ("SM_OCCUPANCY", "sm_occupancy", "share of the warps that multiprocessors could have, 0 to 1"),
    ("PIPE_TENSOR_ACTIVE", "tensor_active", "share of time with the tensor pipes active, 0 to 1"),
    ("DRAM_ACTIVE", "dram_active", "share of time with the memory interface active, 0 to 1"),
    ("PIPE_FP64_ACTIVE", "fp64_active", "share of time with the fp64 pipes active, 0 to 1"),
    ("PIPE_FP32_ACTIVE", "fp32_active", "share of time with the fp32 pipes active, 0 to 1"),
    ("PIPE_FP16_ACTIVE", "fp16_active", "share of time with the fp16 pipes active, 0 to 1"),
    ("PCIE_TX_BYTES", "pcie_sent_bytes_s", "bytes sent over PCIe in a second"),
    ("PCIE_RX_BYTES", "pcie_received_bytes_s", "bytes received over PCIe in a second"),
)
FIELDS: Final = (
    *(
        Field(name=f"DCGM_FI_DEV_{name}", kind=kind, attribute=attribute, unit=unit, text=text)
        for name, kind, attribute, unit, text in _ROWS
    ),
    *(
        Field(
            name=f"DCGM_FI_PROF_{name}",
            kind="gauge",
            attribute=f"activity.{attribute}",
            unit=1,
            text=f"{text}; Hopper and later",
        )
        for name, attribute, text in _PROFILED
    ),
)
"""What a sample gives, in the order of the page."""
XID: Final = ("DCGM_FI_DEV_XID_ERRORS", "code of the newest XID error; 0: none since the agent began")
XID_COUNT: Final = ("DCGM_EXP_XID_ERRORS_COUNT", "XID errors since the agent began, by code")
HOST_LABELS: Final = {"both": ("hostname", "Hostname")}
"""Released dcgm-exporters write `Hostname`, their newer sources `hostname`."""
HEALTH: Final = ("fairlead_gpu_health", "1 where the GPU is offered, 0 where it is not, with the reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What one node knows of its GPUs at one moment."""

    name: str
    gpus: Sequence[GPU]
    unreadable: Sequence[UnreadableGPU] = ()
    drivers: Sequence[Driver] = ()
    verdicts: Mapping[GPUUUID, health.Verdict]
    holders: Mapping[str, tuple[Holder, ...]]
    """By UUID of the GPU or MIG device."""
    xids: Mapping[GPUUUID, Mapping[int, int]]
    """How often each GPU reported each XID, the newest code last."""
    host_label: str = "hostname"
    """Label of the node's name: `hostname`, `Hostname` or `both`."""

    @property
    def host(self) -> dict[str, str]:
        """The node's name by its labels."""
        return dict.fromkeys(HOST_LABELS.get(self.host_label, (self.host_label,)), self.name)


def families(node: Node, samples: Iterable[Sample]) -> list[exposition.Family]:
    """Return every series of a node."""
    found = {row.name: exposition.Family(name=row.name, kind=row.kind, text=row.text) for row in FIELDS}
    gpus = {gpu.uuid: gpu for gpu in node.gpus}
    for sample in samples:
        gpu = gpus.get(sample.gpu)
        if gpu is None:  # came between the scan and the sample; the next scan names it
            continue
        written = _labels(node, gpu, sample.mig)
        for row in FIELDS:
            value = row.value(sample)
            if value is not None:
                found[row.name].series.extend((one, value) for one in written)
    return [*found.values(), *_xid_families(node), _health_family(node)]


def _labels(node: Node, gpu: GPU, mig_uuid: str | None) -> list[str]:
    """Return the labels of a device's series: one for each holder, one where there is none."""
    mig = next((item for item in gpu.mig_devices if item.uuid == mig_uuid), None)
    device = {**_identity(node, gpu), **(_instance(mig) if mig else {})}
    holders = node.holders.get(mig_uuid or gpu.uuid, ())
    return [exposition.labels({**device, **_holder(one)}) for one in holders] or [exposition.labels(device)]


def _identity(node: Node, gpu: GPU) -> dict[str, str]:
    versions = {driver.vendor: driver.version for driver in node.drivers}
    device = f"nvidia{gpu.minor}" if gpu.vendor is Vendor.NVIDIA else f"renderD{gpu.minor}"
    return {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id,
        "device": device,
        "modelName": gpu.name,
        **node.host,
        "DCGM_FI_DRIVER_VERSION": versions.get(gpu.vendor, ""),
    }


def _instance(mig: MIGDevice) -> dict[str, str]:
    return {"GPU_I_PROFILE": mig.profile, "GPU_I_ID": str(mig.gpu_instance)}


def _holder(one: Holder) -> dict[str, str]:
    where = {"container": one.container, "namespace": one.namespace, "pod": one.pod, "vgpu": one.replica}
    is_dra = "/" not in one.resource
    return {**where, "dra_driver_name": one.resource, "dra_device_name": one.device} if is_dra else where


def _xid_families(node: Node) -> tuple[exposition.Family, exposition.Family]:
    newest = exposition.Family(name=XID[0], kind="gauge", text=XID[1])
    counts = exposition.Family(name=XID_COUNT[0], kind="gauge", text=XID_COUNT[1])
    for gpu in node.gpus:
        if gpu.vendor is not Vendor.NVIDIA:
            continue
        seen = node.xids.get(gpu.uuid, {})
        newest.series.extend((one, next(reversed(seen), 0)) for one in _labels(node, gpu, None))
        counts.series.extend(
            (exposition.labels({**_identity(node, gpu), "xid": str(code)}), count) for code, count in seen.items()
        )
    return newest, counts


def _health_family(node: Node) -> exposition.Family:
    family = exposition.Family(name=HEALTH[0], kind="gauge", text=HEALTH[1])
    for gpu in node.gpus:
        verdict = node.verdicts.get(gpu.uuid, health.Verdict())
        reason = "" if verdict.is_healthy else verdict.reason
        family.series.append((exposition.labels({**_identity(node, gpu), "reason": reason}), verdict.is_healthy))
    for gone in node.unreadable:
        about = {
            "gpu": str(gone.index),
            "UUID": gone.uuid or "",
            "pci_bus_id": gone.pci_bus_id or "",
            **node.host,
            "reason": gone.reason,
        }
        family.series.append((exposition.labels(about), 0))
    return family
