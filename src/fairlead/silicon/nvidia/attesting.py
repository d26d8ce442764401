"""Has NVIDIA's `nvattest` attest the GPUs of a verifier's machine, and puts what it says into the report; in the guest.

The program asks each GPU for measurements that the GPU signs together with a nonce, and compares them with NVIDIA's
reference values. It is asked only where the image has it; what it cannot do is reported of each GPU, never left out.

Source: NVIDIA Attestation SDK CLI, command reference (`attest`, `--nonce`, `--format`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from fairlead import command, errors
from fairlead.wire.fairlead import guestreport
from fairlead.wire.fairlead.guestreport import Attestation, GPUReport, GuestReport
from fairlead.wire.nvidia import attestation
from fairlead.wire.nvidia.attestation import Claims

PROGRAM: Final = "nvattest"
LIMIT_S: Final = 300.0
_LARGEST: Final = 4 << 20
_FORMS: Final = (("--format", "json"), ())
"""Ways to ask for JSON: release 1.0 prints words unless asked, others print it always and know no such option."""


async def attest(report: GuestReport, program: str) -> GuestReport:
    """Return a report with the attestation of each of its GPUs. Args: program: `nvattest`, by its path."""
    nonce = guestreport.attestation_nonce(report.nonce)
    try:
        claims = await _ask(program, nonce)
    except errors.FairleadError as error:
        return _with(
            report, [Attestation(nonce=nonce, failure=guestreport.printable(error.message))] * len(report.gpus)
        )
    if len(claims) != len(report.gpus):
        told = f"it attested {len(claims)} GPUs, and the driver lists {len(report.gpus)}"
        return _with(report, [Attestation(nonce=nonce, failure=told)] * len(report.gpus))
    return _with(report, [_told(gpu, one) for gpu, one in zip(report.gpus, claims, strict=True)])


async def _ask(program: str, nonce: str) -> tuple[Claims, ...]:
    """Return the claims of each GPU. Raises: FairleadError: the program did not run to its end, or failed."""
    words = ("attest", "--device", "gpu", "--verifier", "local", "--nonce", nonce)
    told = b""
    for form in _FORMS:
        done = await command.run(
            (program, *form, *words), env=command.base_env(), timeout_s=LIMIT_S, largest=_LARGEST, wholly=True
        )
        if done.stdout.lstrip().startswith(b"{"):
            return attestation.parse(done.stdout)
        told = told or done.last_line.encode() or done.stdout[-200:]
    message = f"{PROGRAM} printed no JSON: {guestreport.printable(told.decode(errors='replace'))}"
    raise errors.ProtocolError(message, reason=attestation.UNREADABLE)


def _told(gpu: GPUReport, claims: Claims) -> Attestation:
    """Return what is reported of one GPU; claims of another GPU's firmware are none of its own."""
    failure = ""
    if claims.vbios and gpu.vbios and claims.vbios.casefold() != gpu.vbios.casefold():
        failure = f"its claims are of VBIOS {claims.vbios}, and the driver reads {gpu.vbios}"
    return Attestation(
        nonce=guestreport.printable(claims.nonce),
        is_signed=claims.is_signed and claims.has_nonce,
        measurements=guestreport.printable(claims.measurements),
        secure_boot=claims.secure_boot,
        debug=guestreport.printable(claims.debug or ""),
        failure=guestreport.printable(failure),
    )


def _with(report: GuestReport, found: Sequence[Attestation]) -> GuestReport:
    gpus = (msgspec.structs.replace(gpu, attestation=one) for gpu, one in zip(report.gpus, found, strict=True))
    return msgspec.structs.replace(report, gpus=tuple(gpus))
