"""What a pod's isolation is, by what it asks for and what its tenancy demands."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.model.container import isolation
from fairlead.plan.sandbox import choice
from fairlead.wire.kubernetes import core


def pod(runtime_class: str = "", *, says_none: bool = False, containers: int = 1, **spec: object) -> core.Pod:
    items = tuple(core.Container(name=f"c{number}", image="x") for number in range(containers))
    machine = core.MachineOptions(has_no_sandbox=True) if says_none else None
    return core.Pod(spec=core.PodSpec(containers=items, runtime_class_name=runtime_class, machine=machine, **spec))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("runtime_class", "word"),
    [
        ("", "none"),
        ("gvisor", "gvisor"),
        ("kata-qemu-nvidia-gpu", "vm"),
        ("kata-qemu-nvidia-gpu-x8", "vm"),
        ("nvidia", "nvidia"),
        ("gvisor2", "gvisor2"),
    ],
)
def test_a_runtime_class_says_what_isolates(runtime_class: str, word: str) -> None:
    assert isolation.of_class(runtime_class) == word


@pytest.mark.parametrize("word", isolation.WORDS)
def test_each_word_has_a_class_that_means_it(word: str) -> None:
    assert isolation.of_class(isolation.class_of(word)) == word
    assert choice.check_word(word) == word


@pytest.mark.parametrize("word", ["lxc", "GVISOR", "none\0", "\x1b[2J", "x" * 100_000])
def test_a_word_that_is_not_offered_is_refused_in_few_words(word: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        choice.check_word(word)
    assert caught.value.reason == "IsolationInvalid"
    assert len(caught.value.message) < 2500


@pytest.mark.parametrize(
    ("asked", "demanded", "made"),
    [
        ("", "", ""),
        ("gvisor", "", "gvisor"),
        ("", "gvisor", "gvisor"),
        ("gvisor", "gvisor", "gvisor"),
        ("", "vm", "kata-qemu-nvidia-gpu"),
        ("kata-qemu-nvidia-gpu-x8", "vm", "kata-qemu-nvidia-gpu-x8"),
        ("", "none", ""),
    ],
)
def test_a_pod_has_what_its_tenancy_demands(asked: str, demanded: str, made: str) -> None:
    assert choice.bound(pod(asked), demanded, "red").spec.runtime_class_name == made


@pytest.mark.parametrize(
    ("asked", "demanded"),
    [
        (pod("gvisor"), "none"),
        (pod("gvisor"), "vm"),
        (pod("kata-qemu-nvidia-gpu"), "gvisor"),
        (pod("runc"), "gvisor"),
        (pod(says_none=True), "gvisor"),
        (pod(says_none=True), "vm"),
    ],
)
def test_another_isolation_than_its_tenancys_is_refused(asked: core.Pod, demanded: str) -> None:
    with pytest.raises(errors.Denied) as caught:
        choice.bound(asked, demanded, "red")
    assert caught.value.reason == "IsolationBound"
    assert f'tenancy "red" has {demanded}' in caught.value.message


@pytest.mark.parametrize(
    ("gpus", "classes", "made"),
    [
        (0, ("x1", "x8"), "-x1"),
        (1, ("x8", "x1", "x2"), "-x1"),
        (3, ("x1", "x2", "x4", "x16"), "-x4"),
        (9, ("x1", "x16"), "-x16"),
        (9, ("x1", "x8"), ""),
        (2, ("x0", "x2y", "x-2", "x222"), ""),
        (2, (), ""),
    ],
)
def test_a_machine_has_the_smallest_size_that_fits(gpus: int, classes: tuple[str, ...], made: str) -> None:
    limits = {"nvidia.com/pgpu": str(gpus)} if gpus else {}
    item = core.Container(name="main", image="x", resources=core.ResourceRequirements(limits=limits))
    asked = core.Pod(spec=core.PodSpec(containers=(item,), runtime_class_name="kata-qemu-nvidia-gpu"))
    names = [f"kata-qemu-nvidia-gpu-{size}" for size in classes]
    found = choice.sized(asked, names).spec.runtime_class_name
    assert found == f"kata-qemu-nvidia-gpu{made}"
    assert choice.sized(pod("gvisor"), names) == pod("gvisor")
    assert choice.sized(pod("kata-qemu-nvidia-gpu-x4"), names).spec.runtime_class_name == "kata-qemu-nvidia-gpu-x4"


@pytest.mark.parametrize(("resource", "count", "made"), [("x4", 1, "-x4"), ("x1", 3, "-x4"), ("x4", 2, "-x8")])
def test_a_slot_of_several_gpus_counts_as_these(resource: str, count: int, made: str) -> None:
    limits = {f"nvidia.com/h100-sxm5-80gb-{resource}": str(count)}
    item = core.Container(name="main", image="x", resources=core.ResourceRequirements(limits=limits))
    asked = core.Pod(spec=core.PodSpec(containers=(item,), runtime_class_name="kata-qemu-nvidia-gpu"))
    names = [f"kata-qemu-nvidia-gpu-{size}" for size in ("x1", "x2", "x4", "x8")]
    assert choice.sized(asked, names).spec.runtime_class_name == f"kata-qemu-nvidia-gpu{made}"


def test_the_word_none_stays_no_field_of_a_pod_on_a_cluster() -> None:
    assert choice.spoken(pod(says_none=True)).spec.machine is None
    kept = core.MachineOptions(has_no_sandbox=True, no_network=True)
    both = core.Pod(spec=core.PodSpec(machine=kept))
    assert choice.spoken(both).spec.machine == core.MachineOptions(no_network=True)


def test_one_machine_has_gvisor_and_says_what_a_virtual_machine_needs() -> None:
    assert choice.on_one_machine(pod("gvisor"))
    assert choice.on_one_machine(pod("gvisor", containers=2))
    assert not choice.on_one_machine(pod())
    with pytest.raises(errors.Unavailable, match="needs a Kubernetes cluster whose nodes have Kata"):
        choice.on_one_machine(pod("kata-qemu-nvidia-gpu"))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (pod("gvisor", host_network=True), "host's network"),
        (pod("gvisor", host_ipc=True), "shared memory"),
    ],
)
def test_what_podman_cannot_give_beside_gvisor_is_refused(asked: core.Pod, says: str) -> None:
    with pytest.raises(errors.Invalid, match=says):
        choice.on_one_machine(asked)
