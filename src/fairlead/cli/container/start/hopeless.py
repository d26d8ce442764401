"""Ends containers that ask for more than any node has, so that `run` returns with the reason and never waits for ever.

A node that starts has its devices a few seconds late, and a configuration that is swapped takes them away for as long:
what a node has none of is asked again for a while before it counts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from fairlead import errors
from fairlead.cli.core import plaintext
from fairlead.cli.core.client import Client
from fairlead.client.calls import AWAY
from fairlead.serve.v1.containers.life.waiting import NEVER, PORT, Waiting
from fairlead.serve.v1.containers.view import ContainerView

_TOO_LITTLE_S, _NONE_S, _AGAIN_S = 1.0, 10.0, 0.5
"""How long a node has too little, or none, of a resource until that counts; how often it is asked."""


def never_fits(found: Waiting | None) -> bool:
    """Return whether a container waits for what no node has."""
    return found is not None and found.reason == NEVER


def lacks_port(found: Waiting | None) -> bool:
    """Return whether a container waits for a port of the host that another one has."""
    return found is not None and found.reason == PORT


def warn(name: str, why: str) -> None:
    """Say on standard error that waiting will not help, and what to do."""
    plaintext.echo(f"{name}: {why}", err=True)
    plaintext.echo(f"  hint: `fairlead rm {name}` takes it back; `fairlead nodes` shows what there is", err=True)


def end(client: Client, shown: Sequence[ContainerView]) -> None:
    """Remove containers of which one will never fit.

    They are accepted already, so a service that went away is not waited for.
    Raises: NeverFits (`WillNeverFit`): they are removed; none of them has run where the first one cannot.
    """
    for item in shown:
        try:
            with client.impatient():
                why, is_port = _why(client, item)
        except errors.Unavailable as error:
            if error.reason not in AWAY:
                raise
            note = f"{item.name} is accepted; the service went away before it said whether a node has room for it"
            plaintext.echo(note, err=True)
            continue
        if is_port:
            warn_of_port(item.name, why)
        elif why:
            for one in shown:
                with contextlib.suppress(errors.NotFound):
                    client.delete(one.name, one.namespace, grace_s=0 if one.name == item.name else None)
            hint = "ask for less (`fairlead nodes` shows what there is); `run --wait` waits for a node that has it"
            raise errors.NeverFits(f"{item.name} {why}", reason="WillNeverFit", hint=hint)


def warn_of_port(name: str, why: str) -> None:
    """Say on standard error that a container waits for a port, which may last as long as who has it."""
    plaintext.echo(f"{name}: {why}", err=True)
    plaintext.echo(
        f"  hint: `fairlead rm {name}` takes it back; another port of the host: -p OTHER:CONTAINER", err=True
    )


def _why(client: Client, item: ContainerView) -> tuple[str, bool]:
    """Return why a container will never fit, or for which port it waits, and whether it is a port; empty: neither."""
    started = time.monotonic()
    while True:
        try:
            found = client.explain(item.name, item.namespace).waiting
        except errors.NotFound:
            return "", False
        if found is not None and lacks_port(found):
            return found.message, True
        if found is None or not never_fits(found):
            return "", False
        if time.monotonic() - started >= (_TOO_LITTLE_S if found.total else _NONE_S):
            return found.message, False
        time.sleep(_AGAIN_S)
