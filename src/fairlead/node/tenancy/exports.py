"""Keeps the NFS exports of this machine's tenancies mounted, where their named volumes are.

A tenancy with an export has it mounted at the folder of its namespace's volumes, so that each volume is a folder of the
export and is found by its claim's uid here and on the server. The kernel's list of mounts is the state. Nothing is
looked for in the folder before the server was seen to answer: a process that asks a silent one is stuck in the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from fairlead import errors, telemetry
from fairlead.kernel.mounting import nfs
from fairlead.plan.tenancy import baseline, export
from fairlead.wire.fairlead.tenancy import NFSExport, Tenancy

SILENT: Final = "ExportSilent"
NOT_MOUNTED: Final = "ExportNotMounted"
_ANSWER_S: Final = 3.0

Mount = Callable[[str, Path, str], Awaitable[None]]
Answers = Callable[[str, int], Awaitable[None]]


async def connect(server: str, port: int) -> None:
    """Return once a server takes a connection. Raises: OSError, TimeoutError."""
    async with asyncio.timeout(_ANSWER_S):
        _, writer = await asyncio.open_connection(server, port)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class Exports:
    """The mounts of one machine."""

    def __init__(
        self, folder: Path, *, mount: Mount = nfs.mount, answers: Answers = connect, root: Path = Path("/")
    ) -> None:
        """Take the folder of all named volumes, which has one for each namespace."""
        self._folder, self._mount, self._answers, self._root = folder, mount, answers, root
        self._lock = asyncio.Lock()

    async def ensure(self, item: Tenancy) -> None:
        """Mount a tenancy's export where it is not. Idempotent.

        Raises: Unavailable (`ExportSilent`, `ExportNotMounted`); Conflict (`ExportChanged`, `VolumesOnDisk`).
        """
        wanted = item.spec.storage.nfs
        if wanted is None:
            return
        await self._heard(wanted)
        place = self._place(item)
        async with self._lock:
            if self._is_mounted(wanted, place):
                return
            await asyncio.to_thread(_make, place)
            await self._mount(export.source(wanted), place, export.options(wanted))
            telemetry.crash_point("tenancy.export-mounted")
            if not self._is_mounted(wanted, place):
                message = f"{export.source(wanted)} was mounted, and {place} does not show it"
                raise errors.Unavailable(message, reason=NOT_MOUNTED, hint="look at /proc/self/mountinfo")
        telemetry.log.info("export of a tenancy mounted", tenant=item.metadata.name, path=str(place))

    async def check(self, item: Tenancy) -> bool:
        """Return whether a tenancy's volumes are on an export. Raises: as `ensure`, where they are and it is away."""
        wanted = item.spec.storage.nfs
        if wanted is None:
            return False
        await self._heard(wanted)
        if not self._is_mounted(wanted, self._place(item)):
            message = (
                f'{export.source(wanted)}, which has the volumes of tenancy "{item.metadata.name}", is not mounted'
            )
            raise errors.Unavailable(message, reason=NOT_MOUNTED, hint="the service mounts it within seconds")
        return True

    async def release(self, namespace: str) -> None:
        """Take a namespace's export away from this machine; what is on the server stays there. Idempotent."""
        place = self._folder / namespace
        async with self._lock:
            if nfs.mounted(place, self._root)[0].startswith(export.KIND):
                await asyncio.to_thread(nfs.unmount, place)
                telemetry.crash_point("tenancy.export-unmounted")
            with contextlib.suppress(OSError):
                await asyncio.to_thread(place.rmdir)

    async def _heard(self, wanted: NFSExport) -> None:
        try:
            await self._answers(wanted.server, export.port(wanted))
        except (OSError, TimeoutError) as error:
            message = f"the NFS server {wanted.server} does not answer on port {export.port(wanted)}"
            hint = "its containers wait for it; is it up, and does a firewall let this machine through?"
            raise errors.Unavailable(message, reason=SILENT, hint=hint) from error

    def _place(self, item: Tenancy) -> Path:
        return self._folder / baseline.namespace_name(item)

    def _is_mounted(self, wanted: NFSExport, place: Path) -> bool:
        """Return whether the export is there. Raises: Conflict (`ExportChanged`): something else is."""
        kind, source = nfs.mounted(place, self._root)
        if not kind:
            return False
        if kind.startswith(export.KIND) and source == export.source(wanted):
            return True
        message = f"{source} is mounted at {place}, and not {export.source(wanted)}"
        raise errors.Conflict(message, reason="ExportChanged", hint="an export never changes: make the tenancy anew")


def _make(place: Path) -> None:
    """Make the folder to mount at. Raises: Conflict (`VolumesOnDisk`): volumes are in it, which would be hidden."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    place.mkdir(exist_ok=True)
    if any(place.iterdir()):
        message = f"the tenancy has volumes on this machine's disk, in {place}, which an export would hide"
        raise errors.Conflict(
            message, reason="VolumesOnDisk", hint="copy them away and remove them: fairlead volume rm"
        )
