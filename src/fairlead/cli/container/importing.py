"""`fairlead import docker|podman NAME`: prints what runs another engine's container under Fairlead."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.container import inspected
from fairlead.cli.core import options, plaintext
from fairlead.cli.core.client import Client

_LIMIT_S: Final = 20.0
_LARGEST: Final = 4 << 20


@click.command("import")
@click.argument("engine", type=click.Choice(("docker", "podman")))
@click.argument("name")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(("line", "yaml")),
    default="line",
    show_default=True,
    help="the line of `run`, or the manifest",
)
@options.pass_client
def imported(client: Client, *, engine: str, name: str, form: str) -> None:
    """Print what runs a container of docker or podman here.

    The container is read, not changed. What is not carried out is named on standard error. A variable's value is
    printed as it is.
    """
    if name.startswith("-") or not name.isprintable():
        raise errors.Invalid(f'"{errors.readable(name)}" is not a container', reason="NameInvalid", hint=f"{engine} ps")
    found = _inspect(engine, ("container", "inspect", "--", name))
    image = _inspect(engine, ("image", "inspect", "--", str(found.get("Image") or "")), is_needed=False)
    line = inspected.line_of(found, image)
    if form == "yaml":
        plaintext.echo(manifest(client, line.argv))
    else:
        plaintext.echo(shlex.join(line.argv))
    for one in line.left_out:
        plaintext.echo(f"not carried out: {one}", err=True)


def _inspect(engine: str, words: Sequence[str], *, is_needed: bool = True) -> Mapping[str, Any]:
    """Return what an engine says of a container or image, bounded and in time.

    Raises: NotFound (`ContainerUnknown`), Unavailable (`EngineMissing`), ProtocolError (`InspectUnreadable`).
    """
    import asyncio  # no other verb of this kind loads it

    from fairlead import command

    try:
        done = asyncio.run(command.run((engine, *words), env=command.base_env(), timeout_s=_LIMIT_S, largest=_LARGEST))
    except errors.FairleadError as error:
        if not is_needed:
            return {}
        hint = f"`fairlead import` asks {engine} itself, on its machine and as its user"
        raise errors.Unavailable(
            f"{engine} does not answer: {error.message}", reason="EngineMissing", hint=hint
        ) from error
    if done.code:
        if not is_needed:
            return {}
        message = f'{engine} knows no container "{words[-1]}": {done.last_line or f"exit code {done.code}"}'
        raise errors.NotFound(message, reason="ContainerUnknown", hint=f"`{engine} ps -a` lists them")
    try:
        (found,) = json.loads(done.stdout)
    except (ValueError, TypeError, RecursionError) as error:
        message = f'what {engine} says of "{words[-1]}" cannot be read'
        raise errors.ProtocolError(message, reason="InspectUnreadable") from error
    if not isinstance(found, dict):
        raise errors.ProtocolError(f"{engine} describes no container", reason="InspectUnreadable")
    return found


def manifest(client: Client, argv: Sequence[str]) -> str:
    """Return the manifest of a line of `run`. Raises: Invalid: as `run` does of the same words."""
    import msgspec
    import yaml

    from fairlead.cli.container.start import run
    from fairlead.serve.admission import request as requests
    from fairlead.wire.kubernetes import core

    request = run.request_of(client, argv[2:], {})
    pod = requests.pod_of(request, resource="nvidia.com/gpu", scheduler_name="")
    found = {"apiVersion": core.Pod.API_VERSION, "kind": core.Pod.KIND, **msgspec.to_builtins(pod)}
    found.pop("status", None)
    text: str = yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=200)
    return text.rstrip("\n")
