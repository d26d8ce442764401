"""GPUs that are passed through, as the API lists them: each with its holder, by a slot or by a claim, and its lease."""

from __future__ import annotations

from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import Vendor
from fairlead.plan.vfio import slot, slotoffer
from fairlead.serve.backend import hardware, passthrough
from tests.unit.node.dra.claimnode import passed

GPUS = tuple(passed(module) for module in (1, 2, 3, 4))
DRIVERS = (DriverFiles(vendor=Vendor.NVIDIA, version=None, passthrough=GPUS),)


def holder(device: str, resource: str, container: str, claim: str = "") -> hardware.Holder:
    return hardware.Holder(device=device, resource=resource, namespace="team", container=container, claim=claim)


def test_who_has_a_slot_has_its_gpus_and_who_has_a_claim_has_its_gpu() -> None:
    advertised, _ = slotoffer.plan_resources(slot.Naming().slots(GPUS[:3], [(1, 2)]), {}, ())
    resource = "nvidia.com/h100-sxm5-80gb-x2"
    found = passthrough.holders_by_gpu(
        advertised,
        [holder("x2-1.2", resource, "pair"), holder("GPU-0", "nvidia.com/gpu", "other")],
        [holder("pcie-4", "gpu.nvidia.com", "vm", claim="mine")],
    )
    listed = passthrough.list_passthrough(DRIVERS, node="n", holders=found, states={"pcie-4": "Held", "pcie-3": "Free"})
    assert [(one.device, one.lease, [held.container for held in one.holders]) for one in listed] == [
        ("gpu-vfio-1", "Unknown", ["pair"]),
        ("gpu-vfio-2", "Unknown", ["pair"]),
        ("gpu-vfio-3", "Free", []),
        ("gpu-vfio-4", "Held", ["vm"]),
    ]
    assert listed[3].holders[0].claim == "mine"


def test_without_a_ledger_nothing_is_said_of_leases() -> None:
    assert {one.lease for one in passthrough.list_passthrough(DRIVERS, node="n")} == {""}
