"""Collects and checks the key with which this machine's Secrets are encrypted; no value is opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.cli.doctor.finding import Finding

_OTHERS: Final = 0o077


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was read."""

    kept: int | None = 0
    """Secrets that the service has; None: it is older than the question."""
    path: Path | None = None
    """The key's file; None: it was not looked at."""
    problem: str = ""
    """Why values cannot be opened with it; empty: they can."""
    mode: int = 0
    """Permissions of the file."""


def collect(folder: Path, kept: int | None) -> Facts:
    """Read the key. Args: folder: of the state.   kept: how many Secrets the service has; None: it cannot say."""
    if not kept or os.geteuid() != 0:
        return Facts(kept=kept)
    from fairlead.store import sealing  # it loads a large library

    path = folder / sealing.KEY_FILE
    try:
        sealing.Seal(path).check()
        return Facts(kept=kept, path=path, mode=path.stat().st_mode & 0o777)
    except errors.ProtocolError as error:
        return Facts(kept=kept, path=path, problem=error.message)


def check(seen: Facts) -> Iterator[Finding]:
    """Yield a finding; none where no Secrets are kept."""
    if seen.kept is None:
        what = "not checked: the key of the service's secrets"
        why = "the service that runs is older than this program, and says nothing of secrets"
        yield Finding(check="secrets", level="skip", what=what, why=why, fix="start it anew with this version")
        return
    if not seen.kept:
        return
    if seen.path is None:
        what = f"the key of {seen.kept} secrets was not looked at"
        yield Finding(check="secrets", level="skip", what=what, why="only root may read it", fix="run it as root")
    elif seen.problem:
        yield Finding(
            check="secrets",
            level="fail",
            what=seen.problem,
            why=f"none of {seen.kept} secrets can be opened: containers that name one do not start",
            fix=f"put {seen.path} back from a backup, or move it away and give each anew: `fairlead secrets create "
            "--replace NAME`",
        )
    elif seen.mode & _OTHERS:
        why = f"it opens the values in state.db, and its mode is {seen.mode:o}"
        fix = f"`chmod 600 {seen.path}`, and give new values to what others may have read"
        yield Finding(check="secrets", level="warn", what=f"others may read {seen.path}", why=why, fix=fix)
    else:
        what = f"{seen.kept} kept, encrypted with {seen.path}, which root alone may read"
        yield Finding(check="secrets", level="ok", what=what)
