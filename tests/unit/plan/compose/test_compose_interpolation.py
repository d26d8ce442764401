"""Variables in Compose files, by the specification's table and beyond it; files of variables."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.plan.compose import envfile
from fairlead.plan.compose.interpolate import Variables

_VALUES = {"A": "1", "E": "", "D": "$A", "a_b": "x"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("$A", "1"),
        ("${A}", "1"),
        ("$a_b-", "x-"),
        ("${NO}", ""),
        ("${NO:-d}", "d"),
        ("${E:-d}", "d"),
        ("${E-d}", ""),
        ("${NO-d}", "d"),
        ("${A:+r}", "r"),
        ("${E:+r}", ""),
        ("${E+r}", "r"),
        ("${NO+r}", ""),
        ("${A:?e}", "1"),
        ("${E?e}", ""),
        ("$$A", "$A"),
        ("$${A}", "${A}"),
        ("${NO:-${E:-${A}}}", "1"),
        ("${NO:-$$}", "$"),
        ("${NO:-http://x:1/?a=b}", "http://x:1/?a=b"),
        ("${D}", "$A"),
        ("${A:-${NO:?never asked}}", "1"),
    ],
)
def test_a_text_is_as_the_specification_has_it(text: str, wanted: str) -> None:
    assert Variables(_VALUES).put_in(text, "p") == wanted


@pytest.mark.parametrize("text", ["$", "$ ", "$1", "${", "${}", "${A", "${A!b}", "${1}", "${NO:-${A}", "${A:}"])
def test_what_is_not_of_the_language_names_its_place(text: str) -> None:
    with pytest.raises(errors.Invalid, match=r"^services\.web\.image: "):
        Variables(_VALUES).put_in(text, "services.web.image")


@pytest.mark.parametrize("text", ["${NO:?it is needed}", "${E:?it is needed}", "${NO?it is needed}"])
def test_a_variable_that_must_be_set_says_why(text: str) -> None:
    with pytest.raises(errors.Invalid, match="it is needed"):
        Variables(_VALUES).put_in(text, "p")


def test_only_what_is_used_counts_as_unset() -> None:
    variables = Variables(_VALUES)
    variables.put_in("${A:-$NO1}$NO2${NO3:-x}", "p")
    assert list(variables.unset) == ["NO2"]


@given(st.text())
def test_a_text_with_doubled_dollars_comes_out_as_it_was(text: str) -> None:
    assert Variables({}).put_in(text.replace("$", "$$"), "p") == text


def test_deep_and_growing_texts_are_refused_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(errors.Invalid, match="nested deeper"):
        Variables({}).put_in("${A:-" * 50_000 + "}" * 50_000, "p")
    variables = Variables({"A": "x" * 1_000_000})
    with pytest.raises(errors.Invalid, match="characters"):
        variables.put_in("$A" * 1000, "p")
    doubling = "A0=xxxxxxxxxx\n" + "".join(f"A{n}=$A{n - 1}$A{n - 1}\n" for n in range(1, 60))
    with pytest.raises(errors.Invalid, match="characters"):
        envfile.parse(doubling, ".env", {})
    assert time.monotonic() - began < 2


def test_a_file_of_variables_is_read_as_compose_reads_it() -> None:
    text = (
        "# remark\r\nA=1\nexport B=\"x $A\\n\\$z\"\nC='$A' # remark\nD=a b # c\nE\nNONE\nF: y\nH=#x\n"
        'G="two\nlines"\nI=\n'
    )
    assert envfile.parse(text, ".env", {"E": "own"}) == {
        "A": "1",
        "B": "x 1\n$z",
        "C": "$A",
        "D": "a b",
        "E": "own",
        "F": "y",
        "H": "",
        "G": "two\nlines",
        "I": "",
    }


@pytest.mark.parametrize("text", ["=x", 'A="open', "A='x' y", "A B=1"])
def test_a_line_that_is_none_is_named(text: str) -> None:
    with pytest.raises(errors.Invalid, match="line 1"):
        envfile.parse(text, ".env", {})
