from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The world is shared with tests/unit/serve; without this line only `python -m pytest` would find it.
sys.path.insert(0, str(Path(__file__).parents[3]))

from fairlead import telemetry
from tests.unit.cli.liveservice import Service, fairlead, serving

__all__ = ["Service", "fairlead"]


@pytest.fixture(autouse=True)
def _log_is_the_process_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep verbs from setting up the log: for this process that would be for good, and tests after it read it."""
    monkeypatch.setattr(telemetry, "configure", lambda _level, _form: None)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path) as live:
        yield live
