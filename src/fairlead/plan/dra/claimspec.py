"""Makes the CDI spec of one prepared ResourceClaim: its devices, under names that no other claim has. Pure.

Kind and names are those of NVIDIA's driver. A device brings what a container needs of it: its nodes and, where the
claim shares it by MPS, the way to the control daemon. The driver's user space is common to all of them, unless each is
passed through: then there is nothing of a driver, and the variable that keeps NVIDIA's runtime from adding some.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairlead import errors
from fairlead.model.driver import DeviceNode, DriverFiles, PassthroughGPU
from fairlead.model.gpu import Inventory, Vendor
from fairlead.plan.cdi import driverprofile, generate
from fairlead.plan.dra import metadata, passthrough
from fairlead.plan.dra.preparation import CDI_KIND, Preparation, PreparedDevice
from fairlead.plan.sharing import mps
from fairlead_cdi import emit
from fairlead_cdi import spec as cdi

_READ_ONLY: Final = ("ro", "nosuid", "nodev", "bind")
_WRITABLE: Final = ("rw", "nosuid", "nodev", "bind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What containers are shown of this machine's NVIDIA GPUs."""

    devices: Mapping[str, cdi.ContainerEdits]
    """By UUID of a GPU, or of a MIG device."""
    common: cdi.ContainerEdits
    """The driver's user space."""
    passed: Mapping[str, PassthroughGPU] = field(default_factory=dict)
    """GPUs that are passed through, by their keys in the ledger."""
    profile: driverprofile.Profile = driverprofile.TENANT
    problems: tuple[str, ...] = ()


def show(inventory: Inventory, drivers: Sequence[DriverFiles], recipe: generate.Recipe) -> Shown:
    """Return what containers are shown. Args: drivers: with the paths that an engine sees."""
    plain = dataclasses.replace(
        recipe,
        strategies=("uuid",),
        has_variants=False,
        profile=dataclasses.replace(recipe.profile, has_all=False),
    )
    made = generate.generate(inventory, drivers, recipe=plain, vendors=[Vendor.NVIDIA])
    found = {device.name: device.edits for spec in made.specs for device in spec.devices}
    common = made.specs[0].edits if made.specs else cdi.ContainerEdits()
    passed = {str(gpu.key): gpu for driver in drivers for gpu in driver.passthrough}
    return Shown(devices=found, common=common, passed=passed, profile=recipe.profile, problems=made.problems)


def list_passed(preparation: Preparation, shown: Shown) -> tuple[DeviceNode, ...] | None:
    """Return the nodes of a claim's GPUs that are passed through, as they are now; None: some are not there."""
    found = [_passed(one, shown) for one in preparation.devices if one.backend is not None]
    return tuple(node for nodes in found for node in nodes) if all(found) else None


def _passed(one: PreparedDevice, shown: Shown) -> tuple[DeviceNode, ...]:
    gpu = shown.passed.get(one.gpu)
    if gpu is None or one.backend is None:
        return ()
    return passthrough.list_nodes(gpu, one.backend, has_api_device=one.has_api_device)


def file_name(uid: str) -> str:
    """Return the name of a claim's CDI file."""
    return emit.file_name(CDI_KIND, transient_id=uid)


def build(
    preparation: Preparation,
    shown: Shown,
    mps_folders: Mapping[str, tuple[str, str]],
    files: Mapping[str, tuple[str, str]],
) -> cdi.Spec:
    """Return the spec of a claim.

    Args:    files: of each request: the file of its metadata, and where containers find it.
             mps_folders: of each GPU: the folder of its control daemon's pipes, and what is /dev/shm for its clients.
    Raises:  DeviceFault (`CDISpecIncomplete`): a device's nodes are not there.
    """
    edits = [_edits(one, shown) for one in preparation.devices]
    if missing := [_name(one) for one, found in zip(preparation.devices, edits, strict=True) if found is None]:
        why = "; ".join(shown.problems) or f"no device is called {missing[0]}"
        message = f"claim {preparation.words} cannot be shown to containers: {why}"
        hint = "`fairlead doctor` looks at the device's nodes"
        raise errors.DeviceFault(message, reason="CDISpecIncomplete", hint=hint)
    devices = tuple(
        cdi.Device(
            name=preparation.cdi_name(one).partition("=")[2],
            edits=_with_daemon(found, one, mps_folders),
        )
        for one, found in zip(preparation.devices, edits, strict=True)
        if found is not None
    )
    described = tuple(
        cdi.Device(
            name=metadata.cdi_name(preparation, request).partition("=")[2],
            edits=cdi.ContainerEdits(mounts=(cdi.Mount(host_path=host, container_path=inside, options=_READ_ONLY),)),
        )
        for request, (host, inside) in files.items()
    )
    is_passed = all(one.backend is not None for one in preparation.devices)
    common = cdi.ContainerEdits(env=(generate.VOID,)) if is_passed else shown.common
    spec = cdi.Spec(cdi_version="", kind=CDI_KIND, devices=(*devices, *described), edits=common)
    return emit.normal_form(spec)


def _edits(one: PreparedDevice, shown: Shown) -> cdi.ContainerEdits | None:
    """Return what brings a device; None: its nodes are not there."""
    if one.backend is None:
        return shown.devices.get(_name(one))
    nodes = _passed(one, shown)
    return driverprofile.show_nodes(nodes, shown.profile) if nodes else None


def _name(device: PreparedDevice) -> str:
    return device.instance or device.gpu


def _with_daemon(
    edits: cdi.ContainerEdits, device: PreparedDevice, folders: Mapping[str, tuple[str, str]]
) -> cdi.ContainerEdits:
    if not device.share.is_mps or device.is_admin:
        return edits
    pipe, shared = folders[device.gpu]
    limits = {mps.PERCENT_VARIABLE: device.share.thread_percentage}
    env = [f"{mps.PIPE_VARIABLE}={mps.CONTAINER_PIPE}", *(f"{key}={value}" for key, value in limits.items() if value)]
    if device.share.memory_mib is not None:
        env.append(f"{mps.MEMORY_VARIABLE}=0={device.share.memory_mib}M")
    mounts = (
        cdi.Mount(host_path=pipe, container_path=mps.CONTAINER_PIPE, options=_WRITABLE),
        cdi.Mount(host_path=shared, container_path=mps.SHARED_MEMORY, options=_WRITABLE),
    )
    return dataclasses.replace(edits, env=(*edits.env, *env), mounts=(*edits.mounts, *mounts))
