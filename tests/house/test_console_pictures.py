"""Every page of the console is photographed, and pictures are compared as the tolerance says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from litestar import handlers

from fairlead.serve.console import app
from tools.console_pictures import comparison, gallery, pages

_HANDLERS = tuple(one for one in app.ROUTES if isinstance(one, handlers.HTTPRouteHandler))
_ROUTES = tuple(path for one in _HANDLERS if "GET" in one.http_methods for path in one.paths)


def test_every_page_that_the_routes_serve_is_listed() -> None:
    assert len(_HANDLERS) == len(app.ROUTES), "a page is added in a way that this test does not see"
    assert pages.missing(_ROUTES) == []
    assert pages.missing((*_ROUTES, "/console/nobody-listed-it", "/console/nodes/{name:str}")) == [
        "/console/nobody-listed-it",
        "/console/nodes/{name:str}",
    ]


def test_every_template_is_a_page_that_is_listed_or_says_why_it_is_none(root: Path) -> None:
    names = {path.name for path in (root / "src/fairlead/serve/console/templates").glob("*.html")}
    assert len({page.name for page in pages.SHOWN}) == len(pages.SHOWN)
    assert set(pages.NO_TEMPLATE) <= names
    assert len(names - set(pages.NO_TEMPLATE)) <= len(pages.SHOWN)


def test_pictures_of_every_page_are_kept_small_and_shown(root: Path) -> None:
    wanted = {
        pages.file_name(page, width, scheme)
        for page in pages.SHOWN
        for width in pages.WIDTHS
        for scheme in pages.SCHEMES
    }
    kept = {path.name: path.stat().st_size for path in gallery.KEPT.glob("*.webp")}
    assert wanted == set(kept), "python -m tools.console_pictures --keep"
    assert sum(kept.values()) < 6 << 20
    assert gallery.PAGE.read_text() == gallery.text(**gallery.facts())


def _ground() -> comparison.Picture:
    return np.full((160, 96, 3), 244, np.uint8)


def test_a_word_that_changes_is_a_change_and_the_noise_of_encoding_is_none() -> None:
    noise = np.random.default_rng(7).integers(-9, 10, (160, 96, 3))
    noisy = np.clip(_ground().astype(int) + noise, 0, 255).astype(np.uint8)
    assert not comparison.compare(_ground(), noisy).is_changed
    word = _ground()
    word[40:46, 10:34:3] = 21  # strokes of a few letters, in the colour of ink
    found = comparison.compare(_ground(), word)
    assert found.is_changed
    assert found.blocks >= 3


@pytest.mark.parametrize(("rows", "columns", "is_changed"), [(163, 96, False), (172, 96, True), (160, 104, True)])
def test_a_page_that_grew_is_a_change(rows: int, columns: int, is_changed: bool) -> None:
    grown = np.full((rows, columns, 3), 244, np.uint8)
    assert comparison.compare(_ground(), grown).is_changed is is_changed
