"""Remembers which module of its baseboard each GPU is, for as long as the node lives.

The number is in registers of the board that may be read while nobody has it; a tenant may have it when an agent begins.
Names of slots are made of it, so it is written down once, by the GPU's identity, and held against the board whenever
the GPU comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, files, telemetry

FILE: Final = "modules.json"
_LIMIT_BYTES: Final = 1 << 20


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    modules: dict[str, int | None] = {}


class ModuleMemory:
    """One file; nothing but this writes it."""

    def __init__(self, folder: Path) -> None:
        """Take the agent's state folder; nothing is read yet."""
        self._path = folder / FILE
        self._known: dict[str, int | None] | None = None

    def known(self) -> Mapping[str, int | None]:
        """Return the module of each GPU that was asked, None where it is none. A damaged file is set aside."""
        if self._known is None:
            self._known = self._read()
        return self._known

    def note(self, key: str, module: int | None) -> None:
        """Write down which module a GPU is. Raises: Unavailable: the disk refuses; then it is asked again."""
        known = {**self.known(), key: module}
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            files.write_atomic(self._path, msgspec.json.encode(_Document(modules=known)), mode=0o600)
        except OSError as error:
            message = f"cannot write {self._path}: {error.strerror}"
            raise errors.Unavailable(message, reason="ModulesNotWritten", hint=files.next_step(error)) from error
        self._known = known

    def _read(self) -> dict[str, int | None]:
        files.sweep(self._path)
        try:
            data = files.read_regular(self._path, limit_bytes=_LIMIT_BYTES)
            return {} if data is None else dict(msgspec.json.decode(data, type=_Document).modules)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            kept = files.set_aside(self._path, why="damaged")
            telemetry.log.warning("module numbers damaged, set aside", path=str(kept), error=str(error))
            return {}
