"""Devices by their CDI names: whose they may be, and that none of them is a GPU whatever it is called."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.plan.pod import device
from fairlead.serve.admission.request import ContainerRequest, pod_of
from fairlead.serve.backend import place
from fairlead.serve.backend.containers.lifecycle import LocalLifecycle
from fairlead.serve.backend.tenancy import own
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes import core

_DRIVERS = "Character devices:\n  1 mem\n195 nvidia\n226 drm\n234 nvidia-uvm\n510 kfd\n\nBlock devices:\n  7 loop\n"


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/gpu=0",
        "nvidia.com/nvswitch-h100=path-0",
        "fairlead.dev/gpu=GPU-1",
        "amd.fairlead.dev/gpu=0",
        "runtime.nvidia.com/gpu=all",
        "k8s.device-plugin.nvidia.com/gpu=x",
        "lab.example/GPU=0",
        "nvidia.com/imex-channel=0",
        "nvidia.com/vgpu=0",
        "fairlead.dev/anything=0",
        "lab.fairlead.dev/anything=0",
        "k8s.gpu.nvidia.com/claim=7f0c-gpu-0",
    ],
)
def test_no_name_of_a_gpu_is_taken(name: str) -> None:
    (said,) = device.problems(core.MachineOptions(devices=(name,)))
    assert "-g 1" in said


@pytest.mark.parametrize(
    "name", ["", "/dev/fuse", "a/b", "a/b=", "a/b=c\n", "--x/y=z", "a/b=*", "a/b=c/d", "a" * 99 + "/b=c", "a/b=\x1bc"]
)
def test_what_is_no_name_is_refused(name: str) -> None:
    (said,) = device.problems(core.MachineOptions(devices=(name,)))
    assert "must be a CDI device" in said


def test_a_list_without_end_is_refused() -> None:
    assert any("Too many" in text for text in device.problems(core.MachineOptions(devices=("a.b/c=d",) * 99)))


def test_people_get_what_is_listed_and_nothing_else() -> None:
    listed = device.parse("lab.example/camera=*, lab.example/fuse=one")
    assert device.refusal(core.MachineOptions(devices=("lab.example/camera=7", "lab.example/fuse=one")), listed) is None
    refused = device.refusal(core.MachineOptions(devices=("lab.example/fuse=two",)), listed)
    assert refused is not None
    assert (refused.reason, device.SETTING in str(refused.hint)) == ("DeviceForbidden", True)
    assert device.refusal(core.MachineOptions(devices=("lab.example/camera=7",)), ()) is not None


@pytest.mark.parametrize("text", ["nvidia.com/gpu=*", "/dev/fuse", "a/b", "lab.example/x=*,fairlead.dev/gpu=0"])
def test_the_setting_lists_no_gpus(text: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        device.parse(text)
    assert caught.value.reason == "DevicesInvalid"


@pytest.mark.parametrize(
    ("paths", "majors", "is_gpu"),
    [
        (["/dev/full", "/dev/thing"], [1], False),
        (["/dev/nvidia0"], [], True),
        (["/dev/dri/renderD128"], [], True),
        (["/dev"], [], True),
        (["/dev/thing"], [195], True),
        (["/dev/thing"], [234], True),
        (["/dev/thing"], [510], True),
    ],
)
def test_a_gpu_under_another_name_is_found(paths: list[str], majors: list[int], is_gpu: bool) -> None:
    assert bool(device.hidden(paths, majors, _DRIVERS)) is is_gpu
    assert bool(device.hidden(["/dev/thing"], [195], "")) is True


async def test_root_has_them_and_a_user_does_not() -> None:
    asked = ContainerRequest(image="demo", name="box", devices=("lab.example/camera=7",))
    pod = pod_of(asked, resource="nvidia.com/gpu", scheduler_name="")
    living = LocalLifecycle(store=MemoryStore())
    made = await living.submit(place.Everywhere().new("default").submission(pod))
    assert made.spec.machine == core.MachineOptions(devices=("lab.example/camera=7",))
    with pytest.raises(errors.Denied) as caught:
        await living.submit(place.Within(part=own.User(uid=1000, most_devices=2)).new("").submission(pod))
    assert caught.value.reason == "DeviceForbidden"


@pytest.mark.parametrize(
    ("variables", "hooks", "said"),
    [
        (["NVIDIA_VISIBLE_DEVICES=all"], [], "the variable NVIDIA_VISIBLE_DEVICES"),
        (["AMD_VISIBLE_DEVICES=0"], [], "the variable AMD_VISIBLE_DEVICES"),
        (["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES_X=all", "A=NVIDIA_VISIBLE_DEVICES=all"], [], ""),
        ([], ["/usr/bin/nvidia-ctk"], "the hook /usr/bin/nvidia-ctk"),
        ([], ["/usr/bin/nvidia-container-runtime-hook"], "the hook /usr/bin/nvidia-container-runtime-hook"),
        ([], ["/opt/nvidia-tools/firmware"], ""),
        ([], ["/usr/bin/fairlead-hook"], "the hook /usr/bin/fairlead-hook"),
    ],
)
def test_what_asks_for_gpus_in_a_spec_of_another_kind_is_found(
    variables: list[str], hooks: list[str], said: str
) -> None:
    assert device.asking(variables, hooks) == said
