"""Devices as a node advertises them: GPUs, MIG devices and replicas of either, each with an identity of its own."""

from __future__ import annotations

import dataclasses
from typing import Any

from fairlead.model import cdikind, replica
from fairlead.model.device import Device
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID, MIGUUID, DeviceID


def cdi_name(name: str, vendor: Vendor = Vendor.NVIDIA) -> str:
    """Return the name that an allocation has for a device."""
    return cdikind.qualified(cdikind.ALLOCATED[vendor.value], name)


def gpu(name: str, *, vendor: Vendor = Vendor.NVIDIA, **facts: Any) -> Device:
    """Return a whole GPU."""
    return Device(id=DeviceID(name), cdi_name=cdi_name(name, vendor), gpu=GPUUUID(name), **facts)


def mig(name: str, on: str, **facts: Any) -> Device:
    """Return a MIG device on a GPU."""
    return Device(id=DeviceID(name), cdi_name=cdi_name(name), gpu=GPUUUID(on), mig=MIGUUID(name), **facts)


def vgpu(name: str, on: str, **facts: Any) -> Device:
    """Return a vGPU of a GPU."""
    own = cdikind.qualified(cdikind.LENT, name)
    return Device(id=DeviceID(name), cdi_name=own, gpu=GPUUUID(on), vgpu=name, **facts)


def replicated(device: Device, number: int) -> Device:
    """Return one replica of a device."""
    return dataclasses.replace(device, id=DeviceID(replica.name(device.id, number)), replica_of=device.id)
