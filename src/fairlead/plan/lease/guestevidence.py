"""Holds a verifier's report against the GPUs that its machine was given, before any of it counts. Pure.

A report counts for exactly the functions that the machine got, at the addresses where the emulator put them, and for
the start that its nonce names. What a GPU says of itself is then judged as that of any other GPU is (`verification`);
what only a GPU without a driver here needs is judged in this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairlead import errors
from fairlead.model.driver import PassthroughGPU
from fairlead.model.evidence import Evidence
from fairlead.model.ids import GPUUUID
from fairlead.plan.lease.check import Finding, Verdict
from fairlead.wire.fairlead import guestreport
from fairlead.wire.fairlead.guestreport import Attestation, GPUReport, GuestReport

OTHER: Final = "GuestReportOfOthers"
UNREAD: Final = "GuestGPUUnread"


def match(report: GuestReport, nonce: str, places: Mapping[str, str]) -> dict[str, GPUReport]:
    """Return what is reported of each GPU, by its key.

    Args:    nonce: of this start.   places: keys of the GPUs by their addresses in the guest.
    Raises:  ProtocolError (`GuestReportOfOthers`): another start, a GPU twice, one that the machine was not given, or
             one left out.
    """
    found = {one.pci: one for one in report.gpus}
    if report.nonce != nonce:
        wrong = f"it is of the start {report.nonce!r}, and this is {nonce!r}"
    elif len(found) != len(report.gpus):
        wrong = "it has a GPU twice"
    elif foreign := sorted(found.keys() - places.keys()):
        wrong = f"it has {', '.join(foreign)}, which the machine was not given"
    elif stale := sorted(one.pci for one in report.gpus if not _is_attested_now(one, nonce)):
        wrong = f"{', '.join(stale)} attested itself for another start"
    elif missing := sorted(places.keys() - found.keys()):
        wrong = f"{', '.join(missing)} is missing: the guest's driver did not start it"
    else:
        return {key: found[address] for address, key in places.items()}
    hint = "nothing of it counts; see the machine's image, and what its driver says on the console"
    raise errors.ProtocolError(f"the verifier's report is not of its GPUs: {wrong}", reason=OTHER, hint=hint)


def evidence_of(gpu: PassthroughGPU, reported: GPUReport, driver: str) -> Evidence:
    """Return a GPU's reading. Raises: DeviceFault (`GuestGPUUnread`): the guest could not read it."""
    if reported.failure:
        message = f"{gpu.address} was not read by the verifier's machine: {reported.failure}"
        raise errors.DeviceFault(message, reason=UNREAD, hint="test the GPU, or replace it")
    return Evidence(
        gpu=GPUUUID(str(gpu.key)),
        serial=reported.serial,
        part=reported.part,
        device=reported.device,
        subsystem=reported.subsystem,
        pci_bus_id=gpu.address,
        vbios=reported.vbios,
        inforom=reported.inforom,
        driver=driver,
        link_width=reported.link_width,
        link_width_max=reported.link_width_max,
        ecc_uncorrected=reported.ecc_uncorrected,
        ecc_mode=reported.ecc_mode,
        ecc_mode_pending=reported.ecc_mode_pending,
        remap_pending=reported.remap_pending,
        remap_failed=reported.remap_failed,
        recovery_action=reported.recovery_action,
    )


def judge(gpu: PassthroughGPU, reported: GPUReport) -> tuple[Finding, ...]:
    """Return what is found of a GPU's place on its board, of MIG, which the last tenant may have left on, and of its
    attestation, where the machine's image has `nvattest`.
    """
    attested = () if reported.attestation is None else (_judge_attestation(reported, reported.attestation),)
    return _judge_module(gpu, reported), _judge_mig(reported), *attested


def _judge_module(gpu: PassthroughGPU, reported: GPUReport) -> Finding:
    observed, expected = _number(reported.module), _number(gpu.module)
    if gpu.module is not None and reported.module is not None and gpu.module != reported.module:
        message = (
            f"it is module {observed} by its driver and {expected} by its registers: NVLink's partitions would be wrong"
        )
        return _found("module", Verdict.FAIL, "ModuleMoved", message, observed, expected)
    return _found("module", Verdict.GOOD, "", "", observed, expected)


def _judge_mig(reported: GPUReport) -> Finding:
    if reported.mig_mode or reported.mig_mode_pending:
        message = "MIG is on, or will be after a reset: its last tenant left it so"
        return _found("mig mode", Verdict.FAIL, "MIGModeChanged", message, "on", "off")
    return _found("mig mode", Verdict.GOOD, "", "", "off" if reported.mig_mode is False else "", "off")


def _is_attested_now(reported: GPUReport, nonce: str) -> bool:
    told = reported.attestation
    return told is None or bool(told.failure) or told.nonce.casefold() == guestreport.attestation_nonce(nonce)


def _judge_attestation(reported: GPUReport, told: Attestation) -> Finding:
    """Hold each claim by itself: the overall verdict of `nvattest` asks neither for CC mode nor against DEVTOOLS."""
    wrong = told.failure or next((words for words, is_so in _attestation_faults(reported, told) if is_so), "")
    if wrong:
        message = f"nvattest: {wrong}"
        return _found("attestation", Verdict.FAIL, "AttestationFailed", message, wrong, "attested")
    return _found("attestation", Verdict.GOOD, "", "", "attested", "attested")


def _attestation_faults(reported: GPUReport, told: Attestation) -> tuple[tuple[str, bool], ...]:
    said = told.measurements or "not said"
    return (
        ("its measurements are not signed by the GPU for this start", not told.is_signed),
        (f"its measurements are not NVIDIA's ({said})", told.measurements.casefold() != "success"),
        ("it did not boot securely", told.secure_boot is not True),
        (f"its debugging is not disabled ({told.debug or 'not said'})", not told.debug.startswith("disabled")),
        ("confidential computing is off", reported.confidential is not True),
        ("it is in DEVTOOLS mode, in which its memory is not encrypted", reported.devtools is not False),
    )


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _found(name: str, verdict: Verdict, reason: str, message: str, observed: str, expected: str) -> Finding:
    return Finding(verdict=verdict, check=name, reason=reason, message=message, observed=observed, expected=expected)
