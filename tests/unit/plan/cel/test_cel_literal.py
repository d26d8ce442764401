"""Values as CEL writes them: each type once, and bounded however large a value is."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.plan.cel import compile as cel
from fairlead.plan.cel import literal
from tests.unit.plan.cel.samples import DEVICE

_CASES = {
    "true": "true",
    "null": "null",
    "-3": "-3",
    "3u": "3u",
    "2.0": "2.0",
    "1e300 * 10.0": "1e+301",
    '"a" + "\\"\\n"': '"a\\"\\n"',
    'b"a\\xff"': 'b"a\\xff"',
    "[1, 2].map(x, [x, 3])": "[[1, 3], [2, 3]]",
    '{"a": 1, "b": 2}': '{"a": 1, "b": 2}',
    "{true: 1, false: 2}": "{true: 1, false: 2}",
    'quantity("10Gi")': 'quantity("10Gi")',
    'semver("1.2.3-rc.1")': 'semver("1.2.3-rc.1")',
    "type(1)": "int",
    'duration("90s")': 'duration("90s")',
    'timestamp("2026-01-01T00:00:00Z")': 'timestamp("2026-01-01T00:00:00Z")',
    'ip("10.0.0.1")': 'ip("10.0.0.1")',
    'cidr("10.0.0.0/8")': 'cidr("10.0.0.0/8")',
    'url("https://a.example/b")': 'url("https://a.example/b")',
    "optional.of(1)": "optional.of(1)",
    "optional.none()": "optional.none()",
    'double("NaN")': 'double("NaN")',
    "-1.0 / 0.0": 'double("-Infinity")',
}


@pytest.mark.parametrize("text", _CASES)
def test_a_value_is_written_as_cel_has_it(text: str) -> None:
    value = cel.compile_selector(text, result=cel.ANY).evaluate(DEVICE).value
    assert literal.written(value, longest=100) == _CASES[text]


def test_what_is_written_has_a_bound_in_length_and_in_depth() -> None:
    assert literal.written("a" * 10_000_000, longest=10) == '"aaaaaaaaa…'
    assert literal.written(tuple(range(1_000_000)), longest=12) == "[0, 1, 2, 3,…"
    deep: object = 1
    for _ in range(5_000):
        deep = (deep,)
    assert literal.written(deep, longest=1000) == "[" * 21 + "…" + "]" * 21


def test_a_type_that_is_not_bool_is_compiled_for_people_alone() -> None:
    assert cel.compile_selector('device.capacity["x"]', result=cel.ANY).kind == "map(string, kubernetes.Quantity)"
    with pytest.raises(errors.Invalid, match="must evaluate to bool"):
        cel.compile_selector('device.capacity["x"]')
