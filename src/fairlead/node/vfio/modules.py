"""Remembers each GPU's module number and its mode of confidential computing, for as long as the node lives.

The number is in registers of the board that may be read while nobody has it; a tenant may have it when an agent begins.
Names of slots are made of it, so it is written down once, by the GPU's identity, and held against the board whenever
the GPU comes back. So is the mode of confidential computing, which a tenant can change for whoever comes next.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, files, telemetry

FILE: Final = "modules.json"
_LIMIT_BYTES: Final = 1 << 20


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """A field that is not known is of a newer version: an agent that was put back keeps what it knows.

    Else each GPU's mode of confidential computing would be learnt again from what its last tenant left.
    """

    modules: dict[str, int | None] = {}
    cc_modes: dict[str, str] = {}


class ModuleMemory:
    """One file; nothing but this writes it."""

    def __init__(self, folder: Path) -> None:
        """Take the agent's state folder; nothing is read yet."""
        self._path = folder / FILE
        self._document: _Document | None = None

    def known(self) -> Mapping[str, int | None]:
        """Return the module of each GPU that was asked, None where it is none. A damaged file is set aside."""
        return self._read().modules

    def cc_modes(self) -> Mapping[str, str]:
        """Return the mode of confidential computing in which each GPU was first seen."""
        return self._read().cc_modes

    def note(self, key: str, module: int | None) -> None:
        """Write down which module a GPU is. Raises: Unavailable: the disk refuses; then it is asked again."""
        self._write(msgspec.structs.replace(self._read(), modules={**self.known(), key: module}))

    def note_cc_mode(self, key: str, mode: str) -> None:
        """Write down a GPU's mode of confidential computing. Raises: as `note`."""
        self._write(msgspec.structs.replace(self._read(), cc_modes={**self.cc_modes(), key: mode}))

    def _write(self, document: _Document) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            files.write_atomic(self._path, msgspec.json.encode(document), mode=0o600)
        except OSError as error:
            message = f"cannot write {self._path}: {error.strerror}"
            raise errors.Unavailable(message, reason="ModulesNotWritten", hint=files.next_step(error)) from error
        self._document = document

    def _read(self) -> _Document:
        if self._document is None:
            self._document = self._load()
        return self._document

    def _load(self) -> _Document:
        files.sweep(self._path)
        try:
            data = files.read_regular(self._path, limit_bytes=_LIMIT_BYTES)
            return _Document() if data is None else msgspec.json.decode(data, type=_Document)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            kept = files.set_aside(self._path, why="damaged")
            telemetry.log.warning("module numbers damaged, set aside", path=str(kept), error=str(error))
            return _Document()
