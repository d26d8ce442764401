"""The pages as a browser shows them: none scrolls sideways on a phone, no link is dead, no word is broken."""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(browser.PROGRAM is None, reason="needs Debian's chromium"),
]
CHECKOUT = Path(__file__).parents[2]
WIDTHS = (390, 1280)
# What sticks out, named so that a person finds it; frames that scroll by themselves may hold wide things.
_WIDE = """
(() => {
  const limit = document.documentElement.clientWidth;
  if (document.scrollingElement.scrollWidth <= limit) return [];
  const frames = '.md-typeset__scrollwrap, pre, .md-sidebar, .md-search, .md-typeset__table';
  return [...document.querySelectorAll('body *')]
    .filter(one => one.getBoundingClientRect().right > limit + 1 && !one.closest(frames))
    .map(one => one.tagName + '.' + one.className + ': ' + one.textContent.trim().slice(0, 60)).slice(0, 5);
})()
"""
_LINKS = "[...document.querySelectorAll('a[href], img[src], link[href], script[src]')].map(one => one.href || one.src)"
_ANCHORS = "[...document.querySelectorAll('[id], a[name]')].map(one => one.id || one.name)"
# Two lines of one short word: the second begins lower than the first ended.
_BROKEN = """
[...document.querySelectorAll('td code:not(.fl-test), th')]
  .filter(one => !/\\s/.test(one.textContent.trim()) && one.getClientRects().length > 1)
  .map(one => one.textContent)
"""
# Tables that name tests and are wider than their frame.
_SCROLLED = """
[...document.querySelectorAll('.md-typeset__scrollwrap')]
  .filter(one => one.querySelector('.fl-test') && one.scrollWidth > one.clientWidth + 1)
  .map(one => one.textContent.trim().slice(0, 60) + ' ' + one.scrollWidth)
"""
_PICTURES = "[...document.images].filter(one => !one.naturalWidth).map(one => one.src)"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    argv = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder))
    subprocess.run(argv, cwd=CHECKOUT, check=True)
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        thread = threading.Thread(target=served.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


@pytest.fixture(scope="module")
def page() -> Iterator[browser.Page]:
    with browser.opened() as one:
        yield one


def _paths(site: Path) -> list[str]:
    return sorted("/" + str(found.relative_to(site).parent).removeprefix(".") for found in site.rglob("index.html"))


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_scrolls_sideways_and_no_word_of_a_table_is_broken(
    site: Path, address: str, page: browser.Page, width: int
) -> None:
    page.look(width=width)
    wrong = {}
    for path in _paths(site):
        page.open(f"{address}{path.rstrip('/')}/")
        found = {"wide": page.ask(_WIDE), "broken": page.ask(_BROKEN), "not shown": page.ask(_PICTURES)}
        if any(found.values()):
            wrong[path] = found
    assert wrong == {}


def test_a_table_of_tests_is_read_on_a_phone_without_scrolling_sideways(
    site: Path, address: str, page: browser.Page
) -> None:
    page.look(width=360)
    wrong, named = {}, 0
    for path in _paths(site):
        page.open(f"{address}{path.rstrip('/')}/")
        named += page.ask("document.querySelectorAll('td .fl-test').length")
        if found := page.ask(_SCROLLED):
            wrong[path] = found
    assert wrong == {}
    assert named > 500


def test_no_link_is_dead_and_no_page_asks_another_machine(site: Path, address: str, page: browser.Page) -> None:
    page.look(width=WIDTHS[-1])
    links, anchors, foreign = {}, {}, set()
    for path in _paths(site):
        url = f"{address}{path.rstrip('/')}/"
        page.open(url)
        links[url], anchors[url] = page.ask(_LINKS), set(page.ask(_ANCHORS))
        asked = page.ask("performance.getEntriesByType('resource').map(one => one.name)")
        foreign |= {one for one in asked if not one.startswith((address, "data:"))}
    dead = []
    for url, found in links.items():
        for link in found:
            parts = urllib.parse.urlsplit(link)
            if not link.startswith(address):
                continue
            target = site / urllib.parse.unquote(parts.path).lstrip("/")
            is_there = (target / "index.html").is_file() if target.is_dir() else target.is_file()
            place = urllib.parse.urlunsplit(parts._replace(fragment="", query=""))
            fragment = urllib.parse.unquote(parts.fragment)
            if not is_there or (fragment and place in anchors and fragment not in anchors[place]):
                dead.append(f"{url} -> {link}")
    assert dead == []
    assert foreign == set()


def test_the_home_page_leads_three_readers_somewhere_in_light_and_dark(address: str, page: browser.Page) -> None:
    for scheme in ("light", "dark"):
        page.look(width=390, scheme=scheme)
        page.open(f"{address}/")
        cards = page.ask("[...document.querySelectorAll('.grid.cards > ul > li')].map(one => one.innerText)")
        leads = page.ask(
            "[...document.querySelectorAll('.grid.cards > ul > li')].map(one => one.querySelectorAll('a').length)"
        )
        assert len(cards) == 3
        assert min(leads) >= 2
        shades = page.ask("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)")
        assert (sum(shades) < 300) is (scheme == "dark")
