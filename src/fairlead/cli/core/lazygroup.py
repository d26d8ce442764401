"""Lists groups of verbs without importing any of them.

A verb's module is imported when the verb is called (or its own `--help` is asked for), so that `fairlead --help` and
completion cost no more than click itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import click

from fairlead import errors

_LONGEST: Final = 40


class Verb(NamedTuple):
    """One row of the table."""

    section: str
    target: str
    """`module:attribute` below `fairlead.cli`."""
    help: str
    is_hidden: bool = False


def load(target: str) -> click.Command:
    """Import the command at `module:attribute` below `fairlead.cli`."""
    module, _, attribute = target.partition(":")
    command = getattr(importlib.import_module(f"fairlead.cli.{module}"), attribute)
    if not isinstance(command, click.Command):
        raise TypeError(f"{target} is not a command")
    return command


def package_missing(error: ModuleNotFoundError) -> Exception:
    """Return what to report where a package is not installed; of a module of our own the error itself, a bug."""
    if error.name is None or error.name.partition(".")[0] in {"fairlead", "fairlead_cdi"}:
        return error
    message = f"this verb needs the Python package that has {error.name}, and it is not installed"
    hint = "this is the client alone; install Fairlead's wheel with its extra: fairlead[server]"
    return errors.Unavailable(message, reason="PackageMissing", hint=hint)


class LazyGroup(click.Group):
    """A group whose commands are rows of a table."""

    def __init__(self, *args: Any, verbs: Mapping[str, Verb], **kwargs: Any) -> None:
        """Take click's arguments and the table, by the verb's name."""
        super().__init__(*args, **kwargs)
        self._verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        """Return the verbs in the table's order."""
        return list(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 click's signature
        """Import one verb; None for a name that is not in the table."""
        verb = self._verbs.get(cmd_name)
        if verb is None:
            return None
        return load(verb.target)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; for a name that is not in the table, offer those that are spelled alike."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            is_short = len(error.command_name) <= _LONGEST  # likeness costs the product of the lengths
            offered = [name for name, verb in self._verbs.items() if is_short and not verb.is_hidden]
            raise click.NoSuchCommand(error.command_name, possibilities=offered, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 as above
        """Write the table, section by section, without importing a verb."""
        for section in dict.fromkeys(verb.section for verb in self._verbs.values()):
            with formatter.section(section):
                rows = [
                    (name, verb.help)
                    for name, verb in self._verbs.items()
                    if verb.section == section and not verb.is_hidden
                ]
                formatter.write_dl(rows, col_max=14)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        """Offer verbs from the table; options as every group does."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            click.shell_completion.CompletionItem(name, help=verb.help)
            for name, verb in self._verbs.items()
            if name.startswith(incomplete) and not verb.is_hidden
        ]
