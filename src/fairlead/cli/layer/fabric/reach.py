"""Finds the Fabric Manager that a call means: options before or after the verb, else the settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.settings import Settings
from fairlead.silicon.fabric import reached
from fairlead.silicon.fabric.reached import Reached

F = TypeVar("F", bound=Callable[..., Any])

_KEY: Final = f"{__name__}.options"


@frozen
class Named:
    """What the options of one call name; empty: nothing."""

    address: str = ""
    agent: str = ""
    library: str = ""


def _keep(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Keep an option; one after the verb goes over one before it, since click meets it later."""
    if value is not None and not value.strip():
        # A script's variable that is not set would else switch partitions of another Manager, without a word.
        hint = f"name {param.metavar}, or leave the option out"
        raise errors.Invalid(f"{param.opts[0]} is empty", reason="FabricAddressInvalid", hint=hint)
    if value is not None:
        named: Named = ctx.meta.get(_KEY, Named())
        ctx.meta[_KEY] = dataclasses.replace(named, **{str(param.name): value})


_COMMON: Final[dict[str, Any]] = {"default": None, "expose_value": False, "callback": _keep}


def named_options(function: F) -> F:
    """Add `--address`, `--agent` and `--library`, which stand before or after the verb."""
    for decorate in (
        click.option("--library", metavar="PATH", help="NVIDIA's library  [default: fabric.library]", **_COMMON),
        click.option(
            "--agent",
            metavar="PATH|CID:PORT",
            help="go through `fairlead fabric serve`, which listens there  [default: fabric.agent]",
            **_COMMON,
        ),
        click.option(
            "--address",
            metavar="HOST:PORT|PATH|CID:PORT",
            help="where the Manager listens: TCP, a unix socket or vsock  [default: fabric.manager]",
            **_COMMON,
        ),
    ):
        function = decorate(function)
    return function


def _named() -> Named:
    found: Named = click.get_current_context().meta.get(_KEY, Named())
    return found


def reach(config: Settings) -> Reached:
    """Return the Manager that is meant; nothing is connected yet. Raises: UsageError, Invalid, Unavailable."""
    named = _named()
    if named.agent and (named.address or named.library):
        raise click.UsageError("--agent is another way than --address with --library: give one of the two")
    agent = reached.agent_of(config.fabric)
    if named.agent or (agent and named == Named()):
        return reached.through_agent(config.fabric, named.agent or agent, config.fabric_secret)
    return reach_library(config)


def reach_library(config: Settings) -> Reached:
    """Return the Manager that is meant, by its library. Raises: UsageError: an agent is named; Invalid."""
    named = _named()
    if named.agent:
        raise click.UsageError("serve is the agent: --agent names another one")
    settings = config.fabric
    return reached.by_library(settings, named.address or settings.manager, named.library or settings.library)
