"""Describes NVSwitches that are passed through as a resource of a Service VM's pod, and who may have them. Pure.

A Service VM takes all switches of its node or none: who has one routes NVLink of every tenant. Each function is a
device of `nvidia.com/nvswitch`, or of its alias, as NVIDIA's own plugin counts them and Kata's guest expects; several
of one IOMMU group bring the same node, and what else is in the group goes with it. They hold no tenant's data, so that
they are in no ledger: VFIO lets one machine open a group.
Source: kata-containers src/runtime/pkg/containerd-shim-v2/device_cold_plug.go; NVIDIA sandbox-device-plugin, resource
names; NVIDIA nvrc, modes by number of functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from fairlead import errors
from fairlead.model import cdikind
from fairlead.model.device import Device
from fairlead.model.driver import DeviceNode, PassthroughSwitch
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.plan.cdi import driverprofile
from fairlead.plan.gpu.offer.advertise import Advertisement
from fairlead.wire.kubernetes import core
from fairlead_cdi import emit
from fairlead_cdi import spec as cdi

UNUSABLE: Final = "NVSwitchUnusable"
NOT_WHOLE: Final = "NVSwitchesNotWhole"
FOREIGN: Final = "NVSwitchesForeign"


def check_owner(*, vm_namespace: str, vm_image: str) -> None:
    """Refuse settings by which two machines would have a node's switches. Raises: Invalid (`SettingInvalid`).

    Args: what the settings of `fabric` with these names say.
    """
    if vm_namespace and vm_image:
        message = (
            f'fabric.vm_namespace "{errors.readable(vm_namespace[:63])}" and fabric.vm_image '
            f'"{errors.readable(vm_image[:200])}" are both set: one machine has the NVSwitches, a pod\'s or ours'
        )
        hint = "leave fabric.vm_namespace out for `fairlead fabric machine`, fabric.vm_image for a pod of Kata's"
        raise errors.Invalid(message, reason="SettingInvalid", hint=hint)


def plan_resource(
    found: Sequence[PassthroughSwitch], *, resource: str = cdikind.SWITCHES, with_iommufd: bool
) -> tuple[Advertisement, ...]:
    """Return the resource of a node's switches; none where there is none. One that cannot go keeps all back."""
    if not found:
        return ()
    is_whole = all(not one.problem and _nodes(one, with_iommufd=with_iommufd) for one in found)
    devices = tuple(
        Device(
            id=DeviceID(one.key),
            cdi_name=cdikind.qualified(resource, one.key),
            gpu=GPUUUID(one.key),
            slot=one.key,
            is_healthy=is_whole,
            reason="" if is_whole else UNUSABLE,
            numa_node=one.numa_node,
            nodes=tuple(node.path for node in _nodes(one, with_iommufd=with_iommufd)),
        )
        for one in found
    )
    return (Advertisement(resource=resource, vendor=Vendor.NVIDIA, devices=devices),)


def plan_spec(
    found: Iterable[PassthroughSwitch],
    profile: driverprofile.Profile,
    *,
    resource: str = cdikind.SWITCHES,
    with_iommufd: bool,
) -> tuple[cdi.Spec, ...]:
    """Return the CDI spec of the switches; none where there is none."""
    devices = tuple(
        cdi.Device(name=one.key, edits=driverprofile.show_nodes(nodes, profile))
        for one in found
        if (nodes := _nodes(one, with_iommufd=with_iommufd))
    )
    return (emit.normal_form(cdi.Spec(cdi_version="", kind=resource, devices=devices)),) if devices else ()


def _nodes(one: PassthroughSwitch, *, with_iommufd: bool) -> tuple[DeviceNode, ...]:
    return one.iommufd_nodes if with_iommufd else one.group_nodes


def find_refusal(
    asked: int,
    whole: int,
    pods: Collection[core.Pod] | None,
    namespace: str,
    resource: str = cdikind.SWITCHES,
) -> errors.FairleadError | None:
    """Return why an Allocate is refused; None: it is not.

    Args: asked: switches in it.   whole: that the node has.   pods: of this node; None: nobody knows them.
          namespace: whose pods may have them.   resource: by which they are asked for.
    """
    if asked != whole:
        message = f"{asked} of {whole} NVSwitches were asked for: a Service VM takes all of its node, or none"
        hint = f"ask for {resource}: {whole}; `fairlead fabric vm --kata` prints such a pod"
        return errors.RequestError(message, reason=NOT_WHOLE, hint=hint)
    if pods is None:
        return None
    waiting = asking(pods, resource)
    others = [one for one in waiting if one.partition("/")[0] != namespace]
    if others:
        message = f"NVSwitches go to pods of the namespace {namespace} alone, and {', '.join(others)} asks for some"
        hint = "delete that pod; fabric.vm_namespace names the namespace"
        return errors.Denied(message, reason=FOREIGN, hint=hint)
    if not waiting:
        message = f"no pod of the namespace {namespace} that is known here asks for NVSwitches"
        return errors.Unavailable(message, reason=FOREIGN, hint="fabric.vm_namespace names the namespace")
    return None


def asking(pods: Iterable[core.Pod], resource: str = cdikind.SWITCHES) -> tuple[str, ...]:
    """Return the pods that ask for switches and have not ended, as `namespace/name`."""
    return tuple(
        f"{one.metadata.namespace}/{one.metadata.name}"
        for one in pods
        if one.status.phase not in core.ENDED_PHASES and _asks(one, resource)
    )


def _asks(pod: core.Pod, resource: str) -> bool:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return any(resource in one.resources.limits for one in containers)
