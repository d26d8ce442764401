"""Node labels: NVIDIA's names and values, always valid, and the same from scan to scan on any mix of models."""

from __future__ import annotations

import itertools
import string

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.gpu import label
from fairlead.store.embedded import validation
from fairlead.wire.kubernetes.gpudevice import GPUDeviceSpec
from tests import gpus

H100 = gpus.spec(
    "n",
    0,
    product="NVIDIA H100 80GB HBM3",
    simulated=False,
    compute_capability="9.0",
    driver_version="550.163.01",
    cuda_version="12.4",
    mig_mode="Disabled",
    pci_class="0x030200",
    virtual="false",
)
T4 = msgspec.structs.replace(
    H100, index=1, product="Tesla T4", memory="15Gi", compute_capability="7.5", mig_mode="Unsupported"
)


def several(spec: GPUDeviceSpec, count: int) -> list[GPUDeviceSpec]:
    return [msgspec.structs.replace(spec, index=index) for index in range(count)]


def test_a_node_of_one_model() -> None:
    assert label.plan_labels(several(H100, 8), machine="DGX H100 (rev. 2)") == {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/gpu.machine": "DGX-H100-rev.-2",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/vgpu.present": "false",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "none",
        "nvidia.com/mps.capable": "false",
        "nvidia.com/cuda.driver-version.full": "550.163.01",
        "nvidia.com/cuda.driver-version.major": "550",
        "nvidia.com/cuda.driver-version.minor": "163",
        "nvidia.com/cuda.driver-version.revision": "01",
        "nvidia.com/cuda.runtime-version.full": "12.4",
        "nvidia.com/cuda.runtime-version.major": "12",
        "nvidia.com/cuda.runtime-version.minor": "4",
        "nvidia.com/cuda.driver.major": "550",
        "nvidia.com/cuda.driver.minor": "163",
        "nvidia.com/cuda.driver.rev": "01",
        "nvidia.com/cuda.runtime.major": "12",
        "nvidia.com/cuda.runtime.minor": "4",
        "fairlead.dev/gpu-count.NVIDIA-H100-80GB-HBM3": "8",
    }


@pytest.mark.parametrize(
    ("classes", "mode"),
    [
        (["0x030200", "0x030200"], "compute"),
        (["0x030000"], "graphics"),
        (["0x030000", "0x030200"], "graphics"),
        (["0x038000"], "unknown"),
        ([""], "unknown"),
    ],
)
def test_the_mode_is_that_of_the_first_gpus_class(classes: list[str], mode: str) -> None:
    specs = [msgspec.structs.replace(H100, index=index, pci_class=one) for index, one in enumerate(classes)]
    assert label.plan_labels(reversed(specs), machine="")["nvidia.com/gpu.mode"] == mode


@pytest.mark.parametrize(
    ("cliques", "shown"),
    [(["u.1", "u.1"], "u.1"), (["u.1", ""], "u.1"), (["u.1", "u.2"], None), (["u.1", "v.1"], None), (["", ""], None)],
)
def test_a_clique_is_shown_where_all_gpus_of_a_fabric_are_in_one(cliques: list[str], shown: str | None) -> None:
    specs = [msgspec.structs.replace(H100, index=index, clique=one) for index, one in enumerate(cliques)]
    assert label.plan_labels(specs, machine="").get("nvidia.com/gpu.clique") == shown


def test_a_vgpu_is_told_with_its_hosts_driver_and_what_is_not_known_has_no_label() -> None:
    lent = msgspec.structs.replace(H100, virtual="true", host_driver_version="580.95.02", host_driver_branch="r581_36")
    found = label.plan_labels([H100, lent], machine="")
    assert {name: value for name, value in found.items() if "vgpu" in name} == {
        "nvidia.com/vgpu.present": "true",
        "nvidia.com/vgpu.host-driver-version": "580.95.02",
        "nvidia.com/vgpu.host-driver-branch": "r581_36",
    }
    unknown = label.plan_labels([msgspec.structs.replace(H100, virtual="")], machine="")
    assert not any("vgpu" in name for name in unknown)


def test_a_mixed_node_shows_the_commonest_model_whatever_the_order() -> None:
    mixed = [*several(H100, 2), *several(T4, 3)]
    shown = {
        (labels["nvidia.com/gpu.product"], labels["nvidia.com/gpu.memory"], labels["nvidia.com/gpu.family"])
        for order in itertools.permutations(mixed)
        for labels in [label.plan_labels(order, machine="")]
    }
    assert shown == {("Tesla-T4", "15360", "turing")}


def test_a_tie_goes_to_the_larger_memory_and_every_model_is_counted() -> None:
    labels = label.plan_labels([*several(T4, 2), *several(H100, 2)], machine="")
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert labels["fairlead.dev/gpu-count.Tesla-T4"] == "2"
    assert labels["fairlead.dev/gpu-count.NVIDIA-H100-80GB-HBM3"] == "2"
    assert labels["nvidia.com/mig.capable"] == "true"


def test_what_is_not_known_has_no_label() -> None:
    bare = msgspec.structs.replace(H100, compute_capability="", driver_version="", cuda_version="", memory="0")
    names = label.plan_labels([bare], machine="").keys()
    assert not {name for name in names if any(part in name for part in ("machine", "cuda", "compute", "memory"))}
    assert label.plan_labels([], machine="DGX") == {}


def test_other_vendors_gpus_carry_no_labels_of_nvidia() -> None:
    radeon = msgspec.structs.replace(H100, vendor="amd", simulated=True)
    assert label.plan_labels([radeon], machine="X") == {label.SIMULATED: "true"}


def test_simulated_silicon_is_told() -> None:
    assert label.plan_labels([msgspec.structs.replace(H100, simulated=True)], machine="")[label.SIMULATED] == "true"


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        ("7.0", "volta"),
        ("7.5", "turing"),
        ("8.0", "ampere"),
        ("8.6", "ampere"),
        ("8.9", "ada-lovelace"),
        ("9.0", "hopper"),
        ("10.0", "blackwell"),
        ("12.0", "blackwell"),
        ("4.2", "undefined"),
        ("", ""),
    ],
)
def test_families_follow_the_compute_capability(capability: str, family: str) -> None:
    assert label.family(capability) == family


@given(product=st.text(alphabet=string.printable + "é漢", max_size=120), machine=st.text(max_size=120))
def test_every_label_is_one_that_an_api_server_takes(product: str, machine: str) -> None:
    labels = label.plan_labels([msgspec.structs.replace(H100, product=product)], machine=machine)
    for name, value in labels.items():
        assert validation.qualified_name_problem(name) is None
        assert value
        assert validation.label_value_problem(value) is None


def test_a_shared_gpu_is_told_from_a_whole_one() -> None:
    shared = msgspec.structs.replace(H100, sharing="time-slicing", replicas=4, resource="nvidia.com/gpu")
    labels = label.plan_labels([shared], machine="")
    assert labels["nvidia.com/gpu.product"].endswith("-SHARED")
    assert (labels["nvidia.com/gpu.replicas"], labels["nvidia.com/gpu.sharing-strategy"]) == ("4", "time-slicing")
    renamed = msgspec.structs.replace(shared, resource="nvidia.com/gpu.shared")
    assert not label.plan_labels([renamed], machine="")["nvidia.com/gpu.product"].endswith("-SHARED")
    long = msgspec.structs.replace(shared, product="x" * 80)
    assert len(label.plan_labels([long], machine="")["nvidia.com/gpu.product"]) == 63


@pytest.mark.parametrize(
    ("drivers", "found"),
    [
        (None, {}),
        ((), {"fairlead.dev/gvisor": "false"}),
        (("550.90.12",), {"fairlead.dev/gvisor": "false"}),
        (("550.90.12", "550.163.01"), {"fairlead.dev/gvisor": "true"}),
    ],
)
def test_a_node_says_whether_its_gvisor_knows_its_driver(
    drivers: tuple[str, ...] | None, found: dict[str, str]
) -> None:
    assert label.plan_gvisor((H100, T4), drivers) == found
    assert label.may_be_ours(found) is bool(found)
