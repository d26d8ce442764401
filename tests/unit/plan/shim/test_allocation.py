"""What a container was given and what it says it was given: the kubelet's checkpoint against everybody else's word."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.shim import allocation, request
from tests import kubeletcheckpoint as kubelet

GPU = "nvidia.com/gpu="
MINE, THEIRS = "0b1c-mine", "9f8e-theirs"
BOTH = (kubelet.by_environment(MINE, "GPU-a", "GPU-b"), kubelet.by_environment(THEIRS, "GPU-c"))


class Fixed(allocation.Allocations):
    def __init__(self, *entries: kubelet.Given, problem: str = "") -> None:
        document = json.loads(json.dumps(kubelet.document(*entries)))
        self.found, self.problem, self.asked = allocation.parse(document), problem, 0

    def entries(self) -> list[allocation.Entry]:
        self.asked += 1
        return [] if self.problem else self.found


def asked(
    value: str | None,
    *more: str,
    allocations: allocation.Allocations,
    pod: str = MINE,
    container: str = "main",
    mounts: tuple[str, ...] = (),
    caps: tuple[str, ...] = (),
    marks: dict[str, str] | None = None,
    container_id: str = "",
    **policy: object,
) -> request.Request:
    rules = request.Policy()
    for name, field in policy.items():
        setattr(rules, name, field)
    env = [*more] if value is None else [f"NVIDIA_VISIBLE_DEVICES={value}", *more]
    document = {
        "process": {"env": env, "capabilities": {"bounding": list(caps)}},
        "annotations": {**(kubelet.identity(pod, container) if pod else {}), **(marks or {})},
        "mounts": [{"destination": f"{kubelet.ROOT}/{name}", "source": "/dev/null"} for name in mounts],
    }
    return request.decide(request.read(document, container_id), rules, allocations)


def names(*words: str) -> tuple[str, ...]:
    return tuple(f"{GPU}{word}" for word in words)


@pytest.mark.parametrize("mode", ["ignore", "refuse", "privileged", "honour"])
def test_what_was_allocated_counts_whatever_the_operator_says_of_images(mode: str) -> None:
    found = asked("GPU-a,GPU-b", allocations=Fixed(*BOTH), image_requests=mode)
    assert (found.names, found.source, found.refusal, found.note) == (names("GPU-a", "GPU-b"), "allocation", None, "")


def test_a_part_of_the_allocation_is_the_allocation_too() -> None:
    assert asked("GPU-b", allocations=Fixed(*BOTH)).names == names("GPU-b")


@pytest.mark.parametrize(
    ("value", "missing"),
    [
        ("GPU-c", "GPU-c"),  # copied from the neighbour
        ("GPU-a,GPU-c", "GPU-c"),
        ("GPU-a,GPU-d,all", "GPU-d, all"),
        ("all", "all"),
        ("0", "0"),
        ("nvidia.com/gpu=GPU-c", "nvidia.com/gpu=GPU-c"),
    ],
)
def test_anything_more_is_ignored_as_a_whole_and_named(value: str, missing: str) -> None:
    found = asked(value, allocations=Fixed(*BOTH))
    assert found.is_empty
    assert f"ignored, {missing} was not allocated to this container" in found.note
    refused = asked(value, allocations=Fixed(*BOTH), image_requests="refuse").refusal
    assert refused is not None
    assert (refused.kind, refused.reason) == ("Denied", "ImageRequestRefused")
    assert f": {missing} was not allocated to this container" in refused.message


@pytest.mark.parametrize(
    ("pod", "container"),
    [("", "main"), ("another", "main"), (MINE, "sidecar"), (THEIRS, "main")],
    ids=["nobody says who", "no pod of the checkpoint", "another container of the pod", "the neighbour"],
)
def test_an_allocation_is_one_container_s_alone(pod: str, container: str) -> None:
    assert asked("GPU-a", allocations=Fixed(*BOTH), pod=pod, container=container).is_empty


def test_given_anew_the_earlier_holder_has_nothing() -> None:
    assert asked("GPU-a", allocations=Fixed(*BOTH)).names == names("GPU-a")
    assert asked("GPU-a", allocations=Fixed(kubelet.by_environment(THEIRS, "GPU-a"))).is_empty


def test_an_init_container_and_the_one_after_it_may_hold_the_same_gpu() -> None:
    allocations = Fixed(
        kubelet.by_environment(MINE, "GPU-a", container="before"), kubelet.by_environment(MINE, "GPU-a")
    )
    assert asked("GPU-a", allocations=allocations, container="before").names == names("GPU-a")
    assert asked("GPU-a", allocations=allocations).names == names("GPU-a")


def test_indexes_count_where_the_plugin_answered_with_them() -> None:
    by_index = kubelet.Given(MINE, ["GPU-a", "GPU-b"], envs={"NVIDIA_VISIBLE_DEVICES": "1,3"})
    assert asked("1,3", allocations=Fixed(by_index)).names == names("1", "3")
    assert asked("1,2", allocations=Fixed(by_index)).is_empty


def test_shared_devices_are_known_without_their_number() -> None:
    assert asked("GPU-a", allocations=Fixed(kubelet.Given(MINE, ["GPU-a::0", "GPU-a::3"]))).names == names("GPU-a")


def test_mounts_count_without_the_operator_where_they_are_the_allocation() -> None:
    given = kubelet.Given(MINE, ["GPU-a"], envs={"NVIDIA_VISIBLE_DEVICES": kubelet.ROOT}, mounts=["GPU-a"])
    found = asked(kubelet.ROOT, allocations=Fixed(given), mounts=("GPU-a",))
    assert (found.names, found.source) == (names("GPU-a"), "volume mounts")
    assert asked(None, allocations=Fixed(given), mounts=("GPU-a", "GPU-c")).is_empty
    # Where they are mounted is no device.
    assert asked(kubelet.ROOT, allocations=Fixed(given)).is_empty


@pytest.mark.parametrize("mode", ["ignore", "honour"])
def test_what_nobody_allocates_comes_with_it_only_where_images_may_ask(mode: str) -> None:
    found = asked("GPU-a", "NVIDIA_GDS=enabled", allocations=Fixed(*BOTH), image_requests=mode)
    assert found.names == (*names("GPU-a"), *(("nvidia.com/gds=all",) if mode == "honour" else ()))


def test_the_whole_driver_is_shown_as_for_every_allocation() -> None:
    assert asked("GPU-a", allocations=Fixed(*BOTH)).capabilities is None
    assert asked("GPU-a", "NVIDIA_DRIVER_CAPABILITIES=utility", allocations=Fixed(*BOTH)).capabilities == frozenset(
        {"utility"}
    )


@pytest.mark.parametrize("value", ["GPU-c", "GPU-d,GPU-c", "all", "2", "nvidia.com/gpu=GPU-c", "vendor.com/x=all"])
def test_an_operator_who_honours_images_gives_nobody_another_pods_gpu(value: str) -> None:
    for pod in (MINE, ""):
        refused = asked(value, allocations=Fixed(*BOTH), image_requests="honour", pod=pod).refusal
        assert refused is not None
        assert (refused.kind, refused.reason) == ("Denied", "AllocatedToAnother")
        assert "is, or may be, what another pod was given" in refused.message


def test_an_operator_who_honours_images_gives_what_nobody_holds() -> None:
    assert asked("GPU-d", allocations=Fixed(*BOTH), image_requests="honour").names == names("GPU-d")
    alone = Fixed(kubelet.by_environment(MINE, "GPU-a"))
    assert asked("all", allocations=alone, image_requests="honour").names == names("all")
    assert asked("0", allocations=Fixed(), image_requests="honour", pod="").names == names("0")
    assert asked("none", allocations=Fixed(*BOTH), image_requests="honour").is_bare


def test_a_whole_gpu_may_hold_the_parts_of_others() -> None:
    allocations = Fixed(kubelet.by_environment(THEIRS, "MIG-1"))
    assert asked("MIG-2", allocations=allocations, image_requests="honour").refusal is None
    assert asked("GPU-a", allocations=allocations, image_requests="honour").refusal is not None


def test_mounts_that_the_operator_accepts_are_held_to_it_too() -> None:
    found = asked(None, allocations=Fixed(*BOTH), mounts=("GPU-c",), accepts_volume_mounts=True)
    assert found.refusal is not None
    assert found.refusal.reason == "AllocatedToAnother"
    assert asked(None, allocations=Fixed(*BOTH), mounts=("GPU-d",), accepts_volume_mounts=True).names == names("GPU-d")


def test_monitors_and_operators_may_go_without_the_check() -> None:
    privileged = asked("all", allocations=Fixed(*BOTH), image_requests="privileged", caps=("CAP_SYS_ADMIN",))
    unchecked = asked("all", allocations=Fixed(*BOTH), image_requests="honour", checks_allocations=False)
    assert privileged.names == unchecked.names == names("all")


def test_a_checkpoint_that_cannot_be_read_gives_nothing_and_stops_who_needs_it() -> None:
    allocations = Fixed(*BOTH, problem="/allocations can be written by others than root")
    assert "ignored, /allocations can be written by others than root" in asked("GPU-a", allocations=allocations).note
    refused = asked("GPU-a", allocations=allocations, image_requests="honour").refusal
    assert refused is not None
    assert (refused.kind, refused.reason) == ("Unavailable", "AllocationsUnreadable")


@pytest.mark.parametrize("value", [None, "void", "", "none"])
def test_no_checkpoint_is_read_for_a_container_without_gpus(value: str | None) -> None:
    allocations = Fixed(*BOTH)
    assert asked(value, allocations=allocations, image_requests="honour").refusal is None
    assert allocations.asked == 0


def test_an_engine_says_who_it_is_in_its_own_words_and_nobody_contradicts_it() -> None:
    crio = {"io.kubernetes.pod.uid": MINE, "io.kubernetes.container.name": "main"}
    assert allocation.identify(crio) == allocation.identify(kubelet.identity(MINE)) == (MINE, "main")
    assert allocation.identify({**crio, **kubelet.identity(MINE)}) == (MINE, "main")
    assert allocation.identify({**crio, **kubelet.identity(THEIRS)}) == ("", "")
    assert allocation.identify({"io.kubernetes.cri.sandbox-uid": MINE}) == ("", "")


def test_kubelets_before_1_20_kept_one_list() -> None:
    entry = {**kubelet.by_environment(MINE, "GPU-a").entry(), "DeviceIDs": ["GPU-a"]}
    (found,) = allocation.parse({"Data": {"PodDeviceEntries": [entry]}})
    assert found.ids == {"GPU-a"}


@pytest.mark.parametrize(
    "document",
    [None, [], {"Data": {"PodDeviceEntries": {}}}, {"Data": {"PodDeviceEntries": [3]}}, {"Data": None}, {}],
)
def test_what_is_no_checkpoint_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match=r"has an entry without a pod|is not a checkpoint"):
        allocation.parse(document)


@pytest.mark.parametrize("answer", [b"\xff", b"\x0a\x05ab", b"\x0b", b"\x0a" + b"\x80" * 11, b"\x09\x01"])
def test_an_answer_that_is_no_message_gives_nothing(answer: bytes) -> None:
    entry = allocation.Entry((MINE, "main", "nvidia.com/gpu"), frozenset({"GPU-a"}), base64.b64encode(answer).decode())
    allocations = Fixed()
    allocations.found = [entry]
    assert "the kubelet's entry of this container has an answer" in asked("GPU-a", allocations=allocations).note


@given(
    value=st.lists(st.sampled_from(["GPU-a", "GPU-b", "GPU-c", "GPU-d", "0", "all", "none", "void", ""]), max_size=4),
    mode=st.sampled_from(request.IMAGE_REQUESTS),
    pod=st.sampled_from([MINE, THEIRS, "another", ""]),
)
def test_no_words_ever_lead_to_another_pods_gpu(value: list[str], mode: str, pod: str) -> None:
    found = asked(",".join(value), allocations=Fixed(*BOTH), image_requests=mode, pod=pod)
    held = {MINE: {"GPU-a", "GPU-b"}, THEIRS: {"GPU-c"}}
    others = {f"{GPU}{name}" for owner, theirs in held.items() if owner != pod for name in theirs}
    assert found.refusal is not None or not {*others, f"{GPU}all", f"{GPU}0"} & {*found.names}


@pytest.mark.parametrize("word", ["0", "1", "all", "3::9", "shim.fairlead.dev/gpu=2"])
def test_an_id_of_another_plugins_resource_is_not_a_gpu(word: str) -> None:
    widget = kubelet.Given(MINE, ["0", "1", "all", "3::9", "shim.fairlead.dev/gpu=2"], resource="example.com/widget")
    found = asked(word.partition("::")[0], allocations=Fixed(widget))
    assert found.is_empty
    assert "was not allocated to this container" in found.note


def test_a_gpu_under_another_resources_name_counts_by_what_its_plugin_answered() -> None:
    allocations = Fixed(
        kubelet.Given(MINE, ["h100-0"], envs={"NVIDIA_VISIBLE_DEVICES": "GPU-a"}, resource="example.com/h100")
    )
    assert asked("GPU-a", allocations=allocations).names == names("GPU-a")
    assert asked("h100-0", allocations=allocations).is_empty


@pytest.mark.parametrize("word", ["all", "none"])
def test_an_id_that_is_a_word_of_the_grammar_gives_nothing(word: str) -> None:
    assert not asked(word, allocations=Fixed(kubelet.Given(MINE, [word]))).names


@pytest.mark.parametrize(
    "theirs",
    [
        kubelet.Given(THEIRS, ["nvidia0"]),
        kubelet.Given(THEIRS, ["0"], envs={"NVIDIA_VISIBLE_DEVICES": "0"}),
        kubelet.Given(THEIRS, ["h"], envs={"NVIDIA_VISIBLE_DEVICES": "0"}, resource="example.com/h100"),
    ],
    ids=["named by their plugin", "by index", "by index under another name"],
)
@pytest.mark.parametrize("word", ["0", "1", "GPU-a", "all"])
def test_where_others_hold_gpus_by_names_that_tell_nothing_nobody_is_given_any(
    theirs: kubelet.Given, word: str
) -> None:
    refused = asked(word, allocations=Fixed(theirs), image_requests="honour").refusal
    assert refused is not None
    assert refused.reason == "AllocatedToAnother"


def test_other_plugins_ids_are_nobodys_gpus() -> None:
    allocations = Fixed(kubelet.Given(THEIRS, ["0", "nic-1"], resource="example.com/nic"))
    assert asked("0", allocations=allocations, image_requests="honour").names == names("0")


# annotations: whoever may have written them, the allocations or the operator decide

_MARK = "cdi.k8s.io/plugin_pod"


@pytest.mark.parametrize(
    "given",
    [
        kubelet.Given(MINE, ["GPU-a"], annotations={_MARK: f"{GPU}GPU-a"}),
        kubelet.Given(MINE, ["GPU-a"], cdi_devices=[f"{GPU}GPU-a"]),
    ],
    ids=["annotations", "names"],
)
def test_annotations_count_as_the_plugin_answered_them(given: kubelet.Given) -> None:
    found = asked(None, allocations=Fixed(given), marks={_MARK: f"{GPU}GPU-a"})
    assert (found.names, found.source, found.refusal) == (names("GPU-a"), "annotations", None)


def test_annotations_of_a_pod_in_the_checkpoint_that_say_more_are_refused() -> None:
    allocations = Fixed(kubelet.Given(MINE, ["GPU-a"], annotations={_MARK: f"{GPU}GPU-a"}), BOTH[1])
    for names_asked in (f"{GPU}GPU-a,{GPU}GPU-c", f"{GPU}all"):
        refused = asked(None, allocations=allocations, marks={_MARK: names_asked}).refusal
        assert refused is not None
        assert (refused.kind, refused.reason) == ("Denied", "AnnotationNotAllocated")
    other = asked(
        None, allocations=allocations, marks={"cdi.k8s.io/more": f"{GPU}all"}, pod="not in the checkpoint"
    ).refusal
    assert other is not None


def test_annotations_nobody_can_be_held_to_count_as_an_images_request_does() -> None:
    marks = {_MARK: f"{GPU}all"}
    ignored = asked(None, allocations=Fixed(), pod="", marks=marks)
    assert ignored.is_empty
    assert "ignored" in ignored.note
    refused = asked(None, allocations=Fixed(), pod="", marks=marks, image_requests="refuse").refusal
    assert refused is not None
    assert asked(None, allocations=Fixed(), pod="", marks=marks, image_requests="honour").names == names("all")


def test_podman_copies_annotations_of_an_image_so_its_own_mark_makes_an_identity_nobodys() -> None:
    marks = {_MARK: f"{GPU}all", "io.container.manager": "libpod"}
    assert asked(None, allocations=Fixed(), marks=marks).is_empty


CRIO = {"io.container.manager": "cri-o", "io.kubernetes.cri-o.ContainerID": "c0ffee"}
"""What CRI-O writes last: its own mark, and the id that it calls the runtime with."""


def crio(pod: str) -> dict[str, str]:
    return {**CRIO, "io.kubernetes.pod.uid": pod, "io.kubernetes.container.name": "main"}


def test_a_container_of_crio_is_given_its_allocation() -> None:
    found = asked("GPU-a", allocations=Fixed(*BOTH), pod="", marks=crio(MINE), container_id="c0ffee")
    assert (found.names, found.source) == (names("GPU-a"), "allocation")


@pytest.mark.parametrize(
    ("value", "marks"),
    [
        ("GPU-c", crio(MINE)),  # the neighbour's
        ("GPU-a", crio("another")),
        ("nic-1", crio(MINE)),  # of another resource
        ("GPU-a", {**crio("another"), **kubelet.identity(MINE)}),  # containerd's words, by the pod's author
    ],
)
def test_a_container_of_crio_is_given_nobody_elses(value: str, marks: dict[str, str]) -> None:
    allocations = Fixed(*BOTH, kubelet.Given(MINE, ["nic-1"], resource="example.com/nic"))
    assert asked(value, allocations=allocations, pod="", marks=marks, container_id="c0ffee").is_empty


@pytest.mark.parametrize("container_id", ["", "beef"])
@pytest.mark.parametrize("marks", [CRIO, {"io.container.manager": "cri-o"}, {**CRIO, "io.container.manager": "libpod"}])
@pytest.mark.parametrize("engine", ["io.kubernetes.cri", "io.kubernetes"])
def test_an_image_under_podman_that_writes_crios_marks_does_not_know_its_containers_id(
    container_id: str, marks: dict[str, str], engine: str
) -> None:
    who = kubelet.identity(MINE) if engine == "io.kubernetes.cri" else crio(MINE)
    forged = {**{key: text for key, text in who.items() if key not in CRIO}, **marks}
    assert asked("GPU-a", allocations=Fixed(*BOTH), pod="", marks=forged, container_id=container_id).is_empty


def test_an_engines_identity_is_enough_where_no_kubelet_keeps_a_checkpoint() -> None:
    assert asked(None, allocations=Fixed(), marks={_MARK: f"{GPU}GPU-a"}).names == names("GPU-a")


def test_a_checkpoint_that_cannot_be_read_stops_a_pod_that_asks_by_annotation() -> None:
    refused = asked(None, allocations=Fixed(problem="/allocations is torn"), marks={_MARK: f"{GPU}GPU-a"}).refusal
    assert refused is not None
    assert (refused.kind, refused.reason) == ("Unavailable", "AllocationsUnreadable")
