"""Remembers by which number claims' devices name each GPU that is passed through, for as long as the node lives.

A device of a ResourceClaim is known by its name alone, `gpu-vfio-3`. A number that followed the order on the bus would
name another GPU once one falls out, while a claim has it: so each GPU of NVIDIA's, bound or not, gets the lowest number
that none had before, in PCI order as NVIDIA's DRA driver counts, and keeps it under its identity.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, files, telemetry

FILE: Final = "vfio-numbers.json"
_LIMIT_BYTES: Final = 1 << 20


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    numbers: dict[str, int] = {}


class GPUNumbers:
    """One file; nothing but this writes it."""

    def __init__(self, folder: Path) -> None:
        """Take the agent's state folder; nothing is read yet."""
        self._path = folder / FILE
        self._numbers: dict[str, int] | None = None

    def assign(self, keys: Iterable[str]) -> Mapping[str, int]:
        """Return the number of each GPU, new ones as they are given here. Args: keys: in the order of the bus.

        Raises: Unavailable: the disk refuses; then no GPU gets a new number.
        """
        known = self._read()
        found, used = dict(known), set(known.values())
        free = (number for number in itertools.count() if number not in used)
        for key in keys:
            if key not in found:
                found[key] = next(free)
        if found != known:
            self._write(found)
        return found

    def _write(self, found: dict[str, int]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            files.write_atomic(self._path, msgspec.json.encode(_Document(numbers=found)), mode=0o600)
        except OSError as error:
            message = f"cannot write {self._path}: {error.strerror}"
            raise errors.Unavailable(message, reason="NumbersNotWritten", hint=files.next_step(error)) from error
        self._numbers = found

    def _read(self) -> dict[str, int]:
        if self._numbers is None:
            self._numbers = self._load()
        return self._numbers

    def _load(self) -> dict[str, int]:
        files.sweep(self._path)
        try:
            data = files.read_regular(self._path, limit_bytes=_LIMIT_BYTES)
            found = {} if data is None else msgspec.json.decode(data, type=_Document).numbers
            if len(set(found.values())) != len(found) or min(found.values(), default=0) < 0:
                raise msgspec.ValidationError("two GPUs have one number, or one has a negative one")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            kept = files.set_aside(self._path, why="damaged")
            telemetry.log.warning("gpu numbers damaged, set aside", path=str(kept), error=str(error))
            return {}
        return found
