"""A report held against the GPUs that its machine got: another start, another GPU, too few, too many."""

from __future__ import annotations

import dataclasses

import pytest

from fairlead import errors
from fairlead.model.driver import PassthroughGPU
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID
from fairlead.plan.lease import guestevidence
from fairlead.plan.lease.check import Verdict
from fairlead.wire.fairlead.guestreport import GPUReport, GuestReport

PLACES = {"0000:01:00.0": "pcie-1", "0000:02:00.0": "pcie-2"}
ONE, TWO, THREE = (GPUReport(pci=f"0000:0{number}:00.0", serial=f"s{number}") for number in (1, 2, 3))
GPU = PassthroughGPU(key=GPUUUID("pcie-1"), vendor=Vendor.NVIDIA, address="0000:18:00.0", module=5)


def _report(*gpus: GPUReport, nonce: str = "n") -> GuestReport:
    return GuestReport(nonce=nonce, driver="580", gpus=gpus)


def test_each_gpu_is_found_by_where_the_emulator_put_it() -> None:
    assert guestevidence.match(_report(TWO, ONE), "n", PLACES) == {"pcie-1": ONE, "pcie-2": TWO}


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (_report(ONE, TWO, nonce="old"), "of the start 'old'"),
        (_report(ONE, ONE), "twice"),
        (_report(ONE, TWO, THREE), "0000:03:00.0, which the machine was not given"),
        (_report(ONE), "0000:02:00.0 is missing"),
        (_report(), "is missing"),
    ],
    ids=["another-start", "twice", "foreign", "one-missing", "none"],
)
def test_a_report_of_others_counts_for_none(report: GuestReport, told: str) -> None:
    with pytest.raises(errors.ProtocolError) as refused:
        guestevidence.match(report, "n", PLACES)
    assert refused.value.reason == guestevidence.OTHER
    assert told in refused.value.message


def test_evidence_is_of_the_hosts_gpu() -> None:
    reported = GPUReport(pci="0000:01:00.0", serial="1650", vbios="96.00", link_width=16, ecc_mode=True)
    found = guestevidence.evidence_of(GPU, reported, "580")
    assert (found.gpu, found.pci_bus_id, found.serial, found.vbios) == ("pcie-1", "0000:18:00.0", "1650", "96.00")
    assert (found.driver, found.link_width, found.ecc_mode, found.recovery_action) == ("580", 16, True, None)


def test_a_gpu_that_the_guest_could_not_read_is_no_evidence() -> None:
    with pytest.raises(errors.DeviceFault, match="GPU is lost") as refused:
        guestevidence.evidence_of(GPU, GPUReport(pci="0000:01:00.0", failure="GPU is lost"), "580")
    assert refused.value.reason == guestevidence.UNREAD


def test_a_swapped_module_and_mig_that_was_left_on_fail() -> None:
    def worst(gpu: PassthroughGPU, reported: GPUReport) -> set[str]:
        return {one.reason for one in guestevidence.judge(gpu, reported) if one.verdict is Verdict.FAIL}

    place = "0000:01:00.0"
    assert worst(GPU, GPUReport(pci=place, module=5, mig_mode=False)) == set()
    assert worst(GPU, GPUReport(pci=place)) == set()
    assert worst(dataclasses.replace(GPU, module=None), GPUReport(pci=place, module=4)) == set()
    assert worst(GPU, GPUReport(pci=place, module=4)) == {"ModuleMoved"}
    assert worst(GPU, GPUReport(pci=place, mig_mode_pending=True)) == {"MIGModeChanged"}
