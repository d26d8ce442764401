"""The CDI specs of this node on disk: true before a device is advertised, gone after an orderly stop.

`plan.generate` says what a spec is; this module keeps one file a vendor in the folder that engines read, replaced in
one step and only when its content differs. Without devices there is no file, and the log says so once. The names that
are on disk are the answer of `ensure`: what is not in it must not be handed out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from fairlead import errors, files, telemetry
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import Inventory
from fairlead.plan import generate
from fairlead.wire.cdi import emit

PREFIX = "fairlead-"
"""Sets our files apart from those that a vendor's toolkit writes."""


class SpecFiles:
    """Our files in one CDI folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: frozenset[str] = frozenset()
        """Qualified names of all devices in the files as they are."""
        self._problems: tuple[str, ...] | None = None

    def path(self, kind: str) -> Path:
        """Return where the spec of a kind is kept."""
        return self.folder / f"{PREFIX}{emit.file_name(kind)}"

    async def ensure(self, inventory: Inventory, drivers: Sequence[DriverFiles]) -> frozenset[str]:
        """Make the files say what is there now; idempotent. Returns the qualified names that engines can resolve.

        Raises: Unavailable: the folder refuses a write; what was there stays, and `names` still says what.
        """
        await asyncio.to_thread(self._ensure, inventory, drivers)
        return self.names

    async def remove(self) -> None:
        """Remove our files; a folder that refuses is logged."""
        await asyncio.to_thread(self._remove)

    def _ensure(self, inventory: Inventory, drivers: Sequence[DriverFiles]) -> None:
        made = generate.generate(inventory, drivers)
        wanted = {self.path(spec.kind): emit.emit_json(spec) for spec in made.specs}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path, data in wanted.items():
                if _read(path) != data:
                    files.write_atomic(path, data, durable=False)  # a reboot voids it with the rest of /run
                    telemetry.log.info("cdi spec written", path=str(path))
            for kind in generate.KINDS.values():
                if self.path(kind) not in wanted:
                    self.path(kind).unlink(missing_ok=True)
        except OSError as error:
            message = f"cannot keep CDI specs in {self.folder}: {error.strerror}"
            raise errors.Unavailable(message, reason="CDIFolderFailed", path=str(self.folder)) from error
        self.names = frozenset(f"{spec.kind}={device.name}" for spec in made.specs for device in spec.devices)
        self._tell(made.problems if wanted else (*made.problems, "no devices: no CDI spec is written"))

    def _tell(self, problems: tuple[str, ...]) -> None:
        if problems != self._problems:
            for problem in problems:
                telemetry.log.warning("cdi spec incomplete", error=problem)
        self._problems = problems

    def _remove(self) -> None:
        self.names = frozenset()
        for kind in generate.KINDS.values():
            try:
                self.path(kind).unlink(missing_ok=True)
            except OSError as error:
                telemetry.log.warning("cdi spec not removed", path=str(self.path(kind)), error=str(error))


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
