"""`fairlead agent check`: says what a configuration file of NVIDIA's device plugin does here, and what is wrong."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Final

import click
import msgspec

from fairlead import errors, files
from fairlead.cli.core import options, output, plaintext
from fairlead.plan.gpu import nodeconfig
from fairlead.plan.metrics import chosen
from fairlead.plan.sharing import fields
from fairlead.wire.nvidia import counters, pluginreader
from fairlead.wire.nvidia.pluginconfig import Effect

_WIDTH: Final = 78


class FieldView(msgspec.Struct, frozen=True, kw_only=True):
    """One field as it is printed."""

    path: str
    value: str
    effect: str
    text: str


class CheckView(msgspec.Struct, frozen=True, kw_only=True):
    """What a file does."""

    file: str
    fields: tuple[FieldView, ...]
    problems: tuple[str, ...]


@click.command("check")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@options.json_option
def check(file: Path, *, form: str) -> None:
    """Say what a configuration file (version: v1) does, field by field, and what is wrong with it.

    A list of counters of dcgm-exporter's, a CSV file, is explained line by line. Nothing is changed, and no agent need
    run. A wrong file ends with exit code 2, and no agent would take it.
    """
    data = read_file(file)
    found = _counters(file, data) if counters.is_list(data) else _plugin(file, data)
    problems = found.problems
    if form == "text":
        _show(found)
    else:
        output.show_value(found, form=form)
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        hint = "each is named above with its path" if form == "text" else None
        raise errors.Invalid(f"{file} has {count}", reason="PluginConfigInvalid", hint=hint)


def _plugin(file: Path, data: bytes) -> CheckView:
    config, wrong = pluginreader.read(data)
    return CheckView(
        file=str(file),
        fields=tuple(
            FieldView(path=one.path, value=one.value, effect=one.effect.value, text=one.text)
            for one in fields.explain(config)
        ),
        problems=wrong or nodeconfig.find_impossible(config),
    )


def _counters(file: Path, data: bytes) -> CheckView:
    listed, problems = counters.read(data)
    unknown = chosen.find_unknown(listed)
    return CheckView(
        file=str(file),
        fields=tuple(
            FieldView(
                path=one.field,
                value=one.kind,
                effect=(Effect.NOT_CARRIED_OUT if one in unknown else Effect.START).value,
                text="not among the figures that are read here, so it has no series"
                if one in unknown
                else "on every series, as a label"
                if one.kind == counters.LABEL
                else "shown where the GPU reports it",
            )
            for one in listed
        ),
        problems=problems,
    )


def read_file(file: Path) -> bytes:
    """Return what a file says. Raises: RequestError: it cannot be read."""
    try:
        return files.read_bounded(file)
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        raise errors.RequestError(message, reason="FileUnreadable", hint="name a readable file") from error


def _show(found: CheckView) -> None:
    for problem in found.problems:
        plaintext.echo(f"wrong: {problem}", fg="red")
    for one in found.fields:
        plaintext.echo(f"{one.path}: {one.value}" if one.value else one.path, bold=True)
        colour = "yellow" if one.effect == Effect.NOT_CARRIED_OUT.value else None
        for line in textwrap.wrap(f"{one.effect}: {one.text}", _WIDTH, initial_indent="    ", subsequent_indent="    "):
            plaintext.echo(line, fg=colour)
    if not found.fields and not found.problems:
        plaintext.echo("the file gives no field: every GPU is offered whole, under its usual resource")
