"""Parses what NVIDIA's `nvattest attest` prints: a verdict over all GPUs, and the claims of each.

The overall verdict says that a GPU is genuine and that its firmware is a published one. It says nothing of the mode
that the GPU is in, so the claims are passed on one by one.

Source: NVIDIA Attestation SDK CLI, command reference (`attest`); SDK, "Claims and Detached EAT schema", version 3 of
the claims of a GPU. `measres`, `secboot` and `dbgstat` are EAT's (RFC 9711, sections 4.2.15, 4.2.8 and 4.2.9).
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlead import errors
from fairlead.wire.text import typedjson

UNREADABLE: Final = "AttestationUnreadable"
_GPU: Final = "gpu"


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of one GPU; others of the schema are passed over. None and empty: it does not say."""

    device: str = msgspec.field(default="", name="x-nvidia-device-type")
    nonce: str = msgspec.field(default="", name="eat_nonce")
    measurements: str = msgspec.field(default="", name="measres")
    """`success`: all measured firmware is that of NVIDIA's reference values."""
    secure_boot: bool | None = msgspec.field(default=None, name="secboot")
    debug: str | None = msgspec.field(default=None, name="dbgstat")
    vbios: str = msgspec.field(default="", name="x-nvidia-gpu-vbios-version")
    driver: str = msgspec.field(default="", name="x-nvidia-gpu-driver-version")
    is_signed: bool = msgspec.field(default=False, name="x-nvidia-gpu-attestation-report-signature-verified")
    has_nonce: bool = msgspec.field(default=False, name="x-nvidia-gpu-attestation-report-nonce-match")


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    claims: tuple[Claims, ...] = ()
    result_code: int
    result_message: str = ""


_DECODER: Final = typedjson.Decoder(_Answer)


def parse(output: bytes) -> tuple[Claims, ...]:
    """Return the claims of each GPU, in the driver's order.

    Raises: ProtocolError (`AttestationUnreadable`): it is no answer, of no GPU, or says that it failed.
    """
    try:
        answer = _DECODER.decode(output)
    except msgspec.MsgspecError as error:
        raise errors.ProtocolError(f"nvattest's answer cannot be read: {error}", reason=UNREADABLE) from error
    if answer.result_code != 0:
        message = f"nvattest failed with {answer.result_code} ({errors.readable(answer.result_message[:200])})"
        raise errors.ProtocolError(message, reason=UNREADABLE)
    if not answer.claims or any(one.device != _GPU for one in answer.claims):
        raise errors.ProtocolError("nvattest's answer has claims of other devices, or of none", reason=UNREADABLE)
    return answer.claims
