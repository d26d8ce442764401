"""Decides which devices of a DRA driver are tainted because their GPU is ill. Pure.

The driver is NVIDIA's: its pool has the node's name, and a whole GPU is the device `gpu-<minor>` of it. MIG devices
have names that only the driver can make. They are found in what it published: those that are there say their UUID, and
all of them, those too that are only made for a claim, say their GPU's (`parentUUID`).
Source: kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin (DriverName, canonical device names, attributes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from fairlead.frozen import frozen
from fairlead.model.gpu import GPU, Vendor
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.plan.dra import attribute
from fairlead.plan.gpu import health, label
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource import devicetaintrule as wire
from fairlead.wire.kubernetes.resource import resourceslice
from fairlead.wire.kubernetes.resource.device import Device, DeviceTaint

DRIVER: Final = attribute.DRIVER
TAINT: Final = "fairlead.dev/gpu-unhealthy"
NODE_LABEL: Final = "fairlead.dev/node"
"""Label of the rules: which node they are about."""


@frozen
class UnhealthyDevices:
    """Which of NVIDIA's devices on a node are ill, and why."""

    gpus: Mapping[GPUUUID, health.Verdict]
    minors: Mapping[GPUUUID, int]
    """Of the ill GPUs."""
    devices: Mapping[MIGUUID, health.Verdict]
    """MIG devices that are ill by themselves."""

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.gpus or self.devices)


def find_unhealthy(
    known: Mapping[GPUUUID, GPU],
    verdicts: Mapping[GPUUUID, health.Verdict],
    device_verdicts: Mapping[MIGUUID, health.Verdict],
) -> UnhealthyDevices:
    """Return what is ill of NVIDIA's GPUs."""
    gpus = {
        uuid: verdicts[uuid]
        for uuid, gpu in known.items()
        if gpu.vendor is Vendor.NVIDIA and uuid in verdicts and not verdicts[uuid].is_healthy
    }
    devices = {uuid: verdict for uuid, verdict in device_verdicts.items() if not verdict.is_healthy}
    return UnhealthyDevices(gpus=gpus, minors={uuid: known[uuid].minor for uuid in gpus}, devices=devices)


def plan_rules(
    node: core.Node, ill: UnhealthyDevices, published: Iterable[resourceslice.ResourceSlice], *, effect: str
) -> tuple[wire.DeviceTaintRule, ...]:
    """Return a rule for each device that is ill, in the order of their names.

    A GPU's own device is tainted whether it is published yet or not.

    Args: published: slices of that driver on that node.   effect: empty: none ever.
    """
    if not effect:
        return ()
    whole = {f"gpu-{ill.minors[uuid]}": verdict for uuid, verdict in ill.gpus.items()}
    found = {**dict(_published(node.metadata.name, ill, published)), **whole}
    return tuple(_rule(node, device, verdict, effect) for device, verdict in sorted(found.items()))


def _published(
    pool: str, ill: UnhealthyDevices, slices: Iterable[resourceslice.ResourceSlice]
) -> Iterator[tuple[str, health.Verdict]]:
    own = [one.spec for one in slices if one.spec.driver == DRIVER and one.spec.pool.name == pool]
    newest = max((one.pool.generation for one in own), default=0)
    for device in (device for one in own if one.pool.generation == newest for device in one.devices):
        uuid, parent = _text(device, "uuid"), _text(device, "parentUUID")
        verdict = ill.gpus.get(GPUUUID(parent)) or ill.gpus.get(GPUUUID(uuid)) or ill.devices.get(MIGUUID(uuid))
        if verdict is not None:
            yield device.name, verdict


def _text(device: Device, name: str) -> str:
    found = device.attributes.get(name) or device.attributes.get(f"{DRIVER}/{name}")
    return (found.string or "") if found else ""


def labels_of(node: str) -> Mapping[str, str]:
    """Return the labels of every rule about a node."""
    return {NODE_LABEL: label.label_value(node)}


def _rule(node: core.Node, device: str, verdict: health.Verdict, effect: str) -> wire.DeviceTaintRule:
    name = node.metadata.name
    owner = meta.OwnerReference(api_version=node.API_VERSION, kind=node.KIND, name=name, uid=node.metadata.uid)
    about = meta.ObjectMeta(name=f"fairlead-{name}-{device}", labels=labels_of(name), owner_references=(owner,))
    selector = wire.DeviceTaintSelector(driver=DRIVER, pool=name, device=device)
    taint = DeviceTaint(key=TAINT, value=label.label_value(verdict.reason), effect=effect)
    return wire.DeviceTaintRule(metadata=about, spec=wire.DeviceTaintRuleSpec(device_selector=selector, taint=taint))


def is_same(one: wire.DeviceTaintRule, other: wire.DeviceTaintRule) -> bool:
    """Return whether two rules taint alike: when each was added does not count."""

    def shown(rule: wire.DeviceTaintRule) -> tuple[object, ...]:
        taint = rule.spec.taint
        return rule.spec.device_selector, taint.key, taint.value, taint.effect

    return shown(one) == shown(other)


def is_ours(rule: wire.DeviceTaintRule) -> bool:
    """Return whether an agent made a rule."""
    return NODE_LABEL in rule.metadata.labels and rule.spec.taint.key == TAINT


def find_stale(
    there: Iterable[wire.DeviceTaintRule], wanted: Iterable[wire.DeviceTaintRule]
) -> tuple[wire.DeviceTaintRule, ...]:
    """Return the rules of ours that are no longer wanted as they are; another reason is another rule."""
    named = {rule.metadata.name: rule for rule in wanted}
    return tuple(
        rule
        for rule in there
        if is_ours(rule) and not ((like := named.get(rule.metadata.name)) is not None and is_same(like, rule))
    )
