"""Remembers the fabric over an agent's restart: which partitions there are, and which are known to be active.

The ledger says who has which GPUs; it does not say whether a partition was ever activated. A Manager that was started
again must be given the list of those that were: it does not program what it believes to be active. So a partition is
doubtful from before the Manager is asked to switch it until it has answered, and active after that answer. After a
reboot none is: the switches began anew. Neither is one after the Service VM began anew, which resets them: the slots
that had one then are lost until their pods end.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Final

import msgspec

from fairlead import errors, files, telemetry
from fairlead.model.fabric import FabricGPU, Partition

FILE: Final = "fabric.json"
_LIMIT_BYTES: Final = 1 << 20
_Module = Annotated[int, msgspec.Meta(ge=1, le=16)]


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    boot_id: str = ""
    partitions: dict[int, tuple[_Module, ...]] = {}
    active: tuple[int, ...] = ()
    doubtful: tuple[int, ...] = ()
    start: str = ""
    machine: str = ""
    reset: tuple[str, ...] = ()
    lost: tuple[int, ...] = ()


class FabricMemory:
    """One file; nothing but this writes it."""

    def __init__(self, folder: Path, boot_id: str) -> None:
        """Read the file of the agent's state folder; a damaged one is set aside. Args: boot_id: of this boot."""
        self._path = folder / FILE
        self.writing: Final = threading.Lock()
        """Held by the thread that writes the file."""
        found = self._read()
        self.is_known = found is not None
        """Whether it was noted before; else a partition may be active that this file does not have."""
        found = found if found is not None else _Document()
        is_of_boot = found.boot_id == boot_id
        self._kept = found if is_of_boot else _Document(boot_id=boot_id, partitions=found.partitions)

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions that the Manager offered last."""
        return tuple(
            Partition(id=one, gpus=tuple(FabricGPU(module=module) for module in modules))
            for one, modules in self._kept.partitions.items()
        )

    @property
    def active(self) -> frozenset[int]:
        """Ids of the partitions that are known to be active."""
        return frozenset(self._kept.active)

    @property
    def linked(self) -> frozenset[int]:
        """Ids of the partitions of several GPUs that are active, or may be."""
        return frozenset(one for one in self.active | self.doubtful if len(self._kept.partitions.get(one, ())) != 1)

    @property
    def doubtful(self) -> frozenset[int]:
        """Ids of the partitions that are being switched: each may be active or not."""
        return frozenset(self._kept.doubtful)

    @property
    def start(self) -> str:
        """Which start of the Manager answered last; empty: none did in this boot."""
        return self._kept.start

    @property
    def machine(self) -> str:
        """Boot id of the Service VM that answered last; empty: none told it."""
        return self._kept.machine

    @property
    def reset(self) -> frozenset[str]:
        """Keys of the GPUs that were reset since that start."""
        return frozenset(self._kept.reset)

    @property
    def lost(self) -> frozenset[int]:
        """Ids of the partitions that were active when the Service VM was lost, and whose slots have not ended since."""
        return frozenset(self._kept.lost)

    def note_start(self, start: str) -> None:
        """Note that another Manager began, since when no GPU was reset. Raises: Unavailable: the disk refuses."""
        self._write(start=start, reset=())

    def note_reset(self, start: str, key: str) -> None:
        """Note that a GPU was reset; nothing where another Manager began meanwhile. Raises: Unavailable."""
        with self.writing:  # several GPUs come back at about the same time
            if start == self.start and key not in self.reset:
                self._write_locked(reset=(*self._kept.reset, key))

    def note_machine(self, machine: str, lost: Collection[int], *, is_other: bool) -> None:
        """Note which Service VM is there. Args: lost: what is no longer active.   is_other: nothing else is either."""
        kept = self.lost | frozenset(lost)
        self._write(machine=machine, lost=tuple(sorted(kept)), **({"active": (), "doubtful": ()} if is_other else {}))

    def note_ended(self, ended: Collection[int]) -> None:
        """Note that the slots of lost partitions have ended. Raises: Unavailable."""
        if self.lost & frozenset(ended):
            self._write(lost=tuple(sorted(self.lost - frozenset(ended))))

    def note_partitions(self, found: Iterable[Partition]) -> None:
        """Note what the Manager offers. Raises: Unavailable: the disk refuses."""
        self._write(partitions={one.id: one.modules for one in found})

    def note(self, active: Collection[int], doubtful: Collection[int] = ()) -> None:
        """Note which partitions are active and which may be; writes only what is new. Raises: Unavailable."""
        if not self.is_known or (frozenset(active), frozenset(doubtful)) != (self.active, self.doubtful):
            self._write(active=tuple(sorted(active)), doubtful=tuple(sorted(doubtful)))
            self.is_known = True

    def _write(self, **changes: object) -> None:
        """Write the file with some fields changed."""
        with self.writing:
            self._write_locked(**changes)

    def _write_locked(self, **changes: object) -> None:
        """Write it; `writing` is held."""
        document = msgspec.structs.replace(self._kept, **changes)
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            files.write_atomic(self._path, msgspec.json.encode(document), mode=0o600)
        except OSError as error:
            message = f"cannot write {self._path}: {error.strerror}"
            raise errors.Unavailable(message, reason="FabricNotNoted", hint=files.next_step(error)) from error
        self._kept = document

    def _read(self) -> _Document | None:
        files.sweep(self._path)
        try:
            data = files.read_regular(self._path, limit_bytes=_LIMIT_BYTES)
            return None if data is None else msgspec.json.decode(data, type=_Document)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            kept = files.set_aside(self._path, why="damaged")
            telemetry.log.warning("fabric's partitions damaged, set aside", path=str(kept), error=str(error))
            return None
