"""Takes over the claims that NVIDIA's DRA driver has prepared on this node, from its checkpoint.

Both drivers have one name and one folder, so the checkpoint lies beside our sockets. A claim is adopted whole: a note
with its GPUs in one transaction of the ledger, then our CDI file in place of the other driver's, whose kind and device
names are the same, so that the kubelet, which has it as prepared, asks nobody. What cannot be adopted stays in the file
and is named with its cause; it is looked at again with the reaper's rounds. A file of which nothing is left is renamed,
and so is one that is damaged or newer: nothing of it is ever written over.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors, files, telemetry
from fairlead.kernel import socketpeer
from fairlead.node.dra import claimfile, journal
from fairlead.node.dra.preparer import FETCH_S, Possession
from fairlead.plan.dra import adoption
from fairlead.plan.dra import preparation as plans
from fairlead.plan.dra.preparation import Node, Preparation
from fairlead.store.port import Store
from fairlead.wire.kubernetes import names
from fairlead.wire.kubernetes.resource.device import DeviceAttribute
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.nvidia import claimcheckpoint
from fairlead.wire.nvidia.claimcheckpoint import CheckpointedClaim

SOCKET: Final = "dra.sock"
"""On which NVIDIA's driver serves; ours have an instance in their names."""
ALIVE: Final = "OtherDriverAlive"
_LARGEST: Final = 16 << 20
_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""A UID names a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an adopter stands on."""

    store: Store
    possession: Possession
    journal: journal.Journal
    files: claimfile.ClaimFiles
    folder: Path
    """Of the driver, where the checkpoint is."""
    node: Callable[[], Node]
    said: Callable[[str, str, str], None]
    """Called with a claim, a reason and what a person should know."""
    clock: Callable[[], float] = time.time


class Adopter:
    """The claims of the driver that was here before."""

    def __init__(self, parts: Parts) -> None:
        """Take the parts; nothing is read yet."""
        self._parts = parts
        self._said: set[tuple[str, str]] = set()

    async def adopt(self) -> bool:
        """Take over what can be; returns whether something is left to try again. Raises: Unavailable: no ledger."""
        path = self._parts.folder / claimcheckpoint.NAME
        try:
            data = await asyncio.to_thread(files.read_regular, path, limit_bytes=_LARGEST)
            if data is None:
                return False
            if await asyncio.to_thread(_is_served, self._parts.folder / SOCKET):
                message = f"NVIDIA's DRA driver serves this node still: {self._parts.folder / SOCKET} answers"
                raise errors.Conflict(
                    message, reason=ALIVE, hint="remove it from this node; its claims are adopted then"
                )
            found = await asyncio.to_thread(claimcheckpoint.read, data)
        except errors.ProtocolError as error:
            await self._set_aside(path, error)
            return False
        except errors.FairleadError as error:
            self._warn(str(path), error)
            return True
        return await self._adopt_all(path, found)

    async def _adopt_all(self, path: Path, found: claimcheckpoint.Checkpoint) -> bool:
        adopted = left = 0
        claims = await self._list_claims()
        noted = self._parts.journal.uids()
        for one in found.claims:
            if one.uid in noted:
                continue
            if not one.is_completed:
                telemetry.log.info("claim begun by another driver", claim=one.words)
                continue  # the kubelet asks for it again, and it is prepared from the beginning
            try:
                adopted += await self._adopt_one(one, claims, found.boot_id)
            except errors.FairleadError as error:
                left += 1
                if self._warn(one.words, error) and one.name:
                    self._parts.said(one.words, adoption.REFUSED, errors.sentence(error))
        if not left:
            aside = await asyncio.to_thread(files.set_aside, path, why="adopted")
            telemetry.log.info("checkpoint of another driver taken over", path=str(aside), count=adopted)
        return bool(left)

    async def _adopt_one(
        self, one: CheckpointedClaim, claims: Mapping[str, ResourceClaim] | None, boot_id: str
    ) -> bool:
        """Take over a claim; False: it is gone. Raises: FairleadError: it stays where it is."""
        parts = self._parts
        _assert_named(one)
        claim = claims.get(one.uid) if claims is not None else None
        if claims is not None and (claim is None or claim.status.allocation is None):
            await parts.files.remove_foreign(one.uid)
            telemetry.log.info("claim of another driver is gone", claim=one.words)
            return False
        if claim is None and not one.name:
            message = f"claim {one.uid} is not taken over yet: the checkpoint has no names, and the API server is away"
            raise errors.Unavailable(message, reason="StoreUnavailable", hint="it is tried again")
        node = parts.node()
        wanted = adoption.plan(one, claim, node, boot_id=boot_id, at=parts.clock())
        if (conflict := plans.find_conflict(wanted, parts.journal.all())) is not None:
            raise conflict
        await parts.possession.adopt_claim(wanted.uid, journal.emit(wanted), plans.asks(wanted, node.driver))
        if wanted.boot_id == node.boot_id:  # else it is set up again, as every claim after a reboot
            await self._show(wanted, node)
        await parts.files.remove_foreign(one.uid)
        telemetry.log.info("claim adopted", claim=wanted.words, gpu=[device.gpu for device in wanted.devices])
        return True

    async def _show(self, wanted: Preparation, node: Node) -> None:
        offered = node.devices
        attributes: dict[str, Mapping[str, DeviceAttribute]] = {
            device.device: offered[device.device].device.attributes for device in wanted.devices
        }
        await self._parts.files.write(wanted, attributes)

    async def _list_claims(self) -> Mapping[str, ResourceClaim] | None:
        """Return every claim by UID: the early view has no names to ask for; None: the API server is away."""
        try:
            async with asyncio.timeout(FETCH_S):
                found = await self._parts.store.list(ResourceClaim)
        except (errors.FairleadError, TimeoutError) as error:
            telemetry.log.warning("claims not listed, the checkpoint is believed", error=str(error))
            return None
        return {one.metadata.uid: one for one in found.items}

    async def _set_aside(self, path: Path, why: errors.ProtocolError) -> None:
        word = "newer" if why.reason == claimcheckpoint.NEWER else "damaged"
        try:
            aside = await asyncio.to_thread(files.set_aside, path, why=word)
        except errors.FairleadError as error:
            self._warn(str(path), error)
            return
        telemetry.log.error(
            "checkpoint of another driver set aside", path=str(aside), reason=why.reason, error=errors.sentence(why)
        )

    def _warn(self, what: str, error: errors.FairleadError) -> bool:
        """Log once why something was not taken over; returns whether that is news."""
        if (what, error.message) in self._said:
            return False
        self._said.add((what, error.message))
        telemetry.log.warning("not adopted", claim=what, reason=error.reason, error=errors.sentence(error))
        return True


def _assert_named(one: CheckpointedClaim) -> None:
    """Refuse names that would become a path. Raises: ProtocolError."""
    is_named = not one.name or (names.is_dns_label(one.namespace) and names.is_dns_subdomain(one.name))
    if _UID.fullmatch(one.uid) is None or not is_named:
        message = f"claim {one.words} of the checkpoint has names that no API server has"
        raise errors.ProtocolError(message, reason=adoption.REFUSED, hint="somebody edited the file: remove the entry")


def _is_served(path: Path) -> bool:
    return socketpeer.find_server(path) is not None
