"""The docs say what the code does: generated pages are current, the README names the two commands."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from fairlead import errors, settings
from fairlead.cli import verbs
from tools import generate_docs, pictures

_SHOWN = re.compile(r"!\[(.+)\]\(\.\./pictures/([\w-]+\.svg)\)")
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


@pytest.mark.parametrize("name", sorted(generate_docs.pages()))
def test_a_generated_page_is_what_the_code_makes_it(name: str) -> None:
    committed = (generate_docs.FOLDER / name).read_text()
    assert committed == generate_docs.pages()[name], "run `make docs`"


def test_every_setting_has_its_row_on_the_page() -> None:
    page = (generate_docs.FOLDER / "settings.md").read_text()
    assert [row.key for row in settings.rows() if f"| `{row.key}`<br>`{row.env}`<br>`{row.flag}` |" not in page] == []


def test_every_verb_has_its_page_and_no_other_has() -> None:
    index = (generate_docs.FOLDER / "cli" / "index.md").read_text()
    shown = {name for name, verb in verbs.VERBS.items() if not verb.is_hidden}
    assert {name for name in shown if f"({name}.md)" not in index} == set()
    assert {page.stem for page in (generate_docs.FOLDER / "cli").glob("*.md")} == shown | {"index"}


def test_every_error_class_with_an_exit_code_is_on_the_errors_page() -> None:
    page = (generate_docs.FOLDER / "errors.md").read_text()
    for kind, row in errors.TABLE.items():
        base = next(one for one in reversed(kind.__mro__) if one in errors.TABLE)
        line = next(line for line in page.splitlines() if line.startswith(f"| {base.__name__} |"))
        assert str(row.http) in line
        assert line.endswith(f"| {row.exit} |")


def test_the_readme_names_the_two_commands(root: Path) -> None:
    text = (root / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


def test_links_between_pages_lead_somewhere(root: Path) -> None:
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    dead = [
        f"{page.relative_to(root)}: {target}"
        for page in pages
        for target in _LINK.findall(page.read_text())
        if not (page.parent / target).exists()
    ]
    assert dead == []


def test_every_page_is_in_the_navigation(root: Path) -> None:
    """`make docs` builds the site strictly, and fails for a page that is in none."""
    listed = set(re.findall(r"[\w/-]+\.md\b", (root / "mkdocs.yml").read_text()))
    pages = {str(path.relative_to(root / "docs")) for path in (root / "docs").rglob("*.md")}
    # The page of each verb is found from the command line's.
    assert {page for page in pages - listed if not page.startswith("reference/cli/")} == set()


def test_a_diagram_is_what_its_table_draws(root: Path) -> None:
    kept = root / "docs" / "pictures"
    drawn = {name: "\n".join(draw()) + "\n" for name, draw in pictures.DIAGRAMS.items()}
    assert [name for name in drawn if (kept / name).read_text() != drawn[name]] == [], "python tools/pictures.py"


def test_a_design_page_says_in_words_what_its_diagram_is(root: Path) -> None:
    shown = [found for page in (root / "docs" / "design").glob("*.md") for found in _SHOWN.findall(page.read_text())]
    titles = {name: f"<title>{html.escape(words)}</title>" for words, name in shown}
    assert len(titles) > 30
    assert [name for name in titles if titles[name] not in (root / "docs" / "pictures" / name).read_text()] == []
