"""The console uses the glossary's words, and none of those that the glossary has put away."""

from __future__ import annotations

import re
from pathlib import Path

_CONSOLE = "src/fairlead/serve/console"
_GONE = ("Why it is so", "The way of its devices", "Verified before it got them", "What teams are due", "Heat")
_TAGS = re.compile(r"{[{%#].*?[}%#]}|<[^>]*>", re.DOTALL)


def _rows(root: Path) -> list[list[str]]:
    lines = (root / "docs/reference/glossary.md").read_text().splitlines()
    return [[part.strip() for part in line.strip("|").split("|")] for line in lines if line.startswith("| ")][1:]


def test_every_word_is_explained_once(root: Path) -> None:
    rows = _rows(root)
    words = [word.strip() for row in rows for word in row[0].split(",")]
    assert len(words) > 20
    assert len(words) == len(set(words))
    assert [row[0] for row in rows if len(row) != 3 or len(row[1]) < 10] == []


def test_no_page_of_the_console_uses_a_word_that_went(root: Path) -> None:
    away = [word.strip().lower() for row in _rows(root) for word in row[2].split(",") if word.strip()]
    assert len(away) > 10
    found = []
    for path in sorted((root / _CONSOLE / "templates").glob("*.html")):
        text = _TAGS.sub(" ", path.read_text()).lower()
        found += [f"{path.name}: {word}" for word in away if re.search(rf"\b{re.escape(word)}\b", text)]
    assert found == []


def test_what_pages_draw_has_no_word_that_went(root: Path) -> None:
    modules = sorted((root / _CONSOLE / "draw").glob("*.py"))
    found = [f"{path.name}: {word}" for path in modules for word in _GONE if f'"{word}' in path.read_text()]
    assert found == []
