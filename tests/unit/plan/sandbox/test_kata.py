"""Kubelet, containerd and Kata held against each other: settings without which a machine gets no GPUs, or others'."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fairlead.plan.sandbox import kata

CONFIG = "/opt/kata/share/defaults/kata-containers/configuration-qemu-nvidia-gpu.toml"
GOOD: dict[str, Any] = {
    "hypervisor": {"qemu": {"cold_plug_vfio": "root-port", "hot_plug_vfio": "no-port", "pcie_root_port": 8}},
    "runtime": {"create_container_timeout": 1200},
}


def node(**more: Any) -> kata.Node:
    handler = kata.Handler(name="kata-qemu-nvidia-gpu", config=CONFIG, keeps_host_devices_out=True)
    kubelet = {"featureGates": {"KubeletPodResourcesGet": True}, "runtimeRequestTimeout": "20m0s"}
    given = {"handlers": (handler,), "version": (4, 1, 0), "configs": {CONFIG: GOOD}, "kubelet": kubelet}
    return kata.Node(**{**given, "kubelet_version": (1, 34, 1), **more})


def changed(section: str, key: str, value: object) -> dict[str, Any]:
    config = copy.deepcopy(GOOD)
    where = config["runtime"] if section == "runtime" else config["hypervisor"]["qemu"]
    where[key] = value
    return {"configs": {CONFIG: config}}


def handler(**more: Any) -> dict[str, Any]:
    given = {"name": "kata-qemu-nvidia-gpu", "config": CONFIG, "keeps_host_devices_out": True, **more}
    return {"handlers": (kata.Handler(**given),)}


def test_a_node_that_is_set_up_has_no_problem_and_one_without_kata_is_not_looked_at() -> None:
    assert list(kata.problems(node())) == []
    assert list(kata.problems(kata.Node(version=(3, 0, 0), kubelet={}))) == []


@pytest.mark.parametrize(
    ("more", "says", "is_fatal"),
    [
        ({"version": (4, 0, 9)}, "Kata 4.0.9 is older than 4.1.0", True),
        ({"version": None}, "the release of Kata is not known", False),
        ({"unread": {CONFIG: "it is not there"}}, "cannot be read: it is not there", True),
        (changed("qemu", "cold_plug_vfio", "no-port"), "cold_plug_vfio is no-port", True),
        (changed("qemu", "hot_plug_vfio", "root-port"), "hot_plug_vfio is root-port", False),
        (changed("qemu", "enable_annotations", ["kernel_params"]), "enable_annotations has kernel_params", False),
        (changed("qemu", "pcie_root_port", 32), "pcie_root_port is 32", True),
        (changed("runtime", "pod_resource_api_sock", ""), "pod_resource_api_sock is empty", True),
        ({"has_socket": False}, "kubelet.sock is not there", True),
        (handler(pod_annotations=("cdi.k8s.io/*",)), "hands annotations cdi.k8s.io/*", True),
        (handler(pod_annotations=("io.katacontainers.*",)), "", True),
        (handler(pod_annotations=("*/*",)), "hands annotations */*", True),
        (handler(keeps_host_devices_out=False), "no privileged_without_host_devices", False),
        (
            {"kubelet": {"featureGates": {"KubeletPodResourcesGet": False}, "runtimeRequestTimeout": "20m"}},
            "is off",
            True,
        ),
        ({"kubelet": {"runtimeRequestTimeout": "20m"}, "kubelet_version": (1, 33, 5)}, "is off", True),
        ({"kubelet": {}}, "runtimeRequestTimeout is 2m", True),
        ({"kubelet": {"runtimeRequestTimeout": "19m59s"}}, "runtimeRequestTimeout is 19m59s", True),
    ],
)
def test_what_is_not_set_up_is_named_with_its_fix(more: dict[str, Any], says: str, is_fatal: bool) -> None:
    found = list(kata.problems(node(**more)))
    if not says:  # a pattern without a slash lets no key of this family through
        assert found == [] or "io.katacontainers" in found[0].what
        return
    assert any(says in one.what and one.is_fatal is is_fatal for one in found), found
    assert all(one.why and one.fix for one in found)


@pytest.mark.parametrize(
    "kubelet",
    [
        {"runtimeRequestTimeout": 5},
        {"runtimeRequestTimeout": "soon"},
        {"featureGates": "all", "runtimeRequestTimeout": "1h"},
        {"featureGates": {"KubeletPodResourcesGet": "yes"}, "runtimeRequestTimeout": "9" * 1000},
    ],
)
@pytest.mark.parametrize(
    "config", [{}, {"hypervisor": 3}, {"runtime": []}, {"hypervisor": {"qemu": {"pcie_root_port": "x"}}}]
)
def test_files_that_say_something_else_are_judged_and_never_end_it(kubelet: Any, config: Any) -> None:
    assert list(kata.problems(node(kubelet=kubelet, configs={CONFIG: config}))) is not None
