"""A verb right after `run -d` waits for the container that is being started, and for nothing else."""

from __future__ import annotations

import pytest

from fairlead.cli.access import stats
from fairlead.cli.core.client import Client
from fairlead.cli.core.terminal import starting
from fairlead.serve.v1.containers.view import ContainerView
from tests.unit.cli.liveservice import Service

VERBS = {
    "exec": ("exec", "train", "--", "echo", "here"),
    "cp": ("cp", "train:/etc/hostname", "-"),
    "top": ("top", "train"),
    "stats": ("stats", "--no-stream", "train"),
    "port": ("port", "train"),
    "kill": ("kill", "-s", "0", "train"),
}


@pytest.fixture
def slow(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """Return a service whose node starts nothing until somebody waits for it."""
    wait = Client.wait

    def waiting(self: Client, name: str, namespace: str, *, state: str, timeout_s: float) -> ContainerView:
        service.loop.call_soon_threadsafe(service.world.may_start.set)
        return wait(self, name, namespace, state=state, timeout_s=timeout_s)

    monkeypatch.setattr(Client, "wait", waiting)
    monkeypatch.setattr(stats, "_APART_S", 0.0)
    service.loop.call_soon_threadsafe(service.world.may_start.clear)
    return service


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_waits_for_a_container_that_is_being_started(slow: Service, verb: str) -> None:
    assert slow.fairlead("run", "-d", "--name", "train", "demo", "sleep", "60").exit_code == 0

    done = slow.fairlead(*VERBS[verb])

    assert "is not running" not in done.stderr
    assert slow.fairlead("wait", "--state", "started", "train").exit_code == 0
    again = slow.fairlead(*VERBS[verb])
    assert (done.exit_code, done.stderr) == (again.exit_code, again.stderr)


def test_a_verb_is_refused_at_once_where_the_container_waits_for_gpus(service: Service) -> None:
    assert service.fairlead("run", "-d", "--name", "all", "-g", "4", "demo", "sleep", "60").exit_code == 0
    assert service.fairlead("wait", "--state", "started", "all").exit_code == 0
    assert service.fairlead("run", "-d", "--name", "train", "-g", "1", "demo", "sleep", "60").exit_code == 0
    while '"Unschedulable"' not in service.fairlead("inspect", "train").stdout:
        pass

    done = service.fairlead("exec", "train", "--", "ls")

    assert done.exit_code == 4
    assert '"train" is not running (it is pending)' in done.stderr


def test_a_verb_is_refused_at_once_where_the_container_has_ended(service: Service) -> None:
    assert service.fairlead("run", "--name", "train", "demo", "true").exit_code == 0

    done = service.fairlead("exec", "train", "--", "ls")

    assert done.exit_code == 4
    assert '"train" is not running (it is succeeded' in done.stderr


def test_a_start_that_never_comes_is_given_up(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.loop.call_soon_threadsafe(service.world.may_start.clear)
    monkeypatch.setattr(starting, "PATIENCE_S", 0.0)
    assert service.fairlead("run", "-d", "--name", "train", "demo", "sleep", "60").exit_code == 0

    done = service.fairlead("exec", "train", "--", "ls")

    assert done.exit_code == 4
    assert '"train" is still being started after 0 s' in done.stderr
    assert "fairlead explain train" in done.stderr
