"""Where the tree is, what it weighs, and what a reader of the change should look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import measure, taste

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the package's size by room and the remarks, where the house was asked for by name: it takes seconds."""
    if not any("house" in one for one in config.args):
        return
    rooms = measure.rooms(ROOT)
    shown = ", ".join(f"{room} {lines}" for room, lines in sorted(rooms.items(), key=lambda item: -item[1]))
    terminalreporter.write_sep("-", "code lines")
    terminalreporter.write_line(f"{sum(rooms.values())}: {shown}")
    if found := taste.remarks(ROOT):
        terminalreporter.write_sep("-", "look at (nothing of it fails)")
        for line in found:
            terminalreporter.write_line(line)
