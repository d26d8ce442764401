"""Finds the rules of a pod that this scheduler does not know, so that it refuses the pod instead of breaking the rule.

Pure. What is required and not known is a row of `RULES`. A namespace selector on more than the namespace's name is not
known where no namespace is; where it is only preferred it is left aside then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fairlead.plan.schedule import peers
from fairlead.wire.kubernetes import core, meta

NEXT_STEP: Final = "leave spec.schedulerName out, and the cluster's own scheduler places it"


def _is_unknown(rule: core.PodAffinity | None) -> bool:
    """Return whether a required term selects namespaces by labels that are not read."""
    terms = rule.required_during_scheduling_ignored_during_execution if rule else ()
    return not all(peers.term(one, meta.ObjectMeta()).is_known for one in terms)


def _volume(source: str) -> Callable[[core.PodSpec], bool]:
    return lambda spec: any(getattr(one, source) is not None for one in spec.volumes)


_RULE: Final = "requiredDuringSchedulingIgnoredDuringExecution[].namespaceSelector"
RULES: Final[Mapping[str, Callable[[core.PodSpec], bool]]] = {
    f"spec.affinity.podAffinity.{_RULE}": lambda spec: bool(spec.affinity and _is_unknown(spec.affinity.pod_affinity)),
    f"spec.affinity.podAntiAffinity.{_RULE}": lambda spec: bool(
        spec.affinity and _is_unknown(spec.affinity.pod_anti_affinity)
    ),
    "spec.resources": lambda spec: spec.resources is not None and spec.resources != core.ResourceRequirements(),
    "spec.volumes[].gcePersistentDisk": _volume("gce_persistent_disk"),
    "spec.volumes[].awsElasticBlockStore": _volume("aws_elastic_block_store"),
    "spec.volumes[].iscsi": _volume("iscsi"),
    "spec.volumes[].rbd": _volume("rbd"),
}
"""Fields of a pod that decide where it may run, and that are not read here."""


def unknown(spec: core.PodSpec, *, knows_namespaces: bool = False) -> tuple[str, ...]:
    """Return the fields that the pod requires and this scheduler does not know, in the order of the table.

    Args: knows_namespaces: the labels of namespaces are known.
    """
    asked = (field for field, asks in RULES.items() if asks(spec))
    return tuple(field for field in asked if not (knows_namespaces and field.endswith(_RULE)))


def refusal(spec: core.PodSpec, *, knows_namespaces: bool = False) -> str:
    """Return why this scheduler leaves the pod alone, with the next step; "" where it knows every rule."""
    fields = unknown(spec, knows_namespaces=knows_namespaces)
    return f"asks for {', '.join(fields)}, which this scheduler does not know: {NEXT_STEP}" if fields else ""
