"""Compose files as YAML: what is read, and what would unfold beyond every bound."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from fairlead import errors
from fairlead.wire.compose import document
from fairlead.wire.compose.document import Tagged


def test_scalars_are_those_of_yaml_1_2() -> None:
    (found,) = document.parse(b"a: [yes, 22:22, 0777, 0x10, 1.5, true, ~, '1', 2026-01-01]", "x")
    assert found["a"] == ["yes", "22:22", 511, 16, 1.5, True, None, "1", "2026-01-01"]


def test_merge_keys_give_way_to_what_is_written_and_to_the_first() -> None:
    text = b"x: &x {a: 1, b: 1}\ny: &y {a: 2, c: 2}\nz: {<<: [*x, *y], b: 3}\n"
    assert document.parse(text, "x")[0]["z"] == {"a": 1, "b": 3, "c": 2}


def test_tags_of_compose_are_kept() -> None:
    (found,) = document.parse(b"a: !reset null\nb: !override [1]", "x")
    assert found == {"a": Tagged("reset", None), "b": Tagged("override", [1])}


_LAUGHS = b"a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 12)
)
_MERGES = b"a0: &a0 {k: v}\n" + b"".join(
    b"a%d: &a%d {l%d: *a%d, m%d: *a%d, <<: [*a%d, *a%d]}\n" % (n, n, n, n - 1, n, n - 1, n - 1, n - 1)
    for n in range(1, 40)
)
_LONG = b"a: &a " + b"x" * 500_000 + b"\nb: [" + b"*a," * 100 + b"]\n"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(_LAUGHS, id="laughs"),
        pytest.param(_MERGES, id="merges"),
        pytest.param(_LONG, id="long text"),
        pytest.param(b"a: &a [*a]", id="an anchor that holds itself"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b"a: [" + b"x," * 500_000 + b"]", id="many"),
        pytest.param(b" " * (document.LARGEST_BYTES + 1), id="large"),
        pytest.param(b"a: 1\na: 2", id="twice"),
        pytest.param(b"a: !!python/object:os.system x", id="a tag of python"),
        pytest.param(b"\xff\xfe", id="not UTF-8"),
        pytest.param(b"- a", id="no map"),
        pytest.param(b"", id="empty"),
    ],
)
def test_what_is_no_compose_file_is_refused_at_once_in_little_memory(data: bytes) -> None:
    began = time.monotonic()
    with pytest.raises(errors.RequestError, match="cannot be read"):
        document.parse(data, "x")
    assert time.monotonic() - began < 2
    tracemalloc.start()
    with pytest.raises(errors.RequestError, match="cannot be read"):
        document.parse(data, "x")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20
