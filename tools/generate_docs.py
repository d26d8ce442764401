"""Write the reference pages that derive from code: settings, the command line, the values of the chart.

`python tools/generate_docs.py` rewrites the pages below `docs/reference`; the house ring fails while a committed page
differs from what this makes. Nothing on the pages is written by hand, so nothing on them can be out of date.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import click
import yaml

from fairlead import settings
from fairlead.cli import main
from fairlead.cli import verbs as lazy
from fairlead.cli.admin import manifests

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
_MADE = "<!-- Made by tools/generate_docs.py; edit the code it reads, then run `make docs`. -->"
_KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}


def pages() -> dict[str, str]:
    """Return every page by its file name."""
    return {
        "settings.md": "\n".join(_settings_page()),
        "cli.md": "\n".join(_cli_page()),
        "chart.md": "\n".join(_chart_page((manifests.CHART / "values.yaml").read_text())),
    }


# settings


def _settings_page() -> Iterator[str]:
    yield from (
        _MADE,
        "",
        "# Settings",
        "",
        "Every setting of every process. A flag wins over the environment, that over the file, that over the default.",
        f"The file is `{settings.DEFAULT_FILE}`, or what `--config` or `FAIRLEAD_CONFIG` names; it is TOML, and `a.b`",
        "below is key `b` in its table `[a]`. Unknown keys and variables are errors. `fairlead settings` shows what is",
        "in force and where each value comes from.",
        "",
    )
    groups = {field.name: typing.get_type_hints(settings.Settings)[field.name] for field in _fields()}
    for group, rows in itertools.groupby(settings.rows(), key=lambda row: row.group):
        yield from (f"## {group}", "", inspect.getdoc(groups[group]) or "", "")
        yield from ("| key | variable and flag | value | default | meaning |", "|---|---|---|---|---|")
        for row in rows:
            names = f"`{row.env}`<br>`{row.flag}`"
            yield f"| `{row.key}` | {names} | {_value(row)} | {_default(row)} | {_cell(row.text)} |"
        yield ""


def _fields() -> tuple[dataclasses.Field[typing.Any], ...]:
    return dataclasses.fields(settings.Settings)


def _value(row: settings.Row) -> str:
    if row.choices:
        return ", ".join(f"`{choice}`" for choice in row.choices)
    kinds = typing.get_args(row.type) if isinstance(row.type, types.UnionType) else (row.type,)
    kind = next(_KINDS[kind] for kind in kinds if kind is not types.NoneType)
    return f"{kind}, {row.unit}" if row.unit else kind


def _default(row: settings.Row) -> str:
    if row.default is None or row.default == "":
        return ""
    return f"`{str(row.default).lower() if isinstance(row.default, bool) else row.default}`"


# command line


def _cli_page() -> Iterator[str]:
    yield from (_MADE, "", "# Command line", "", "Every command explains itself with `-h` or `--help`.", "")
    context = click.Context(main.root, info_name="fairlead")
    yield from _command(main.root, context, level=2)
    for section, verbs in itertools.groupby(lazy.VERBS.items(), key=lambda item: item[1].section):
        yield from (f"## {section}", "")
        for name, verb in verbs:
            command = main.root.get_command(context, name)
            if command is not None and not verb.is_hidden:
                yield from _tree(command, click.Context(command, parent=context, info_name=name), level=3)


def _tree(command: click.Command, context: click.Context, *, level: int) -> Iterator[str]:
    yield from _command(command, context, level=level)
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if child is not None and not child.hidden:
            yield from _tree(child, click.Context(child, parent=context, info_name=name), level=level + 1)


def _command(command: click.Command, context: click.Context, *, level: int) -> Iterator[str]:
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    yield from (f"{'#' * level} {context.command_path}", "", f"`{usage}`", "")
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield from (_paragraph(paragraph), "")
    records = [record for item in command.params if (record := item.get_help_record(context)) and record[1]]
    if records:
        yield from ("| option | meaning |", "|---|---|")
        yield from (f"| `{_cell(names)}` | {_cell(text)} |" for names, text in records)
        yield ""


def _paragraph(text: str) -> str:
    """Keep what click shows as it stands (marked by a backspace) as a block, join the lines of the rest."""
    if text.startswith("\b"):
        return "```\n" + text.removeprefix("\b").strip("\n") + "\n```"
    return " ".join(text.split())


# values of the chart


def _chart_page(text: str) -> Iterator[str]:
    yield from (
        _MADE,
        "",
        "# Values of the chart",
        "",
        "What `helm install --set KEY=VALUE` takes, also from files with `-f`. A value that is not here is refused.",
        "`fairlead manifests` has the default ones. [Fairlead on Kubernetes](../how-to/kubernetes.md) says how they go",
        "together.",
        "",
        "| value | default | meaning |",
        "|---|---|---|",
    )
    node = yaml.compose(text)
    if not isinstance(node, yaml.MappingNode):
        raise TypeError("values.yaml is no map")
    for path, remark, value in _values(node, text.splitlines(), ""):
        yield f"| `{path}` | `{json.dumps(value)}` | {_cell(remark)} |"
    yield ""


def _values(node: yaml.MappingNode, lines: list[str], path: str) -> Iterator[tuple[str, str, object]]:
    """Yield path, remark and default of each value; a map is one value, unless its own keys carry remarks."""
    for key, value in node.value:
        here, remark = f"{path}{key.value}", _remark(lines, key.start_mark.line)
        is_group = isinstance(value, yaml.MappingNode) and any(
            _remark(lines, k.start_mark.line) for k, _ in value.value
        )
        if is_group:
            yield from _values(value, lines, f"{here}.")
        elif not remark:
            raise SystemExit(f"values.yaml: {here} has no remark above it")
        else:
            yield here, remark, yaml.SafeLoader("").construct_document(value)


def _remark(lines: list[str], line: int) -> str:
    """Return the comment that ends right above a line."""
    above = itertools.takewhile(lambda text: text.lstrip().startswith("#"), reversed(lines[:line]))
    return " ".join(text.lstrip("# ") for text in reversed(list(above)))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    for file_name, content in pages().items():
        (FOLDER / file_name).write_text(content)
        print(FOLDER / file_name)
