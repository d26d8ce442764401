"""Judges what a driver answers to `NodePrepareResources` and `NodeUnprepareResources`. Pure.

A driver is another program: it may answer for claims that it was not asked for, leave some out, or send names that no
container engine takes. Nothing of a claim's answer is used unless all of it can be.
Source: Kubernetes pkg/kubelet/cm/dra/manager.go (behaviour); the bounds are this program's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.node.kubelet.dra.claimrecord import PREPARE, UNPREPARE, ClaimRecord, DeviceRecord
from fairlead.wire.kubelet import draplugin
from fairlead_cdi import names

MOST_DEVICES: Final = 256
"""Devices of one answer; a claim has 32 at most."""
MOST_CDI: Final = 1024
"""CDI names of one answer."""
_LONGEST: Final = 512
_LONGEST_WORDS: Final = 1000
INVALID: Final = "DriverAnswerInvalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a driver's answer comes to."""

    devices: Mapping[str, tuple[DeviceRecord, ...]]
    """By uid of each claim that is done; empty tuples of an Unprepare."""
    problems: tuple[errors.FairleadError, ...] = ()
    """Why others are not."""


def prepared(driver: str, asked: Sequence[ClaimRecord], answers: Mapping[str, draplugin.Prepared]) -> Verdict:
    """Return the devices of each claim that is prepared, and why others are not."""
    if (stray := _stray(driver, PREPARE, asked, answers)) is not None:
        return Verdict(devices={}, problems=(stray,))
    found: dict[str, tuple[DeviceRecord, ...]] = {}
    problems: list[errors.FairleadError] = []
    for claim in asked:
        answer = answers.get(claim.uid)
        if answer is None or answer.error:
            problems.append(_refused(driver, PREPARE, claim, None if answer is None else answer.error))
        elif (wrong := _problem(answer.devices)) is not None:
            message = f"DRA driver {driver} answered {PREPARE} for ResourceClaim {claim.name} with {wrong}"
            problems.append(errors.ProtocolError(message, reason=INVALID, hint="that is the driver's to mend"))
        else:
            found[claim.uid] = tuple(_record(one) for one in answer.devices)
    return Verdict(devices=found, problems=tuple(problems))


def unprepared(driver: str, asked: Sequence[ClaimRecord], answers: Mapping[str, str]) -> Verdict:
    """Return which claims are given back, and why others are not."""
    if (stray := _stray(driver, UNPREPARE, asked, answers)) is not None:
        return Verdict(devices={}, problems=(stray,))
    done = {one.uid: () for one in asked if answers.get(one.uid) == ""}
    left = (one for one in asked if one.uid not in done)
    return Verdict(devices=done, problems=tuple(_refused(driver, UNPREPARE, one, answers.get(one.uid)) for one in left))


def _stray(
    driver: str, call: str, asked: Iterable[ClaimRecord], answers: Mapping[str, object]
) -> errors.ProtocolError | None:
    """Return what is wrong where a driver answers for a claim that it was not asked for."""
    known = {one.uid for one in asked}
    stray = next((uid for uid in answers if uid not in known), None)
    if stray is None:
        return None
    message = f"DRA driver {driver} answered {call} for unknown claim UID {_shown(stray[:_LONGEST])}"
    return errors.ProtocolError(message, reason=INVALID, hint="that is the driver's to mend")


def _refused(driver: str, call: str, claim: ClaimRecord, words: str | None) -> errors.FairleadError:
    """Return why a claim is not done. Args: words: the driver's; None: it said nothing of the claim."""
    if words is None:
        message = f"DRA driver {driver} skipped ResourceClaim {claim.name} in its answer to {call}"
        return errors.ProtocolError(message, reason=INVALID, hint="that is the driver's to mend")
    message = f"{call} failed for ResourceClaim {claim.name}: {_shown(words[:_LONGEST_WORDS])} (DRA driver {driver})"
    return errors.Unavailable(message, reason="DriverRefused", hint="the driver's log says more; it is asked again")


def _problem(devices: Sequence[draplugin.Device]) -> str | None:
    """Return what is wrong with the devices of an answer; None: nothing."""
    if len(devices) > MOST_DEVICES:
        return f"{len(devices)} devices, {MOST_DEVICES} at most"
    if (count := sum(len(one.cdi_devices) for one in devices)) > MOST_CDI:
        return f"{count} CDI names, {MOST_CDI} at most"
    for one in devices:
        texts = (one.pool, one.device, one.share_id or "", *one.requests[: MOST_DEVICES + 1])
        if len(one.requests) > MOST_DEVICES or any(len(text) > _LONGEST or not text.isprintable() for text in texts):
            return f"names that are too long or hold control characters, of device {_shown(one.device[:64])}"
        for name in one.cdi_devices:
            if len(name) > _LONGEST or not names.is_qualified(name):
                return f"{_shown(name[:64])}, which is not a qualified CDI name"
    return None


def _record(one: draplugin.Device) -> DeviceRecord:
    return DeviceRecord(
        requests=one.requests, pool=one.pool, device=one.device, cdi_devices=one.cdi_devices, share_id=one.share_id
    )


def _shown(text: str) -> str:
    return text if text.isprintable() else repr(text)
