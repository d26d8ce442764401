"""Prints the help of verbs with many options: `--help` has those in common use, `--help all` every one, in sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from fairlead.cli.core import lazygroup

_ALL: Final = "all"
_OTHER: Final = "Options"
_IS_WHOLE: Final = "fairlead.help.all"


class SectionedOption(click.Option):
    """An option that says which section of the help it stands in."""

    def __init__(self, *args: Any, section: str = "", is_aside: bool = False, **kwargs: Any) -> None:
        """Take click's arguments. Args: section: its title.   is_aside: the section is one of the last."""
        super().__init__(*args, **kwargs)
        self.section, self.is_aside = section, is_aside


class Sectioned(click.Command):
    """Help in sections.

    Options are named as click names their parameters. Those that neither a section nor their class places come in one
    section of their own, after those that are named here.
    """

    def __init__(
        self, *args: Any, common: Sequence[str] = (), sections: Mapping[str, Sequence[str]] | None = None, **kwargs: Any
    ) -> None:
        """Take click's arguments.

        Args: common: parameters of the short help; none: all.   sections: by title, its parameters.
        """
        super().__init__(*args, **kwargs)
        self.common = frozenset(common)
        self._placed = {name: title for title, names in (sections or {}).items() for name in names}
        self._titles = tuple(sections or {})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; `--help all` is `--help` with every option."""
        for place, word in enumerate(args):
            if not word.startswith("-") or word == "--":
                break  # what follows is not for us
            if word in ctx.help_option_names and args[place + 1 : place + 2] == [_ALL]:
                ctx.meta[_IS_WHOLE] = True
        return super().parse_args(ctx, args)

    def records(self, ctx: click.Context, *, is_whole: bool) -> tuple[dict[str, list[tuple[str, str]]], int]:
        """Return the help of options by section, in their order, and how many are left out."""
        found: dict[str, list[tuple[str, str]]] = {title: [] for title in (*self._titles, _OTHER)}
        hidden, own = 0, (one for one in self.get_params(ctx) if isinstance(one, click.Option))
        for param in sorted(own, key=lambda one: getattr(one, "is_aside", False)):
            if (record := param.get_help_record(ctx)) is None:
                continue
            if not is_whole and param.name not in self.common and param.name != "help":
                hidden += 1
                continue
            # A short help is one list, unless somebody has put it in order.
            title = self._section(param) if is_whole or self._titles else _OTHER
            found.setdefault(title, []).append(record)
        return found, hidden

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        found, hidden = self.records(ctx, is_whole=bool(ctx.meta.get(_IS_WHOLE)) or not self.common)
        for title, records in found.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if hidden:
            formatter.write_paragraph()
            with formatter.indentation():
                flag = next(one for one in reversed(ctx.help_option_names) if one.startswith("--"))
                formatter.write_text(f"{hidden} more options: {ctx.command_path} {flag} {_ALL}")
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def _section(self, param: click.Parameter) -> str:
        if param.name in self._placed:
            return self._placed[param.name]
        return getattr(param, "section", "") or _OTHER


class SectionedCommand(Sectioned):
    """A verb whose help stands in sections."""


class SectionedGroup(Sectioned, lazygroup.LazyGroup):
    """A verb with verbs of its own whose help stands in sections."""
