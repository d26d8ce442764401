"""Decides how MIG devices are offered: the strategies none, single and mixed of NVIDIA's device plugin. Pure.

- `none`: MIG devices are not offered, and a GPU in MIG mode, which cannot be given whole, is not either.
- `single`: they are offered as whole GPUs are, under one name. Every GPU must be in MIG mode and all devices alike.
  Where they are not NVIDIA's plugin ends with an error; here everything stays listed, Unhealthy with the reason, and
  pods that run go on.
- `mixed`: each profile has its own name, `nvidia.com/mig-1g.10gb`; GPUs without MIG stay whole.

A MIG device shares its GPU's verdict and has one of its own beside it.
Source: NVIDIA k8s-device-plugin, README "MIG strategies", internal/resource and internal/rm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from fairlead.model import cdikind
from fairlead.model.device import Device
from fairlead.model.gpu import GPU, MIGDevice, Vendor
from fairlead.model.ids import GPUUUID, MIGUUID, DeviceID
from fairlead.plan.gpu import health

NONE: Final = "none"
SINGLE: Final = "single"
MIXED: Final = "mixed"
STRATEGIES: Final = (NONE, SINGLE, MIXED)
NOT_UNIFORM: Final = "MIGNotUniform"
"""Reason of devices under the strategy single on a node whose MIG devices are not all alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MIGOffer:
    """How this node offers MIG devices."""

    strategy: str = NONE
    verdicts: Mapping[MIGUUID, health.Verdict] = field(default_factory=dict)
    """By MIG device; one without has no fault of its own."""
    minors: Mapping[str, int] = field(default_factory=dict)
    """Minor numbers of capability nodes, by name as in mig-minors: `gpu0/gi1/access`."""


NOT_OFFERED: Final = MIGOffer()


def resource_name(profile: str, prefix: str) -> str:
    """Return the resource of a profile under `mixed`. Args: prefix: the domain, `nvidia.com`."""
    return f"{prefix}/mig-{profile.replace('+', '.')}"


def find_misfit(gpus: tuple[GPU, ...]) -> str:
    """Return why the strategy single cannot be served on NVIDIA's GPUs; empty: it can, or no GPU is in MIG mode."""
    if not any(gpu.mig_enabled for gpu in gpus):
        return ""
    whole = [gpu.index for gpu in gpus if not gpu.mig_enabled]
    if whole:
        return f"GPU {whole[0]} is not in MIG mode and others are"
    empty = [gpu.index for gpu in gpus if not gpu.mig_devices]
    if empty:
        return f"GPU {empty[0]} is in MIG mode and has no MIG devices"
    profiles = sorted({mig.profile for gpu in gpus for mig in gpu.mig_devices})
    return f"MIG devices differ: {', '.join(profiles)}" if len(profiles) > 1 else ""


def plan_devices(
    gpu: GPU, offer: MIGOffer, verdict: health.Verdict, *, misfit: str = ""
) -> Iterator[tuple[MIGDevice, Device]]:
    """Yield the MIG devices of a GPU. Args: verdict: the GPU's.   misfit: as `find_misfit` says."""
    for mig in gpu.mig_devices:
        own = offer.verdicts.get(mig.uuid, health.Verdict())
        reason = next((one.reason for one in (verdict, own) if not one.is_healthy), NOT_UNIFORM if misfit else "")
        is_healthy = verdict.is_healthy and own.is_healthy and not misfit
        yield (
            mig,
            Device(
                id=DeviceID(mig.uuid),
                cdi_name=cdikind.qualified(cdikind.ALLOCATED[Vendor.NVIDIA.value], mig.uuid),
                gpu=gpu.uuid,
                mig=mig.uuid,
                is_healthy=is_healthy,
                reason="" if is_healthy else reason,
                numa_node=gpu.numa_node,
                index=f"{gpu.index}:{mig.index}",
                nodes=(f"/dev/nvidia{gpu.minor}", *_capabilities(gpu, mig, offer.minors)),
            ),
        )


def _capabilities(gpu: GPU, mig: MIGDevice, minors: Mapping[str, int]) -> Iterator[str]:
    parent = f"gpu{gpu.minor}/gi{mig.gpu_instance}"
    for name in (f"{parent}/access", f"{parent}/ci{mig.compute_instance}/access"):
        if name in minors:
            yield f"/dev/nvidia-caps/nvidia-cap{minors[name]}"


def lost(reason: str, known: Mapping[GPUUUID, health.Verdict], gpu: GPUUUID) -> health.Verdict:
    """Return the verdict of a GPU that does not answer. Args: reason: of its silence."""
    verdict = known.get(gpu)
    if verdict is not None and not verdict.is_healthy:
        return verdict
    return health.Verdict(state=health.State.FAULTY, reason=reason)
