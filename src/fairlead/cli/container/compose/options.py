"""Adds the options by which a project is named, before the verb as docker compose has them, and behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from fairlead.cli.container.compose.load import Given
from fairlead.cli.core import invocation

F = TypeVar("F", bound=Callable[..., Any])
_MANY: Final = ("sources", "env_files", "profiles")
_KEYS: Final = (*_MANY, "project_name", "project_directory")


def _options(*, with_file: bool) -> tuple[Callable[[F], F], ...]:
    short = ("-f",) if with_file else ()
    return (
        click.option(
            *short, "--file", "sources", multiple=True, metavar="FILE", help="Compose file, or -; later ones go over"
        ),
        click.option(
            "-p", "--project-name", default="", metavar="NAME", help="name of the project  [default: folder's]"
        ),
        click.option("--env-file", "env_files", multiple=True, metavar="FILE", help="variables  [default: .env]"),
        click.option("--profile", "profiles", multiple=True, metavar="NAME", help="services of this profile, too"),
        click.option("--project-directory", default="", metavar="FOLDER", help="where paths begin  [default: file's]"),
    )


def with_project(*, with_file: bool = True) -> Callable[[F], F]:
    """Add the options. Args: with_file: whether `-f` is the file."""

    def decorate(function: F) -> F:
        for option in reversed(_options(with_file=with_file)):
            function = option(function)
        return function

    return decorate


def given(ctx: click.Context, params: dict[str, Any], services: tuple[str, ...] = ()) -> Given:
    """Return what the line names, taken out of a verb's parameters. Args: services: that are asked for by name."""
    before = ctx.parent.params if ctx.parent is not None else {}
    found = {key: params.pop(key) for key in _KEYS}
    for key in _MANY:
        found[key] = (*(before.get(key) or ()), *found[key])
    for key in ("project_name", "project_directory"):
        found[key] = found[key] or before.get(key) or ""
    return Given(
        sources=found["sources"],
        env_files=found["env_files"],
        name=found["project_name"],
        folder=found["project_directory"],
        profiles=found["profiles"],
        services=services,
        env=invocation.current(ctx).env,
    )
