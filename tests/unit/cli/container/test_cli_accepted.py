"""`run -d` names what was accepted, also where the service goes away before it says whether a node has room."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import errors
from fairlead.cli.container.start import hopeless
from fairlead.client.calls import AWAY


class Gone:
    """A service that took a container and was killed."""

    def __init__(self, reason: str) -> None:
        self.reason, self.is_impatient = reason, False

    @contextlib.contextmanager
    def impatient(self) -> Iterator[None]:
        self.is_impatient = True
        yield
        self.is_impatient = False

    def explain(self, name: str, namespace: str) -> Any:
        assert self.is_impatient, (name, namespace)
        raise errors.Unavailable("it is gone", reason=self.reason)


class Shown:
    name, namespace = "train", "default"


@pytest.mark.parametrize("reason", sorted(AWAY))
def test_a_service_that_went_away_is_said_and_not_waited_for(reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    hopeless.end(Gone(reason), [Shown()])  # type: ignore[arg-type, list-item]
    assert "train is accepted; the service went away" in capsys.readouterr().err


def test_another_failure_is_one() -> None:
    with pytest.raises(errors.Unavailable):
        hopeless.end(Gone("LedgerSlow"), [Shown()])  # type: ignore[arg-type, list-item]
