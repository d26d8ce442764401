"""Offers a word of ours for one of another program: docker, podman, kubectl, slurm, NVIDIA's tools, monitors.

The words are in `foreign.toml`, one table for verbs, one for the options of each verb, one for the verbs of each group;
so a user who types by habit is answered with the line that works.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click


@dataclass(frozen=True)
class Words:
    """What to type instead."""

    verbs: dict[str, str]
    """By a verb that is not here."""
    options: dict[str, dict[str, str]]
    """By verb and an option that the verb does not have."""
    groups: dict[str, dict[str, str]]
    """By group and a verb that the group does not have."""


@functools.cache
def words() -> Words:
    """Read the file, once."""
    import tomllib  # 2 ms, which a command line without such a word is spared

    return Words(**tomllib.loads(Path(__file__).with_suffix(".toml").read_text()))


_ALIKE: Final = (
    ("ls", "list", "get"),
    ("rm", "remove", "delete", "revoke", "revert"),
    ("create", "add", "new", "set", "apply"),
    ("show", "inspect", "describe"),
)
"""Verbs that mean the same, one row each: the one that a group has is offered in place of the others."""


def word_for(error: click.UsageError) -> str:
    """Return what to type instead of the verb or option that the command line does not have; empty: not known."""
    if isinstance(error, click.NoSuchOption):
        verb = error.ctx.info_name if error.ctx else ""
        return words().options.get(verb or "", {}).get(error.option_name, "")
    if isinstance(error, click.NoSuchCommand) and error.ctx is not None:
        is_root = error.ctx.parent is None
        if is_root:
            return words().verbs.get(error.command_name, "")
        group = error.ctx.info_name or ""
        return words().groups.get(group, {}).get(error.command_name, "") or _alike(error.ctx, group, error.command_name)
    return ""


def _alike(ctx: click.Context, group: str, verb: str) -> str:
    """Return the command line with the verb that the group has for the one typed; empty: it has none."""
    own = ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else []
    same = next((row for row in _ALIKE if verb in row), ())
    return next((f"fairlead {group} {name}" for name in same if name in own), "")
