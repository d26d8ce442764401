"""Views: one word for where a pod is, the reason that tells most, and foreign annotations borne."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.cli.container import ps
from fairlead.plan.pod import podstate
from fairlead.serve.admission import request as submission
from fairlead.serve.v1.containers import view
from fairlead.wire.kubernetes import core, meta, names


def _pod(
    phase: str = "Pending",
    *,
    node: str = "",
    notes: dict[str, str] | None = None,
    state: core.ContainerStateUnion | None = None,
    reason: str = "",
    deleted: str | None = None,
    stop: core.StopRequest | None = None,
) -> core.Pod:
    statuses = (core.ContainerStatus(name="main", state=state, restart_count=2),) if state else ()
    return core.Pod(
        metadata=meta.ObjectMeta(name="a", namespace="default", annotations=notes or {}, deletion_timestamp=deleted),
        spec=core.PodSpec(containers=(core.Container(name="main", image="demo"),), node_name=node),
        status=core.PodStatus(phase=phase, reason=reason, container_statuses=statuses, stop_request=stop),
    )


_CRASHED = core.ContainerStateUnion(waiting=core.ContainerStateWaiting(reason="CrashLoopBackOff", message="again soon"))
_PULLING = core.ContainerStateUnion(waiting=core.ContainerStateWaiting(reason="ImagePullBackOff", message="no such"))
_STOP = core.StopRequest(requested_at="2026-01-01T00:00:00Z")
_OOM = core.ContainerStateUnion(terminated=core.ContainerStateTerminated(exit_code=137, reason="OOMKilled"))
_FINE = core.ContainerStateUnion(terminated=core.ContainerStateTerminated(exit_code=0, reason="Completed"))


@pytest.mark.parametrize(
    ("pod", "state", "reason"),
    [
        (_pod(), "pending", ""),
        (_pod(node="one"), "creating", ""),
        (_pod(node="one", state=_PULLING), "creating", "ImagePullBackOff"),
        (_pod("Running", node="one"), "running", ""),
        (_pod("Running", node="one", state=_CRASHED), "crashed", "CrashLoopBackOff"),
        (_pod("Running", node="one", stop=_STOP), "stopping", ""),
        (_pod("Running", node="one", notes={"fairlead.dev/stop": "1"}), "running", ""),
        (_pod("Running", node="one", deleted="2026-01-01T00:00:00Z"), "stopping", ""),
        (_pod("Failed", node="one", stop=_STOP, reason="Stopped"), "stopped", "Stopped"),
        (_pod("Failed", node="one", state=_OOM), "failed", "OOMKilled"),
        (_pod("Succeeded", node="one", state=_FINE), "succeeded", "Completed"),
    ],
)
def test_a_pod_has_one_state_and_the_reason_that_tells_most(pod: core.Pod, state: str, reason: str) -> None:
    shown = view.container_view(pod)
    assert (shown.state, shown.reason) == (state, reason)


def test_exit_codes_count_only_once_all_has_ended() -> None:
    assert view.container_view(_pod("Running", node="one", state=_OOM)).exit_code is None
    assert view.container_view(_pod("Failed", node="one", state=_OOM)).exit_code == 137


def test_a_forged_annotation_grants_nothing() -> None:
    forged = _pod(notes={names.DEVICES: '{"nvidia.com/gpu":["GPU-forged"]}'})
    assert podstate.granted_devices(forged) == {}
    assert view.container_view(forged).devices == {}


def test_devices_are_those_that_the_kubelet_says_in_the_status() -> None:
    old = core.PodStatus(container_statuses=(core.ContainerStatus(name="a"), core.ContainerStatus(name="b")))
    held: dict[str, dict[str, tuple[str, ...]]] = {
        "a": {"nvidia.com/gpu": ("GPU-0", "GPU-1")},
        "b": {"nvidia.com/gpu": ("GPU-1",), "x.com/nic": ()},
    }
    told = podstate.with_devices(old, old, held)
    pod = msgspec.structs.replace(_pod(), status=told)
    assert podstate.granted_devices(pod) == {"nvidia.com/gpu": ("GPU-0", "GPU-1")}
    assert podstate.with_devices(old, told, None) == told
    assert podstate.with_devices(told, told, {}) == old


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("demo", "demo"),
        ("nvcr.io/nvidia/pytorch:24.05-py3", "pytorch"),
        ("localhost:5000/My_Image@sha256:abc", "my-image"),
        ("---", "container"),
        ("x" * 80, "x" * 52),
    ],
)
def test_names_are_made_from_images(image: str, name: str) -> None:
    pod = submission.pod_of(submission.ContainerRequest(image=image), resource="r/gpu", scheduler_name="s")
    assert (pod.metadata.generate_name, pod.spec.containers[0].name) == (f"{name}-", name)


def _met(limits: dict[str, str | int | float], devices: int) -> core.Pod:
    """Return a pod whose GPUs a claim meets, and its status once that is prepared."""
    given = tuple(core.ResourceHealth(resource_id=f"gpu-{at}") for at in range(devices))
    status = core.ContainerStatus(
        name="main", allocated_resources_status=(core.ResourceStatus(name="claim:made/r", resources=given),)
    )
    wanted = core.ResourceRequirements(limits=limits, requests=limits)
    item = core.Container(name="main", image="demo", resources=wanted)
    mappings = tuple(
        core.ContainerExtendedResourceRequest(container_name="main", resource_name=name, request_name="r")
        for name in limits
    )
    told = core.PodExtendedResourceClaimStatus(request_mappings=mappings, resource_claim_name="made")
    return core.Pod(
        metadata=meta.ObjectMeta(name="a", namespace="default"),
        spec=core.PodSpec(containers=(item,), node_name="one"),
        status=core.PodStatus(
            phase="Running", container_statuses=(status,) if devices else (), extended_resource_claim_status=told
        ),
    )


def test_gpus_that_a_claim_meets_are_counted_once() -> None:
    shown = view.container_view(_met({"nvidia.com/gpu": 2}, 2))
    (claim,) = shown.claims
    assert (shown.gpus, shown.resources, shown.devices) == (2, {"nvidia.com/gpu": 2}, {})
    assert (claim.claim, claim.resources, claim.devices) == ("made", ("nvidia.com/gpu",), ("gpu-0", "gpu-1"))
    assert ps.gpus_of(shown) == "2"
    assert ps.gpus_of(view.container_view(_met({"nvidia.com/gpu": 2}, 0))) == "2"


def test_gpus_of_a_resource_that_only_its_class_names_are_counted_too() -> None:
    limits: dict[str, str | int | float] = {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": 2, "nvidia.com/gpu": 1}
    shown = view.container_view(_met(limits, 3))
    assert shown.gpus == 3
    claim = "claim deviceclass.resource.kubernetes.io/gpu.nvidia.com, nvidia.com/gpu"
    assert ps.gpus_of(shown) == f"1 nvidia.com/gpu + 2 {claim}"
