"""`fairlead compose …`: Compose files in docker compose's words; what they become is in `plan/compose`."""

from __future__ import annotations

from typing import Any

import click

from fairlead.cli.container.compose import down, options, show, up


@click.group("compose")
@options.with_project()
def group(**_given: Any) -> None:
    """Run Compose files, in docker compose's words.

    What of a file is not carried out is said line by line, and refused where a program would see something else.
    """


for verb in (up.up, down.down, show.ps, show.logs, show.config, down.stop, down.restart, down.build, down.ls):
    group.add_command(verb)
