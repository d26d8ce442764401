"""Man pages of the program, made from its commands: `fairlead.1`, and a page for each verb and sub-verb.

Nothing on them is written by hand. Source of the format: groff_man(7), man-pages(7).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from fairlead import __version__, errors, settings
from fairlead.cli import main, verbs

_FILES = (
    (str(settings.DEFAULT_FILE), "settings; fairlead-settings(1) shows those in force"),
    ("/var/lib/fairlead", "objects, checkpoints, simulated silicon"),
    ("/run/fairlead/api.sock", "the API"),
)


def pages() -> dict[str, str]:
    """Return every page by its file name."""
    context = click.Context(main.root, info_name="fairlead")
    found = {"fairlead.1": _page(main.root, context, _root_tail())}
    for name, verb in verbs.VERBS.items():
        command = main.root.get_command(context, name)
        if command is not None and not verb.is_hidden:
            found.update(_tree(command, click.Context(command, parent=context, info_name=name), verb.help))
    return found


def _tree(command: click.Command, context: click.Context, short: str) -> Iterator[tuple[str, str]]:
    yield f"{_name(context)}.1", _page(command, context, (), short=short)
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if child is not None and not child.hidden:
            below = click.Context(child, parent=context, info_name=name)
            yield from _tree(child, below, child.get_short_help_str(100))


def _name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _page(command: click.Command, context: click.Context, tail: Iterator[str] | tuple[()], *, short: str = "") -> str:
    name = _name(context)
    lines = [
        f'.TH "{name.upper()}" "1" "" "Fairlead {__version__}" "Fairlead"',
        ".SH NAME",
        f"{_text(name)} \\- {_text((short or command.get_short_help_str(100)).rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_text(context.command_path)}",
        _line(" ".join(command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        *_paragraphs(command.help or ""),
        *_options(command, context),
        *_commands(command, context),
        *tail,
        *_see_also(command, context),
    ]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(inspect.cleandoc(text).split("\n\n")):
        if number:
            yield ".PP"
        if paragraph.startswith("\b"):
            yield from (".nf", *(_line(line) for line in paragraph.lstrip("\b\n").splitlines()), ".fi")
        else:
            yield _line(" ".join(paragraph.split()))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    records = [record for item in command.params if (record := item.get_help_record(context)) and record[1]]
    if records:
        yield ".SH OPTIONS"
    for names, text in records:
        yield from (".TP", f".B {_text(names)}", _line(" ".join(text.split())))


def _commands(command: click.Command, context: click.Context) -> Iterator[str]:
    if not isinstance(command, click.Group):
        return
    yield ".SH COMMANDS"
    for name in command.list_commands(context):
        verb = verbs.VERBS.get(name) if context.parent is None else None
        child = None if verb else command.get_command(context, name)
        if (verb is None or verb.is_hidden) and (child is None or child.hidden):
            continue
        short = verb.help if verb else child.get_short_help_str(100) if child else ""
        yield from (".TP", f".B {_text(name)}", _line(short))


def _root_tail() -> Iterator[str]:
    yield ".SH EXIT STATUS"
    yield from (".TP", ".B 0", "done")
    who: dict[int, list[str]] = {}
    for row in errors.TABLE.values():
        if row.who not in who.setdefault(row.exit, []):
            who[row.exit].append(row.who)
    for code, names in sorted(who.items()):
        yield from (".TP", f".B {code}", _line(f"{' or '.join(names)} acts"))
    yield from (".TP", ".B 70", "a bug of Fairlead", ".TP", ".B 130", "interrupted")
    yield ".SH FILES"
    for path, what in _FILES:
        yield from (".TP", f".I {_text(path)}", _line(what))


def _see_also(command: click.Command, context: click.Context) -> Iterator[str]:
    yield ".SH SEE ALSO"
    if context.parent is not None:
        yield f".BR {_text(_name(context.parent))} (1)"
    if isinstance(command, click.Group) and context.parent is not None:
        for name in command.list_commands(context):
            yield f".BR {_text(f'{_name(context)}-{name}')} (1)"
    if context.parent is None:
        for name, verb in verbs.VERBS.items():
            if not verb.is_hidden:
                yield f".BR {_text(f'fairlead-{name}')} (1)"


def _text(text: str) -> str:
    """Return text that roff prints as it is; a plain hyphen would be set as a typographic one."""
    return re.sub(r"[\\\-`'^~]", lambda found: _SIGNS[found[0]], text)


_SIGNS = {"\\": "\\e", "-": "\\-", "`": "\\(ga", "'": "\\(aq", "^": "\\(ha", "~": "\\(ti"}


def _line(text: str) -> str:
    """Return a line of text, which must not begin as a request does."""
    shown = _text(text)
    return f"\\&{shown}" if shown.startswith(".") else shown
