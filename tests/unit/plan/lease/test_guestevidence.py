"""A report held against the GPUs that its machine got: another start, another GPU, too few, too many."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from fairlead import errors
from fairlead.model.driver import PassthroughGPU
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID
from fairlead.plan.lease import guestevidence
from fairlead.plan.lease.check import Verdict
from fairlead.wire.fairlead import guestreport
from fairlead.wire.fairlead.guestreport import Attestation, GPUReport, GuestReport

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


WELL = Attestation(
    nonce=guestreport.attestation_nonce("n"),
    is_signed=True,
    measurements="success",
    secure_boot=True,
    debug="disabled",
)
ATTESTED = GPUReport(pci="0000:01:00.0", confidential=True, devtools=False, attestation=WELL)


def _attested(**changes: object) -> GPUReport:
    own = {name: value for name, value in changes.items() if name in {"confidential", "devtools"}}
    claims = {name: value for name, value in changes.items() if name not in own}
    return msgspec.structs.replace(ATTESTED, attestation=msgspec.structs.replace(WELL, **claims), **own)


def test_an_attested_gpu_is_good_and_one_without_is_not_judged() -> None:
    checks = {one.check: one.verdict for one in guestevidence.judge(GPU, ATTESTED)}
    assert checks["attestation"] is Verdict.GOOD
    assert "attestation" not in {one.check for one in guestevidence.judge(GPU, ONE)}
    assert guestevidence.match(_report(ATTESTED, TWO), "n", PLACES)["pcie-1"] == ATTESTED


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"failure": "no RIM"}, "nvattest: no RIM"),
        ({"is_signed": False}, "not signed"),
        ({"measurements": ""}, "not NVIDIA's (not said)"),
        ({"measurements": "fail"}, "not NVIDIA's (fail)"),
        ({"secure_boot": None}, "did not boot securely"),
        ({"secure_boot": False}, "did not boot securely"),
        ({"debug": ""}, "not disabled (not said)"),
        ({"debug": "enabled"}, "not disabled (enabled)"),
        ({"confidential": False}, "confidential computing is off"),
        ({"confidential": None}, "confidential computing is off"),
        ({"devtools": True}, "DEVTOOLS"),
        ({"devtools": None}, "DEVTOOLS"),
    ],
)
def test_each_claim_counts_by_itself(changes: dict[str, object], told: str) -> None:
    (found,) = (one for one in guestevidence.judge(GPU, _attested(**changes)) if one.check == "attestation")
    assert (found.verdict, found.reason) == (Verdict.FAIL, "AttestationFailed")
    assert told in found.message


def test_an_attestation_of_another_start_makes_the_whole_report_anothers() -> None:
    old = _attested(nonce=guestreport.attestation_nonce("m"))
    with pytest.raises(errors.ProtocolError, match="attested itself for another start"):
        guestevidence.match(_report(old, TWO), "n", PLACES)
