from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.wire.kubernetes import quantity

FORM = st.sampled_from(quantity.Form)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", Fraction(0)),
        ("2", Fraction(2)),
        ("+2", Fraction(2)),
        ("-1", Fraction(-1)),
        ("500m", Fraction(1, 2)),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("1.", Fraction(1)),
        ("100u", Fraction(1, 10_000)),
        ("1n", Fraction(1, 10**9)),
        ("1k", Fraction(1000)),
        ("1M", Fraction(10**6)),
        ("1G", Fraction(10**9)),
        ("1T", Fraction(10**12)),
        ("1P", Fraction(10**15)),
        ("1E", Fraction(10**18)),
        ("1Ki", Fraction(1024)),
        ("80Gi", Fraction(80 * 2**30)),
        ("1.5Gi", Fraction(3 * 2**29)),
        ("1Ei", Fraction(2**60)),
        ("1e3", Fraction(1000)),
        ("1E3", Fraction(1000)),
        ("12e-3", Fraction(12, 1000)),
        ("1e+2", Fraction(100)),
        (2, Fraction(2)),
        (0, Fraction(0)),
        (0.1, Fraction(1, 10)),
        (1e21, Fraction(quantity.LARGEST)),
    ],
)
def test_values_are_exact(text: str | float, value: Fraction) -> None:
    assert quantity.parse_quantity(text) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "regular expression"),
        ("two", "regular expression"),
        (" 1", "regular expression"),
        ("1 Gi", "regular expression"),
        ("1KiB", "regular expression"),
        ("1.1.M", "regular expression"),
        ("1+1.0M", "regular expression"),
        ("1e3.5", "regular expression"),
        ("\u0661", "regular expression"),
        ("1K", "suffix"),
        ("--1", "suffix"),
        ("1mi", "suffix"),
        ("1i", "suffix"),
        ("1e", "suffix"),
        ("1ee3", "suffix"),
        (".", "numeric"),
        ("Gi", "numeric"),
        ("-", "numeric"),
    ],
)
def test_bad_texts_are_refused_in_kubernetes_words(text: str, problem: str) -> None:
    with pytest.raises(errors.Invalid, match=problem) as refused:
        quantity.parse(text)
    assert refused.value.reason == "QuantityInvalid"
    assert refused.value.context["value"] == text


def test_a_boolean_is_no_quantity() -> None:
    with pytest.raises(errors.Invalid):
        quantity.parse(True)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("0Gi", "0"),
        ("0.5", "500m"),
        ("1500m", "1500m"),
        ("2000m", "2"),
        ("1000", "1k"),
        ("1500", "1500"),
        ("100000", "100k"),
        ("1024Mi", "1Gi"),
        ("1.5Ki", "1536"),
        ("1536Mi", "1536Mi"),
        ("0.5Ki", "512"),
        ("0.1Ki", "102400m"),
        ("-2048", "-2048"),
        ("-2Ki", "-2Ki"),
        ("12e6", "12e6"),
        ("1200e4", "12e6"),
        ("1e0", "1"),
        ("1e-3", "1e-3"),
        ("1e-10", "1e-9"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("1.5n", "2n"),
        ("1.0005Ki", "1025"),
        ("9e30", "9223372036854775807"),
        ("-9e30", "-9223372036854775807"),
        ("16Ei", "9223372036854775807"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    assert quantity.canonical(text) == canonical


@pytest.mark.parametrize("text", ["1e999999999999", "1e-999999999999", "0e999999999999", "-1e999999999999"])
def test_absurd_exponents_cost_nothing(text: str) -> None:
    assert abs(quantity.parse_quantity(text)) in {quantity.LARGEST, Fraction(1, 10**9), 0}


def test_bytes_are_rounded_up_to_whole_ones() -> None:
    assert quantity.parse_whole("0.1Ki") == 103
    assert quantity.parse_whole("1Gi") == 2**30


@given(nano=st.integers(-(10**19), 10**19), form=FORM)
@example(nano=1024 * 10**9, form=quantity.Form.BINARY)
def test_canonical_text_reads_back(nano: int, form: quantity.Form) -> None:
    value = Fraction(nano, 10**9)
    back = quantity.parse(quantity.emit_quantity(value, form)).value
    if form is quantity.Form.BINARY and abs(value) >= 1024:
        assert 0 <= abs(back) - abs(value) < 1
    else:
        assert back == value


@given(whole=st.integers(0, 10**9), form=st.sampled_from([quantity.Form.DECIMAL, quantity.Form.EXPONENT]))
def test_canonical_text_is_a_fixed_point(whole: int, form: quantity.Form) -> None:
    once = quantity.emit_quantity(whole, form)
    assert quantity.canonical(once) == once


@given(st.text("0123456789.+-eEinumkKMGTP", max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = quantity.parse(text)
    except errors.Invalid:
        return
    assert abs(found.value) <= quantity.LARGEST
    assert (found.value * 10**9).denominator == 1


def test_more_digits_than_python_reads_are_no_quantity() -> None:
    with pytest.raises(errors.Invalid):
        quantity.parse("9" * 5000)
