"""Finds what a pod asks of GPUs by the means of other programs, so that it is refused and never runs without. Pure.

A GPU is what a container's `resources.limits` or the pod's claims ask for. A variable, an annotation or a resource that
another scheduler or runtime reads would be dropped here, and the program would start without its GPU, or with another
one.
Source: nvidia-container-toolkit (NVIDIA_VISIBLE_DEVICES); AMD container-toolkit (AMD_VISIBLE_DEVICES); KAI-Scheduler
and Run:ai documentation of GPU sharing; HAMi pkg/device; Volcano devices/vgpu; Container Device Interface SPEC.md
(annotations); gpushare-scheduler-extender; Koordinator apis/extension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fairlead import errors
from fairlead.model.container import visibledevices
from fairlead.wire.kubernetes import core

REASON: Final = "GPUsAskedOtherwise"
_VARIABLES: Final = (visibledevices.VARIABLE, "AMD_VISIBLE_DEVICES")
_NOTHING: Final = frozenset({"", "void", "none"})
"""Values that ask for no GPU."""
_NATIVE: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_WHOLE: Final = "ask by number: `fairlead run -g {count}`, in a manifest resources.limits: {{{resource}: {number}}}"
_PART: Final = (
    "ask for a part of one GPU: `fairlead run --gpu-memory 8Gi` or `--gpu-compute 50`, which prints the resource that "
    "stands for it; a manifest has it in resources.limits"
)
_CHOICE: Final = "leave it out: which GPUs a container gets is decided by the number and the resource that it asks for"

_MARKS: Final[Mapping[str, str]] = {
    "gpu-fraction": _PART,
    "gpu-fraction-limit": _PART,
    "gpu-fraction-num-devices": _PART,
    "gpu-memory": _PART,
    "gpu-memory-limit": _PART,
    "mig-profile": _PART,
    "nvidia.com/nouse-gputype": _CHOICE,
    "nvidia.com/nouse-gpuuuid": _CHOICE,
    "nvidia.com/use-gputype": _CHOICE,
    "nvidia.com/use-gpuuuid": _CHOICE,
    "nvidia.com/vgpu-mode": _PART,
    "volcano.sh/vgpu-mode": _PART,
    "scheduling.koordinator.sh/device-allocate-hint": _CHOICE,
    "scheduling.koordinator.sh/gpu-partition-spec": _CHOICE,
}
"""Annotations and labels by which other schedulers take a request for GPUs, and the word to use."""
_MARK_PREFIXES: Final = {"cdi.k8s.io/": _CHOICE, "run.ai/gpu-": _PART, "runai.ai/gpu-": _PART}
_RESOURCES: Final = frozenset(
    {
        "aliyun.com/gpu-count",
        "aliyun.com/gpu-mem",
        "koordinator.sh/gpu",
        "koordinator.sh/gpu-core",
        "koordinator.sh/gpu-memory",
        "koordinator.sh/gpu-memory-ratio",
        "koordinator.sh/gpu.shared",
        "nvidia.com/gpucores",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/priority",
        "tencent.com/vcuda-core",
        "tencent.com/vcuda-memory",
        "volcano.sh/gpu-memory",
        "volcano.sh/gpu-number",
        "volcano.sh/vgpu-cores",
        "volcano.sh/vgpu-memory",
        "volcano.sh/vgpu-memory-percentage",
        "volcano.sh/vgpu-number",
    }
)
"""Resources that no device plugin counts: another scheduler reads them."""


def refusal(pod: core.Pod, *, resource: str) -> errors.Invalid | None:
    """Return why a pod is refused (`GPUsAskedOtherwise`); None: nothing would be dropped.

    Args: resource: that of whole GPUs here.
    """
    found = list(_found(pod, resource))
    if not found:
        return None
    name = pod.metadata.name or pod.metadata.generate_name
    asked = "; ".join(dict.fromkeys(what for what, _ in found))
    message = f'Pod "{name}" asks for GPUs by {asked}, which gives none here'
    hint = "; ".join(dict.fromkeys(word for _, word in found))
    return errors.Invalid(message, reason=REASON, hint=hint)


def _found(pod: core.Pod, resource: str) -> Iterator[tuple[str, str]]:
    for part, given in (("annotations", pod.metadata.annotations), ("labels", pod.metadata.labels)):
        for name, value in given.items():
            word = _MARKS.get(name) or next(
                (one for start, one in _MARK_PREFIXES.items() if name.startswith(start)), ""
            )
            if word:
                yield f'metadata.{part}[{name}]="{errors.readable(value)}"', word
    for kind, items in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for number, item in enumerate(items):
            yield from _of_container(f"spec.{kind}[{number}]", item, resource)


def _of_container(path: str, item: core.Container, resource: str) -> Iterator[tuple[str, str]]:
    asked = {**item.resources.requests, **item.resources.limits}
    for name in asked:
        if name in _RESOURCES:
            yield f"{path}.resources.limits[{name}]", _PART
    if any(name not in _NATIVE and "/" in name for name in asked):
        return  # The allocation decides which: what a device plugin answers overrides the variable.
    for one in item.env:
        if one.name in _VARIABLES and one.value_from is None and one.value.strip() not in _NOTHING:
            every = one.value.strip() == "all"
            number = len([part for part in one.value.split(",") if part.strip()])
            count = "all" if every else str(number)
            word = _WHOLE.format(count=count, resource=resource, number="N" if every else number)
            yield f"{path}.env {one.name}={errors.readable(one.value)}", word
