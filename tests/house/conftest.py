"""Where the tree is, and what it weighs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import measure

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the package's size, room by room, where the house was asked for by name: it takes seconds."""
    if not any("house" in one for one in config.args):
        return
    rooms = measure.rooms(ROOT)
    shown = ", ".join(f"{room} {lines}" for room, lines in sorted(rooms.items(), key=lambda item: -item[1]))
    terminalreporter.write_sep("-", "code lines")
    terminalreporter.write_line(f"{sum(rooms.values())}: {shown}")
