"""Somebody's TOML: read with its place in errors, and given one item more without losing a character."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.wire.text import toml

LINES = st.sampled_from(
    [
        "# a comment",
        "",
        "root = '/x'  # behind",
        "oom_score = -999",
        'required_plugins = [\n  "a", # why\n]',
    ]
)
TABLES = st.sampled_from(['[plugins."a.b".c]\n  x = 1 # y', "[grpc]\nuid = 0", '[[stream]]\nname = "s"'])
IMPORTS = st.sampled_from(
    [
        "",
        "imports = []",
        'imports = ["/a/*.toml"]',
        'imports = [ # first\n  "/a/*.toml",\n  # last\n]',
        "imports=['/b']",
    ]
)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """TOML as people write it: each line and table at most once."""
    head = [*draw(st.lists(LINES, unique=True, max_size=4)), draw(IMPORTS)]
    head.insert(draw(st.integers(0, len(head))), draw(st.sampled_from(["version = 2", "version=3 # new", ""])))
    text = "\n".join(head + draw(st.lists(TABLES, unique=True, max_size=3)))
    text += draw(st.sampled_from(["", "\n"]))
    return (text.replace("\n", "\r\n") if draw(st.booleans()) else text).encode()


@given(documents())
def test_an_item_more_and_nothing_else_changes(data: bytes) -> None:
    after = toml.append_item(data, "imports", "/new/*.toml")
    before = tomllib.loads(data.decode())
    assert tomllib.loads(after.decode()) == {**before, "imports": [*before.get("imports", []), "/new/*.toml"]}
    for line in data.decode().splitlines():
        assert line in after.decode() or "imports" in line or line.strip().startswith('"')


@given(documents())
def test_taking_it_back_leaves_what_was_there(data: bytes) -> None:
    before = tomllib.loads(data.decode())
    after = toml.append_item(data, "imports", "/new/*.toml")
    back = toml.remove_item(after, "imports", "/new/*.toml", drops_empty="imports" not in before)
    assert tomllib.loads(back.decode()) == before
    assert [
        line for line in data.decode().splitlines() if "#" in line and line.split("#")[1] not in back.decode()
    ] == []


def test_what_is_not_there_is_not_taken() -> None:
    data = b'imports = ["/a"]\n'
    assert toml.remove_item(data, "imports", "/b", drops_empty=True) == data
    assert toml.remove_item(b"x = 1\n", "imports", "/b", drops_empty=True) == b"x = 1\n"


def test_a_new_list_stands_below_the_version() -> None:
    assert toml.append_item(b"# top\nversion = 2 # two\n\n# of a\n[a]\n", "imports", "/x") == (
        b'# top\nversion = 2 # two\nimports = ["/x"]\n\n# of a\n[a]\n'
    )


def test_a_version_inside_a_text_misleads_nobody() -> None:
    data = b'root = """\nversion = 1\n"""\nversion = 2\n'
    with pytest.raises(errors.ProtocolError) as caught:
        toml.append_item(data, "imports", "/x")
    assert caught.value.reason == "FileUneditable"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a = 1\nb = \n", "f.toml:2:5: not TOML"),
        (b"[a]\nx=1\n[a]\n", "f.toml:3:3: not TOML"),
        (b"a = 1\nb = '\xff'\n", "f.toml:2: not UTF-8"),
        (b'a = "', "f.toml: not TOML"),
    ],
)
def test_errors_name_file_and_line(data: bytes, words: str) -> None:
    with pytest.raises(errors.ProtocolError) as caught:
        toml.parse(data, path="f.toml")
    assert caught.value.message.startswith(words)
    assert caught.value.hint


def test_scalars_come_before_tables() -> None:
    assert toml.emit({"t": {"x": {"y": 1}, "z": [True]}}) == b"[t]\nz = [true]\n\n[t.x]\ny = 1\n"


@pytest.mark.parametrize("data", [b"a = " + b"[" * 50_000, b"a = " + b"[" * 80 + b"]" * 80])
def test_nesting_without_end_is_malformed(data: bytes) -> None:
    with pytest.raises(errors.ProtocolError, match="nested") as caught:
        toml.parse(data, path="x")
    assert caught.value.reason == "FileMalformed"


def test_megabytes_of_comments_are_edited_at_once_and_kept() -> None:
    comments = b"# a line that somebody wrote\n" * 100_000
    before = b"version = 2\n" + comments + b'imports = [\n  "a",\n' + comments + b"]\n" + comments
    after = toml.append_item(before, "imports", "b")
    assert toml.parse(after, path="x")["imports"] == ["a", "b"]
    assert after.count(b"# a line that somebody wrote\n") == 300_000
    assert toml.remove_item(after, "imports", "b", drops_empty=False) == before


def test_comments_in_a_text_of_several_lines_stay_where_they_are() -> None:
    text = "# no comment\n" * 20
    before = f'version = 2\nimports = ["a"]\nnote = """\n{text}"""\n'.encode()
    after = toml.append_item(before, "imports", "b")
    assert toml.parse(after, path="x")["note"] == text
