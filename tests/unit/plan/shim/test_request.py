"""Who asks for what: the environment's grammar, volume mounts, annotations, and whose word counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.cdi import capability
from fairlead.plan.shim import request

UUID = "GPU-5a1c8f0e-aaaa-bbbb-cccc-0123456789ab"
GPU = "nvidia.com/gpu="


def policy(**fields: object) -> request.Policy:
    made = request.Policy()
    for name, value in {"image_requests": "honour", **fields}.items():
        setattr(made, name, value)
    return made


def container(
    *variables: str, annotations: dict[str, str] | None = None, mounts: tuple[str, ...] = (), caps: tuple[str, ...] = ()
) -> request.Container:
    return request.read(
        {
            "process": {"env": list(variables), "capabilities": {"bounding": list(caps)}},
            "annotations": annotations or {},
            "mounts": [{"destination": place, "source": "/dev/null"} for place in mounts],
        }
    )


def asked(value: str, *more: str, **fields: object) -> request.Request:
    return request.decide(container(f"NVIDIA_VISIBLE_DEVICES={value}", *more), policy(**fields))


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("0", ["0"]),
        ("0,0", ["0"]),  # the peer gives no GPU at all here
        ("1,0,1", ["1", "0"]),
        (" 0 , 2 ", ["0", "2"]),
        ("0,,1,", ["0", "1"]),
        ("0:1", ["0:1"]),
        (UUID, [UUID]),
        ("MIG-0f1e,1", ["MIG-0f1e", "1"]),
        ("all", ["all"]),
        ("0,all", ["all"]),
        ("all,none", ["all"]),
        ("0-1", ["0-1"]),  # no range: an unknown name, refused when it is looked up
    ],
)
def test_device_ids_become_names_of_the_default_kind_each_once(value: str, names: list[str]) -> None:
    assert asked(value).names == tuple(f"{GPU}{name}" for name in names)


@pytest.mark.parametrize("value", ["void", "", "  ", ",", "0,void", "all,void", "void,none"])
def test_void_anywhere_or_nothing_at_all_leaves_the_container_alone(value: str) -> None:
    assert asked(value).is_empty


@pytest.mark.parametrize("value", ["none", "none,all", "0,none"])
def test_none_asks_for_the_driver_without_a_gpu(value: str) -> None:
    found = asked(value)
    assert (found.is_bare, found.names) == (True, ())


def test_qualified_names_are_taken_as_they_are_and_mix_with_ids() -> None:
    assert asked("amd.com/gpu=1,0").names == ("amd.com/gpu=1", f"{GPU}0")


def test_an_unset_variable_means_nothing_but_everything_in_images_older_than_requirements() -> None:
    new = container("CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=12.4")
    assert request.decide(new, policy()).is_empty
    legacy = request.decide(container("CUDA_VERSION=8.0"), policy())
    assert (legacy.names, legacy.capabilities) == ((f"{GPU}all",), capability.ALL)


def test_the_first_of_equal_variables_counts_as_getenv_has_it() -> None:
    found = request.decide(container("NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_VISIBLE_DEVICES=2"), policy())
    assert found.names == (f"{GPU}1",)


def test_a_swarm_variable_replaces_the_usual_one_where_it_is_set() -> None:
    rules = policy(variables=("DOCKER_RESOURCE_GPU", "NVIDIA_VISIBLE_DEVICES"))
    both = container("NVIDIA_VISIBLE_DEVICES=all", "DOCKER_RESOURCE_GPU=3")
    assert request.decide(both, rules).names == (f"{GPU}3",)


def test_variables_of_several_swarm_resources_are_joined() -> None:
    rules = policy(variables=("DOCKER_RESOURCE_A", "DOCKER_RESOURCE_B", "NVIDIA_VISIBLE_DEVICES"))
    both = container("NVIDIA_VISIBLE_DEVICES=all", "DOCKER_RESOURCE_A=3", "DOCKER_RESOURCE_B=1,3")
    assert request.decide(both, rules).names == (f"{GPU}3", f"{GPU}1")


def test_a_channel_by_mount_comes_beside_the_gpus_of_the_environment() -> None:
    mounts = ("/var/run/nvidia-container-devices/imex/5",)
    asking = container("NVIDIA_VISIBLE_DEVICES=0", mounts=mounts)
    found = request.decide(asking, policy(accepts_volume_mounts=True))
    assert found.names == (f"{GPU}0", "nvidia.com/imex-channel=5")
    assert found.source == "volume mounts, environment"
    alone = request.decide(container(mounts=mounts), policy(accepts_volume_mounts=True))
    assert alone.names == ("nvidia.com/imex-channel=5",)


def test_gpus_by_mount_win_over_those_of_the_environment() -> None:
    mounts = ("/var/run/nvidia-container-devices/imex/5", "/var/run/nvidia-container-devices/1")
    asking = container("NVIDIA_VISIBLE_DEVICES=0", mounts=mounts)
    found = request.decide(asking, policy(accepts_volume_mounts=True))
    assert found.names == (f"{GPU}1", "nvidia.com/imex-channel=5")


def test_what_else_can_be_asked_for_comes_with_gpus_only() -> None:
    more = ("NVIDIA_GDS=enabled", "NVIDIA_MOFED=disabled", "NVIDIA_IMEX_CHANNELS=0, 7,all")
    assert asked("0", *more).names == (
        f"{GPU}0",
        "nvidia.com/gds=all",
        "nvidia.com/imex-channel=0",
        "nvidia.com/imex-channel=7",
    )
    assert asked("void", *more).is_empty


@pytest.mark.parametrize(
    ("rule", "caps", "names", "note", "refused"),
    [
        ("ignore", (), (), True, False),
        ("ignore", ("CAP_SYS_ADMIN",), (), True, False),
        ("privileged", (), (), True, False),
        ("privileged", ("CAP_SYS_ADMIN",), (f"{GPU}all",), False, False),
        ("honour", (), (f"{GPU}all",), False, False),
        ("refuse", ("CAP_SYS_ADMIN",), (), False, True),
    ],
)
def test_an_images_word_counts_as_far_as_the_operator_says(
    rule: str, caps: tuple[str, ...], names: tuple[str, ...], note: bool, refused: bool
) -> None:
    found = request.decide(container("NVIDIA_VISIBLE_DEVICES=all", caps=caps), policy(image_requests=rule))
    assert (found.names, bool(found.note), found.refusal is not None) == (names, note, refused)


def test_by_default_an_image_gets_nothing_by_asking() -> None:
    found = request.decide(container("NVIDIA_VISIBLE_DEVICES=all"), request.Policy())
    assert found.is_empty
    assert "NVIDIA_VISIBLE_DEVICES asks for all: ignored" in found.note


def test_refused_requests_say_which_way_is_open() -> None:
    found = request.decide(container("NVIDIA_VISIBLE_DEVICES=all"), policy(image_requests="refuse"))
    assert found.refusal == request.Refusal(
        "Denied",
        "NVIDIA_VISIBLE_DEVICES asks for all, and requests by environment are refused here",
        reason="ImageRequestRefused",
        hint="ask for GPUs through the allocation (resource limits, CDI names), or set imageRequests",
    )


def test_annotations_come_first_wherever_they_count() -> None:
    marks = {"cdi.k8s.io/b": "nvidia.com/gpu=1", "cdi.k8s.io/a": "nvidia.com/gpu=0,nvidia.com/gpu=1", "x": "y/z=1"}
    found = request.decide(container("NVIDIA_VISIBLE_DEVICES=all", annotations=marks), policy())
    assert (found.source, found.names) == ("annotations", (f"{GPU}0", f"{GPU}1"))
    assert request.decide(container(annotations=marks), policy(mode="env")).is_empty


def test_annotations_that_crio_hands_on_are_the_pods_own_and_ask_for_nothing() -> None:
    marks = {"cdi.k8s.io/mine": "nvidia.com/gpu=all", "io.kubernetes.cri-o.ContainerType": "container"}
    assert request.decide(container(annotations=marks), request.Policy()).is_empty
    assert request.decide(container("NVIDIA_VISIBLE_DEVICES=0", annotations=marks), policy()).names == (f"{GPU}0",)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("/var/run/nvidia-container-devices/0", f"{GPU}0"),
        (f"/var/run/nvidia-container-devices/{UUID}", f"{GPU}{UUID}"),
        ("/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/3", f"{GPU}3"),
        ("/var/run/nvidia-container-devices/cdi/amd.com/gpu=4", "amd.com/gpu=4"),
        ("/var/run/nvidia-container-devices/imex/12", "nvidia.com/imex-channel=12"),
    ],
)
def test_volume_mounts_ask_only_where_the_operator_accepts_them(place: str, name: str) -> None:
    given = container(mounts=(place, "/etc/hosts"))
    found = request.decide(given, policy(accepts_volume_mounts=True, image_requests="ignore"))
    assert (found.source, found.names) == ("volume mounts", (name,))
    assert request.decide(given, policy()).is_empty


def test_a_mount_of_something_is_no_request() -> None:
    place = "/var/run/nvidia-container-devices/0"
    made = request.read({"mounts": [{"destination": place, "source": "/data"}, {"destination": place}, 7]})
    assert request.decide(made, policy(accepts_volume_mounts=True)).is_empty


def test_a_void_volume_mount_keeps_the_environment_from_asking() -> None:
    given = container("NVIDIA_VISIBLE_DEVICES=all", mounts=("/var/run/nvidia-container-devices/void",))
    assert request.decide(given, policy(accepts_volume_mounts=True)).is_empty


def test_mode_cdi_never_looks_at_the_environment() -> None:
    assert asked("all", mode="cdi").is_empty


@pytest.mark.parametrize("name", ["NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"])
def test_partitioning_from_inside_needs_a_privileged_container(name: str) -> None:
    plain = asked("0", f"{name}=all").refusal
    assert plain is not None
    assert plain.reason == "MIGAdministrationRefused"
    strong = container("NVIDIA_VISIBLE_DEVICES=0", f"{name}=all", caps=("CAP_SYS_ADMIN",))
    assert request.decide(strong, policy()).refusal is None


def test_capabilities_narrow_in_every_mode_and_default_only_for_images() -> None:
    marks = {"cdi.k8s.io/a": "nvidia.com/gpu=0"}
    assert asked("0").capabilities == frozenset({"compute", "utility"})
    assert request.decide(container(annotations=marks), policy()).capabilities is None
    narrowed = request.decide(container("NVIDIA_DRIVER_CAPABILITIES=video", annotations=marks), policy())
    assert narrowed.capabilities == frozenset({"video"})


def test_an_unknown_or_forbidden_capability_is_refused_with_what_is_offered() -> None:
    found = asked("0", "NVIDIA_DRIVER_CAPABILITIES=utility,teleport,graphics", capabilities=frozenset({"utility"}))
    assert found.refusal is not None
    assert "teleport, graphics is not offered" in found.refusal.message
    assert found.refusal.hint == "offered: utility, all"


def test_requirements_are_collected_unless_switched_off() -> None:
    needs = ("NVIDIA_REQUIRE_CUDA=cuda>=12", "NVIDIA_REQUIRE_JETPACK=x", "NVIDIA_REQUIRE_A=driver>1")
    assert asked("0", *needs).requirements == (
        ("NVIDIA_REQUIRE_A", "driver>1"),
        ("NVIDIA_REQUIRE_CUDA", "cuda>=12"),
    )
    assert asked("0", *needs, "NVIDIA_DISABLE_REQUIRE=true").requirements == ()
    assert asked("0", *needs, checks_requirements=False).requirements == ()


@given(st.text(alphabet="01:,alnoevid GPU-=/.", max_size=30))
def test_no_value_is_ever_two_of_the_same_or_an_empty_name(value: str) -> None:
    names = asked(value).names
    assert len(set(names)) == len(names)
    assert all(name.partition("=")[2] or "=" in name for name in names)
    assert all("," not in name for name in names)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(["process", "env", "annotations", "mounts", "source", "capabilities", "bounding"]), x
            )
        ),
    )
)
def test_no_misshapen_runtime_spec_makes_a_request(document: object) -> None:
    made = request.read(document if isinstance(document, dict) else {"process": document, "mounts": document})
    assert request.decide(made, request.Policy()).names == ()


OWN = "fairlead.dev/gpu="


@pytest.mark.parametrize(
    ("defined", "is_given", "names"),
    [
        ((f"{GPU}GPU-c", f"{OWN}GPU-c"), True, (f"{OWN}GPU-c",)),
        ((f"{GPU}GPU-c", f"{OWN}GPU-c"), False, (f"{GPU}GPU-c",)),
        ((f"{GPU}GPU-c",), True, (f"{GPU}GPU-c",)),
        ((f"{OWN}GPU-c",), False, (f"{OWN}GPU-c",)),
        ((), True, (f"{GPU}GPU-c",)),
    ],
)
def test_a_device_without_a_kind_is_the_allocations_where_it_was_given_and_else_the_operators(
    defined: tuple[str, ...], is_given: bool, names: tuple[str, ...]
) -> None:
    made = asked("GPU-c")
    made.is_given = is_given
    assert request.resolve(made, request.Policy(), dict.fromkeys(defined)) == names


def test_a_name_with_its_kind_stays_what_was_asked_for() -> None:
    made = asked(f"{GPU}GPU-c")
    assert request.resolve(made, request.Policy(), {f"{OWN}GPU-c": None}) == (f"{GPU}GPU-c",)
