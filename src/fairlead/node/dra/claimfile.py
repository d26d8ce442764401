"""Keeps a CDI file for each prepared ResourceClaim: written when its GPUs are its own, removed before they come free.

A file that no prepared claim has is swept at the start, as are the files of an earlier boot: /run does not outlive one,
but a folder elsewhere does.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from fairlead import errors, files, telemetry
from fairlead.model.driver import DeviceNode
from fairlead.model.gpu import Vendor
from fairlead.node.cdi import specfile
from fairlead.node.inventory import latest, monitor
from fairlead.plan.cdi import generate, hostpath
from fairlead.plan.dra import claimspec, metadata
from fairlead.plan.dra.preparation import CDI_KIND, Preparation
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.wire.cdi import stamp, translate
from fairlead_cdi import emit

_PREFIX: Final = emit.file_name(CDI_KIND, suffix="_")
"""How the names of the files begin."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the files are, and how they are made."""

    folder: Path
    recipe: generate.Recipe
    boot_id: str
    stamping: str = "file"
    host_mount: Path = Path("/")
    driver: str
    """Name of the DRA driver."""
    plugin_folder: Path
    """The driver's own, below the kubelet's `plugins`; metadata lies there, and is seen by engines at this path."""


class ClaimFiles:
    """The CDI files of this node's claims."""

    def __init__(
        self,
        place: Place,
        snapshots: latest.Latest[Snapshot],
        mps_folders: Callable[[], Mapping[str, tuple[str, str]]],
    ) -> None:
        """Take where they are. Args: mps_folders: of each GPU's control daemon: its pipes, and /dev/shm of clients."""
        self._place, self._snapshots, self._mps_folders = place, snapshots, mps_folders
        self._showing = threading.Lock()
        self._seen: Snapshot | None = None
        self._hardware: object = None
        self._made: tuple[claimspec.Shown, stamp.Stamp]

    def path(self, uid: str) -> Path:
        """Return where a claim's file is."""
        return self._place.folder / claimspec.file_name(uid)

    async def is_there(self, uid: str) -> bool:
        """Return whether a claim's file is there as we wrote it, no link and no other account's."""
        path = self.path(uid)
        return await asyncio.to_thread(lambda: path.exists() and not specfile.is_replaced(path))

    async def write(self, preparation: Preparation, attributes: metadata.Attributes) -> None:
        """Write a claim's files. Args: attributes: what is published of its devices.

        Raises: DeviceFault: a device's nodes are missing.   Unavailable: a folder refuses.
        """
        await asyncio.to_thread(self._write, preparation, attributes)

    def passed_nodes(self, preparation: Preparation) -> tuple[DeviceNode, ...] | None:
        """Return the nodes of a claim's GPUs that are passed through, as its file would name them now; None: it cannot,
        since one is not bound, or off the bus.
        """
        return claimspec.list_passed(preparation, self._shown()[0])

    async def remove(self, uid: str, preparation: Preparation | None) -> None:
        """Remove a claim's files; nothing where there are none. Raises: Unavailable: a folder refuses."""
        try:
            await asyncio.to_thread(self._remove, uid, preparation)
        except OSError as error:
            raise self._refused(error) from error

    async def remove_foreign(self, uid: str) -> None:
        """Remove the file that NVIDIA's driver made for a claim: it has the same kind and the same device names.

        Raises: Unavailable: the folder refuses.
        """
        try:
            await asyncio.to_thread(self._foreign(uid).unlink, missing_ok=True)
        except OSError as error:
            raise self._refused(error) from error

    async def sweep(self, kept: Collection[str]) -> tuple[Path, ...]:
        """Remove the files of claims that are not among these UIDs; returns what was removed."""
        return await asyncio.to_thread(self._sweep, {self.path(uid).name for uid in kept})

    def _foreign(self, uid: str) -> Path:
        return self.path(uid).with_suffix(".yaml")

    def _remove(self, uid: str, preparation: Preparation | None) -> None:
        with contextlib.suppress(NotADirectoryError):  # no file can be there
            specfile.remove(self.path(uid))
            self._foreign(uid).unlink(missing_ok=True)
        if preparation is None:
            return
        for request, _ in metadata.requests(preparation):
            path = self._metadata(preparation, request)
            with contextlib.suppress(NotADirectoryError):  # no file can be there
                path.unlink(missing_ok=True)
            for folder in (path.parent, path.parent.parent):
                with contextlib.suppress(OSError):  # not there, or not empty
                    folder.rmdir()

    def _metadata(self, preparation: Preparation, request: str) -> Path:
        return Path(metadata.host_path(PurePosixPath(self._place.plugin_folder), preparation, request))

    def _describe(self, preparation: Preparation, attributes: metadata.Attributes) -> dict[str, tuple[str, str]]:
        """Write the metadata of each request; returns where it is, and where containers find it."""
        found: dict[str, tuple[str, str]] = {}
        for request, devices in metadata.requests(preparation):
            path = self._metadata(preparation, request)
            path.parent.mkdir(parents=True, exist_ok=True)
            data = metadata.emit(preparation, devices, self._place.driver, attributes)
            files.write_atomic(path, data, mode=specfile.MODE)
            found[request] = (str(path), metadata.container_path(preparation, request, self._place.driver))
        return found

    @translate.cdi_errors
    def _write(self, preparation: Preparation, attributes: metadata.Attributes) -> None:
        place, (shown, mark) = self._place, self._shown()
        try:
            described = self._describe(preparation, attributes)
        except OSError as error:
            message = f"cannot write the metadata of claim {preparation.words}: {error.strerror}"
            raise errors.Unavailable(message, reason="ClaimMetadataFailed") from error
        spec = claimspec.build(preparation, shown, self._mps_folders(), described)
        if place.stamping == "annotations":
            spec = stamp.annotate(spec, mark)
        # As `emit.emit_json`, by an encoder that holds up a pod's start less.
        data = msgspec.json.format(msgspec.json.encode(emit.emit_document(spec)), indent=2) + b"\n"
        try:
            place.folder.mkdir(parents=True, exist_ok=True)
            specfile.write_bytes(self.path(preparation.uid), data, mark, stamping=place.stamping)
        except OSError as error:
            raise self._refused(error) from error

    def _shown(self) -> tuple[claimspec.Shown, stamp.Stamp]:
        """Return what containers are shown of the hardware as it is, worked out once for each state of it."""
        snapshot = self._snapshots.value
        with self._showing:
            if self._seen is snapshot:
                return self._made
            hardware = (monitor.without_readings(snapshot.inventory), snapshot.drivers)
            if hardware != self._hardware:
                drivers = [hostpath.seen_by_host(driver, self._place.host_mount) for driver in snapshot.drivers]
                shown = claimspec.show(snapshot.inventory, drivers, self._place.recipe)
                stamps = specfile.stamps_of(snapshot.inventory, specfile.versions_of(snapshot.drivers))
                mark = dataclasses.replace(stamps[Vendor.NVIDIA], boot_id=self._place.boot_id)
                self._made, self._hardware = (shown, mark), hardware
            self._seen = snapshot
            return self._made

    def _sweep(self, kept: Collection[str]) -> tuple[Path, ...]:
        found = [one for one in self._place.folder.glob(f"{_PREFIX}*.json") if one.name not in kept]
        for path in found:
            try:
                specfile.remove(path)
            except OSError as error:
                telemetry.log.warning("claim's cdi file not removed", path=str(path), error=str(error))
        return tuple(found)

    def _refused(self, error: OSError) -> errors.Unavailable:
        message = f"cannot keep CDI specs in {self._place.folder}: {error.strerror}"
        return errors.Unavailable(message, reason="CDIFolderFailed", path=str(self._place.folder))
