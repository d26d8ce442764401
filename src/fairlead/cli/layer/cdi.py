"""`fairlead cdi …`: one layer by itself, no service needed.

The verbs that read specs are in `cdiread`, those that make them in `cdigenerate`. Each module is imported when a verb
of it is called: who makes specs pays for no reader, who reads them for no hardware.
"""

from __future__ import annotations

from typing import Final

import click

from fairlead.cli import verbs

_VERBS: Final = {
    "diff": "layer.cdiread:diff_verb",
    "explain": "layer.cdiread:explain_verb",
    "inject": "layer.cdiread:inject_verb",
    "lint": "layer.cdiread:lint_verb",
    "list": "layer.cdiread:list_verb",
    "prepare": "layer.cdiread:prepare_verb",
    "validate": "layer.cdiread:validate_verb",
    "generate": "layer.cdigenerate:generate_verb",
    "watch": "layer.cdigenerate:watch_verb",
}
"""`module:attribute` below `fairlead.cli`, by verb."""


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  as above
        return verbs.load(_VERBS[cmd_name]) if cmd_name in _VERBS else None


@click.group("cdi", cls=_Group)
def group() -> None:
    """Generate, list and validate CDI specs."""
