"""`fairlead compose ps`, `logs`, `ls` and `config`: what there is of a project, and what it would be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from fairlead import errors
from fairlead.cli.container import logs as containerlogs
from fairlead.cli.container.compose import load, options, running, up
from fairlead.cli.container.compose.running import Place
from fairlead.cli.core import options as core_options
from fairlead.cli.core import output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.plan.compose import project
from fairlead.plan.compose.fields import Remarks
from fairlead.serve.v1.containers.view import ENDED, ContainerView

_ENDINGS: Final = (".yaml", ".yml")


def named(ctx: click.Context, client: Client, params: dict[str, Any], namespace: str) -> Place:
    """Return the project that the line means; its file is read where it is not named. Raises: as `load.load`."""
    wanted = options.given(ctx, params)
    name = load.project_name(wanted) or load.load(wanted, Remarks()).name
    return Place(client=client, namespace=namespace, project=name)


def of_services(place: Place, services: Sequence[str]) -> list[running.Document]:
    """Return a project's pods. Args: services: only theirs; none: all. Raises: Invalid: there is no such service."""
    found = list(place.pods().values())
    known = {running.service_of(one) for one in found}
    for name in services:
        if name not in known:
            message = f"no such service: {errors.readable(name[:80])}"
            raise errors.Invalid(message, reason="ServiceUnknown", hint="`fairlead compose ps -a` lists what is there")
    return [one for one in found if not services or running.service_of(one) in services]


def _status(item: ContainerView) -> str:
    """Return docker's words for the state of a container."""
    if item.state in ENDED:
        return f"Exited ({item.exit_code or 0}) {output.age(item.finished_at)} ago"
    if item.state != "running":
        why = item.waiting.message if item.waiting is not None else item.reason
        return f"{item.state.capitalize()}: {why}" if why else item.state.capitalize()
    is_well = all(part.ready for part in item.containers)
    return f"Up {output.age(item.started_at)}" + ("" if is_well else " (health: starting)")


_COLUMNS: Final = (
    Column[ContainerView]("NAME", lambda item: item.name),
    Column[ContainerView]("IMAGE", lambda item: item.image, rank=1),
    Column[ContainerView]("SERVICE", lambda item: item.labels.get(project.SERVICE, "")),
    Column[ContainerView]("CREATED", lambda item: f"{output.age(item.created_at)} ago", rank=2),
    Column[ContainerView]("STATUS", _status),
    Column[ContainerView]("GPUS", lambda item: str(item.gpus)),
    Column[ContainerView]("PORTS", lambda item: ", ".join(item.ports)),
)


@click.command()
@click.argument("services", nargs=-1, metavar="[SERVICE...]")
@options.with_project()
@core_options.namespace_option
@click.option("-a", "--all", "show_ended", is_flag=True, help="ended ones too")
@click.option("-q", "--quiet", is_flag=True, help="names only, one a line")
@click.option("--services", "only_services", is_flag=True, help="names of services only")
@core_options.output_option
@core_options.pass_client
@click.pass_context
def ps(
    ctx: click.Context, client: Client, /, *, services: tuple[str, ...], namespace: str, form: str, **more: Any
) -> None:
    """List a project's containers."""
    place = named(ctx, client, more, namespace)
    labels = (f"{project.PROJECT}={place.project}",)
    found = client.list_containers(show_ended=more["show_ended"], labels=labels, namespace=namespace)
    kept = [one for one in found if not services or one.labels.get(project.SERVICE) in services]
    kept.sort(key=lambda one: one.name)
    if more["only_services"]:
        for name in dict.fromkeys(one.labels.get(project.SERVICE, "") for one in kept):
            plaintext.echo(plaintext.cell(name))
        return
    output.show_listing(kept, _COLUMNS, form="name" if more["quiet"] else form, name=lambda item: item.name)


@click.command()
@click.argument("services", nargs=-1, metavar="[SERVICE...]")
@options.with_project(with_file=False)
@core_options.namespace_option
@click.option("-f", "--follow", is_flag=True, help="go on to the end")
@click.option("--tail", metavar="N|all", help="only the last N lines of each")
@click.option("--since", type=containerlogs.Moment(), help="only what was written since: 10m ago, or a time")
@click.option("--until", type=containerlogs.Moment(), help="only what was written until then")
@click.option("-t", "--timestamps", is_flag=True, help="put the time before each line")
@click.option("--no-log-prefix", is_flag=True, help="lines without the name of their container")
@core_options.pass_client
@click.pass_context
def logs(ctx: click.Context, client: Client, /, *, services: tuple[str, ...], namespace: str, **more: Any) -> None:
    """Show what a project's containers wrote; the file is named before: compose -f FILE logs -f."""
    words = [one for one in services if Path(one).suffix in _ENDINGS and Path(one).is_file()]  # logs -f compose.yaml
    more["sources"] = (*more["sources"], *words)
    place = named(ctx, client, more, namespace)
    pods = of_services(place, [one for one in services if one not in words])
    query = {
        "namespace": namespace,
        "follow": str(more["follow"]).lower(),
        "tail": containerlogs.line_count(more["tail"]),
        "timestamps": str(more["timestamps"]).lower(),
        "since": more["since"],
        "until": more["until"],
        "notices": "true",
    }
    if pods:
        each = up.sources(pods, has_prefix=not more["no_log_prefix"])
        containerlogs.copy_all(client, each, query, is_titled=True)


@click.command()
@options.with_project()
@core_options.namespace_option
@click.option("-q", "--quiet", is_flag=True, help="check the files, and print nothing")
@click.option("--services", "only_services", is_flag=True, help="names of services, one a line")
@click.option("--volumes", "only_volumes", is_flag=True, help="names of volumes, one a line")
@click.option("--images", "only_images", is_flag=True, help="names of images, one a line")
@click.option("-o", "--output", "form", type=click.Choice(("yaml", "json")), default="yaml", help="how to show it")
@core_options.pass_client
@click.pass_context
def config(ctx: click.Context, client: Client, /, *, namespace: str, form: str, **more: Any) -> None:
    """Print the objects that a project becomes; of Secrets no value."""
    prepared = up.prepare(client, options.given(ctx, more), namespace)
    chosen: Sequence[str] | None = None
    if more["only_services"]:
        chosen = list(prepared.objects.units)
    elif more["only_volumes"]:
        chosen = list(prepared.project.volumes)
    elif more["only_images"]:
        chosen = sorted({unit.image for unit in prepared.objects.units.values()})
    if chosen is not None or more["quiet"]:
        for name in chosen or ():
            plaintext.echo(name)
        return
    every = [*prepared.objects.shared, *(one for unit in prepared.objects.units.values() for one in unit.pods)]
    shown = [{**one, "data": dict.fromkeys(one["data"], "")} if one["kind"] == "Secret" else one for one in every]
    if form == "json":
        output.show_value({"apiVersion": "v1", "kind": "List", "items": shown}, form=form)
        return
    for at, one in enumerate(shown):
        if at:
            plaintext.echo("---")
        output.show_value(msgspec.json.decode(msgspec.json.encode(one)), form=form)  # no anchors for equal parts
