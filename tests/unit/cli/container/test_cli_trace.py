"""The tree of a trace: facts a person wants, outcomes of open() in words, gaps named, unknown facts as they are."""

from __future__ import annotations

import pytest

from fairlead.cli.container import trace
from fairlead.model.container.step import TraceStep
from fairlead.plan import trace as plan_trace
from fairlead.serve.v1.containers import traceview, view
from fairlead.serve.v1.containers.view import ContainerView
from fairlead.wire.kubernetes import core


def _step(layer: str, reason: str, at: float, **facts: object) -> TraceStep:
    return TraceStep(layer=layer, reason=reason, message=f"{reason}.", at=at, duration_s=0.0021, facts=facts)


_GPUS = [{"index": 0, "uuid": "GPU-aaaaaaaa-1111"}, {"index": 1, "uuid": "GPU-bbbbbbbb-2222"}]
_NODE = [
    _step(
        "silicon", "GPUsFound", 1, gpus=_GPUS, models={"H100": 2}, drivers={"nvidia": "550"}, cuda={"nvidia": "12.4"}
    ),
    _step("deviceplugin", "DevicesAdvertised", 2, socket="/s", kubelet="/k", ids=["GPU-aaaaaaaa-1111"]),
]
_NAMES = ["nvidia.com/gpu=GPU-aaaaaaaa-1111"]
_POD = [
    _step("api", "Accepted", 10, images=["demo"]),
    _step("scheduler", "Scheduled", 10.1, nodes=1, fitting=1, best=[{"name": "one", "score": 3}], refused=[]),
    _step(
        "kubelet",
        "DevicesChosen",
        10.2,
        container="main",
        resource="nvidia.com/gpu",
        asked=1,
        available=["GPU-aaaaaaaa-1111", "GPU-bbbbbbbb-2222"],
        preferred=["GPU-aaaaaaaa-1111"],
        chosen=["GPU-aaaaaaaa-1111"],
    ),
    _step(
        "deviceplugin", "DevicesAllocated", 10.3, container="main", answer={"cdi_devices": _NAMES, "envs": {"A": "1"}}
    ),
    _step("cdi", "EditsResolved", 10.4, container="main", specs=["/cdi/x.json"], device_nodes=["/dev/nvidia0"], env=[]),
    _step("engine", "ContainerCreated", 10.5, container="main", cpu_limit=1.5, memory_limit_bytes=1 << 30, pid=7),
    _step(
        "kernel",
        "IsolationRead",
        10.6,
        container="main",
        rules=["c 195:0 rw"],
        nodes=[{"path": "/dev/nvidia0", "major": 195, "minor": 0}],
        opens={"/dev/nvidia0": "ENXIO", "195:1": "EPERM", "195:2": "EPERM", "195:3": "mknod:EPERM", "195:4": 13},
        granted=["/dev/nvidia0", "/dev/nvidia9"],
        unread=["device nodes: gone"],
    ),
    _step("engine", "ContainerStarted", 10.7, container="main"),
    _step("odd", "Something", 10.8, container="main", table=[{"a": 1, "b": 2}], flag=True),
    _step("process", "ContainerEnded", 11.0, container="main", exit_code=0, ran_s=0.3),
]


def _lines(pod: list[TraceStep], wrote: tuple[str, ...] = ()) -> list[str]:
    found = plan_trace.order_trace(pod, _NODE, is_final=True, resources=("nvidia.com/gpu",))
    return list(trace.tree_lines(traceview.trace_view(found), wrote))


def _text(pod: list[TraceStep]) -> str:
    return " ".join(" ".join(_lines(pod)).replace("│", " ").split())


def test_every_layer_shows_what_it_did() -> None:
    text = _text(_POD)
    for expected in (
        "GPUs 2 x H100 driver nvidia 550, CUDA up to 12.4",
        "one fits score 3",
        "asked 1 of nvidia.com/gpu, 2 free",
        "chosen GPU 0 (GPU-aaaaaaaa)",
        "CDI devices nvidia.com/gpu=GPU-aaaaaaaa-1111",
        "env A=1",
        "device nodes /dev/nvidia0",
        "limits 1.5 CPUs, 1 GiB",
        "ran 300 ms",
        "table: a=1 b=2 flag: True",
    ):
        assert expected in text, expected


def test_outcomes_of_open_are_told_in_words_and_only_as_read() -> None:
    text = _text(_POD)
    for expected in (
        "/dev/nvidia0 c 195:0 open: ENXIO, allowed (no driver behind it: simulated, or not loaded)",
        "/dev/nvidia9 not in the container",
        "c 195:1, 195:2 open: EPERM, denied by the cgroup",
        "c 195:3 open: the node may not even be made (EPERM)",
        "c 195:4 open: EACCES, denied by the node's mode",
        "rules in force c 195:0 rw",
        "not read: device nodes: gone",
    ):
        assert expected in text, expected


_MACHINE = [
    _step("api", "Accepted", 10, images=["vmm"]),
    _step("scheduler", "Scheduled", 10.1, nodes=1, fitting=1, best=[{"name": "hgx", "score": 3}], refused=[]),
    _step("kubelet", "ClaimsPrepared", 10.2, claims=["vm"], devices=["gpu.nvidia.com/hgx/gpu-vfio-1"]),
    _step(
        "cdi",
        "EditsResolved",
        10.4,
        container="main",
        names=["k8s.gpu.nvidia.com/claim=uid-of-vm-gpu-vfio-1"],
        device_nodes=["/dev/vfio/vfio (10:196)", "/dev/vfio/41 (511:1)"],
        env=["NVIDIA_VISIBLE_DEVICES=void"],
    ),
    _step("engine", "ContainerCreated", 10.5, container="main", pid=7),
    _step(
        "kernel",
        "IsolationRead",
        10.6,
        container="main",
        nodes=[
            {"path": "/dev/vfio/vfio", "major": 10, "minor": 196},
            {"path": "/dev/vfio/41", "major": 511, "minor": 1},
        ],
        opens={"/dev/vfio/vfio": "OK", "/dev/vfio/41": "OK", "/dev/vfio/42": "EPERM"},
        granted=["/dev/vfio/vfio", "/dev/vfio/41"],
    ),
    _step("engine", "ContainerStarted", 10.7, container="main"),
]


def test_a_claim_of_a_gpu_that_is_passed_through_shows_its_group_and_says_that_it_was_not_opened() -> None:
    found = plan_trace.order_trace(_MACHINE, _NODE, is_final=False, resources=())
    text = " ".join(" ".join(trace.tree_lines(traceview.trace_view(found), ())).replace("│", " ").split())
    for expected in (
        "claims: vm devices: gpu.nvidia.com/hgx/gpu-vfio-1",
        "devices k8s.gpu.nvidia.com/claim=uid-of-vm-gpu-vfio-1",
        "device nodes /dev/vfio/vfio (10:196), /dev/vfio/41 (511:1)",
        "/dev/vfio/41 c 511:1 access: works",
        "/dev/vfio/42 access: EPERM, denied by the cgroup",
    ):
        assert expected in text, text
    assert "GPUs found" not in text  # the pod asks for no device of the plugin's
    assert "not recorded" not in text


def test_times_are_offsets_from_the_pods_first_step() -> None:
    lines = [line for line in _lines(_POD) if line.startswith(("├", "└"))]
    assert [line.split()[1] for line in lines[:4]] == ["-9s", "-8s", "+0.000s", "+0.100s"]
    assert "2.1 ms" in lines[0]


def test_a_gap_is_named_and_the_output_comes_last() -> None:
    lines = _lines([step for step in _POD if step.layer != "kernel"], ("hello", "world"))
    assert any(line.split()[1:] == ["kernel", "isolation", "read", "back:", "not", "recorded"] for line in lines)
    assert [line.strip() for line in lines[-2:]] == ["hello", "world"]


def test_lines_name_their_container_where_there_are_several() -> None:
    other = _step("engine", "ContainerStarted", 10.75, container="side")
    assert "[side] ContainerStarted." in _text([*_POD, other])
    assert "[main]" not in _text(_POD)


def _named(uuids: list[str], env: str) -> str:
    gpus = [{"index": index, "uuid": uuid} for index, uuid in enumerate(uuids)]
    found = _step("silicon", "GPUsFound", 1.0, gpus=gpus)
    answer = {"envs": {"NVIDIA_VISIBLE_DEVICES": env}}
    pod = [
        _step("api", "Accepted", 10.0),
        _step("kubelet", "DevicesChosen", 10.2, container="main", chosen=uuids),
        _step("deviceplugin", "DevicesAllocated", 10.3, container="main", answer=answer),
    ]
    whole = plan_trace.order_trace(pod, [found], is_final=True, resources=("nvidia.com/gpu",))
    return " ".join(" ".join(trace.tree_lines(traceview.trace_view(whole))).split())


def test_a_list_in_a_variable_is_left_as_it_was_said() -> None:
    one, two = "GPU-aaaaaaaa-0000-1111-2222-000000000001", "GPU-bbbbbbbb-0000-1111-2222-000000000002"
    assert f"env NVIDIA_VISIBLE_DEVICES={one},{two} " in _named([one, two], f"{one},{two}") + " "


def test_short_names_are_as_long_as_tells_gpus_apart() -> None:
    alike = ["GPU-01000100-0000-1111-2222-000000000001", "GPU-01000100-0000-1111-3333-000000000002"]
    assert "GPU 1 (GPU-01000100-0000-1111-3333)" in _named(alike, "x")
    same = ["GPU-01000100-0000-1111-2222-000000000001", "GPU-01000100-0000-1111-2222-000000000002"]
    assert "GPU 1 (GPU-01000100-0000-1111-2222-000000000002)" in _named(same, "x")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_lines_break_between_words_and_lose_none(width: int) -> None:
    found = plan_trace.order_trace(_POD, _NODE, is_final=True, resources=("nvidia.com/gpu",))
    shown = traceview.trace_view(found)
    whole, fitted = list(trace.tree_lines(shown)), list(trace.tree_lines(shown, width=width))
    assert max(map(len, fitted)) <= width

    def words(lines: list[str]) -> list[str]:
        return [word for line in lines for word in line.split() if word not in {"│", "├─", "└─"}]

    assert words(fitted) == words(whole)


def _shown(last_exit_code: int) -> ContainerView:
    status = core.ContainerStatus(
        name="main",
        state=core.ContainerStateUnion(waiting=core.ContainerStateWaiting(reason="CrashLoopBackOff")),
        last_state=core.ContainerStateUnion(terminated=core.ContainerStateTerminated(exit_code=last_exit_code)),
    )
    spec = core.PodSpec(containers=(core.Container(name="main", image="box"),))
    return view.container_view(core.Pod(spec=spec, status=core.PodStatus(container_statuses=(status,))))


@pytest.mark.parametrize(("code", "said"), [(0, "restarting (0)"), (3, "crashed (3)")])
def test_a_run_that_ended_well_is_not_called_crashed(code: int, said: str) -> None:
    assert trace._headline(_shown(code)).endswith(said)
