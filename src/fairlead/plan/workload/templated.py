"""Puts pods in the place of a workload's template, and takes them from there, whatever the kind. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from fairlead.plan.workload.validate import Judged, template_of
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling.policy import PodDisruptionBudget
from fairlead.wire.kubernetes.workloads.batch import CronJob
from fairlead.wire.kubernetes.workloads.service import Service
from fairlead.wire.kubernetes.workloads.template import PodTemplateSpec

T = TypeVar("T", bound=Judged)


def pod_of(item: Judged) -> core.Pod | None:
    """Return a pod as the workload's will be, under the workload's name; None: it makes none."""
    template = template_of(item)
    if template is None:
        return None
    about = msgspec.structs.replace(
        template.metadata, name=item.metadata.name, generate_name="", namespace=item.metadata.namespace
    )
    return core.Pod(metadata=about, spec=template.spec)


def with_template(item: T, change: Callable[[core.Pod], core.Pod]) -> T:
    """Return a workload with another template. Args: change: makes it of what `pod_of` gives."""
    pod = pod_of(item)
    if pod is None or isinstance(item, Service | PodDisruptionBudget):
        return item
    changed = change(pod)
    about = meta.ObjectMeta(labels=changed.metadata.labels, annotations=changed.metadata.annotations)
    template = PodTemplateSpec(metadata=about, spec=changed.spec)
    if isinstance(item, CronJob):
        job = item.spec.job_template
        inner = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, template=template))
        spec: Any = msgspec.structs.replace(item.spec, job_template=inner)
    else:
        spec = msgspec.structs.replace(item.spec, template=template)
    return msgspec.structs.replace(item, spec=spec)


def written_pod(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the template of a manifest as a pod's manifest, with the fields that nothing reads."""
    spec = document.get("spec", {})
    if document.get("kind") == CronJob.KIND:
        spec = spec.get("jobTemplate", {}).get("spec", {})
    template: Mapping[str, Any] = spec.get("template", {}) if isinstance(spec, Mapping) else {}
    return {"apiVersion": "v1", "kind": "Pod", **template}
