"""Names: the reference library's table, and what we refuse to write beyond it."""

from __future__ import annotations

import pytest

from fairlead_cdi import annotation, errors, names

QUALIFIED = {
    "vendor.com/class=dev": ("vendor.com", "class", "dev"),
    "v1/c1=d1": ("v1", "c1", "d1"),
    "vv/cc=d=e": None,
    "v/c=d": ("v", "c", "d"),
    "vendor.com/gpu=0:1": ("vendor.com", "gpu", "0:1"),
    "vendor.com/gpu=1": ("vendor.com", "gpu", "1"),
    "Vendor_x.y-z/C_l.a-s=D.e_v:i-c": ("Vendor_x.y-z", "C_l.a-s", "D.e_v:i-c"),
    "a/b=": None,
    "=x": None,
    "/c=x": None,
    "vv/cc": None,
    "x": None,
    "": None,
    "vv/cc/d=e": None,
    "1v/cc=x": None,
    "vv/1c=x": None,
    "v_/cc=x": None,
    "vv/cc=x_": None,
    "vv/cc=:": None,
    "/dev/x": None,
    "vv/cc=/x": None,
    "vv/cc= x": None,
    "vv /cc=x": None,
    "vv/cc=x\n": None,
    "vendor.com/class=dév": None,
}


@pytest.mark.parametrize("text", QUALIFIED)
def test_qualified_names_are_told_from_others(text: str) -> None:
    expected = QUALIFIED[text]
    assert names.is_qualified(text) is (expected is not None)
    if expected is None:
        with pytest.raises(errors.InvalidRequest):
            names.parse_qualified_name(text)
    else:
        assert tuple(names.parse_qualified_name(text)) == expected


def test_a_name_survives_being_taken_apart() -> None:
    assert str(names.parse_qualified_name("vendor.com/gpu=0:1")) == "vendor.com/gpu=0:1"


@pytest.mark.parametrize("text", ["gpu0", "/dev/null", "vendor.com/gpu", "vendor.com/gpu=", "=gpu0"])
def test_an_unqualified_name_stays_whole(text: str) -> None:
    assert names.split_device(text) == ("", "", text)


@pytest.mark.parametrize(
    "kind",
    [
        "v.com/g",
        "v/gpu",
        "Vendor.com/gpu",
        "ven_dor/gpu",
        f"{'a' * 64}.com/gpu",
        "vendor.com/" + "c" * 64,
        "nope",
        "a..b/gpu",
    ],
)
def test_kinds_outside_the_specification_are_not_written(kind: str) -> None:
    assert names.strict_kind_problem(kind) is not None


@pytest.mark.parametrize("kind", ["nvidia.com/gpu", "vendor/gpu", "fairlead-test.example/gpu123", "a.b/cc.dd"])
def test_kinds_of_the_specification_are_written(kind: str) -> None:
    assert names.strict_kind_problem(kind) is None


def test_long_device_names_are_read_and_not_written() -> None:
    assert names.device_problem("x" * 64) is None
    assert names.strict_device_problem("x" * 64) is not None
    assert names.strict_device_problem("GPU-00000000-0000-0000-0000-000000000000") is None


@pytest.mark.parametrize(
    ("kind", "is_deadly"), [("v/gpu", True), ("vendor.com/g", True), ("vv/gg", False), ("odd", False)]
)
def test_kinds_that_crash_released_engines_are_told(kind: str, *, is_deadly: bool) -> None:
    assert (names.crash_problem(kind) is not None) is is_deadly


@pytest.mark.parametrize("hostile", ["\x1b]0;owned\x07", "\x9b2J", "a\nb", "\u202egnp", "\udc80", "\x00"])
def test_a_message_never_holds_what_a_terminal_would_obey(hostile: str) -> None:
    said: list[str] = []
    for call in (
        lambda: names.parse_qualified_name(hostile),
        lambda: names.parse_qualified_name(f"nvidia.com/gpu={hostile}"),
        lambda: names.parse_qualified_name(f"{hostile}/gpu=0"),
        lambda: annotation.emit_key("p", hostile),
        lambda: annotation.parse_annotations({f"cdi.k8s.io/{hostile}": hostile}),
    ):
        with pytest.raises(errors.InvalidRequest) as caught:
            call()
        said.append(str(caught.value))
    said += [*annotation.problems({f"{hostile}/{hostile}": ""})]
    said += [names.strict_kind_problem(f"a{hostile}/gpu") or "", names.strict_device_problem(hostile) or ""]
    assert all(text and text.isprintable() for text in said), said
