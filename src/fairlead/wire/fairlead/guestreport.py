"""Declares what a verifier's virtual machine reports of the GPUs that it got: one line of JSON.

The guest talks to a GPU that its last tenant had for itself, so what it says is data: every field is typed, every text
short and printable, and nothing else is taken. That it is of this start, the nonce says, which the guest gets on its
kernel's command line.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal

import msgspec

from fairlead import errors
from fairlead.wire.text import typedjson

VERSION: Final = "fairlead.guest-report/1"
MOST_GPUS: Final = 16
MALFORMED: Final = "GuestReportMalformed"

LONGEST: Final = 96
Text = Annotated[str, msgspec.Meta(max_length=LONGEST, pattern=r"\A[ -~]*\Z")]
Words = Annotated[str, msgspec.Meta(max_length=400, pattern=r"\A[ -~]*\Z")]
Address = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]\Z")]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Attestation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What NVIDIA's `nvattest` says of one GPU's signed measurements."""

    nonce: Text
    is_signed: bool = False
    """Whether the GPU signed them together with the nonce."""
    measurements: Text = ""
    """`success`: the firmware that was measured is NVIDIA's."""
    secure_boot: bool | None = None
    debug: Text = ""
    """`disabled`: nobody can look into the GPU."""
    failure: Text = ""
    """Why it was not attested; empty: it was."""


class GPUReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One GPU, as its firmware and the guest's driver have it; left out: it does not say."""

    pci: Address
    """In the guest: 0000:01:00.0."""
    serial: Text = ""
    part: Text = ""
    device: Text = ""
    """PCI device and vendor id, 233010de."""
    subsystem: Text = ""
    vbios: Text = ""
    inforom: Text = ""
    module: Count | None = None
    """Its place on the baseboard."""
    link_width: Count | None = None
    link_width_max: Count | None = None
    ecc_uncorrected: Count | None = None
    ecc_mode: bool | None = None
    ecc_mode_pending: bool | None = None
    mig_mode: bool | None = None
    mig_mode_pending: bool | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: Count | None = None
    confidential: bool | None = None
    """Whether confidential computing is on."""
    devtools: bool | None = None
    """Whether its development mode is, in which memory is not encrypted."""
    attestation: Attestation | None = None
    """Left out: the image has no `nvattest`."""
    failure: Words = ""
    """Why it could not be read; empty: it was."""


class GuestReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of one machine."""

    version: Literal["fairlead.guest-report/1"] = VERSION
    nonce: Text
    driver: Text
    """Version of the guest's driver; empty: none was loaded."""
    gpus: Annotated[tuple[GPUReport, ...], msgspec.Meta(max_length=MOST_GPUS)]


_DECODER: Final = typedjson.Decoder(GuestReport)


def attestation_nonce(nonce: str) -> str:
    """Return the nonce that GPUs sign, 64 hexadecimal digits. Args: nonce: of the start."""
    return hashlib.sha256(f"fairlead attestation {nonce}".encode()).hexdigest()


def printable(text: str, longest: int = LONGEST) -> str:
    """Return of a text what a report may have of it: so many characters, of printable ASCII."""
    return "".join(one for one in text if " " <= one <= "~")[:longest]


def emit(report: GuestReport) -> bytes:
    """Return the line, with its end."""
    return msgspec.json.encode(report) + b"\n"


def parse(line: bytes) -> GuestReport:
    """Return what a guest reports. Raises: ProtocolError (`GuestReportMalformed`): anything else."""
    try:
        return _DECODER.decode(line)
    except msgspec.MsgspecError as error:
        why = "".join(one for one in str(error)[:200] if one.isprintable())  # it may repeat a name of the guest's
        message = f"the verifier's machine reported what is no report: {why}"
        hint = "its image is of another version of Fairlead, or a GPU's firmware took it over: build the image again"
        raise errors.ProtocolError(message, reason=MALFORMED, hint=hint) from error
