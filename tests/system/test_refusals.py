"""What is refused, where, in which words; and that nothing leaks when a container ends badly."""

from __future__ import annotations

from pathlib import Path

import pytest
from home import Home

pytestmark = pytest.mark.podman


def test_nine_of_eight_waits_with_a_reason_and_starts_when_it_may(service: Home) -> None:
    service.ok("run", "-d", "--wait", "-g", "9", "--name", "nine", service.image, "--", "true")
    service.until(lambda: "too few GPUs free" in service.ok("explain", "nine").out, what="the reason is shown")
    assert service.show("nine")["state"] == "pending"
    service.rm("nine")


def test_a_waiting_container_starts_as_soon_as_gpus_are_free(service: Home) -> None:
    service.start("hog", "-g", "8")
    service.ok("run", "-d", "-g", "1", "--name", "next", service.image, "--", "true")
    service.until(lambda: "too few GPUs free" in service.ok("explain", "next").out, what="next waits")
    service.rm("hog")
    service.until_state("next", "succeeded")
    service.rm("next")


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ("0.5", "must be an integer"),
        ("-1", "must be greater than or equal to 0"),
        ("two", "quantities must match"),
    ],
)
def test_gpus_are_counted_in_whole_numbers(service: Home, asked: str, rule: str) -> None:
    manifest = service.folder / "odd.yaml"
    manifest.write_text(f"""
apiVersion: v1
kind: Pod
metadata: {{name: odd}}
spec:
  containers:
  - name: c
    image: {service.image}
    resources: {{limits: {{nvidia.com/gpu: "{asked}"}}}}
""")
    result = service("run", "-d", "-f", str(manifest))
    assert result.code == 2
    assert rule in result.err, result.err
    direct = service("run", "-d", f"--gpus={asked}", service.image)
    assert direct.code == 2


def test_requests_must_equal_limits(service: Home) -> None:
    manifest = service.folder / "unequal.yaml"
    manifest.write_text(f"""
apiVersion: v1
kind: Pod
metadata: {{name: unequal}}
spec:
  containers:
  - name: c
    image: {service.image}
    resources: {{limits: {{nvidia.com/gpu: 2}}, requests: {{nvidia.com/gpu: 1}}}}
""")
    result = service("run", "-d", "-f", str(manifest))
    assert result.code == 2
    assert "must be equal to nvidia.com/gpu limit of 2" in result.err


def test_an_unknown_image_fails_clearly_and_frees_its_gpus(service: Home) -> None:
    result = service("run", "-g", "2", "--name", "typo", "localhost/no/such:image", "--", "true")
    assert result.code != 0
    assert "localhost/no/such:image" in result.err
    assert service.until_state("typo", "failed")["reason"] == "ImageNotFound"
    assert service.free_gpus() == 8
    service.rm("typo")


def test_an_unknown_command_fails_clearly_and_frees_its_gpus(service: Home) -> None:
    result = service.run("-g", "1", "--name", "nocmd", "--", "no-such-command")
    assert result.code != 0
    assert "no-such-command" in result.err + result.out
    service.until_state("nocmd", "failed")
    assert service.free_gpus() == 8
    service.rm("nocmd")


def test_an_image_for_a_newer_driver_never_runs_and_both_sides_are_named(service: Home, tmp_path: Path) -> None:
    image = f"{service.image}-newer"
    (tmp_path / "Containerfile").write_text(f'FROM {service.image}\nENV NVIDIA_REQUIRE_CUDA="cuda>=99.0"\n')
    built = service("image", "build", str(tmp_path), image)
    assert built.code == 0, built.err
    said = service("doctor", "--image", image)
    assert said.code == 1
    result = service("run", "-g", "1", "--name", "newer", image, "--", "echo", "ran")
    assert result.code != 0
    for words in ("NVIDIA_REQUIRE_CUDA=cuda>=99.0 is not met", "on the host: a driver that runs CUDA 99.0"):
        assert words in result.err
        assert words in said.out
    assert "ran\n" not in result.out
    assert service.until_state("newer", "failed")["reason"] == "DriverRequirementUnmet"
    assert service.free_gpus() == 8
    service.rm("newer")
    without = service("run", "--rm", image, "--", "echo", "ran")
    assert (without.code, without.out) == (0, "ran\n")  # no GPU, no driver to be held to
    assert service("image", "rm", image).code == 0


def test_a_container_that_ends_frees_its_gpus(service: Home) -> None:
    assert service.run("-g", "8", "--name", "short", "--", "true").code == 0
    assert service.free_gpus() == 8
    service.rm("short")


def test_out_of_memory_is_told_and_frees_the_gpus(service: Home) -> None:
    eat = "dd if=/dev/zero of=/dev/null bs=200M count=1"
    service("run", "-g", "1", "--memory", "32Mi", "--name", "fat", service.image, "--", "sh", "-c", eat)
    shown = service.until_state("fat", "failed")
    assert shown["reason"] == "OOMKilled", shown
    assert shown["exit_code"] == 137
    assert service.free_gpus() == 8
    service.rm("fat")


def test_removal_behind_our_back_is_noticed_and_frees_the_gpus(service: Home) -> None:
    service.start("gone", "-g", "4")
    victim = next(item for item in service.containers() if item["Labels"]["io.kubernetes.pod.name"] == "gone")
    service.podman("rm", "-f", "-t", "0", victim["Id"])
    shown = service.until_state("gone", "failed")
    # podman kills before it removes: a kubelet that looks in between sees an end like any other.
    assert (shown["exit_code"], shown["reason"] in {"ContainerStatusUnknown", ""}) == (137, True)
    assert service.free_gpus() == 8
    service.rm("gone")


@pytest.mark.slow
def test_a_fault_takes_one_gpu_out_and_recovery_returns_it(service: Home) -> None:
    service.ok("simulate", "fault", "xid", "79", "--gpu", "3")
    service.until(lambda: service.allocatable() == 7, what="seven GPUs are allocatable")
    service.ok("simulate", "fault", "recover", "--gpu", "3")
    service.until(lambda: service.allocatable() == 8, what="eight again", timeout_s=90)
