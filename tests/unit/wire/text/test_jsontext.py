"""Somebody's JSON: members set and taken away, every other character as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.wire.text import jsontext

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
OBJECTS = st.recursive(
    st.dictionaries(st.sampled_from(["a", "b", "runtimes", 'q"{,', "é"]), SCALARS | st.lists(SCALARS, max_size=2)),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "features", "}"]), inner | SCALARS, max_size=3),
    max_leaves=8,
)
LAYOUTS: list[dict[str, Any]] = [
    {"indent": 2},
    {"indent": 4},
    {"indent": "\t"},
    {},
    {"separators": (",", ":")},
    {"indent": 2, "separators": (" ,", " : ")},
]
PATHS = st.lists(st.sampled_from(["a", "b", "features", "cdi"]), min_size=1, max_size=3).map(tuple)


def expected(document: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    return {**document, path[0]: expected(document.get(path[0], {}), path[1:], value)}


def passes_objects(document: Any, path: tuple[str, ...]) -> bool:
    for key in path[:-1]:
        if key not in document:
            return True
        document = document[key]
        if not isinstance(document, dict):
            return False
    return True


@given(OBJECTS, st.sampled_from(LAYOUTS), PATHS, SCALARS | OBJECTS)
def test_setting_a_member_is_setting_it(
    document: dict[str, Any], layout: dict[str, Any], path: tuple[str, ...], value: Any
) -> None:
    data = json.dumps(document, **layout).encode()
    if not passes_objects(document, path):
        with pytest.raises(errors.ProtocolError, match="is not an object"):
            jsontext.put(data, path, value)
        return
    after = jsontext.put(data, path, value)
    assert json.loads(after) == expected(document, path, value)


@given(OBJECTS, st.sampled_from(LAYOUTS), PATHS, SCALARS)
def test_a_member_taken_away_again_leaves_the_same_document(
    document: dict[str, Any], layout: dict[str, Any], path: tuple[str, ...], value: Any
) -> None:
    data = json.dumps(document, **layout).encode()
    parent: Any = document
    for key in path[:-1]:
        parent = parent.get(key) if isinstance(parent, dict) else None
    if not isinstance(parent, dict) or path[-1] in parent:
        assert jsontext.drop(data, ("nowhere", *path)) == data
        return
    assert json.loads(jsontext.drop(jsontext.put(data, path, value), path)) == document


def test_other_lines_stay_as_they_are() -> None:
    text = b'{\n    "log-opts": {"max-size":"10m"},\n    "runtimes": {\n        "x": {"path": "/x"}\n    }\n}\n'
    after = jsontext.put(text, ("runtimes", "y"), {"path": "/y"})
    assert after == (
        b'{\n    "log-opts": {"max-size":"10m"},\n    "runtimes": {\n        "x": {"path": "/x"},\n'
        b'        "y": {\n            "path": "/y"\n        }\n    }\n}\n'
    )
    assert jsontext.drop(after, ("runtimes", "y")) == text


def test_of_a_key_given_twice_the_last_counts() -> None:
    assert jsontext.put(b'{"a": 1, "a": 2}', ("a",), 3) == b'{"a": 1, "a": 3}'


def test_an_empty_file_becomes_an_object() -> None:
    assert json.loads(jsontext.put(b"  \n", ("a", "b"), 1)) == {"a": {"b": 1}}
    assert jsontext.parse(b" \n", path="x") == {}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"a": 1,\n "b" 2}', "f.json:2:6: not JSON"),
        (b"[1]", "f.json:1: a JSON object is wanted, not list"),
        (b'{\n"a": "\xff"}', "f.json:2: not UTF-8"),
    ],
)
def test_errors_name_file_and_line(data: bytes, words: str) -> None:
    with pytest.raises(errors.ProtocolError) as caught:
        jsontext.parse(data, path="f.json")
    assert caught.value.message.startswith(words)


@pytest.mark.parametrize("data", [b"[" * 200_000, b'{"a":' * 100 + b"1" + b"}" * 100])
def test_nesting_without_end_is_malformed(data: bytes) -> None:
    with pytest.raises(errors.ProtocolError, match="nested deeper"):
        jsontext.parse(data, path="x")
