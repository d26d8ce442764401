"""Takes pictures of the console: opens each page once, holds it still, and looks at it at each width and scheme.

What moves by nature is held still before the picture: ages, clocks, ids and figures that are measured are written over
by the same words each time, curves and bars of them are left out, and pages do not refresh.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.console_pictures import pages, story
from tools.console_pictures.pages import Shown

import browser  # isort: skip  (of tests/system, which story puts there)

SCALE: Final = 0.5
"""Of a kept picture: small enough to keep 400, large enough to read a heading and see a word cut."""
_QUALITY: Final = 45
_LOOKS: Final = 3
_TALLEST: Final = 2600
"""CSS pixels of a page that are taken."""
_HIDDEN: Final = """Object.defineProperty(document, 'hidden', {get: () => true});
window.__seen = [];
document.addEventListener("securitypolicyviolation", (one) => window.__seen.push(one.violatedDirective));
window.addEventListener("error", (one) => window.__seen.push(String(one.message)));"""
_STILL: Final = Path(__file__).with_name("still.js").read_text()
_WIDE: Final = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
_FAILED: Final = """(document.querySelector(".problem") || {}).textContent || ''"""
"""What the page says in place of what it was asked for."""
_CUT: Final = """[...document.querySelectorAll("main *")].filter((one) => {
  if (one.matches(".scroll")) return one.scrollWidth > one.clientWidth + 1;
  if (one.matches("select") && one.offsetParent) {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = getComputedStyle(one).font;
    return pen.measureText(one.selectedOptions[0].text).width > one.clientWidth - 34;
  }
  if (!one.offsetParent || one.matches("input, textarea")) return false;
  if (one.closest(".log, .terminal, .weekgrid, .scroll, .tabs, .hidden, pre, svg, .cell")) return false;
  return one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== "visible" && one.clientWidth;
}).map((one) => one.outerHTML.slice(0, 120))"""
"""What is cut: words of a list that is not open, and parts whose content is wider than they are."""


@dataclass(frozen=True)
class Taken:
    """One picture."""

    page: Shown
    width: int
    scheme: str
    data: bytes
    """WebP at `SCALE`."""
    whole: bytes
    """PNG at full size; empty where it was not asked for."""
    problems: tuple[str, ...]
    """What is wrong with the page at this width, that needs no eye."""

    @property
    def name(self) -> str:
        return pages.file_name(self.page, self.width, self.scheme)


def take(
    one: story.Told,
    page: browser.Page,
    shown: Sequence[Shown],
    *,
    is_whole: bool = False,
    judge: Callable[[browser.Page], list[str]] | None = None,
) -> Iterator[Taken]:
    """Take pictures. Args: is_whole: at full size too.   judge: says what is wrong with a page at the phone's width."""
    page.call("Page.addScriptToEvaluateOnNewDocument", source=_HIDDEN)
    page.call("Network.enable")
    who = None
    for item in sorted(shown, key=lambda item: item.who):
        page.look(width=1280)
        if item.who != who:
            who = item.who
            _log_in(page, one, who)
        yield from _every(page, one, item, is_whole=is_whole, judge=judge)


def _every(
    page: browser.Page,
    one: story.Told,
    item: Shown,
    *,
    is_whole: bool,
    judge: Callable[[browser.Page], list[str]] | None,
) -> Iterator[Taken]:
    address = f"{one.address}{item.path.format_map(one.places)}{f'#{item.tab}' if item.tab else ''}"
    for _ in range(_LOOKS):
        page.open("about:blank")  # two tabs of one page differ by the fragment alone, which loads nothing
        page.open(address)
        if page.ask("[...document.images].every((one) => one.naturalWidth > 0)"):
            break  # else a machine that is too busy has left a picture out
    time.sleep(0.15)
    found: list[str] = page.ask("window.__seen")
    if page.ask(_FAILED) and item.name != "problem":
        found = [*found, f"it is an error: {page.ask(_FAILED)}"]
    page.ask(_STILL)
    for width in pages.WIDTHS:
        for scheme in pages.SCHEMES:
            page.look(width=width, scheme=scheme)
            wide = page.ask(_WIDE)
            problems = [*found, *([f"{wide} px too wide"] if wide > 0 else [])]
            problems += [f"cut: {text}" for text in page.ask(_CUT)]
            if judge and width == pages.WIDTHS[0]:
                problems += judge(page)
            height = min(max(page.ask("document.documentElement.scrollHeight"), 640), _TALLEST)
            page.look(width=width, scheme=scheme, height=height)
            yield Taken(
                page=item,
                width=width,
                scheme=scheme,
                data=_shot(page, width, height, SCALE, format="webp", quality=_QUALITY),
                whole=_shot(page, width, height, 1, format="png") if is_whole else b"",
                problems=tuple(problems),
            )


def _shot(page: browser.Page, width: int, height: int, scale: float, **how: Any) -> bytes:
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": scale}
    return base64.b64decode(page.call("Page.captureScreenshot", clip=clip, **how)["data"])


def _log_in(page: browser.Page, one: story.Told, who: str) -> None:
    page.call("Network.clearBrowserCookies")
    page.open(f"{one.address}/")
    if not who:
        return
    page.ask(f"document.getElementById('key').value = {json.dumps(one.keys[who])}")
    page.press("document.querySelector('button[type=submit]').click()")
