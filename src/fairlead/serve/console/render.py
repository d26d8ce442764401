"""Draws pages from the templates: what is put into one is escaped, and a name that is missing is an error."""

from __future__ import annotations

import functools
import re
import shlex
from typing import Any, Final

import jinja2
import markupsafe

from fairlead.plan.pod import personwords, podstate
from fairlead.serve.console import static
from fairlead.serve.console.draw import words

_JOINTS: Final = re.compile(r"([/@]|:(?=[^/]))")


def page(name: str, **facts: Any) -> str:
    """Return a page as text."""
    return _environment().get_template(f"{name}.html").render(**facts)


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals["asset"] = static.address
    for filter_ in (
        words.ago,
        words.bytes_,
        words.span,
        words.number,
        words.short,
        words.moment,
        words.percent,
        words.money,
        words.named,
    ):
        made.filters[filter_.__name__.removesuffix("_")] = filter_
    made.filters["plain"] = _plain
    made.filters["broken"] = _broken
    made.filters["shell"] = shlex.join
    made.filters["devices"] = podstate.say_devices
    made.filters["person"] = personwords.message
    return made


def _broken(value: object) -> markupsafe.Markup:
    """Return an image, a path or an address that a narrow place breaks between its parts, not within one."""
    return markupsafe.Markup(_JOINTS.sub(r"\1<wbr>", str(_plain(value))))  # noqa: S704  (escaped by `_plain`)


def _plain(value: object) -> markupsafe.Markup:
    """Return a text with what does not print shown as escapes, so that no name can turn the line or hide itself."""
    shown = "".join(one if one.isprintable() or one == "\n" else f"\\u{ord(one):04x}" for one in str(value))
    return markupsafe.escape(shown)
