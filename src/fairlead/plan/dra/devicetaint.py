"""Decides which devices of a DRA driver are tainted because their GPU is ill. Pure.

The driver is NVIDIA's: its pool has the node's name, and a whole GPU is the device `gpu-<minor>` of it. MIG devices
have names that only the driver can make, and are left to its own health checks.
Source: kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin (DriverName, canonical device names).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fairlead.model.gpu import GPU, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.plan.gpu import health, label
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import devicetaintrule as wire

DRIVER: Final = "gpu.nvidia.com"
TAINT: Final = "fairlead.dev/gpu-unhealthy"
NODE_LABEL: Final = "fairlead.dev/node"
"""Label of the rules: which node they are about."""


def plan_rules(
    node: core.Node,
    known: Mapping[GPUUUID, GPU],
    verdicts: Mapping[GPUUUID, health.Verdict],
    *,
    effect: str,
) -> tuple[wire.DeviceTaintRule, ...]:
    """Return a rule for each of NVIDIA's GPUs that is ill, in order. Args: effect: empty: none ever."""
    if not effect:
        return ()
    ill = {
        gpu.minor: verdicts[uuid]
        for uuid, gpu in known.items()
        if gpu.vendor is Vendor.NVIDIA and uuid in verdicts and not verdicts[uuid].is_healthy
    }
    return tuple(_rule(node, minor, verdict, effect) for minor, verdict in sorted(ill.items()))


def labels_of(node: str) -> Mapping[str, str]:
    """Return the labels of every rule about a node."""
    return {NODE_LABEL: label.label_value(node)}


def _rule(node: core.Node, minor: int, verdict: health.Verdict, effect: str) -> wire.DeviceTaintRule:
    name, device = node.metadata.name, f"gpu-{minor}"
    owner = meta.OwnerReference(api_version=node.API_VERSION, kind=node.KIND, name=name, uid=node.metadata.uid)
    about = meta.ObjectMeta(name=f"fairlead-{name}-{device}", labels=labels_of(name), owner_references=(owner,))
    selector = wire.DeviceSelector(driver=DRIVER, pool=name, device=device)
    taint = wire.DeviceTaint(key=TAINT, value=label.label_value(verdict.reason), effect=effect)
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
