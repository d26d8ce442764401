"""The doctor's judgement: a pure function from what was seen; each finding says why and how to mend it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from fairlead.cli.doctor import local
from fairlead.plan.cdi import conflict
from fairlead.serve.backend.hardware import EngineView
from fairlead.serve.v1.nodeview import NodeView

_NODE = NodeView(
    name="one",
    state="ready",
    reason="",
    capacity={},
    allocatable={"nvidia.com/gpu": "8"},
    used={},
    taints=(),
    kernel="",
    engine="",
)
_GOOD = local.Seen(
    service="fairlead 1 at x",
    service_error="",
    is_root=True,
    kernel="6.1",
    engine=EngineView(name="podman", version="4.3.1", runtime="runc", cdi_ceiling="0.5.0", cgroup_version=1),
    found=8,
    unreadable=0,
    silicon_error="",
    profile="",
    driver_problems=(),
    nodes=(_NODE,),
    node="one",
    resource="nvidia.com/gpu",
    cdi_folder=Path("/cdi"),
    specs=("nvidia.json",),
)


def _with(healthy: str, *, total: str = "8", nic: str = "") -> NodeView:
    more = {"example.com/nic": "2"} if nic else {}
    own = {"example.com/nic": nic} if nic else {}
    capacity = {"cpu": "4", "nvidia.com/gpu": total, **more}
    return msgspec.structs.replace(_NODE, capacity=capacity, allocatable={"nvidia.com/gpu": healthy, **own})


_OLD = msgspec.structs.replace(_GOOD.engine, cdi_ceiling="0.3.0")


def test_a_good_machine_has_one_good_word_for_every_layer() -> None:
    found = list(local.check(_GOOD))
    assert {item.level for item in found} == {"ok"}
    assert [item.check for item in found] == [
        "silicon",
        "driver",
        "kernel",
        "engine",
        "cdi",
        "service",
        "kubelet",
        "plugin",
    ]


@pytest.mark.parametrize(
    ("changes", "check", "level"),
    [
        ({"found": 0}, "silicon", "fail"),
        ({"silicon_error": "driver not loaded"}, "silicon", "fail"),
        ({"unreadable": 1}, "silicon", "warn"),
        ({"driver_problems": ("libcuda is missing",)}, "driver", "warn"),
        ({"is_root": False}, "kernel", "warn"),
        ({"engine": EngineView(problem="podman is not installed", hint="install it")}, "engine", "fail"),
        ({"engine": _OLD}, "engine", "warn"),
        ({"engine": msgspec.structs.replace(_GOOD.engine, notes=("runc is used",))}, "engine", "warn"),
        ({"specs": ()}, "cdi", "fail"),
        ({"service": "", "service_error": "no service runs here"}, "service", "warn"),
        ({"nodes": ()}, "kubelet", "fail"),
        ({"nodes": (msgspec.structs.replace(_NODE, state="notready"),)}, "kubelet", "fail"),
        ({"nodes": (msgspec.structs.replace(_NODE, allocatable={}),)}, "plugin", "fail"),
        ({"nodes": (_with("0"),)}, "plugin", "fail"),
        ({"nodes": (_with("7"),)}, "plugin", "warn"),
        ({"nodes": (_with("0", total="0"),)}, "plugin", "fail"),
        ({"nodes": (_with("8", nic="0"),)}, "plugin", "fail"),
        ({"nodes": (_with("8", nic="1"),)}, "plugin", "warn"),
        ({"unhealthy": ("GPU 6 (GPU-06) is Unhealthy: XID79: fell off the bus",)}, "silicon", "warn"),
    ],
)
def test_each_fault_is_found_and_says_why_it_matters(changes: dict[str, object], check: str, level: str) -> None:
    found = [item for item in local.check(dataclasses.replace(_GOOD, **changes)) if item.level != "ok"]  # type: ignore[arg-type]
    assert [(item.check, item.level) for item in found] == [(check, level)]
    assert found[0].why


@pytest.mark.parametrize(
    ("nodes", "check"),
    [((), "kubelet"), ((msgspec.structs.replace(_NODE, allocatable={}),), "plugin")],
)
def test_a_service_that_is_starting_is_not_failing(nodes: tuple[NodeView, ...], check: str) -> None:
    def found(age_s: float) -> list[tuple[str, str]]:
        seen = dataclasses.replace(_GOOD, nodes=nodes, age_s=age_s)
        return [(item.check, item.level) for item in local.check(seen) if item.level != "ok"]

    assert found(1.0) == [(check, "warn")]
    assert found(60.0) == [(check, "fail")]


def test_every_resource_is_named_with_its_numbers() -> None:
    seen = dataclasses.replace(_GOOD, nodes=(_with("6", nic="2"),))
    found = {item.what: item.level for item in local.check(seen) if item.check == "plugin"}
    assert found == {"2 healthy example.com/nic advertised": "ok", "6 of 8 nvidia.com/gpu healthy": "warn"}


def test_each_gpu_that_is_not_given_out_has_a_finding_of_its_own() -> None:
    lines = ("GPU 1 (GPU-1) is Unhealthy: XID79", "GPU 6 (GPU-6) is Lost")
    found = [item for item in local.check(dataclasses.replace(_GOOD, unhealthy=lines)) if item.level == "warn"]
    assert [item.what for item in found] == list(lines)


def test_without_a_service_a_missing_spec_is_no_fault() -> None:
    seen = dataclasses.replace(_GOOD, service="", service_error="none", specs=())
    assert {item.level for item in local.check(seen) if item.check == "cdi"} == {"ok"}


def test_a_spec_of_another_boot_is_a_warning_with_its_remedy() -> None:
    seen = dataclasses.replace(_GOOD, stale=("/cdi/nvidia.json was generated in another boot (a, this is b)",))
    (finding,) = (item for item in local.check(seen) if item.level == "warn")
    assert (finding.check, "another boot" in finding.what, "generate" in finding.fix) == ("cdi", True, True)


def test_a_device_that_two_files_define_is_a_failure_with_both_files_and_the_commands() -> None:
    found = conflict.Conflict(
        path="/var/run/cdi/fairlead.dev-gpu.json",
        other="/var/run/cdi/nvidia.yaml",
        devices=("fairlead.dev/gpu=GPU-0", "fairlead.dev/gpu=GPU-1"),
    )
    failures = [item for item in local.check(dataclasses.replace(_GOOD, conflicts=(found,))) if item.level == "fail"]
    (item,) = failures
    assert item.check == "cdi"
    assert "fairlead.dev/gpu=GPU-0 and 1 more is defined in" in item.what
    assert found.path in item.what
    assert found.other in item.what
    assert "systemctl disable --now nvidia-cdi-refresh.path" in item.fix
    assert "mv /var/run/cdi/nvidia.yaml /var/run/cdi/nvidia.yaml.before" in item.fix
