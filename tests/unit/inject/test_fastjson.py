"""The lean JSON against the standard library's, on the Python the tests run on."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.inject import fastjson
from fairlead_cdi import oci

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), plain, max_size=5))
def test_bytes_are_those_of_the_oci_encoder_and_read_back_the_same(value: dict[str, object]) -> None:
    data = fastjson.encode(value)
    assert data == oci.encode_config(value)
    assert fastjson.decode(data) == value


@given(st.text(alphabet='{}[]",:0123456789.eE+-truefalsn \n\\u', max_size=30))
def test_both_readers_give_the_same_verdict(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011  any of its kinds
            fastjson.decode(text.encode())
        return
    assert fastjson.decode(text.encode()) == expected


def test_values_that_only_python_writes_are_read_as_there() -> None:
    found = fastjson.decode(b'[1e400, NaN, -Infinity, "\\ud800", 12345678901234567890]')
    assert isinstance(found, list)
    assert math.isinf(found[0])
    assert math.isnan(found[1])
    assert found[2:] == [-math.inf, "\ud800", 12345678901234567890]


def test_what_is_not_plain_is_refused() -> None:
    with pytest.raises(TypeError):
        fastjson.encode({"set": {1}})


@pytest.mark.parametrize("data", [b"", b"  ", b"{} x", b"\xff{}", b'{"a":1', b"{'a':1}"])
def test_what_is_not_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  any of its kinds
        fastjson.decode(data)


@pytest.mark.parametrize("data", [b"[" * 200_000, b'{"a":' * 100_000])
def test_what_is_nested_too_deeply_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        fastjson.decode(data)
