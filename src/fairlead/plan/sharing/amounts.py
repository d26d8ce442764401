"""Offers GPUs by amounts: `nvidia.com/mps-core`, a percent of the threads, and `nvidia.com/mps-memory`, a GiB. Pure.

A container asks for both, and what it gets must be of one GPU: MPS makes limits of it, which the container's
environment holds. A kubelet allocates one resource after the other, so which GPU the second must be of is remembered
from the first (`Pairing`); where the kubelet had to choose otherwise the answer is refused. That a container has both
is seen when it is about to start: by then the kubelet's list shows all of it (`find_problem`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.model import replica
from fairlead.model.device import Device
from fairlead.model.gpu import GPU, Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.nodeconfig import NodeConfig
from fairlead.plan.gpu.offer.advertise import Advertisement, SharingRule
from fairlead.plan.sharing import mps, replicate
from fairlead.wire.nvidia.pluginconfig import MPS_AMOUNTS, MPS_CORE, MPS_MEMORY

PERCENT: Final = 100
_GIB: Final = 1 << 30
_PAIR_S: Final = 5.0
"""A kubelet allocates a container's resources right after each other."""


def plan_shared(
    offered: Sequence[Advertisement], config: NodeConfig, gpus: Mapping[GPUUUID, GPU]
) -> tuple[Advertisement, ...]:
    """Return what a node offers where some GPUs are given by amounts, some as replicas and some whole."""
    rest, by_amount = plan_amounts(offered, config, gpus)
    return (*replicate.plan_shared(rest, config), *by_amount)


def plan_amounts(
    offered: Sequence[Advertisement], config: NodeConfig, gpus: Mapping[GPUUUID, GPU]
) -> tuple[tuple[Advertisement, ...], tuple[Advertisement, ...]]:
    """Return what is left of the advertisements, and those of amounts. Args: gpus: every GPU read so far."""
    choice = config.document.own.mps_amounts
    if choice is None:
        return tuple(offered), ()
    rest: list[Advertisement] = []
    chosen: list[Device] = []
    for ad in offered:
        is_able = ad.vendor is Vendor.NVIDIA
        taken = [
            device
            for position, device in enumerate(ad.devices)
            if is_able and device.mig is None and replicate.is_chosen(choice, position, device)
        ]
        chosen += taken
        kept = tuple(device for device in ad.devices if device not in taken)
        rest += [dataclasses.replace(ad, devices=kept)] if kept else []
    if not chosen:
        return tuple(rest), ()
    units = {
        (MPS_CORE, mps.THREADS): [unit for device in chosen for unit in replicate.replicas(device, PERCENT)],
        (MPS_MEMORY, mps.MEMORY): [
            unit
            for device in chosen
            if device.gpu in gpus
            for unit in replicate.replicas(device, gpus[device.gpu].memory_bytes // _GIB)
        ],
    }
    amounts = tuple(
        Advertisement(
            resource=name,
            vendor=Vendor.NVIDIA,
            devices=tuple(devices),
            rule=SharingRule(means=replicate.MPS, packs=True, needs_one_gpu=True, amount_of=kind),
        )
        for (name, kind), devices in units.items()
        if devices
    )
    return tuple(rest), amounts


@dataclass(frozen=True, slots=True)
class PendingAmount:
    """One amount that a container got, whose other one is to come."""

    resource: str
    gpu: GPUUUID
    at: float


class Pairing:
    """Joins the two allocations of a container, which a kubelet makes one after the other without naming it."""

    def __init__(self) -> None:
        self._halves: list[PendingAmount] = []

    def near(self, resource: str, now: float) -> GPUUUID | None:
        """Return the GPU of which a container got its other amount just now; None: no such amount waits."""
        return next((half.gpu for half in self._others(resource, now)), None)

    def give(self, resource: str, gpu: GPUUUID, now: float) -> None:
        """Take in an allocation.

        Raises: RequestError: it is of another GPU than the only first amount that waits. Where several wait, of pods
                that are placed at the same time, `find_problem` judges when the container starts.
        """
        others = self._others(resource, now)
        match = next((half for half in others if half.gpu == gpu), None)
        if match is not None:
            self._halves.remove(match)
        elif len(others) == 1:
            self._halves.remove(others[0])
            message = f"{resource} of {gpu}, and the container's other amount of {others[0].gpu}: MPS serves one GPU"
            hint = "no GPU has both amounts free: ask for less, or wait for pods to end"
            raise errors.RequestError(message, reason="MPSSeveralGPUs", hint=hint)
        else:
            self._halves.append(PendingAmount(resource, gpu, now))

    def _others(self, resource: str, now: float) -> list[PendingAmount]:
        """Return the first amounts of the other resource that wait, the oldest first."""
        self._halves = [half for half in self._halves if now - half.at < _PAIR_S]
        return [half for half in self._halves if half.resource != resource]


def find_problem(resource: str, ids: Collection[DeviceID], holdings: Iterable[Holding]) -> str:
    """Return why a container with these units must not start, as also where the kubelet lists none; empty: it may.

    Args: holdings: of the kubelet, now.
    """
    every = tuple(holdings)
    own = next((one for one in every if one.resource == resource and set(ids) <= set(one.ids)), None)
    if own is None:
        return f"the kubelet's list shows no container with these units of {resource}"
    name = (own.namespace, own.pod, own.container)
    mine = {one.resource: one for one in every if (one.namespace, one.pod, one.container) == name}
    missing = sorted(MPS_AMOUNTS - mine.keys())
    if missing:
        return f"the container asks for {resource} and not for {missing[0]}: MPS limits need both"
    gpus = set(_gpus(mine[one] for one in MPS_AMOUNTS))
    return "" if len(gpus) == 1 else f"its amounts are of {len(gpus)} GPUs: MPS serves one"


def _gpus(holdings: Iterable[Holding]) -> Iterator[str]:
    for one in holdings:
        yield from (replica.origin(name) for name in one.ids)
