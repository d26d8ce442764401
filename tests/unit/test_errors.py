"""The error table: complete, and every answer in it exists where it is used."""

from __future__ import annotations

import http
import inspect
import re

import grpc
import pytest

from fairlead import errors

_CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.FairleadError)]
_LEAVES = [kind for kind in _CLASSES if kind is not errors.FairleadError]


@pytest.mark.parametrize("kind", _LEAVES)
def test_every_class_has_its_row_its_line_in_the_tree_and_its_meaning(kind: type[errors.FairleadError]) -> None:
    assert kind in errors.TABLE
    assert re.search(rf"── {kind.__name__}\b", errors.__doc__ or "")
    assert kind.__doc__


def test_the_table_has_no_row_without_a_class() -> None:
    assert set(errors.TABLE) == set(_LEAVES)


@pytest.mark.parametrize("row", errors.TABLE.values())
def test_every_answer_exists_in_its_protocol(row: errors.Row) -> None:
    assert grpc.StatusCode[row.grpc] is not grpc.StatusCode.OK
    assert http.HTTPStatus(row.http) >= http.HTTPStatus.BAD_REQUEST
    assert 1 <= row.exit <= 125


def test_exit_codes_tell_who_must_act() -> None:
    by_exit: dict[int, set[str]] = {}
    for row in errors.TABLE.values():
        by_exit.setdefault(row.exit, set()).add(row.who)
    assert all(len(who) == 1 for who in by_exit.values())


def test_a_class_of_ones_own_answers_as_its_nearest_ancestor() -> None:
    class LeaseFenced(errors.Gone):
        """A subclass that no table knows."""

    found = errors.row_of(LeaseFenced("stale", reason="LeaseFenced"))
    assert found is errors.TABLE[errors.Gone]


def test_an_error_carries_message_reason_hint_and_context() -> None:
    error = errors.Denied("gpu quota 4 is used up", reason="QuotaExceeded", hint="ask ops", tenant="red")
    assert (str(error), error.reason, error.context) == ("gpu quota 4 is used up", "QuotaExceeded", {"tenant": "red"})
    assert errors.sentence(error) == "gpu quota 4 is used up (ask ops)"


def test_a_message_that_already_says_it_needs_no_hint() -> None:
    assert errors.sentence(errors.Invalid("no name given", reason="X")) == "no name given"


def test_a_message_that_names_ten_megabytes_can_be_read() -> None:
    error = errors.Invalid(f'name "{"x" * 10_000_000}" is too long', reason="X", hint="y" * 5000)
    assert error.message.startswith('name "xxx')
    assert error.message.endswith('x" is too long')
    assert "characters left out" in error.message
    assert len(errors.sentence(error)) < 5000


def test_a_message_can_be_written_whatever_it_names() -> None:
    assert errors.Invalid("a\ud800b", reason="X").message.encode() == b"a\\ud800b"


@pytest.mark.parametrize(
    ("text", "message", "step"),
    [
        ("no such image (import it)", "no such image", "import it"),
        ("cannot pull a (b): no host (is it (really) there?)", "cannot pull a (b): no host", "is it (really) there?"),
        ("no step", "no step", ""),
        ("not a step(x)", "not a step(x)", ""),
        ("open( (x", "open( (x", ""),
        ("", "", ""),
        ("(all)", "(all)", ""),
        (")", ")", ""),
    ],
)
def test_a_sentence_falls_into_message_and_step(text: str, message: str, step: str) -> None:
    assert errors.parted(text) == (message, step)
