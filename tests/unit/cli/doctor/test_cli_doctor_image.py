"""`doctor --image`: what an image states against the drivers that are there, judged without starting anything."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.cli.doctor import image
from fairlead.model.gpu import GPU, Driver, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.plan.cdi import requirement

HOST = requirement.Facts(driver="550.163.01", cuda="12.4", arch="8.0")


def levels(*hosts: requirement.Facts, **env: str) -> list[tuple[str, str]]:
    seen = image.Seen(image="localhost/cuda:1", env=env, hosts=hosts or (HOST,))
    return [(item.check, item.level) for item in image.check(seen)]


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({}, [("image", "ok")]),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=12.4"}, [("image", "ok")]),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=12.6"}, [("image", "fail")]),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=12", "NVIDIA_REQUIRE_A": "arch>=9.0"}, [("image", "fail"), ("image", "ok")]),
        ({"NVIDIA_REQUIRE_CUDA": "nonsense"}, [("image", "fail")]),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=12.6", "NVIDIA_DISABLE_REQUIRE": "true"}, [("image", "ok")]),
        ({"CUDA_VERSION": "12.2.0"}, [("image", "ok")]),
        ({"CUDA_VERSION": "12.9.1"}, [("image", "fail")]),
        ({"CUDA_VERSION": "12.9.1", "NVIDIA_DISABLE_REQUIRE": "1"}, [("image", "warn")]),
        ({"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}, [("image", "ok"), ("image", "ok")]),
        ({"NVIDIA_DRIVER_CAPABILITIES": "teleport"}, [("image", "ok"), ("image", "fail")]),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, [("image", "ok"), ("request", "ok")]),
    ],
)
def test_each_need_of_an_image_is_judged(env: dict[str, str], found: list[tuple[str, str]]) -> None:
    assert levels(**env) == found


def test_a_failure_says_why_and_which_side_to_change() -> None:
    env = {"NVIDIA_REQUIRE_CUDA": "cuda>=12.6"}
    seen = image.Seen(image="localhost/cuda:1", env=env, hosts=(HOST,))
    (item,) = image.check(seen)
    assert (item.what, item.fix) == requirement.problem("NVIDIA_REQUIRE_CUDA", "cuda>=12.6", HOST)
    assert "localhost/cuda:1 is refused at its start" in item.why


def test_every_driver_of_a_mixed_cluster_is_held_to_it() -> None:
    newer = requirement.Facts(driver="580.65.06", cuda="13.0")
    found = levels(HOST, newer, NVIDIA_REQUIRE_CUDA="cuda>=12.9")
    assert found == [("image", "fail"), ("image", "ok")]


def test_without_any_driver_there_is_nothing_to_hold_an_image_to() -> None:
    seen = image.Seen(image="i", env={"NVIDIA_REQUIRE_CUDA": "cuda>=12"}, hosts=())
    assert [(item.check, item.level) for item in image.check(seen)] == [("driver", "fail")]


def gpu(place: int, name: str, pair: tuple[int, int] | None, brand: str | None = "nvidia", **more: Any) -> GPU:
    return GPU(
        uuid=GPUUUID(f"GPU-{place}"),
        index=place,
        minor=place,
        pci_bus_id="0000:00:00.0",
        name=name,
        memory_bytes=1,
        compute_capability=pair,
        brand=brand,
        **more,
    )


DRIVERS = (
    Driver(vendor=Vendor.NVIDIA, version="550.163.01", cuda_version=(12, 4)),
    Driver(vendor=Vendor.AMD, version="6.1"),
)


def test_what_is_known_comes_from_nvidias_driver_and_each_kind_of_its_gpus() -> None:
    gpus = [
        gpu(0, "H100", (9, 0)),
        gpu(1, "T4", (7, 5), "tesla"),
        gpu(2, "H200", (9, 0)),
        gpu(3, "MI300X", (9, 4), None, vendor=Vendor.AMD),
    ]
    found = image.facts(DRIVERS, gpus)
    assert {(one.driver, one.cuda) for one in found} == {("550.163.01", "12.4")}
    assert [(one.gpu, one.arch, one.brand) for one in found] == [("H100", "9.0", "nvidia"), ("T4", "7.5", "tesla")]


def test_a_driver_without_gpus_is_held_to_what_it_is() -> None:
    (found,) = image.facts(DRIVERS, [])
    assert (found.driver, found.arch, found.brand, found.gpu) == ("550.163.01", "", "", "")


def test_only_the_gpus_that_an_image_cannot_use_fail_and_are_named() -> None:
    hosts = image.facts(DRIVERS, [gpu(0, "H100", (9, 0)), gpu(1, "T4", (7, 5), "tesla"), gpu(2, "X", None, None)])
    seen = image.Seen(image="i", env={"NVIDIA_REQUIRE_CUDA": "cuda>=12,arch>=9.0"}, hosts=hosts)
    met, unmet, unknown = image.check(seen)
    assert (met.level, unmet.level, unknown.level) == ("ok", "fail", "ok")
    assert "met by driver 550.163.01 with H100" in met.what
    assert "T4 has arch 7.5, brand tesla" in unmet.what
    plain = image.Seen(image="i", env={"NVIDIA_REQUIRE_CUDA": "cuda>=12.9"}, hosts=hosts)
    (told,) = image.check(plain)
    assert "T4" not in told.what
