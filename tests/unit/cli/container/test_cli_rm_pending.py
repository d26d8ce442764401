"""Removing takes no grace: of what waits, though it may begin meanwhile, and by force of what runs."""

from __future__ import annotations

import time

import pytest

from fairlead.cli.core.client import Client
from fairlead.serve.v1.containers.view import ContainerView
from tests.unit.cli.conftest import Service


def test_a_waiting_container_that_begins_meanwhile_is_removed_at_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.fairlead("run", "-d", "-g", "3", "--name", "big", "demo", "sleep", "60")
    service.fairlead("run", "-d", "-g", "2", "--name", "small", "demo", "sleep", "60")
    graces: list[int | None] = []
    real = Client.delete

    def begun(client: Client, name: str, namespace: str, *, grace_s: int | None = None) -> ContainerView:
        graces.append(grace_s)
        if name == "small":
            real(client, "big", namespace, grace_s=0)
            assert client.wait(name, namespace, state="started", timeout_s=10).state == "running"
        return real(client, name, namespace, grace_s=grace_s)

    monkeypatch.setattr(Client, "delete", begun)
    started = time.monotonic()
    result = service.fairlead("rm", "small")
    assert (result.exit_code, result.stdout, graces) == (0, "small\n", [0])
    assert time.monotonic() - started < 60
    assert service.fairlead("rm", "small").exit_code == 2


def test_what_runs_is_killed_by_force_and_has_time_where_that_is_given(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.fairlead("run", "-d", "--name", "a", "demo", "sleep", "60")
    service.fairlead("wait", "--state", "started", "a")
    graces: list[int | None] = []
    real = Client.delete

    def noted(client: Client, name: str, namespace: str, *, grace_s: int | None = None) -> ContainerView:
        graces.append(grace_s)
        return real(client, name, namespace, grace_s=grace_s)

    monkeypatch.setattr(Client, "delete", noted)
    for line in (("-f", "a"), ("-f", "-t", "2", "b")):
        service.fairlead("run", "-d", "--name", line[-1], "demo", "sleep", "60")
        service.fairlead("wait", "--state", "started", line[-1])
        service.fairlead("rm", *line)
    assert graces == [0, 2]
