"""Text from outside is shown on a terminal, never obeyed."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli.core import output, plaintext

_HOSTILE = "\x1b]0;owned\x07x\x1b[2Jy\x9b31mz\u202egnp.exe\r"


def test_escape_sequences_are_shown_as_text() -> None:
    found = plaintext.shown(_HOSTILE)
    assert found == "\\x1b]0;owned\\x07x\\x1b[2Jy\\x9b31mz\\u202egnp.exe\\r"


def test_our_colours_new_lines_and_tabs_stay() -> None:
    text = click.style("a\tb", fg="red") + "\nc"
    assert plaintext.shown(text) == text


@given(st.text())
def test_nothing_that_moves_a_cursor_gets_through(text: str) -> None:
    found = plaintext.shown(text)
    assert not set(found) & set("\x07\x08\r\x7f\x9b\x9d\u202e")
    assert all(part.partition("m")[0].strip("0123456789;") == "" for part in found.split("\x1b[")[1:])


def test_a_table_holds_every_value_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [output.Column[str]("NAME", str)]
    output.show_listing([_HOSTILE + "\nfake   row"], columns, form="table", name=str)
    output.show_listing([_HOSTILE], columns, form="name", name=str)
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert len(printed.splitlines()) == 3
