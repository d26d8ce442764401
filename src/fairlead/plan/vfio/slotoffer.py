"""Describes slots as a device plugin's devices and as CDI specs. Pure.

The kind of a spec is the resource's name, and a device's name the id that the kubelet knows: whoever has the one can
ask for the other. A device brings VFIO's nodes and nothing of a driver.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from fairlead.model import cdikind
from fairlead.model.device import Device
from fairlead.model.ids import GPUUUID
from fairlead.plan.cdi import driverprofile
from fairlead.plan.gpu import deviceids, health
from fairlead.plan.gpu.offer.advertise import Advertisement
from fairlead.plan.vfio import slot as slots
from fairlead.plan.vfio.slot import Slot
from fairlead_cdi import emit
from fairlead_cdi import spec as cdi

UNUSABLE: Final = "PassthroughUnusable"
"""Reason of a slot one of whose GPUs cannot be handed out: no node, a group that is not viable, a doubtful identity."""
NAME_TAKEN: Final = "SlotNameTaken"
"""Reason of slots whose resource other devices of this node have already."""


def plan_resources(
    found: Iterable[Slot], verdicts: Mapping[GPUUUID, health.Verdict], taken: Collection[str]
) -> tuple[tuple[Advertisement, ...], dict[GPUUUID, health.Verdict]]:
    """Return the resources of a machine's slots, and the GPUs that no resource has, each with why.

    Args: verdicts: by GPU.   taken: resources of other devices; slots of such a name are not offered.
    """
    offered, left_out = list[Advertisement](), dict[GPUUUID, health.Verdict]()
    for resource, items in slots.by_resource(found).items():
        if resource in taken:
            message = f"{resource} is the name of GPUs with a driver here: choose another one by node.vfio_names"
            verdict = health.Verdict(state=health.State.FAULTY, reason=NAME_TAKEN, message=message)
            left_out |= {gpu.key: verdict for one in items for gpu in one.gpus}
            continue
        devices = tuple(_device(one, verdicts) for one in items)
        offered.append(Advertisement(resource=resource, vendor=items[0].gpus[0].vendor, devices=devices))
    return tuple(offered), left_out


def _device(one: Slot, verdicts: Mapping[GPUUUID, health.Verdict]) -> Device:
    ill = next((verdict for gpu in one.gpus if (verdict := verdicts.get(gpu.key)) and not verdict.is_healthy), None)
    reason = ill.reason if ill is not None else UNUSABLE if one.problem else ""
    return Device(
        id=one.id,
        cdi_name=cdikind.qualified(one.resource, one.id),
        gpu=one.gpus[0].key,
        slot=one.id,
        slot_gpus=tuple(gpu.key for gpu in one.gpus) if len(one.gpus) > 1 else (),
        is_healthy=not reason,
        reason=reason,
        numa_node=one.numa_node,
        nodes=tuple(node.path for node in one.nodes),
    )


def words(found: Iterable[Slot]) -> deviceids.Table:
    """Return the words that any plugin may have for the GPUs of these slots, in any scheme's names.

    After another scheme is chosen pods have their GPUs by the former one's ids until they end.
    """
    table = dict[str, tuple[deviceids.Part, ...]]()
    for one in found:
        parts = tuple(deviceids.Part(gpu=gpu.key) for gpu in one.gpus)
        table[deviceids.slot_word(one.resource, one.id)] = parts
        for gpu, part in zip(one.gpus, parts, strict=True):
            own = (f"pci {gpu.address}", f"x1-{gpu.key}", *([] if gpu.module is None else [f"x1-{gpu.module}"]))
            table.update(dict.fromkeys(own, (part,)))
    return table


def plan_specs(found: Iterable[Slot], profile: driverprofile.Profile) -> tuple[cdi.Spec, ...]:
    """Return a CDI spec for each resource that has a slot to hand out."""
    usable = (one for one in found if not one.problem and one.nodes)
    return tuple(
        emit.normal_form(
            cdi.Spec(
                cdi_version="",
                kind=resource,
                devices=tuple(cdi.Device(name=str(one.id), edits=_edits(one, profile)) for one in items),
            )
        )
        for resource, items in slots.by_resource(usable).items()
    )


def _edits(one: Slot, profile: driverprofile.Profile) -> cdi.ContainerEdits:
    """Return what brings a slot's nodes; the published DaemonSet's file has paths, and engines look up numbers."""
    found = driverprofile.show_nodes(one.nodes, profile)
    if one.has_shared_nodes:
        return found
    named = (dataclasses.replace(node, major=0, minor=0, file_mode=None) for node in found.device_nodes)
    return dataclasses.replace(found, device_nodes=tuple(named))
