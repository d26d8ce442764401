"""Words of ours that strangers do not know, each with what the field says: names, docstrings, comments and pages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_WORDS = {
    "books": "name it: checkpoint, database, cache, allocations",
    "wish": "request",
    "wishes": "requests",
    "journey": "trace",
    "whoever": "name the process or the person: the caller, a user who, the kubelet",
}
_FOUND = re.compile(rf"\b({'|'.join(_WORDS)})\b(?!\"[\])])", re.IGNORECASE)  # but for a key of old files: found["wish"]


def _finds(text: str) -> list[str]:
    return [
        f"line {number}: {found[1]} ({_WORDS[found[1].lower()]})"
        for number, line in enumerate(text.splitlines(), 1)
        for found in _FOUND.finditer(line)
    ]


def test_code_and_pages_use_the_fields_words(root: Path) -> None:
    pages = [path for path in (root / "docs").rglob("*.md") if "reference" not in path.parts]  # made from the code
    files = [*(root / "src").rglob("*.py"), *pages, root / "README.md", root / "CONTRIBUTING.md"]
    found = {str(path.relative_to(root)): _finds(path.read_text()) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("text", "count"), [("the kubelet's books", 1), ("Whoever asks", 1), ("test_kubeletbooks.py", 0), ("a trace", 0)]
)
def test_a_word_of_ours_is_found_and_a_files_name_is_not(text: str, count: int) -> None:
    assert len(_finds(text)) == count


_PRONOUNS: Final = re.compile(r"\b(nobody|anybody|somebody|everybody)\b", re.IGNORECASE)
_MOST: Final = 15
"""A ratchet: lower it where some are gone."""


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every docstring and comment of a module."""
    for item in ast.walk(ast.parse(text)):
        if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str):
            yield item.lineno, item.value.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _pronouns(text: str) -> list[str]:
    if not _PRONOUNS.search(text):
        return []
    return [f"near line {number}: {found[0]}" for number, said in _prose(text) for found in _PRONOUNS.finditer(said)]


def test_docstrings_and_comments_name_the_process_or_the_person(root: Path) -> None:
    package = root / "src/fairlead"
    found = {str(path.relative_to(package)): _pronouns(path.read_text()) for path in package.rglob("*.py")}
    assert sum(map(len, found.values())) <= _MOST, {name: lines for name, lines in found.items() if lines}


@pytest.mark.parametrize(
    ("text", "count"), [('"""Wakes nobody."""', 1), ("x = 1  # somebody else", 1), ('name = "nobody"', 0)]
)
def test_a_pronoun_is_found_in_prose_alone(text: str, count: int) -> None:
    assert len(_pronouns(text)) == count
