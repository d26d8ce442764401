"""Defines what one setting is: a dataclass field made by `row`, seen by readers and pages as a `Row`."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

from fairlead.frozen import frozen

PREFIX: Final = "FAIRLEAD_"


def row(default: Any, *, text: str, unit: str | None = None, choices: tuple[str, ...] = ()) -> Any:
    """Declare one setting: its default, what it means (shown in help and docs), its unit and allowed values."""
    return field(default=default, metadata={"text": text, "unit": unit, "choices": choices})


@frozen
class Row:
    """One setting as help, environment reader, file reader and docs see it."""

    group: str
    name: str
    type: Any
    default: Any
    text: str
    unit: str | None
    choices: tuple[str, ...]

    @property
    def env(self) -> str:
        """Environment variable."""
        return f"{PREFIX}{self.group}_{self.name}".upper()

    @property
    def key(self) -> str:
        """Key in the file, `group.name`."""
        return f"{self.group}.{self.name}"

    @property
    def flag(self) -> str:
        """Command-line flag."""
        return f"--{self.group}-{self.name}".replace("_", "-")
