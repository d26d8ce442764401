"""Decides where objects come from: the files that are named, or else the cluster that is meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from fairlead import errors
from fairlead.cli.core import cluster, invocation, options
from fairlead.cli.layer.dra import read
from fairlead.cli.layer.dra.read import Kinds, Objects

F = TypeVar("F", bound=Callable[..., Any])


def source_options(function: F) -> F:
    """Add `-f`, the files to read, as `names`, and which cluster to ask where there is none."""
    named = click.option(
        "-f",
        "--file",
        "names",
        metavar="FILE",
        multiple=True,
        help="file of objects, YAML or JSON, - for standard input, repeatable; none: ask the cluster",
    )
    return named(options.cluster_options(function))


def objects(names: Sequence[str], kinds: Kinds) -> Objects:
    """Return the objects of files, or of the cluster that is meant where no file is named.

    Raises: RequestError: no file and no cluster; as `read.objects` and `fetch.objects`.
    """
    if names:
        return read.objects(names, kinds)
    config = invocation.current(click.get_current_context()).settings()
    try:
        access = cluster.access(config)
    except errors.Unavailable as error:
        if error.reason != cluster.MISSING:
            raise
        message = f"no -f FILE is given, and {error.message}"
        raise errors.RequestError(message, reason=cluster.MISSING, hint="give -f FILE, or --kubeconfig FILE") from error
    from fairlead.cli.layer.dra import fetch  # a cluster costs its client, files do not

    return fetch.objects(access, kinds)
