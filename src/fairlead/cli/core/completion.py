"""Completes what only the service knows: containers, images, GPUs; and names of profiles and faults.

Completion never prints an error into the line being typed: no service means no offers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from fairlead import errors
from fairlead.cli.core import connection, invocation

if TYPE_CHECKING:
    from fairlead.cli.core.client import Client

Offer = tuple[str, str]
"""A word, and what a shell may show beside it."""
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _asking(find: Callable[[Client], Iterable[Offer]]) -> Completer:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        taken = ctx.params.get(str(param.name)) or ()
        with contextlib.suppress(errors.FairleadError), connection.opened(invocation.current(ctx)) as client:
            return _items((one for one in find(client) if one[0] not in taken), incomplete)
        return []

    return complete


def _items(offers: Iterable[Offer], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word, help=text) for word, text in offers if word.startswith(incomplete)]


def _containers(client: Client) -> Iterator[Offer]:
    for item in client.list_containers(show_ended=True):
        yield item.name, item.state


def _images(client: Client) -> Iterator[Offer]:
    from fairlead.serve.backend.hardware import ImageList

    for item in client.call("GET", "/v1/images", ImageList).items:
        for name in item.names:
            yield name, ""


def _gpus(client: Client) -> Iterator[Offer]:
    from fairlead.serve.backend.hardware import GPUListing

    for item in client.call("GET", "/v1/gpus", GPUListing).gpus:
        yield str(item.gpu.index), item.gpu.name


containers: Completer = _asking(_containers)
images: Completer = _asking(_images)
gpus: Completer = _asking(_gpus)


def container_then_gpu(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer containers for the first word of an argument, GPUs for the second."""
    complete = gpus if ctx.params.get(str(param.name)) else containers
    return complete(ctx, param, incomplete)


def profiles(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the machines that can be simulated."""
    from fairlead.silicon.sim import profile as known

    return _items(((name, "") for name in known.list_names()), incomplete)


def faults(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer what can be broken on command."""
    from fairlead.silicon.sim import fault as known

    return _items(((name, item.text) for name, item in known.FAULTS.items()), incomplete)
