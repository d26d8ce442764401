"""Expressions that mean harm: each is refused or ends soon, with an error that is a few lines long."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead import errors
from fairlead.plan.cel import compile as cel
from fairlead.plan.cel.device import DeviceView
from fairlead.plan.cel.problem import CELError
from tests.unit.plan.cel.generated import Generator
from tests.unit.plan.cel.samples import DEVICE, A

_SOON_S = 5.0
_HOSTILE = [
    "(" * 10_000,
    "(" * 5_000 + "true" + ")" * 5_000,
    "[" * 10_000,
    "{" * 5_000,
    "!" * 10_000 + "true",
    "-" * 10_000 + "1 == 1",
    "a." * 5_000 + "a",
    "1+" * 5_000 + "1 == 1",
    "true?" * 2_000,
    "true&&" * 1_700 + "true",
    "'" + "a" * 10_200 + "' == ''",
    "x" * 10_240,
    "9" * 10_000 + " == 1",
    "1e" + "9" * 10_000 + " == 1",
    "\x00",
    "device.driver == '\x00'",
    "'\\u0000' == ''",
    "9223372036854775808 == 1",
    "'\ud800' == ''",
    "[[1]]" + ".map(x, x)" * 900,
    "optional.of(1)" + ".optMap(x, x)" * 500 + ".hasValue()",
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!'.matches('(a+)+$')",
    "'a'.matches('(a{1000}){1000}')",
    "'a'.matches('" + "(" * 2_000 + "')",
    "[1,2,3,4,5,6,7,8,9,10]" + ".map(x, [1,2,3,4,5,6,7,8,9,10]" * 6 + ".map(y, y)" + ")" * 6 + ".size() == 1",
    "lists.range(1000000000000).size() == 1",
    "lists.range(1000000).map(x, x).size() == 1",
    "lists.range(1000).map(x, lists.range(1000)).flatten().distinct().size() == 1",
    "lists.range(100000).transformMap(i, v, v).size() == 1",
    "'%.1000000000f'.format([1.0]) == ''",
    "'a'.replace('', 'b', 9223372036854775807) == ''",
    "duration('" + "1h" * 3_000 + "') == duration('1h')",
    "int('" + "9" * 9_000 + "') == 1",
    "semver('" + "9" * 9_000 + ".0.0').major() == 1",
    "quantity('" + "9" * 9_000 + "').isInteger()",
]


def _doubling(start: str, count: int) -> str:
    binds = "".join(f"cel.bind(a{at}, a{at - 1} + a{at - 1}, " for at in range(1, count))
    return f"cel.bind(a0, {start}, {binds}a{count - 1}.size() == 1{')' * count}"


@pytest.mark.parametrize("text", [*_HOSTILE, _doubling("'0123456789'", 80), _doubling("[1, 2]", 80)])
def test_it_ends_soon_and_says_little(text: str) -> None:
    began = time.monotonic()
    said = ""
    try:
        cel.compile_selector(text).matches(DEVICE)
    except (errors.Invalid, CELError) as error:
        said = errors.sentence(error)
    assert len(said) < 1_000
    assert time.monotonic() - began < _SOON_S


def test_no_error_is_caught_by_chance_of_depth() -> None:
    assert cel.compile_selector("(" * 249 + "true" + ")" * 249).matches(DEVICE) is True
    with pytest.raises(errors.Invalid, match="recursion limit exceeded: 250"):
        cel.compile_selector("(" * 251 + "true" + ")" * 251)
    with pytest.raises(errors.Invalid, match="recursion limit exceeded: 250"):
        cel.compile_selector("+".join(["1"] * 300) + " == 1")
    assert cel.compile_selector("[" * 240 + "]" * 240 + " == []").matches(DEVICE) is False


def test_an_expression_is_10_kib_at_most() -> None:
    padded = "true" + " " * (cel.LONGEST - 4)
    assert cel.compile_selector(padded).matches(DEVICE) is True
    with pytest.raises(errors.Invalid, match="longer than"):
        cel.compile_selector(padded + " ")


def test_the_cost_limit_ends_an_evaluation_and_nothing_absorbs_it() -> None:
    bomb = "lists.range(1000).all(x, lists.range(1000).all(y, y >= 0))"
    for text in (bomb, f"{bomb} || true", f"[1].exists(x, {bomb}) || true"):
        with pytest.raises(CELError, match="cost limit exceeded") as ended:
            cel.compile_selector(text).matches(DEVICE)
        assert ended.value.reason == "CELCost"


def test_a_repeated_group_takes_linear_time() -> None:
    device = DeviceView(driver="d.com", attributes={"text": "a" * 63 + "!"})
    assert cel.compile_selector(f"{A}.text.matches('(a+)+$')").matches(device) is False


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.characters(codec=None), max_size=60))
def test_any_text_is_a_selector_or_invalid(text: str) -> None:
    with contextlib.suppress(errors.Invalid):
        cel.compile_selector(text)


_SIGNS = (*".()[]{}?:,!-<+", "&&", "||", "==", ".?", "[?", "//")
_WORDS = ("device", "1", "2u", "1.5", "'a'", "x", "in", "has", "map", "all", "true", "null", "optional.of", "cel.bind")
_PIECES = st.sampled_from([*_SIGNS, *_WORDS, "b'\\xff'", '"""'])


@settings(max_examples=500, deadline=None)
@given(st.lists(_PIECES, max_size=25).map("".join))
def test_any_row_of_tokens_is_a_selector_or_invalid(text: str) -> None:
    with contextlib.suppress(errors.Invalid):
        cel.compile_selector(text)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_made_at_random_ends_in_a_value_or_an_error_of_ours(seed: int) -> None:
    generator = Generator(seed)
    evaluated = 0
    for _ in range(100):
        with contextlib.suppress(errors.Invalid):
            selector = cel.compile_selector(generator.expression())
            evaluated += 1
            with contextlib.suppress(CELError):
                assert selector.evaluate(DEVICE).cost <= 1_000_000
    assert evaluated > 50
