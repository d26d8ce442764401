"""`events` speaks to people, and repeats a cluster's words to programs."""

from __future__ import annotations

import json

import pytest

from fairlead.cli.core import output
from fairlead.cli.view import events
from fairlead.serve.v1.events.view import EventView

_SAID = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
_EVENT = EventView(
    at="2026-01-01T00:00:00Z",
    object="pod/a",
    namespace="default",
    type="Warning",
    reason="FailedScheduling",
    message=_SAID,
    source="fairlead",
    count=1,
)


@pytest.mark.parametrize("form", ["table", "wide"])
def test_a_person_reads_words_and_no_resource_names(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.show_listing([_EVENT], events._EVENT_COLUMNS, form=form, name=lambda item: item.object)
    events._show_event(_EVENT, form)
    shown = capsys.readouterr().out
    assert shown.count("it does not fit: too few GPUs free") == 2
    assert "Insufficient" not in shown


def test_a_program_reads_the_message_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    events._show_event(_EVENT, "json")
    assert json.loads(capsys.readouterr().out)["message"] == _SAID
