"""Makes the labels of a node's MIG devices: the names and values of NVIDIA's feature discovery. Pure.

Under `mixed` each profile has its own set, `nvidia.com/mig-1g.10gb.count` and so on, beside those of the GPUs. Under
`single` the devices stand in for GPUs, and `nvidia.com/gpu.*` is about them; where they are not all alike the product
says `MIG-INVALID` and everything counted is 0, as nothing can be had.
Source: NVIDIA GPU feature discovery, README "MIG 'mixed' strategy", "MIG 'single' strategy".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fairlead.model.gpu import GPU, MIGDevice, MIGEngines, Vendor
from fairlead.plan.gpu import label
from fairlead.plan.gpu.offer import migoffer

_MIB: Final = 1 << 20
_INVALID: Final = "MIG-INVALID"


def plan_mig_labels(gpus: Sequence[GPU], strategy: str) -> dict[str, str]:
    """Return the labels that MIG adds to a node's, or puts in the place of them."""
    nvidia = tuple(sorted((gpu for gpu in gpus if gpu.vendor is Vendor.NVIDIA), key=lambda gpu: gpu.index))
    if not nvidia:
        return {}
    found = {"mig.strategy": strategy}
    if strategy == migoffer.MIXED:
        found |= _mixed(nvidia)
    elif strategy == migoffer.SINGLE and any(gpu.mig_enabled for gpu in nvidia):
        found |= _single(nvidia)
    return {f"{label.NVIDIA}{name}": text for name, value in found.items() if (text := label.label_value(value))}


def _mixed(gpus: tuple[GPU, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    groups: dict[str, list[tuple[GPU, MIGDevice]]] = {}
    for gpu in gpus:
        for mig in gpu.mig_devices:
            groups.setdefault(mig.profile.replace("+", "."), []).append((gpu, mig))
    for profile, members in groups.items():
        # Of several models the first by name, so that labels do not change from scan to scan.
        gpu, mig = min(members, key=lambda pair: (pair[0].name, pair[0].index, pair[1].index))
        values = {**_device(gpu, mig), "count": str(len(members)), "replicas": "1", "sharing-strategy": "none"}
        found |= {f"mig-{profile}.{name}": value for name, value in values.items()}
    if all(gpu.mig_enabled for gpu in gpus):
        found["gpu.replicas"] = "0"
    return found


def _single(gpus: tuple[GPU, ...]) -> dict[str, str]:
    if migoffer.find_misfit(gpus):
        values = {"product": f"{gpus[0].name}-{_INVALID}", "count": "0", "replicas": "0", "memory": "0"}
    else:
        devices = [(gpu, mig) for gpu in gpus for mig in gpu.mig_devices]
        values = {**_device(*devices[0]), "count": str(len(devices)), "replicas": "1", "sharing-strategy": "none"}
    return {f"gpu.{name}": value for name, value in values.items()}


def _device(gpu: GPU, mig: MIGDevice) -> dict[str, str]:
    engines = mig.engines or MIGEngines()
    counts = {
        "multiprocessors": engines.multiprocessors,
        "slices.gi": engines.instance_slices,
        "slices.ci": engines.slices,
        "engines.copy": engines.copy,
        "engines.decoder": engines.decoder,
        "engines.encoder": engines.encoder,
        "engines.jpeg": engines.jpeg,
        "engines.ofa": engines.ofa,
    }
    told = {name: str(count) for name, count in counts.items()} if mig.engines is not None else {}
    product = f"{gpu.name}-MIG-{mig.profile.replace('+', '.')}"
    return {"product": product, "memory": str(mig.memory_bytes // _MIB), **told}
