"""Serves the DRA plugin API to a kubelet: preparing, unpreparing, and how the devices are.

Every claim of a call has its answer, whatever happens to another: what goes wrong with one is its text, with the next
step, and a bug is logged and answered too. No call takes longer than a kubelet waits (45 s). An agent that ends, and
has no ledger any more, passes calls on to the one that takes over.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

import grpc.aio

from fairlead import errors, telemetry
from fairlead.node.dra.preparer import ClaimRef
from fairlead.node.inventory import latest
from fairlead.node.lease import gate
from fairlead.plan.dra.preparation import PreparedDevice
from fairlead.wire.kubelet import deviceplugin, drahealth, draplugin
from fairlead.wire.kubelet.drahealth import DeviceHealth
from fairlead.wire.kubernetes import names

T = TypeVar("T")

CALL_S: Final = 40.0
"""Longest that a call takes; a kubelet gives up after 45 s and asks again."""
HEALTH_S: Final = 10.0
"""How often the health of all devices is told again; a kubelet forgets it after 30 s."""
_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""A UID names a file. Kubernetes makes UUIDs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """How a device is."""

    why: str = ""
    """Why it is not well; empty: it is."""
    source: str = ""
    """Who says so: the UUID of its GPU."""


States = Mapping[tuple[str, str], DeviceState]
"""By pool and name."""


class Preparer(Protocol):
    """What prepares claims (`node.dra.preparer`)."""

    async def prepare(self, ref: ClaimRef) -> tuple[tuple[PreparedDevice, tuple[str, ...]], ...]:
        """Return the devices of a claim, each with its CDI names."""
        ...

    async def unprepare(self, ref: ClaimRef) -> None:
        """Take the devices of a claim back."""
        ...


async def no_successor() -> Path | None:
    """Return None: no other agent takes over."""
    return None


class Driver:
    """Answers a kubelet's calls for one node."""

    def __init__(
        self,
        preparer: Preparer,
        health: latest.Latest[States],
        *,
        meter: telemetry.Meter = telemetry.UNMETERED,
        clock: Callable[[], float] = time.time,
        successor: Callable[[], Awaitable[Path | None]] = no_successor,
    ) -> None:
        """Take who prepares, and how the devices are.

        Args: successor: waits for the socket of the agent that takes over; asked once this one's ledger is closed.
        """
        self._preparer, self._health, self._meter, self._clock = preparer, health, meter, clock
        self._successor = successor

    async def prepare(self, claims: tuple[draplugin.Claim, ...]) -> Mapping[str, draplugin.Prepared]:
        """Prepare claims, side by side; returns an answer for each, by UID."""

        async def one(claim: draplugin.Claim) -> draplugin.Prepared:
            async def here(ref: ClaimRef) -> draplugin.Prepared:
                found = await self._preparer.prepare(ref)
                return draplugin.Prepared(devices=tuple(_device(device, names) for device, names in found))

            async def there(stub: draplugin.Stub) -> draplugin.Prepared:
                return (await stub.prepare((claim,)))[claim.uid]

            found = await self._answered("prepare", claim, here, there)
            return draplugin.Prepared(error=found) if isinstance(found, str) else found

        answers = await asyncio.gather(*map(one, claims))
        return {claim.uid: answer for claim, answer in zip(claims, answers, strict=True)}

    async def unprepare(self, claims: tuple[draplugin.Claim, ...]) -> Mapping[str, str]:
        """Unprepare claims, side by side; returns why one was not, by UID; empty: it was."""

        async def one(claim: draplugin.Claim) -> str:
            async def here(ref: ClaimRef) -> str:
                await self._preparer.unprepare(ref)
                return ""

            async def there(stub: draplugin.Stub) -> str:
                return (await stub.unprepare((claim,)))[claim.uid]

            return await self._answered("unprepare", claim, here, there)

        answers = await asyncio.gather(*map(one, claims))
        return {claim.uid: answer for claim, answer in zip(claims, answers, strict=True)}

    async def watch(self) -> AsyncIterator[tuple[DeviceHealth, ...]]:
        """Yield how every device is, a report for each source: at once, when it changes, and before a kubelet forgets.

        What a report leaves out stays as it was said, so one source that falls silent becomes stale alone.
        """
        clock = asyncio.get_running_loop().time
        told = dict[str, list[tuple[tuple[str, str], str]]]()
        due_s = clock()
        while True:
            seen, now, is_due = self._health.version, int(self._clock()), clock() >= due_s
            by_source = dict[str, list[tuple[tuple[str, str], str]]]()
            for key, state in sorted(self._health.value.items()):
                by_source.setdefault(state.source, []).append((key, state.why))
            for source, devices in by_source.items():
                if is_due or told.get(source) != devices:
                    yield tuple(_report(key, why, now) for key, why in devices)
            told = by_source
            if is_due:
                due_s = clock() + HEALTH_S
            try:
                async with asyncio.timeout_at(due_s):
                    await self._health.wait(seen)
            except TimeoutError:
                continue

    async def _answered(
        self,
        verb: str,
        claim: draplugin.Claim,
        here: Callable[[ClaimRef], Awaitable[T]],
        there: Callable[[draplugin.Stub], Awaitable[T]],
    ) -> T | str:
        """Return what came of one claim, here or at the agent that takes over, or why nothing did, for the kubelet."""
        began, outcome = time.monotonic(), "done"
        try:
            ref = _checked(claim)
            async with asyncio.timeout(CALL_S):
                try:
                    return await here(ref)
                except errors.Unavailable as error:
                    if error.reason != gate.NOT_OPEN or (path := await self._successor()) is None:
                        raise
                outcome = "passed on"
                async with grpc.aio.insecure_channel(
                    deviceplugin.target(path), options=deviceplugin.CHANNEL_OPTIONS
                ) as channel:
                    return await there(draplugin.Stub(channel))
        except errors.FairleadError as error:
            outcome = error.reason
            telemetry.log.warning(
                "claim refused", claim=_words(claim), state=verb, reason=error.reason, error=error.message
            )
            return errors.sentence(error)
        except TimeoutError:
            outcome = "Slow"
            return f"claim {_words(claim)} was not {verb}d within {CALL_S:g} s; the kubelet tries again"
        except Exception as error:  # noqa: BLE001  (one claim's bug must not fail the others of the call)
            outcome = type(error).__name__
            telemetry.log.exception("claim's call failed", claim=_words(claim), state=verb)
            return f"claim {_words(claim)} was not {verb}d: {outcome}, a defect of fairlead; its log has more"
        finally:
            self._meter.observe(telemetry.CLAIM_SECONDS, time.monotonic() - began, verb, outcome)


def _report(key: tuple[str, str], why: str, now: int) -> DeviceHealth:
    return DeviceHealth(
        pool=key[0],
        device=key[1],
        health=drahealth.Health.UNHEALTHY if why else drahealth.Health.HEALTHY,
        updated_at=now,
        message=why.encode()[: drahealth.MOST_MESSAGE].decode(errors="ignore"),
    )


def _words(claim: draplugin.Claim) -> str:
    """Name a claim for messages, whatever its names are made of."""
    return errors.readable(f"{claim.namespace}/{claim.name}")[:200]


def _checked(claim: draplugin.Claim) -> ClaimRef:
    """Return a claim whose names can be a file's and a request's. Raises: Invalid."""
    for what, text, is_right in (
        ("namespace", claim.namespace, names.is_dns_label(claim.namespace)),
        ("name", claim.name, names.is_dns_subdomain(claim.name)),
        ("UID", claim.uid, _UID.fullmatch(claim.uid) is not None),
    ):
        if not is_right:
            message = f"claim {what} {text[:80]!r} is none"
            raise errors.Invalid(message, reason="ClaimRefInvalid", hint="a kubelet sends what the API server has")
    return ClaimRef(namespace=claim.namespace, name=claim.name, uid=claim.uid)


def _device(found: PreparedDevice, cdi_names: tuple[str, ...]) -> draplugin.Device:
    return draplugin.Device(
        requests=(found.request,),
        pool=found.pool,
        device=found.device,
        cdi_devices=cdi_names,
        share_id=found.share_id or None,
    )
