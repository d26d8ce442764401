"""`fairlead compose down`, `stop`, `start`, `restart`, `rm`, `build` and `pull`: the rest of a project's life."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.container.compose import options, running, show, up
from fairlead.cli.core import options as core_options
from fairlead.cli.core import plaintext
from fairlead.cli.core.client import Client
from fairlead.plan.compose import project

_GRACE = click.option("-t", "--timeout", type=core_options.Duration(), help="between SIGTERM and SIGKILL")
_SERVICES = click.argument("services", nargs=-1, metavar="[SERVICE...]")
_IN_USE_S: Final = 30.0


@click.command()
@_SERVICES
@options.with_project()
@core_options.namespace_option
@click.option("-v", "--volumes", "with_volumes", is_flag=True, help="its named volumes, too, with what is in them")
@click.option("--remove-orphans", is_flag=True, help="as it is: all containers of the project go")
@_GRACE
@core_options.pass_client
@click.pass_context
def down(
    ctx: click.Context,
    client: Client,
    /,
    *,
    services: tuple[str, ...],
    namespace: str,
    timeout: int | None,
    **more: Any,
) -> None:
    """Stop and remove a project's containers and what was made for them; volumes stay."""
    place = show.named(ctx, client, more, namespace)
    pods = show.of_services(place, services)
    names = [str(one["metadata"]["name"]) for one in pods]
    place.remove_pods(names, timeout)
    for name in names:
        up.say("Container", name, "Removed")
    if services:
        return
    place.remove_others()
    place.remove_values()
    if more["with_volumes"]:
        for one in place.listed("persistentvolumeclaims"):
            _remove_volume(place, str(one["metadata"]["name"]))
    if not names:
        plaintext.echo(f"No containers of project {place.project} are here.", err=True)


def _remove_volume(place: running.Place, name: str) -> None:
    """Raises: Conflict: a container of another project mounts it."""
    until = time.monotonic() + _IN_USE_S
    while (action := place.remove("persistentvolumeclaims", name)) == "in use":
        if time.monotonic() > until:
            message = f'volume "{name}" is in use'
            raise errors.Conflict(message, reason="VolumeInUse", hint="`fairlead volume ls` shows by whom")
        time.sleep(running.AGAIN_S)
    if action == "deleted":
        up.say("Volume", name, "Removed")


@click.command()
@_SERVICES
@options.with_project()
@core_options.namespace_option
@_GRACE
@core_options.pass_client
@click.pass_context
def stop(
    ctx: click.Context,
    client: Client,
    /,
    *,
    services: tuple[str, ...],
    namespace: str,
    timeout: int | None,
    **more: Any,
) -> None:
    """Stop a project's containers and keep them."""
    place = show.named(ctx, client, more, namespace)
    found = [one for one in show.of_services(place, services) if not running.has_ended(one)]
    up.stop(place, [str(one["metadata"]["name"]) for one in found], timeout)


@click.command()
@_SERVICES
@options.with_project()
@core_options.namespace_option
@_GRACE
@core_options.pass_client
@click.pass_context
def restart(
    ctx: click.Context,
    client: Client,
    /,
    *,
    services: tuple[str, ...],
    namespace: str,
    timeout: int | None,
    **more: Any,
) -> None:
    """Stop a project's containers and make them anew from the file."""
    prepared = up.prepare(client, options.given(ctx, more, services), namespace)
    wanted = project.needed(prepared.project, ())
    chosen = [name for name in wanted if not services or name in services]
    up.make(prepared, chosen, {"no_deps": True, "no_recreate": False, "force_recreate": True, "timeout": timeout})


@click.command()
@_SERVICES
@options.with_project()
@core_options.namespace_option
@core_options.pass_client
@click.pass_context
def build(ctx: click.Context, client: Client, /, *, services: tuple[str, ...], namespace: str, **more: Any) -> None:
    """Build the images of a project's services."""
    prepared = up.prepare(client, options.given(ctx, more, services), namespace)
    for name, unit in prepared.objects.units.items():
        given = prepared.project.services[name].get("build")
        if given and (not services or name in services):
            up.build_image(client, name, given, unit.image)


@click.command()
@options.with_project()
@core_options.namespace_option
@core_options.pass_client
def ls(client: Client, /, *, namespace: str, **_more: Any) -> None:
    """List projects, with how many containers of each run."""
    found = dict[str, list[bool]]()
    for one in client.list_containers(show_ended=True, namespace=namespace):
        if name := one.labels.get(project.PROJECT):
            found.setdefault(name, []).append(one.state == "running")
    for name, states in sorted(found.items()):
        plaintext.echo(f"{plaintext.cell(name)}  running({sum(states)}/{len(states)})")
