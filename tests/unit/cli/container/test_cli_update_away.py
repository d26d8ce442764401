"""`fairlead update` does not wait for a service that went away after it took the new size."""

from __future__ import annotations

import pytest
from click.testing import Result

from fairlead import errors
from fairlead.cli.core.client import Client
from fairlead.serve.v1.containers.view import ContainerView
from tests.unit.cli.conftest import Service


def _update(service: Service, monkeypatch: pytest.MonkeyPatch, failure: errors.FairleadError) -> tuple[Result, float]:
    """Update a container that waits, of which nothing can be read then; returns the patience too."""
    service.fairlead("run", "-d", "-g", "3", "--name", "big", "demo", "sleep", "60")
    service.fairlead("run", "-d", "-g", "2", "--name", "a", "--cpus", "1", "demo", "sleep", "60")
    real, patience = Client.container, list[float]()

    def look(client: Client, name: str, namespace: str = "") -> ContainerView:
        patience.append(client.patience_s)
        if len(patience) > 1:  # the first look is before the request
            raise failure
        return real(client, name, namespace)

    monkeypatch.setattr(Client, "container", look)
    return service.fairlead("update", "a", "--cpus", "2"), patience[-1]


def test_a_service_that_went_away_is_said_and_not_waited_for(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = errors.Unavailable("refused", reason="ServiceUnreachable", hint="")
    result, patience = _update(service, monkeypatch, gone)
    assert (result.exit_code, result.stdout, patience) == (0, "a\n", 0.0)
    assert "note: a is to get its new size; the service went away before it said whether it has it" in result.stderr


def test_another_failure_is_the_verbs_own(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    full = errors.Unavailable("full", reason="StoreFull", hint="")
    result, _ = _update(service, monkeypatch, full)
    assert (result.exit_code, result.stderr) == (6, "error: full\n")
