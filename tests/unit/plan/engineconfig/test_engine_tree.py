"""What is asked of an engine's files, and what one file takes back of another, without any engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fairlead import errors
from fairlead.plan.engineconfig import model, tree


@pytest.mark.parametrize("name", ["a b", "nvidia\n", 'a"', "../x"])
def test_a_name_that_would_be_something_else_in_a_file_is_refused(name: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        tree.check_asked(model.Location(config="/c"), model.Request(folder="/f", alias=name))
    assert caught.value.reason == "RuntimeNameInvalid"


@pytest.mark.parametrize("path", ["etc/config.toml", "/etc/a\nb", "~/x"])
def test_a_path_that_is_not_from_the_root_on_is_refused(path: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        tree.check_asked(model.Location(config="/etc/config.toml", drop_in=path), model.Request(folder="/f"))
    assert caught.value.reason == "PathInvalid"


def test_what_engines_take_passes() -> None:
    tree.check_asked(
        model.Location(config="/etc/containerd/config.toml"), model.Request(folder="/f", name="fairlead-cdi_1.0")
    )


@pytest.mark.parametrize(
    ("low", "high", "key"),
    [
        ({}, {"a": 1}, ""),
        ({"a": 1, "b": 2}, {"a": 1}, ""),
        ({"a": 1}, {"a": 2}, "a"),
        ({"a": {"b": {"c": 1, "d": 1}}}, {"a": {"b": {"c": 1, "d": 2}}}, "a.b.d"),
        ({"a": {"b": 1}}, {"a": {"c": 1}}, ""),
        ({"a": {"b": 1}}, {"a": 1}, "a"),
    ],
)
def test_the_first_value_that_a_later_file_changes_is_named(
    low: Mapping[str, Any], high: Mapping[str, Any], key: str
) -> None:
    assert tree.find_overruled(low, high) == key


def test_a_text_that_is_something_else_is_refused_with_its_file() -> None:
    with pytest.raises(errors.ProtocolError, match=r"config.toml: root must be a text, not 3"):
        tree.text({"root": 3}, "root", where="config.toml")
