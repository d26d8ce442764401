from __future__ import annotations

import pytest

from fairlead.model.container import stopsignal


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("SIGINT", 2),
        ("int", 2),
        ("9", 9),
        ("SIGRTMIN", 34),
        ("RTMIN+3", 37),
        ("SIGRTMAX-1", 63),
        ("SIGRTMAX+1", None),
        ("RTMIN-1", None),
        ("0", None),
        ("65", None),
        ("999", None),
        ("", None),
        ("SIGSIGINT", None),
        ("--help", None),
        ("2\n", None),
        ("\u0662", None),
    ],
)
def test_a_signal_is_a_number_or_a_name(text: str, number: int | None) -> None:
    assert stopsignal.number(text) == number
