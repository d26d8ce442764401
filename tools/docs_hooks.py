"""Lets names of tests in the site's pages break where a person would break them; a hook of mkdocs.

A name like `tests/unit/x/test_y.py::test_that_it_is_so` is wider than a phone. It may break after a slash, an
underscore and `::`, and nowhere else, so that every part stays a word. Code of several words, or longer
than a phone is wide, is marked, since it may break there, and between choices; an option in it stays on one line,
dashes and all.
"""

from __future__ import annotations

import re
from typing import Any, Final

_NAME: Final = re.compile(r"<code>(tests/[\w/.*:…-]+|test_[\w.:*…]+)</code>")
_WORDS: Final = re.compile(r"<code>([^<]*\s[^<]*|[^<]{37,})</code>")
_INLINE: Final = re.compile(r"(<code(?: class=\"[a-z -]+\")?>)((?:[^<]|<wbr>)+)(</code>)")
_OPTION: Final = re.compile(r"(?<![\w-])--?[a-z][\w.-]{0,23}(?![\w.-])")
_CHOICE: Final = re.compile(r"[|,](?=\S)")
_BREAK: Final = re.compile(r"(::|/|_)")


def on_page_content(html: str, **_: Any) -> str:
    """Return a page's HTML with places to break in its names of tests, and long code marked."""
    html = _NAME.sub(lambda found: f'<code class="fl-test">{_BREAK.sub(_after, found[1])}</code>', html)
    html = _WORDS.sub(_words, html)
    return _INLINE.sub(lambda found: found[1] + _OPTION.sub(_whole, found[2]) + found[3], html)


def _whole(found: re.Match[str]) -> str:
    return f'<span class="fl-option">{found[0]}</span>'


def _words(found: re.Match[str]) -> str:
    has_several = any(one.isspace() for one in found[1])
    kind, text = ("fl-words fl-several", _CHOICE.sub(_after, found[1])) if has_several else ("fl-words", found[1])
    return f'<code class="{kind}">{text}</code>'


def _after(found: re.Match[str]) -> str:
    return f"{found[0]}<wbr>"
