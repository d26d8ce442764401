from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.store.embedded import document as documents

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2)
NAMES = st.sampled_from(["a", "b", "name", "uid"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(st.sampled_from("abcdef"), VALUES, max_size=5)


def test_a_field_the_writer_never_saw_stays() -> None:
    old = {"spec": {"nodeName": "n", "affinity": {"x": 1}}}
    assert documents.merge(old, {"spec": {"nodeName": "n"}}, {"spec": {"nodeName": "m"}}) == {
        "spec": {"nodeName": "m", "affinity": {"x": 1}}
    }


def test_a_field_the_writer_saw_and_leaves_out_goes() -> None:
    assert documents.merge({"a": 1, "b": 2}, {"a": 1, "b": 2}, {"b": 2}) == {"b": 2}


def test_a_struct_set_back_to_its_default_keeps_what_was_never_seen() -> None:
    old = {"status": {"phase": "Running", "qosClass": "Guaranteed"}}
    assert documents.merge(old, {"status": {"phase": "Running"}}, {}) == {"status": {"qosClass": "Guaranteed"}}


def test_a_default_written_out_by_others_does_not_count_as_a_change() -> None:
    old = {"spec": {"restartPolicy": "Always", "nodeName": "n"}}
    assert documents.merge(old, {"spec": {"nodeName": "n"}}, {"spec": {"nodeName": "n"}}) == old


def test_named_list_elements_keep_unseen_fields_through_reordering() -> None:
    old = {"containers": [{"name": "a", "image": "1", "tty": True}, {"name": "b", "image": "1", "lifecycle": {}}]}
    seen = {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}
    new = {"containers": [{"name": "b", "image": "2"}, {"name": "a", "image": "1"}]}
    assert documents.merge(old, seen, new) == {
        "containers": [{"name": "b", "image": "2", "lifecycle": {}}, {"name": "a", "image": "1", "tty": True}]
    }


def test_named_list_elements_left_out_go() -> None:
    old = {"conditions": [{"type": "A", "status": "True"}, {"type": "B", "status": "True"}]}
    new = {"conditions": [{"type": "B", "status": "True"}]}
    assert documents.merge(old, old, new) == new


def test_named_list_elements_never_seen_stay() -> None:
    old = {"conditions": [{"type": "A", "status": "True"}]}
    new = {"conditions": [{"type": "B", "status": "True"}]}
    assert documents.merge(old, {}, new) == {"conditions": [*new["conditions"], *old["conditions"]]}


def test_unnamed_list_elements_left_alone_keep_unseen_fields() -> None:
    old = {"taints": [{"key": "k", "effect": "A", "timeAdded": "t"}, {"key": "k", "effect": "B"}]}
    seen = {"taints": [{"key": "k", "effect": "A"}, {"key": "k", "effect": "B"}]}
    assert documents.merge(old, seen, {"taints": [{"key": "k", "effect": "A"}]}) == {"taints": [old["taints"][0]]}


def test_lists_of_text_are_replaced_whole() -> None:
    assert documents.merge({"args": ["a", "b"]}, {"args": ["a", "b"]}, {"args": ["b"]}) == {"args": ["b"]}


@pytest.mark.parametrize("new", [1, "text", [], {}, None])
def test_a_value_may_change_its_type(new: object) -> None:
    assert documents.merge({"a": [1, 2]}, {"a": [1, 2]}, {"a": new}) == {"a": new}


@given(old=DOCUMENTS)
def test_writing_back_everything_changes_nothing(old: documents.Document) -> None:
    assert documents.merge(old, old, old) == old


@given(old=DOCUMENTS, new=DOCUMENTS)
def test_who_saw_all_gets_what_was_written(old: documents.Document, new: documents.Document) -> None:
    assert documents.merge(old, old, new) == new


@given(old=DOCUMENTS, seen=DOCUMENTS, new=DOCUMENTS)
def test_merging_changes_none_of_its_arguments(
    old: documents.Document, seen: documents.Document, new: documents.Document
) -> None:
    before = copy.deepcopy((old, seen, new))
    documents.merge(old, seen, new)
    assert (old, seen, new) == before


@given(old=DOCUMENTS, new=DOCUMENTS)
def test_applying_twice_is_applying_once(old: documents.Document, new: documents.Document) -> None:
    once = documents.merge(old, {}, new)
    assert documents.merge(once, new, new) == once
