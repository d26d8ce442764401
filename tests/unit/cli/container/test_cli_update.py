"""`fairlead update` waits for the node, and for a service that is away no longer; `rename` says the name."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.cli.container import update
from fairlead.cli.core.client import Client
from fairlead.serve.v1.containers.view import ContainerView
from tests.unit.cli.conftest import Service

_AWAY = "the service does not answer"


def _asked(service: Service, monkeypatch: pytest.MonkeyPatch, *, away: int) -> list[float]:
    """Have the service be away for the first looks after a change. Returns the client's patience at each."""
    service.fairlead("run", "-d", "-g", "3", "--name", "big", "demo", "sleep", "60")
    service.fairlead("run", "-d", "-g", "2", "-m", "1g", "--name", "box", "demo", "sleep", "60")
    seen: list[float] = []
    real = Client.container

    def looked(client: Client, name: str, namespace: str) -> ContainerView:
        if not client._patience_s:
            seen.append(client.patience_s)
            if len(seen) <= away:
                raise errors.Unavailable(_AWAY, reason="ServiceUnreachable")
        return real(client, name, namespace)

    monkeypatch.setattr(Client, "container", looked)
    monkeypatch.setattr(update, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(update, "_POLL_S", 0.01)
    return seen


def test_a_service_that_comes_back_in_time_is_waited_for(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _asked(service, monkeypatch, away=2)
    done = service.fairlead("update", "box", "-m", "2g")
    assert done.exit_code == 0, done.stderr
    assert (done.stdout, len(seen) >= 3, set(seen)) == ("box\n", True, {0.0})


def test_one_that_stays_away_is_said_with_what_is_stored(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    _asked(service, monkeypatch, away=10**6)
    done = service.fairlead("update", "box", "-m", "2g")
    assert done.exit_code == 6
    assert f"the new size of box is stored, and its node has not said that it has it: {_AWAY}" in done.stderr


def test_rename_prints_the_new_name_and_refuses_what_runs(service: Service) -> None:
    service.fairlead("run", "--name", "old", "demo", "echo", "hi")
    assert service.fairlead("rename", "old", "new").stdout == "new\n"
    assert service.fairlead("logs", "new").stdout == "hi\n"
    service.fairlead("run", "-d", "--name", "busy", "demo", "sleep", "60")
    service.fairlead("wait", "--state", "started", "busy")
    refused = service.fairlead("rename", "busy", "idle")
    assert (refused.exit_code, "fairlead stop busy" in refused.stderr) == (4, True)
