"""`fairlead cdi …`: groups the verbs that work on CDI specs without any service.

The verbs that read specs are in `read`, those that make them in `generate`. Each module is imported when a verb of it
is called: who makes specs pays for no reader, who reads them for no hardware.
"""

from __future__ import annotations

from typing import Final

import click

from fairlead.cli.core import lazygroup

_VERBS: Final = {
    "diff": "layer.cdi.read:diff_verb",
    "explain": "layer.cdi.read:explain_verb",
    "inject": "layer.cdi.read:inject_verb",
    "lint": "layer.cdi.read:lint_verb",
    "list": "layer.cdi.read:list_verb",
    "prepare": "layer.cdi.read:prepare_verb",
    "validate": "layer.cdi.read:validate_verb",
    "generate": "layer.cdi.generate:generate_verb",
    "watch": "layer.cdi.generate:watch_verb",
}
"""`module:attribute` below `fairlead.cli`, by verb."""


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  as above
        return lazygroup.load(_VERBS[cmd_name]) if cmd_name in _VERBS else None


@click.group("cdi", cls=_Group)
def group() -> None:
    """Generate, list and validate CDI specs."""
