"""Remembers across restarts of the agent which GPUs wait for a reset, for as long as the machine is up.

An XID is reported once: a driver that reports no recovery action says nothing of it to an agent that starts afterwards.
So the verdicts that only a reset ends are in a file, with the boot they belong to, and count until the driver says that
nothing is wrong, or the GPU was seen gone and back. A GPU that was reset while no agent ran cannot be distinguished
from one that was not: the message of such a verdict names the file to remove.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, files, telemetry
from fairlead.model.ids import GPUUUID
from fairlead.plan.gpu import health

FILE: Final = "health.json"
_LIMIT_BYTES: Final = 1 << 20


class _Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: str
    message: str


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    boot_id: str
    gpus: dict[GPUUUID, _Fault] = {}


class HealthMemory:
    """One file; nothing but this writes it."""

    def __init__(self, folder: Path, *, boot_id: str) -> None:
        """Take the agent's state folder, made where it is missing, and the running boot; nothing is read yet."""
        self._path = folder / FILE
        self._boot_id = boot_id
        self._wanted: dict[GPUUUID, _Fault] = {}
        self._written: dict[GPUUUID, _Fault] = {}
        self._news = asyncio.Event()

    def load(self, *, now: float) -> dict[GPUUUID, health.Verdict]:
        """Return the verdicts of this boot; a file that cannot be used counts as none, a damaged one is set aside."""
        files.sweep(self._path)
        try:
            data = files.read_regular(self._path, limit_bytes=_LIMIT_BYTES)
            found = _Document(boot_id="") if data is None else msgspec.json.decode(data, type=_Document)
        except errors.Unavailable as error:
            telemetry.log.warning("health not remembered", reason=error.reason, error=error.message)
            return {}
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            kept = files.set_aside(self._path, why="damaged")
            telemetry.log.warning("health file damaged, set aside", path=str(kept), error=str(error))
            return {}
        if found.boot_id != self._boot_id:
            return {}
        self._wanted = self._written = found.gpus
        return {uuid: self._verdict(fault, now) for uuid, fault in found.gpus.items()}

    def _verdict(self, fault: _Fault, now: float) -> health.Verdict:
        told = f"{fault.message}; seen before a restart (after a reset meanwhile: rm {self._path}, restart the agent)"
        state = health.State.FAULTY
        return health.Verdict(
            state=state, reason=fault.reason, message=told, since=now, found_at=now, is_latched=True, hold_s=1.0
        )

    def keep(self, latched: Mapping[GPUUUID, health.Verdict]) -> None:
        """Have the file say which GPUs wait for a reset; written by `run`, the caller does not wait."""
        wanted = {uuid: self._fault(uuid, verdict) for uuid, verdict in latched.items()}
        if wanted != self._wanted:
            self._wanted = wanted
            self._news.set()

    def _fault(self, uuid: GPUUUID, verdict: health.Verdict) -> _Fault:
        known = self._wanted.get(uuid)
        is_same = known is not None and known.reason == verdict.reason and verdict.message.startswith(known.message)
        return known if known is not None and is_same else _Fault(reason=verdict.reason, message=verdict.message)

    async def run(self) -> None:
        """Write for ever; what cannot be written is logged and tried again with the next change."""
        while True:
            await self._news.wait()
            self._news.clear()
            wanted = self._wanted
            try:
                await asyncio.to_thread(self._write, wanted)
            except errors.Unavailable as error:
                telemetry.log.warning("health not remembered", reason=error.reason, error=error.message)

    def _write(self, wanted: dict[GPUUUID, _Fault]) -> None:
        if not wanted and not self._written:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"cannot make {self._path.parent}: {error.strerror}"
            raise errors.Unavailable(message, reason="StateWriteFailed") from error
        document = _Document(boot_id=self._boot_id, gpus=wanted)
        files.write_atomic(self._path, msgspec.json.encode(document), mode=0o600)
        self._written = wanted
