"""Declares the DeviceClasses that name our driver's devices, as NVIDIA's driver brings them. Pure data.

The chart brings them to a cluster (`chart/templates/deviceclasses.yaml`); on one machine the service makes those that
are missing when it starts.
Source: NVIDIA dra-driver-nvidia-gpu, deployments/helm, templates/deviceclass-gpu.yaml, -mig.yaml and -vfio.yaml.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlead.plan.dra.offered import DRIVER
from fairlead.wire.kubernetes.meta import ObjectMeta
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass, DeviceClassSpec
from fairlead.wire.kubernetes.resource.request import CELDeviceSelector, DeviceSelector


def classes(resource: str) -> tuple[DeviceClass, ...]:
    """Return the DeviceClasses of a machine. Args: resource: of whole GPUs, which the first one stands for."""
    gpu, *others = CLASSES
    named = msgspec.structs.replace(gpu, spec=msgspec.structs.replace(gpu.spec, extended_resource_name=resource))
    return (named, *others)


def _class(name: str, kind: str) -> DeviceClass:
    # The driver first: an attribute that another driver's device lacks would end the pod's scheduling.
    expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
    selector = DeviceSelector(cel=CELDeviceSelector(expression=expression))
    return DeviceClass(metadata=ObjectMeta(name=name), spec=DeviceClassSpec(selectors=(selector,)))


CLASSES: Final[tuple[DeviceClass, ...]] = (
    _class("gpu.nvidia.com", "gpu"),
    _class("mig.nvidia.com", "mig"),
    _class("vfio.gpu.nvidia.com", "vfio"),
)
"""Without extended resources, as releases before this one made them on one machine."""
