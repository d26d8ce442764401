"""What a part found: checks, one JSON line each, written at once so that a part which hangs loses nothing."""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final


class State(enum.Enum):
    """How a check ended."""

    OK = "ok"
    DIFFERS = "differs"
    """Fairlead says something else than the driver's own programs."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """It could not be tried; the message says what is missing."""
    NOTE = "note"
    """Something to know, neither right nor wrong: a figure, a place."""


BAD: Final = frozenset({State.DIFFERS, State.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison or one attempt."""

    name: str
    state: State
    ours: str = ""
    theirs: str = ""
    message: str = ""
    is_required: bool = True
    """Whether the part fails where this is bad; where it is skipped, the page says so."""

    def document(self) -> dict[str, Any]:
        """Return the check as JSON has it."""
        return {
            "name": self.name,
            "state": self.state.value,
            "ours": self.ours,
            "theirs": self.theirs,
            "message": self.message,
            "required": self.is_required,
        }


def read_check(document: dict[str, Any]) -> Check:
    """Return the check of one line of a log."""
    return Check(
        name=str(document["name"]),
        state=State(document["state"]),
        ours=str(document["ours"]),
        theirs=str(document["theirs"]),
        message=str(document["message"]),
        is_required=bool(document["required"]),
    )


@dataclass
class Log:
    """Where a part writes what it finds."""

    path: Path
    _facts: dict[str, Any] = field(default_factory=dict)

    def add(self, check: Check) -> None:
        """Write one check."""
        self._write({"check": check.document()})

    def fact(self, name: str, value: Any) -> None:
        """Keep a value for the report: a figure, or an answer as it was. It must be JSON's."""
        self._write({"fact": name, "value": value})

    def ok(self, name: str, message: str = "", *, ours: str = "", theirs: str = "", required: bool = True) -> None:
        """Write that something is as it should be."""
        self.add(Check(name=name, state=State.OK, message=message, ours=ours, theirs=theirs, is_required=required))

    def fail(self, name: str, message: str, *, required: bool = True) -> None:
        """Write that something does not work."""
        self.add(Check(name=name, state=State.FAILED, message=message, is_required=required))

    def skip(self, name: str, message: str) -> None:
        """Write that something could not be tried, and why."""
        self.add(Check(name=name, state=State.SKIPPED, message=message, is_required=False))

    def note(self, name: str, message: str) -> None:
        """Write something to know."""
        self.add(Check(name=name, state=State.NOTE, message=message, is_required=False))

    def judge(self, name: str, is_right: bool, message: str = "", *, required: bool = True) -> bool:
        """Write a check that is right or has failed; returns whether it is right."""
        state = State.OK if is_right else State.FAILED
        self.add(Check(name=name, state=state, message=message, is_required=required))
        return is_right

    def compare(self, name: str, ours: object, theirs: object, *, within: float = 0.0, required: bool = True) -> None:
        """Write whether two answers are one.

        Args: within: by how much numbers may differ, in their unit.   required: false for what moves by itself.
        """
        is_same = ours == theirs
        if not is_same and isinstance(ours, int | float) and isinstance(theirs, int | float):
            is_same = abs(ours - theirs) <= within
        state = State.OK if is_same else State.DIFFERS
        message = f"may differ by {within:g}" if within else ""
        self.add(
            Check(
                name=name,
                state=state,
                ours=_shown(ours),
                theirs=_shown(theirs),
                message=message,
                is_required=required,
            )
        )

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Keep how long a block takes, in milliseconds."""
        began = time.perf_counter()
        yield
        self.fact(f"{name}_ms", round((time.perf_counter() - began) * 1000, 3))

    def _write(self, line: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


def read_log(path: Path) -> tuple[tuple[Check, ...], dict[str, Any]]:
    """Return what a part has written so far: its checks and its facts. A line cut short by a kill is left out."""
    checks, facts = [], {}
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if "check" in found:
            checks.append(read_check(found["check"]))
        else:
            facts[found["fact"]] = found["value"]
    return tuple(checks), facts
