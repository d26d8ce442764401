"""What is written as YAML is read back as it was, by PyYAML and by the reader of the engines' rules."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fairlead_cdi import yamlfile, yamltext

AWKWARD = (
    "", "~", "null", "y", "No", "ON", "1:0", "010", "0x1f", "1e3", "1_000", "2001-01-01", "-", "- a", "a: b", "a #b",
    "<<", "=", "!tag", "&a", "*a", "?", "a=", "x-", " a", "a ", "a\nb", "\t", "\0", "\x1b[31m", "\x7f", "\x85", "\xa0",
    "\u2028", "\u2029", "\ufeff", "\ufffe", "\U0001f600", '"', "\\", "'", "%", "@", "`", "{a", "[a", "a,b", "---",
)  # fmt: skip
TEXT = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.sampled_from(AWKWARD)
    | st.integers(100, 1100).map("k".__mul__)
)
VALUE = st.recursive(
    TEXT | st.integers() | st.booleans() | st.none(),
    lambda value: st.lists(value, max_size=3) | st.dictionaries(TEXT, value, max_size=3),
    max_leaves=12,
)


@given(VALUE)
def test_what_is_written_is_read_back(value: object) -> None:
    text = yamltext.dump(value)
    assert yaml.safe_load(text) == value
    assert yamlfile.decode_yaml(text.encode()) == value


@pytest.mark.parametrize("value", AWKWARD)
def test_awkward_texts_stay_texts_as_keys_and_as_values(value: str) -> None:
    document = {value: [value, {value: value}]}
    assert yaml.safe_load(yamltext.dump(document)) == document


@pytest.mark.parametrize("value", [1.0, -0.5, 1e20, 1.5e-7, math.inf, -math.inf])
def test_floats_stay_floats(value: float) -> None:
    found = yaml.safe_load(yamltext.dump({"a": value}))["a"]
    assert (type(found), found) == (float, value)


def test_no_number_stays_none() -> None:
    assert math.isnan(yaml.safe_load(yamltext.dump(math.nan)))


def test_a_document_looks_as_people_write_it() -> None:
    document = {
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "0", "env": ["A=b c"], "none": [], "edits": {"nodes": [{"path": "/dev/x"}]}}, [[1], {}]],
        "on": True,
    }
    assert (
        yamltext.dump(document)
        == """\
kind: nvidia.com/gpu
devices:
- name: "0"
  env:
  - "A=b c"
  none: []
  edits:
    nodes:
    - path: /dev/x
- - - 1
  - {}
"on": true
"""
    )
