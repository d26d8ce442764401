"""A person who waits at a terminal reads why; a pipe reads the state alone."""

from __future__ import annotations

import pytest

from fairlead.cli.container import explain
from tests.unit.cli.conftest import Service


@pytest.mark.parametrize("is_terminal", [True, False])
def test_wait_says_why_on_a_terminal(service: Service, monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    service.fairlead("run", "-d", "-g", "3", "--name", "big", "demo", "sleep", "60")
    service.fairlead("run", "-d", "-g", "2", "--name", "small", "demo")
    shown: list[str] = []
    real = explain.waiting_line

    def noted(*given: object) -> str:
        line = real(*given)  # type: ignore[arg-type]
        shown.append(line)
        return line

    monkeypatch.setattr(explain, "waiting_line", noted)
    monkeypatch.setattr("fairlead.cli.container.wait.is_watched", lambda: is_terminal)
    result = service.fairlead("wait", "small", "--timeout", "1.5")
    assert result.exit_code == 5
    if is_terminal:
        assert shown[0].startswith("small: waiting for 2 GPUs: 1 of 4 is free; 3 held by big")
    else:
        assert shown == []


def test_ps_names_the_person(service: Service) -> None:
    service.fairlead("run", "-d", "-n", "user-0", "--name", "a", "demo", "sleep", "60")
    service.fairlead("run", "-d", "-n", "user-3999999999", "--name", "b", "demo", "sleep", "60")
    rows = [line.split() for line in service.fairlead("ps").stdout.splitlines()]
    assert [row[:2] for row in rows] == [["NAME", "OWNER"], ["a", "root"], ["b", "user-3999999999"]]
    wide = service.fairlead("ps", "-o", "wide").stdout.splitlines()
    assert wide[0].split()[:3] == ["NAME", "OWNER", "NAMESPACE"]
    assert wide[1].split()[:3] == ["a", "root", "user-0"]
