"""Finds the rules of a pod that this scheduler does not know, so that it refuses the pod instead of breaking the rule.

Pure. What is only preferred (preferred pod affinity, `ScheduleAnyway`) is left aside: a pod may run anywhere without
it. What is required and not known is a row of `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fairlead.wire.kubernetes import core

NEXT_STEP: Final = "leave spec.schedulerName out, and the cluster's own scheduler places it"


def _requires(kind: str) -> Callable[[core.PodSpec], bool]:
    field = "required_during_scheduling_ignored_during_execution"
    return lambda spec: bool(getattr(getattr(spec.affinity, kind, None), field, ()))


def _volume(source: str) -> Callable[[core.PodSpec], bool]:
    return lambda spec: any(getattr(one, source) is not None for one in spec.volumes)


_RULE: Final = "requiredDuringSchedulingIgnoredDuringExecution"
RULES: Final[Mapping[str, Callable[[core.PodSpec], bool]]] = {
    f"spec.affinity.podAffinity.{_RULE}": _requires("pod_affinity"),
    f"spec.affinity.podAntiAffinity.{_RULE}": _requires("pod_anti_affinity"),
    "spec.topologySpreadConstraints with whenUnsatisfiable DoNotSchedule": lambda spec: any(
        one.when_unsatisfiable == "DoNotSchedule" for one in spec.topology_spread_constraints
    ),
    "spec.resourceClaims": lambda spec: bool(spec.resource_claims),
    "spec.resources": lambda spec: spec.resources is not None and spec.resources != core.ResourceRequirements(),
    "spec.volumes[].persistentVolumeClaim": _volume("persistent_volume_claim"),
    "spec.volumes[].ephemeral": _volume("ephemeral"),
    "spec.volumes[].gcePersistentDisk": _volume("gce_persistent_disk"),
    "spec.volumes[].awsElasticBlockStore": _volume("aws_elastic_block_store"),
    "spec.volumes[].iscsi": _volume("iscsi"),
    "spec.volumes[].rbd": _volume("rbd"),
}
"""Fields of a pod that decide where it may run, and that are not read here."""


def unknown(spec: core.PodSpec) -> tuple[str, ...]:
    """Return the fields that the pod requires and this scheduler does not know, in the order of the table."""
    return tuple(field for field, asks in RULES.items() if asks(spec))


def refusal(spec: core.PodSpec) -> str:
    """Return why this scheduler leaves the pod alone, with the next step; "" where it knows every rule."""
    fields = unknown(spec)
    return f"asks for {', '.join(fields)}, which this scheduler does not know: {NEXT_STEP}" if fields else ""
