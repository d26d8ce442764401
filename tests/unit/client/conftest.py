from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The world is shared with tests/unit/serve; without this line only `python -m pytest` would find it.
sys.path.insert(0, str(Path(__file__).parents[3]))

from fairlead import Client
from tests.unit.cli.liveservice import Service, serving


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path) as live:
        yield live


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.env["FAIRLEAD_URL"]) as found:
        yield found
