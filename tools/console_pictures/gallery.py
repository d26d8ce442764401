"""Writes the gallery: a page of the docs with every kept picture, for maintainers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.console_pictures import pages

ROOT: Final = Path(__file__).parents[2]
KEPT: Final = ROOT / "docs" / "pictures" / "console"
_SMALLER: Final = 5
"""What a picture's width is divided by where the gallery shows it; it leads to the kept one."""
FACTS: Final = KEPT / "taken.json"
"""When they were taken, and by which browser."""
PAGE: Final = ROOT / "docs" / "design" / "console-pictures.md"


def facts() -> dict[str, str]:
    """Return when the kept pictures were taken, and by which browser; empty: none are kept."""
    return dict(json.loads(FACTS.read_text())) if FACTS.exists() else {}


def text(taken: str, browser: str) -> str:
    """Return the page. Args: taken: day on which the pictures were taken.   browser: that took them."""
    return "\n".join(_lines(taken, browser)) + "\n"


def _lines(taken: str, browser: str) -> Iterator[str]:
    yield "# Pictures of the console"
    yield ""
    yield "<!-- written by `python -m tools.console_pictures --keep`; do not edit -->"
    yield ""
    yield (
        f"For maintainers: every page of the [console](console.md) at {_words()} CSS pixels, light and dark, at half "
        f"size. Taken {taken} by {browser} of a service on eight simulated H100s, whose image is busybox under another "
        "name. Ages, clocks, ids and measured figures are written over by the same words, and curves are left out, so "
        "that two pictures of one page can be compared."
    )
    for page in pages.SHOWN:
        yield ""
        yield f"## {page.name}"
        yield ""
        who = page.who or "nobody"
        yield f"`{page.path}{'#' + page.tab if page.tab else ''}`, as {who}: {page.says}."
        yield ""
        yield from (_image(page, width, scheme) for scheme in pages.SCHEMES for width in pages.WIDTHS)


def _image(page: pages.Shown, width: int, scheme: str) -> str:
    file = f"../pictures/console/{pages.file_name(page, width, scheme)}"
    return f"[![{page.name} at {width} pixels, {scheme}]({file}){{ width={width // _SMALLER} }}]({file})"


def _words() -> str:
    *most, last = (str(width) for width in pages.WIDTHS)
    return f"{', '.join(most)} and {last}"
