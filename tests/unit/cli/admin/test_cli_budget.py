"""`fairlead budget` refuses by itself what is no list of percentages."""

from __future__ import annotations

import pytest

from tests.unit.cli.conftest import Service


@pytest.mark.parametrize("text", ["half", "50,-1", "٣", "9" * 5000])
def test_what_is_no_percentage_is_named(service: Service, text: str) -> None:
    answer = service.fairlead("budget", "set", "red", "100", f"--notify-percent={text}")
    assert "is not percentages" in answer.stderr
    assert answer.exit_code == 2
