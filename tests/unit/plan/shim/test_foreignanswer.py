"""What a foreign plugin's answer becomes, by each strategy of NVIDIA's and for answers that no GPU comes from."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.plan.shim import foreignanswer
from fairlead.wire.proto import deviceplugin_pb2 as pb
from tests.unit.node.kubelet import vendorplugin

_ONE, _TWO = "GPU-11111111-aaaa-bbbb-cccc-0123456789ab", "GPU-22222222-aaaa-bbbb-cccc-0123456789ab"
_OWN = "fairlead.dev/gpu"
_DEFINED = frozenset(f"{_OWN}={name}" for name in (_ONE, _TWO, "0", "1", "1:0"))


def _names(answer: pb.ContainerAllocateResponse, defined: frozenset[str] = _DEFINED) -> tuple[str, ...]:
    return foreignanswer.translate(answer, "nvidia.com/gpu", (_ONE,), defined)


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts"])
def test_words_become_names_of_our_own_specs(strategy: str) -> None:
    assert _names(vendorplugin.answer((_ONE, _TWO), strategy)) == (f"{_OWN}={_ONE}", f"{_OWN}={_TWO}")
    assert _names(vendorplugin.answer(("1:0",), strategy)) == (f"{_OWN}=1:0",)


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts"])
def test_where_ours_define_none_the_vendors_kind_is_taken(strategy: str) -> None:
    defined = frozenset({f"nvidia.com/gpu={_ONE}"})
    assert _names(vendorplugin.answer((_ONE,), strategy), defined) == (f"nvidia.com/gpu={_ONE}",)


@pytest.mark.parametrize("prefix", ["cdi.k8s.io/", "gpu.example.com/"])
def test_annotations_of_any_prefix_count(prefix: str) -> None:
    answer = vendorplugin.answer((_ONE, _TWO), "cdi-annotations", prefix=prefix)
    assert _names(answer, frozenset()) == (f"{vendorplugin.KIND}={_ONE}", f"{vendorplugin.KIND}={_TWO}")


def test_annotations_that_name_no_device_are_not_names() -> None:
    answer = vendorplugin.answer((_ONE,), "cdi-cri")
    answer.annotations["example.com/note"] = "a=b,c"
    assert _names(answer) == (f"{vendorplugin.KIND}={_ONE}",)


def test_a_device_that_is_said_by_several_strategies_is_given_once() -> None:
    answer = vendorplugin.answer((_ONE,), *vendorplugin.STRATEGIES)
    assert _names(answer) == (f"{vendorplugin.KIND}={_ONE}",)


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts"])
def test_channels_come_along(strategy: str) -> None:
    answer = vendorplugin.answer((_ONE,), strategy, channels=("0",))
    wanted = (f"{_OWN}={_ONE}", "nvidia.com/imex-channel=0")
    assert _names(answer, _DEFINED | {"nvidia.com/imex-channel=0"}) == wanted
    with pytest.raises(errors.Unavailable, match=r"no CDI spec of this machine defines 0$"):
        _names(answer)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            vendorplugin.answer(("GPU-other",), "envvar"),
            "by NVIDIA_VISIBLE_DEVICES=GPU-other, and no CDI spec",
        ),
        (vendorplugin.answer(("GPU-other",), "volume-mounts"), "and volume mounts, and no CDI spec .* GPU-other"),
        (vendorplugin.answer((), "envvar"), "with nothing that gives a GPU"),
        (pb.ContainerAllocateResponse(), "with nothing that gives a GPU"),
        (pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": "void"}), "with nothing that gives a GPU"),
        (pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": "none"}), "with nothing that gives a GPU"),
        (pb.ContainerAllocateResponse(annotations={"x": "y"}), "with nothing that gives a GPU"),
    ],
)
def test_an_answer_from_which_no_gpu_comes_is_refused_with_the_way_out(
    answer: pb.ContainerAllocateResponse, said: str
) -> None:
    with pytest.raises(errors.Unavailable, match=said) as caught:
        _names(answer)
    assert caught.value.reason == "AnswerUntranslatable"
    assert "DEVICE_LIST_STRATEGY=cdi-cri" in str(caught.value.hint)


def test_device_nodes_alone_are_an_answer() -> None:
    assert _names(vendorplugin.answer((), nodes=("/dev/nvidia0",))) == ()


@pytest.mark.parametrize(
    ("resource", "ids"),
    [("nvidia.com/hostdev", ("0000:3b:00.1",)), ("example.com/license", ("seat-1",)), ("nvidia.com/gpu", ())],
)
def test_what_is_not_a_gpu_may_be_answered_with_nothing(resource: str, ids: tuple[str, ...]) -> None:
    answer = pb.ContainerAllocateResponse(envs={"PCIDEVICE": "x"})
    assert foreignanswer.translate(answer, resource, ids, frozenset()) == ()


def test_a_renamed_resource_of_gpus_is_known_by_its_devices() -> None:
    with pytest.raises(errors.Unavailable):
        foreignanswer.translate(pb.ContainerAllocateResponse(), "example.com/big", (_ONE,), frozenset())


def test_our_own_answers_are_translated_too() -> None:
    answer = pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": "1,0"})
    assert _names(answer) == (f"{_OWN}=1", f"{_OWN}=0")
