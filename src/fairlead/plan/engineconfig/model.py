"""Declares what an engine's configuration is decided from and what comes out: requests, locations, changes, edits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

CDI_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")
PROGRAM: Final = "fairlead-runtime"
HEADER: Final = "# Written by `fairlead runtime configure`"
"""How every file that is wholly ours begins; it is how one is known without a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the operator asks for."""

    folder: str
    """Where the shim's launchers lie, absolute."""
    name: str = "fairlead"
    """Name of the handler: a RuntimeClass, `--runtime` of docker and podman."""
    alias: str = "nvidia"
    """The same handler under the name that pods and scripts know already; empty: none."""
    is_default: bool = False
    enables_cdi: bool = True
    has_kata: bool = False
    kata_folder: str = "/opt/kata"
    gvisor: str = ""
    """Path of gVisor's runsc; empty: no handler for it."""
    gvisor_flags: tuple[str, ...] = ()
    """Options of runsc, without their dashes."""
    gvisor_dev: str = ""
    """Folder whose device nodes gVisor opens in place of those in /dev; empty: those in /dev."""
    python: str = "/usr/bin/python3"
    """Path of an interpreter for podman's handler of gVisor; no module outside the standard library is needed."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that the handler answers to."""
        return (self.name, self.alias) if self.alias else (self.name,)


class HostFiles(Protocol):
    """The host's files as they would be had we never been there."""

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None: it is not there."""
        ...

    def glob(self, pattern: str) -> Sequence[str]:
        """Return the paths that match, sorted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where an engine is configured, and which release reads it."""

    config: str
    drop_in: str = ""
    """Empty: where the engine looks."""
    version: tuple[int, ...] | None = None
    """None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One more text in a list at the top of a TOML file."""

    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One value of a JSON file."""

    path: tuple[str, ...]
    value: Any


Change: TypeAlias = Item | Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One file before and after."""

    path: str
    before: bytes | None
    """None: it is made."""
    after: bytes
    changes: tuple[Change, ...] = ()
    """Which parts of a file that others wrote are ours; none: all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """All that would be written, and what the operator should know."""

    program: str
    """The handler's program."""
    runtimes: tuple[str, ...]
    """OCI runtimes the engine was configured with so far, for the shim to become; none: the shim's own choice."""
    edits: tuple[Edit, ...]
    notes: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()
    """Why the engine would not do what is requested all the same."""
    documents: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """The files that the engine would read, parsed, in its order; none: not known for this engine."""
