"""Whoever waits for a stop reads how long the container still has, as long as it has any time."""

from __future__ import annotations

import io
import types
from collections.abc import Iterator

import msgspec
import pytest

from fairlead import errors
from fairlead.cli.container import stop
from fairlead.cli.core import progress
from fairlead.cli.core.client import Client
from fairlead.serve.v1.containers.view import ContainerView


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """What stood on the line, one after the other, without the spinner."""
        return [text.strip()[2:] for text in self.getvalue().split("\r") if text.strip()][::2]


_SHOWN = ContainerView(
    name="train",
    namespace="default",
    uid="1",
    image="demo",
    state="stopping",
    reason="",
    message="",
    exit_code=None,
    gpus=0,
    resources={},
    devices={},
    ports=(),
    priority=0,
    priority_class="",
    grace_s=10,
    node="vm",
    restarts=0,
    labels={},
    created_at=None,
    started_at=None,
    finished_at=None,
    containers=(),
)
_ENDED = msgspec.structs.replace(_SHOWN, state="stopped")


def looked_at(monkeypatch: pytest.MonkeyPatch, looks: Iterator[tuple[float, ContainerView | None]]) -> Client:
    """Return a client that sees the container so at these seconds of the stop's clock; None: it is gone."""
    clock = types.SimpleNamespace(now=0.0)

    def wait(_client: Client, _name: str, _namespace: str, *, state: str, timeout_s: float) -> ContainerView:
        assert state in {"ended", "gone"}
        assert timeout_s < 1
        clock.now, seen = next(looks)
        if seen is None:
            raise errors.NotFound("it is gone", reason="ContainerNotFound")
        return seen

    monkeypatch.setattr(Client, "wait", wait)
    monkeypatch.setattr(stop, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    return Client.__new__(Client)


def test_a_stop_counts_down_to_the_kill_and_not_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    client = looked_at(monkeypatch, iter([(0.0, _SHOWN), (6.0, _SHOWN), (9.4, _SHOWN), (11.0, _SHOWN), (12.0, _ENDED)]))
    terminal = _Terminal()
    with progress.Progress(terminal) as waiting:
        assert stop.await_end(client, "train", "default", None, waiting) == "stopped"
    assert terminal.lines == [
        "stopping train, killed in 10 s",
        "stopping train, killed in 4 s",
        "stopping train, killed in 1 s",
        "stopping train",
    ]
    assert terminal.getvalue().rsplit("\r", 1)[1] == ""


def test_the_countdown_begins_at_what_was_asked_for_and_ends_with_the_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = looked_at(monkeypatch, iter([(0.0, _SHOWN), (1.0, _ENDED), (2.0, None)]))
    terminal = _Terminal()
    with progress.Progress(terminal) as waiting:
        stop.await_gone(client, "train", "default", 3, waiting)
    assert terminal.lines == ["removing train, killed in 3 s", "removing train"]


def test_where_lines_are_written_there_is_no_countdown(monkeypatch: pytest.MonkeyPatch) -> None:
    client = looked_at(monkeypatch, iter([(0.0, _SHOWN), (1.0, _SHOWN), (2.0, None)]))
    monkeypatch.setattr(progress, "_QUIET_S", 0.0)
    written = io.StringIO()
    with progress.Progress(written) as waiting:
        assert stop.await_end(client, "train", "default", None, waiting) == "gone"
    assert written.getvalue() == "stopping train (0 s)\n"
