"""`fairlead settings`: shows every setting, its value in force and where it came from."""

from __future__ import annotations

from typing import Any, Final

import click
import msgspec

from fairlead import settings
from fairlead.cli.core import invocation, options, output
from fairlead.cli.core.output import Column


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table as it stands now."""

    key: str
    value: Any
    default: Any
    source: str
    """`default`, `file` or `environment`."""
    unit: str | None
    env: str
    flag: str
    choices: tuple[str, ...]
    text: str


_COLUMNS: Final = (
    Column[Setting]("SETTING", lambda item: item.key),
    Column[Setting]("VALUE", lambda item: _shown(item.value, item.unit)),
    Column[Setting]("FROM", lambda item: item.source, rank=1),
    Column[Setting]("ENVIRONMENT", lambda item: item.env, rank=2),
    Column[Setting]("FLAG", lambda item: item.flag, is_wide=True),
    Column[Setting]("MEANING", lambda item: item.text, is_wide=True),
)


def _shown(value: object, unit: str | None) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value if value is not None else "")
    return f"{text} {unit}" if unit and text else text


@click.command("settings")
@options.output_option
@click.pass_context
def settings_verb(ctx: click.Context, *, form: str) -> None:
    """Show the settings in force and where they come from."""
    found = list_settings(invocation.current(ctx))
    output.show_listing(found, _COLUMNS, form=form, name=lambda item: item.key)


def list_settings(call: invocation.Invocation) -> list[Setting]:
    """Return every setting in the table's order. Raises: Invalid: a wrong value or an unknown key."""
    merged = call.settings()
    from_file = settings.load(flags={}, env={}, file=call.file())
    defaults = settings.Settings()
    return [
        Setting(
            key=row.key,
            value=_plain(_value(merged, row)),
            default=_plain(_value(defaults, row)),
            source=_source(call, row, is_from_file=_value(from_file, row) != _value(defaults, row)),
            unit=row.unit,
            env=row.env,
            flag=row.flag,
            choices=row.choices,
            text=row.text,
        )
        for row in settings.rows()
    ]


def _value(whole: settings.Settings, row: settings.Row) -> object:
    return getattr(getattr(whole, row.group), row.name)


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _source(call: invocation.Invocation, row: settings.Row, *, is_from_file: bool) -> str:
    if row.env in call.env:
        return "environment"
    return "file" if is_from_file else "default"
