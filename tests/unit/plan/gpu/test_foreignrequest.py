"""GPUs that a pod asks for by another program's means: refused with the word to use, or nothing that is asked for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.plan.gpu.allocation import foreignrequest
from fairlead.wire.kubernetes import core, meta


def _pod(item: dict[str, Any] | None = None, *, marks: dict[str, str] | None = None, **spec: Any) -> core.Pod:
    first = {"name": "c", "image": "i", **(item or {})}
    return core.Pod(
        metadata=meta.ObjectMeta(name="p", annotations=marks or {}),
        spec=msgspec.convert({"containers": [first], **spec}, core.PodSpec),
    )


def _env(value: str, name: str = "NVIDIA_VISIBLE_DEVICES", **resources: Any) -> dict[str, Any]:
    return {"env": [{"name": name, "value": value}], "resources": resources}


@pytest.mark.parametrize(
    ("pod", "named", "word"),
    [
        (_pod(_env("all")), "NVIDIA_VISIBLE_DEVICES=all", "-g all"),
        (_pod(_env("0,1")), "NVIDIA_VISIBLE_DEVICES=0,1", "-g 2"),
        (_pod(_env("0", limits={"cpu": 1})), "NVIDIA_VISIBLE_DEVICES=0", "example.com/gpu: 1"),
        (_pod(_env("0", "AMD_VISIBLE_DEVICES")), "AMD_VISIBLE_DEVICES=0", "-g 1"),
        (_pod(marks={"gpu-fraction": "0.5"}), 'annotations[gpu-fraction]="0.5"', "--gpu-compute"),
        (_pod(marks={"gpu-memory": "2000"}), "gpu-memory", "--gpu-memory"),
        (_pod(marks={"cdi.k8s.io/x": "nvidia.com/gpu=0"}), "cdi.k8s.io/x", "leave it out"),
        (_pod(marks={"nvidia.com/use-gpuuuid": "GPU-1"}), "use-gpuuuid", "leave it out"),
        (_pod({"resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}}}), "gpumem", "--gpu-memory"),
        (_pod({"resources": {"limits": {"volcano.sh/vgpu-number": 1}}}), "vgpu-number", "--gpu-memory"),
        (_pod(initContainers=[{"name": "i", "image": "i", **_env("all")}]), "initContainers[0].env", "-g all"),
    ],
)
def test_what_another_program_would_read_is_refused_by_name(pod: core.Pod, named: str, word: str) -> None:
    refused = foreignrequest.refusal(pod, resource="example.com/gpu")
    assert refused is not None
    assert named in refused.message
    assert word in (refused.hint or "")


@pytest.mark.parametrize(
    "pod",
    [
        _pod(),
        _pod(_env("void")),
        _pod(_env("none")),
        _pod(_env("")),
        _pod(_env("all", limits={"nvidia.com/gpu": 1})),
        _pod(_env("all", "OTHER")),
        _pod({"resources": {"limits": {"nvidia.com/gpu": 1}}}),
        _pod(marks={"team": "gpu-fraction"}),
    ],
)
def test_what_asks_for_nothing_more_is_let_through(pod: core.Pod) -> None:
    assert foreignrequest.refusal(pod, resource="example.com/gpu") is None


def test_labels_count_as_annotations_do() -> None:
    pod = _pod()
    marked = msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, labels={"gpu-fraction": "0.5"})
    )
    refused = foreignrequest.refusal(marked, resource="nvidia.com/gpu")
    assert refused is not None
    assert "labels[gpu-fraction]" in refused.message
