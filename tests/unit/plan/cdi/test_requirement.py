"""Requirements of images against drivers: three-valued conditions, and refusals that say which side to change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.cdi import requirement

NAME = "NVIDIA_REQUIRE_CUDA"
HOST = requirement.Facts(driver="550.163.01", arch="9.0", brand="tesla")
TYPICAL = "cuda>=12.6 brand=tesla,driver>=470,driver<471 brand=unknown,driver>=535,driver<536"


def is_met(text: str, facts: requirement.Facts = HOST) -> bool:
    return requirement.problem(NAME, text, facts) is None


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("cuda>=12.4", True),
        ("cuda>=12.5", False),
        ("cuda>=9", True),
        ("cuda>12.4", False),
        ("cuda=12.4", True),
        ("cuda==12.4.0", True),
        ("cuda!=12.4", False),
        ("cuda<13", True),
        ("cuda<=12.4", True),
        ("cuda<12.4", False),
        ("driver>=550", True),
        ("driver>=550.163.1", True),
        ("driver>=550.163.2", False),
        ("driver>=535,driver<536", False),
        ("driver<536 driver>=550", True),
        ("arch>=8.0", True),
        ("arch>=10.0", False),
        ("brand=Tesla", True),
        ("brand!=tesla", False),
        ("brand=geforce", False),
        ("cuda>=13.0 moonphase=full", False),  # nor does it meet an alternative by itself
        ("cuda>=12.4,moonphase=full", True),
        ("cuda>=13.0,moonphase=full", False),
        ("cuda>=v12.4", True),
        ("driver>=v999", False),
        ("moonphase=full", True),  # what the peers do not know they skip
        ("", True),
        (TYPICAL, False),
        (f"{TYPICAL} brand=tesla,driver>=550,driver<551", True),
    ],
)
def test_alternatives_are_apart_by_spaces_and_conditions_by_commas(text: str, met: bool) -> None:
    assert is_met(text) is met


@pytest.mark.parametrize("text", ["cuda", "cuda>=", ">=12", "cuda>=twelve", "driver>=1..2", "cuda>=12.4 nonsense"])
def test_what_is_no_condition_is_refused_by_name(text: str) -> None:
    found = requirement.problem(NAME, text, requirement.Facts(driver="1.0"))
    assert found is not None
    assert "is not a condition" in found[0]


def test_what_nobody_told_decides_nothing() -> None:
    unknown = requirement.Facts(driver="550.163.01")
    assert is_met("brand=geforce", unknown)
    assert is_met("arch>=99", unknown)
    assert not is_met("brand=tesla,driver<470", unknown)


def test_a_refusal_names_both_sides_and_what_to_change_on_either() -> None:
    found = requirement.problem(NAME, "cuda>=12.6", HOST)
    assert found is not None
    message, hint = found
    assert message == (
        "NVIDIA_REQUIRE_CUDA=cuda>=12.6 is not met: the image needs cuda>=12.6, "
        "this host has cuda 12.4, driver 550.163.01, arch 9.0, brand tesla"
    )
    assert "on the host: a driver from 560.28.03 on" in hint
    assert "in the image: an image for CUDA 12.4 or older" in hint
    assert "NVIDIA_DISABLE_REQUIRE=true" in hint


def test_no_way_round_is_offered_where_programs_would_not_even_start() -> None:
    found = requirement.problem(NAME, "cuda>=12.4", requirement.Facts(driver="470.42.01"))
    assert found is not None
    assert "NVIDIA_DISABLE_REQUIRE" not in found[1]


def test_drivers_newer_than_the_table_run_at_least_its_newest_cuda() -> None:
    newer = requirement.Facts(driver="999.10")
    newest = requirement.CUDA_DRIVERS[0][0]
    assert newer.cuda == newest
    assert is_met(f"cuda>={newest}", newer)
    assert is_met("cuda>=99", newer)  # perhaps: not for us to say
    assert is_met(f"cuda<={newest}", newer)
    assert not is_met("driver<999", newer)


def test_told_facts_come_before_the_table() -> None:
    assert is_met("cuda>=12.9", requirement.Facts(driver="550.163.01", cuda="13.0"))


def test_the_table_falls_in_both_columns() -> None:
    cudas = [tuple(map(int, cuda.split("."))) for cuda, _ in requirement.CUDA_DRIVERS]
    drivers = [tuple(map(int, driver.split("."))) for _, driver in requirement.CUDA_DRIVERS]
    assert cudas == sorted(cudas, reverse=True)
    assert drivers == sorted(drivers, reverse=True)


@pytest.mark.parametrize(("cuda", "driver"), requirement.CUDA_DRIVERS)
def test_each_row_reads_both_ways(cuda: str, driver: str) -> None:
    assert requirement.cuda_of_driver(driver) == cuda
    assert requirement.driver_for_cuda(cuda) == driver
    assert is_met(f"cuda>={cuda}", requirement.Facts(driver=driver))


def test_versions_outside_the_table_say_so() -> None:
    assert requirement.cuda_of_driver("304.1") == ""
    assert requirement.cuda_of_driver("not a version") == ""
    assert requirement.driver_for_cuda("99.0") == ""


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        ("595.71.05", "13.2"),
        ("595.45.03", "13.1"),
        ("590.48.01", "13.1"),
        ("580.95.05", "13.0"),
        ("575.57.08", "12.9"),
        ("550.163.01", "12.4"),
        ("535.104.05", "12.2"),
        ("525.60.12", "11.8"),
        ("450.51.06", "11.0"),
        ("384.81", "9.0"),
    ],
)
def test_drivers_between_rows_run_the_cuda_of_the_row_below(driver: str, cuda: str) -> None:
    """Update releases of NVIDIA's table 3, and drivers just short of a row."""
    assert requirement.cuda_of_driver(driver) == cuda


@pytest.mark.parametrize(
    ("names", "version"),
    [
        (["/usr/lib/libcuda.so.550.163.01", "/x/libnvidia-ml.so.1.2"], "550.163.01"),
        (["/usr/lib/libcuda.so.1", "/x/libnvidia-ml.so.535.1"], "535.1"),
        (["/usr/lib/libnvidia-encode.so.580.65.06"], "580.65.06"),
        (["/usr/lib/libnvidia-egl-gbm.so.1.1.2", "/usr/bin/nvidia-smi"], ""),
        (["/usr/lib/libcuda.so.evil.so"], ""),
        ([], ""),
    ],
)
def test_a_driver_is_known_by_any_part_of_it_that_carries_its_version(names: list[str], version: str) -> None:
    assert requirement.driver_of(names) == version


def test_what_an_environment_states_is_read_in_one_place() -> None:
    env = {"NVIDIA_REQUIRE_CUDA": "cuda>=12", "NVIDIA_REQUIRE_JETPACK": "x", "NVIDIA_REQUIRE_B": " ", "A": "b"}
    assert requirement.stated(env) == (("NVIDIA_REQUIRE_CUDA", "cuda>=12"),)
    assert requirement.stated({**env, "NVIDIA_DISABLE_REQUIRE": "1"}) == ()
    assert requirement.stated({**env, "NVIDIA_DISABLE_REQUIRE": "no"}) != ()


def test_a_host_of_which_nothing_is_known_refuses_nobody() -> None:
    needs = ((NAME, "cuda>=99"),)
    assert requirement.first_problem(needs, [requirement.Facts()]) is None
    assert requirement.first_problem(needs, [HOST]) == requirement.problem(NAME, "cuda>=99", HOST)
    assert requirement.first_problem((), [HOST]) is None


# the GPUs of one container

KNOWN = {
    "driver": ["550.163.01", "12.6"],
    "/dev/nvidia0": ["7.5", "tesla"],
    "/dev/nvidia1": ["9.0", "nvidia"],
    "/dev/nvidia2": ["9.0", "nvidia"],
}


def problem_with(text: str, *nodes: str, driver: str = "550.163.01") -> str | None:
    found = requirement.first_problem(((NAME, text),), requirement.hosts(KNOWN, list(nodes), driver))
    return found[0] if found else None


@pytest.mark.parametrize(
    ("text", "nodes", "met"),
    [
        ("arch>=9.0", ("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia2"), True),
        ("arch>=9.0", ("/dev/nvidia1", "/dev/nvidia0"), False),
        ("arch>=9.0 brand=tesla", ("/dev/nvidia1", "/dev/nvidia0"), True),
        ("arch>=9.0,brand=tesla", ("/dev/nvidia1",), False),
        ("arch<9.0", ("/dev/nvidia0",), True),
        ("arch>=9.0", (), True),
        ("arch>=9.0", ("/dev/nvidia7",), True),
        ("cuda>=12.6", ("/dev/nvidia0",), True),
        ("cuda>=12.8", (), False),
    ],
)
def test_every_gpu_that_a_container_gets_is_held_to_it_and_no_other(
    text: str, nodes: tuple[str, ...], *, met: bool
) -> None:
    assert (problem_with(text, *nodes) is None) is met


def test_a_refusal_names_the_gpu_and_what_it_has() -> None:
    assert problem_with("arch>=9.0", "/dev/nvidia1", "/dev/nvidia0") == (
        "NVIDIA_REQUIRE_CUDA=arch>=9.0 is not met: the image needs arch>=9.0, "
        "this host has cuda 12.6, driver 550.163.01; /dev/nvidia0 has arch 7.5, brand tesla"
    )
    assert "/dev/nvidia0" not in str(problem_with("cuda>=12.8", "/dev/nvidia0"))


def test_each_kind_of_gpu_is_looked_at_once() -> None:
    found = requirement.hosts(KNOWN, ["/dev/nvidia2", "/dev/nvidia1", "/dev/nvidia0"], "")
    assert [(one.gpu, one.arch) for one in found] == [("/dev/nvidia2", "9.0"), ("/dev/nvidia0", "7.5")]


def test_facts_of_another_driver_are_of_another_time() -> None:
    (alone,) = requirement.hosts(KNOWN, ["/dev/nvidia0"], "580.65.06")
    assert (alone.driver, alone.cuda, alone.arch, alone.brand) == ("580.65.06", "13.0", "", "")
    (told,) = requirement.hosts(KNOWN, [], "")
    assert (told.driver, told.cuda) == ("550.163.01", "12.6")


def test_only_what_is_said_of_gpus_depends_on_them() -> None:
    assert requirement.is_about_gpu("cuda>=12 brand=tesla,driver>=470")
    assert requirement.is_about_gpu("arch>=9")
    assert not requirement.is_about_gpu("cuda>=12.4")


versions = st.lists(st.integers(0, 600), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))


@given(versions, versions)
def test_opposite_conditions_are_never_both_met_nor_both_refused(host: str, wanted: str) -> None:
    facts = requirement.Facts(driver=host, cuda="1.0")
    assert is_met(f"driver>={wanted}", facts) is not is_met(f"driver<{wanted}", facts)
    assert is_met(f"driver={wanted}", facts) is not is_met(f"driver!={wanted}", facts)
    assert is_met(f"driver>{wanted}", facts) is not is_met(f"driver<={wanted}", facts)


@given(st.text(max_size=40))
def test_any_text_gets_a_verdict(text: str) -> None:
    assert isinstance(is_met(text), bool)


@pytest.mark.parametrize(
    ("env", "needs"),
    [
        ({"CUDA_VERSION": "12.4.1"}, (("CUDA_VERSION", "cuda>=12.4"),)),
        ({"CUDA_VERSION": "8.0", "NVIDIA_REQUIRE_CUDA": ""}, (("CUDA_VERSION", "cuda>=8.0"),)),
        ({"CUDA_VERSION": "8.0", "NVIDIA_REQUIRE_CUDA": "cuda>=7"}, (("NVIDIA_REQUIRE_CUDA", "cuda>=7"),)),
        (
            {"CUDA_VERSION": "8.0", "NVIDIA_REQUIRE_DRIVER": "driver>=1"},
            (("CUDA_VERSION", "cuda>=8.0"), ("NVIDIA_REQUIRE_DRIVER", "driver>=1")),
        ),
        ({"CUDA_VERSION": "twelve"}, ()),
        ({"CUDA_VERSION": "12"}, ()),
        ({"CUDA_VERSION": "8.0", "NVIDIA_DISABLE_REQUIRE": "1"}, ()),
    ],
)
def test_an_image_from_before_requirements_needs_the_cuda_it_was_made_for(
    env: dict[str, str], needs: tuple[tuple[str, str], ...]
) -> None:
    assert requirement.stated(env) == needs


@pytest.mark.parametrize("name", ["NVIDIA_REQUIRE_JETPACK", "NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS"])
def test_what_jetpack_asks_for_is_not_a_requirement(name: str) -> None:
    assert requirement.stated({name: "base-only"}) == ()
