"""Annotations: the reference library's tables, and what it fails to check."""

from __future__ import annotations

import pytest

from fairlead_cdi import annotation, errors

GOOD_KEYS = [
    ("vendor.class", "device", "cdi.k8s.io/vendor.class_device"),
    ("vendor.class", "a/b/c", "cdi.k8s.io/vendor.class_a_b_c"),
    ("v-m.class", "foo1", "cdi.k8s.io/v-m.class_foo1"),
    ("v", "d", "cdi.k8s.io/v_d"),
    ("p", "x" * 61, "cdi.k8s.io/p_" + "x" * 61),
]
BAD_KEYS = [
    ("", "d"),
    ("v", ""),
    ("-v", "d"),
    ("v", "d-"),
    ("v", "d_"),
    ("v", "a b"),
    ("v", "x" * 62),
    ("v", "ä"),
    (".v", "d"),
]


@pytest.mark.parametrize(("plugin", "device_id", "key"), GOOD_KEYS)
def test_keys_are_built(plugin: str, device_id: str, key: str) -> None:
    assert annotation.emit_key(plugin, device_id) == key


@pytest.mark.parametrize(("plugin", "device_id"), BAD_KEYS)
def test_bad_keys_are_refused(plugin: str, device_id: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        annotation.emit_key(plugin, device_id)


def test_values_are_joined_without_spaces() -> None:
    assert annotation.emit_value(["vv/cc=a", "vv/cc=b"]) == "vv/cc=a,vv/cc=b"


@pytest.mark.parametrize("devices", [[], ["gpu0"], ["vv/cc=a", "gpu0"]])
def test_bad_values_are_refused(devices: list[str]) -> None:
    with pytest.raises(errors.InvalidRequest):
        annotation.emit_value(devices)


def test_a_request_is_added_to_a_copy() -> None:
    current = {"other": "1"}
    updated = annotation.update_annotations(current, plugin="p", device_id="d", devices=["vv/cc=a"])
    assert updated == {"other": "1", "cdi.k8s.io/p_d": "vv/cc=a"}
    assert current == {"other": "1"}


def test_a_key_is_never_overwritten() -> None:
    with pytest.raises(errors.InvalidRequest, match="already there"):
        annotation.update_annotations({"cdi.k8s.io/p_d": "x"}, plugin="p", device_id="d", devices=["vv/cc=a"])


def test_requests_are_read_in_the_order_of_their_keys() -> None:
    given = {"cdi.k8s.io/b": "vv/cc=2,vv/cc=3", "unrelated": "vv/cc=9", "cdi.k8s.io/a": "vv/cc=1"}
    assert annotation.parse_annotations(given) == (
        ("cdi.k8s.io/a", "cdi.k8s.io/b"),
        ("vv/cc=1", "vv/cc=2", "vv/cc=3"),
    )


@pytest.mark.parametrize("value", ["", "gpu0", "vv/cc=1, vv/cc=2", "vv/cc=1,", "vv/cc=1 "])
def test_one_bad_name_voids_the_whole_set(value: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        annotation.parse_annotations({"cdi.k8s.io/a": "vv/cc=1", "cdi.k8s.io/b": value})


@pytest.mark.parametrize("key", ["a", "a.b/c_d", "vendor.com/x", "A-b.c"])
def test_good_annotations_of_specs_pass(key: str) -> None:
    assert list(annotation.problems({key: "any text\n"})) == []


@pytest.mark.parametrize("key", ["", "bad key!", "-a", "A.com/x", "a/b/c", "/x", "x" * 64, "a" * 254 + "/x"])
def test_bad_annotations_of_specs_are_told(key: str) -> None:
    assert len(list(annotation.problems({key: ""}))) == 1


def test_annotations_have_a_size() -> None:
    assert list(annotation.problems({"a": "x" * (256 * 1024)}))
    assert not list(annotation.problems({"a": "x" * (256 * 1024 - 1)}))
