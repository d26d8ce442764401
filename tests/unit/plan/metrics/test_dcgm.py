"""The page of metrics: names, units, labels, and one series for each holder of a device."""

from __future__ import annotations

import dataclasses

import pytest
from prometheus_client import parser

from fairlead.model.gpu import GPU, Driver, MIGDevice, UnreadableGPU, Vendor
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.model.sample import Activity, Sample
from fairlead.plan.gpu import health
from fairlead.plan.metrics import dcgm
from fairlead.plan.metrics.holder import Holder
from fairlead.wire.text import exposition

ONE, MIG = GPUUUID("GPU-1"), MIGUUID("MIG-1")
GPU_ONE = GPU(uuid=ONE, index=0, minor=4, pci_bus_id="0000:01:00.0", name='NVIDIA "H100" 80GB', memory_bytes=80 << 30)
SAMPLE = Sample(
    gpu=ONE,
    utilization_percent=93,
    power_mw=512_345,
    energy_mj=10**15 + 7,
    memory_total_bytes=80 << 30,
    memory_used_bytes=(3 << 20) + 5,
    remap_failed=False,
)
SLICE = MIGDevice(
    uuid=MIG,
    index=0,
    profile="1g.10gb",
    gpu_instance=9,
    compute_instance=0,
    placement_start=0,
    placement_size=1,
    memory_bytes=10 << 30,
)


def holder(pod: str, *, device: str = ONE, resource: str = "nvidia.com/gpu") -> Holder:
    return Holder(namespace="team", pod=pod, container="main", resource=resource, device=device)


def node(*gpus: GPU, **changes: object) -> dcgm.Node:
    plain = dcgm.Node(
        name="n1",
        gpus=gpus,
        drivers=(Driver(vendor=Vendor.NVIDIA, version="550.163.01"),),
        verdicts={},
        holders={},
        xids={},
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def read(one: dcgm.Node, *samples: Sample) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The page as a Prometheus client's own parser reads it."""
    text = exposition.emit(dcgm.families(one, samples))
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parser.text_string_to_metric_families(text):
        for item in family.samples:
            # the parser gives counters the end that DCGM's names do not have
            found.setdefault(item.name.removesuffix("_total"), []).append((item.labels, item.value))
    return found


def test_a_gpu_that_nobody_holds_has_one_series_of_each_figure_it_gives() -> None:
    page = read(node(GPU_ONE), SAMPLE)
    ((labels, value),) = page["DCGM_FI_DEV_GPU_UTIL"]
    assert value == 93
    assert labels == {
        "gpu": "0",
        "UUID": "GPU-1",
        "pci_bus_id": "0000:01:00.0",
        "device": "nvidia4",
        "modelName": 'NVIDIA "H100" 80GB',
        "hostname": "n1",
        "DCGM_FI_DRIVER_VERSION": "550.163.01",
    }
    assert "DCGM_FI_DEV_GPU_TEMP" not in page, "what the device does not report has no series"


def test_units_are_dcgms() -> None:
    page = read(node(GPU_ONE), SAMPLE)
    assert page["DCGM_FI_DEV_POWER_USAGE"][0][1] == pytest.approx(512.345)
    assert page["DCGM_FI_DEV_FB_USED"][0][1] == 3
    assert page["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"][0][1] == 10**15 + 7
    assert page["DCGM_FI_DEV_ROW_REMAP_FAILURE"][0][1] == 0


def test_profiling_figures_have_dcgms_names_and_ratios_and_no_series_where_there_are_none() -> None:
    page = read(
        node(GPU_ONE), dataclasses.replace(SAMPLE, activity=Activity(tensor_active=0.37, pcie_sent_bytes_s=5e9))
    )
    assert page["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"][0][1] == 0.37
    assert page["DCGM_FI_PROF_PCIE_TX_BYTES"][0][1] == 5e9
    assert "DCGM_FI_PROF_DRAM_ACTIVE" not in page
    kinds = {row.name: row.kind for row in dcgm.FIELDS if row.name.startswith("DCGM_FI_PROF_")}
    assert set(kinds.values()) == {"gauge"}
    assert {"GR_ENGINE_ACTIVE", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE", "PCIE_TX_BYTES", "PCIE_RX_BYTES"} <= {
        name.removeprefix("DCGM_FI_PROF_") for name in kinds
    }


def test_every_sharer_has_its_series() -> None:
    shared = {ONE: (holder("a", device=f"{ONE}::0"), holder("b", device=f"{ONE}::1"))}
    series = read(node(GPU_ONE, holders=shared), SAMPLE)["DCGM_FI_DEV_GPU_UTIL"]
    assert [(labels["pod"], labels["namespace"], labels["vgpu"], value) for labels, value in series] == [
        ("a", "team", "0", 93),
        ("b", "team", "1", 93),
    ]


def test_a_mig_device_has_its_own_memory_and_holder() -> None:
    gpu = dataclasses.replace(GPU_ONE, mig_enabled=True, mig_devices=(SLICE,))
    inside = Sample(gpu=ONE, mig=MIG, memory_used_bytes=5 << 20)
    page = read(node(gpu, holders={MIG: (holder("a", device=MIG),)}), SAMPLE, inside)
    board, instance = page["DCGM_FI_DEV_FB_USED"]
    assert "pod" not in board[0]
    assert (instance[0]["GPU_I_PROFILE"], instance[0]["GPU_I_ID"], instance[0]["pod"]) == ("1g.10gb", "9", "a")
    assert len(page["DCGM_FI_DEV_POWER_USAGE"]) == 1, "the board's figures are not given to its instances"


def test_a_claim_names_its_driver() -> None:
    claimed = {ONE: (holder("a", device="gpu-0", resource="gpu.nvidia.com"),)}
    ((labels, _),) = read(node(GPU_ONE, holders=claimed), SAMPLE)["DCGM_FI_DEV_GPU_UTIL"]
    assert (labels["dra_driver_name"], labels["dra_device_name"]) == ("gpu.nvidia.com", "gpu-0")


def test_xids_show_the_newest_code_and_each_code_s_count() -> None:
    page = read(node(GPU_ONE, xids={ONE: {48: 2, 79: 1}}), SAMPLE)
    assert [value for _, value in page["DCGM_FI_DEV_XID_ERRORS"]] == [79]
    assert {labels["xid"]: value for labels, value in page["DCGM_EXP_XID_ERRORS_COUNT"]} == {"48": 2, "79": 1}
    assert [value for _, value in read(node(GPU_ONE), SAMPLE)["DCGM_FI_DEV_XID_ERRORS"]] == [0]


def test_health_is_said_of_gpus_that_do_not_answer_too() -> None:
    lost = UnreadableGPU(index=1, pci_bus_id=None, uuid=GPUUUID("GPU-2"), reason="Lost", message="gone")
    hot = health.Verdict(state=health.State.FAULTY, reason="XID79", message="")
    page = read(node(GPU_ONE, unreadable=(lost,), verdicts={ONE: hot}), SAMPLE)["fairlead_gpu_health"]
    assert {labels["UUID"]: (labels["reason"], value) for labels, value in page} == {
        "GPU-1": ("XID79", 0),
        "GPU-2": ("Lost", 0),
    }


def test_a_sample_of_a_gpu_that_no_scan_has_named_waits_for_the_next() -> None:
    page = read(node(), SAMPLE)
    assert "DCGM_FI_DEV_GPU_UTIL" not in page


@pytest.mark.parametrize("name", ["a\nb", 'say "x"', "back\\slash", "é", "x" * 5000])
def test_no_product_name_breaks_the_page(name: str) -> None:
    page = read(node(dataclasses.replace(GPU_ONE, name=name)), SAMPLE)
    assert page["DCGM_FI_DEV_GPU_UTIL"][0][0]["modelName"] == name


@pytest.mark.parametrize(
    ("wanted", "labels"), [("hostname", {"hostname"}), ("Hostname", {"Hostname"}), ("both", {"hostname", "Hostname"})]
)
def test_the_node_is_named_by_the_label_that_dashboards_ask_for(wanted: str, labels: set[str]) -> None:
    gone = UnreadableGPU(index=1, pci_bus_id=None, uuid=None, reason="Lost", message="gone")
    page = read(node(GPU_ONE, unreadable=(gone,), host_label=wanted))
    for name, series in page.items():
        for found, _ in series:
            assert {key for key in found if key.lower() == "hostname"} == labels, name
            assert {found[key] for key in labels} == {"n1"}
