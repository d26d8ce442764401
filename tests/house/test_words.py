"""Words of ours that strangers do not know, each with what the field says: names, docstrings, comments and pages."""

from __future__ import annotations

import re
from pathlib import Path

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
    ("text", "count"), [("the kubelet's books", 1), ("Whoever asks", 1), ("test_whole_journey.py", 0), ("a trace", 0)]
)
def test_a_word_of_ours_is_found_and_a_files_name_is_not(text: str, count: int) -> None:
    assert len(_finds(text)) == count
