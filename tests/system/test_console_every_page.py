"""Every page of the console at four widths and in both schemes: nothing too wide or cut, nothing that keeps people out.

The story and the list of pages are those of `tools.console_pictures`, which keeps pictures of the same.
"""

from __future__ import annotations

import axe
import browser
import pytest

from tools.console_pictures import camera, pages, story

pytestmark = [
    pytest.mark.podman,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(browser.PROGRAM is None, reason="Chromium is not installed: apt-get install chromium"),
]


def test_no_page_is_too_wide_cut_or_closed_to_anybody_and_six_pages_that_follow_hold_no_connection() -> None:
    rules = axe.script()
    with story.told() as told, browser.opened("--ignore-certificate-errors") as page:
        taken = list(camera.take(told, page, pages.SHOWN, judge=lambda one: list(axe.problems(one, rules))))
    assert len(taken) == len(pages.SHOWN) * len(pages.WIDTHS) * len(pages.SCHEMES)
    assert {one.name: one.problems for one in taken if one.problems} == {}
    # Each is a page that follows the output of a container that runs: browsers have six connections to a host.
    assert sum("{vision}/train" in one.path for one in pages.SHOWN) >= 6
