"""`fairlead image …`: lists, fetches, builds, imports, moves and removes images on the service's machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from fairlead import errors
from fairlead.cli.core import options, output, plaintext, progress
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.cli.image import archive, prune
from fairlead.serve.backend.hardware import ImageList, ImageView
from fairlead.serve.v1.images.view import BuildRequest, ImportRequest


def _name(item: ImageView) -> str:
    return item.names[0] if item.names else item.id[:19]


_DEMO: Final = "localhost/demo"

_COLUMNS: Final = (
    Column[ImageView]("NAME", lambda item: item.names[0] if item.names else "<none>"),
    Column[ImageView]("ID", lambda item: item.id.removeprefix("sha256:")[:12]),
    Column[ImageView]("SIZE", lambda item: output.size(item.size_bytes)),
    Column[ImageView]("AGE", lambda item: output.age(item.created_at)),
    Column[ImageView]("NODES", lambda item: ",".join(item.nodes), is_wide=True),
)


def rows(found: Sequence[ImageView]) -> tuple[ImageView, ...]:
    """Return one image for each name, as docker lists them; one without a name has a part of its id."""
    return tuple(
        msgspec.structs.replace(item, names=(name,)) for item in found for name in item.names or (item.id[:19],)
    )


@click.group()
def image() -> None:
    """List, fetch, build, import, move and remove images."""


@image.command("ls")
@options.output_option
@options.pass_client
def list_images(client: Client, *, form: str) -> None:
    """List images, a row for each name."""
    found = client.call("GET", "/v1/images", ImageList).items
    found = found if form in {"json", "yaml"} else rows(found)
    output.show_listing(found, _COLUMNS, form=form, name=_name)


@image.command("import")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@options.pass_client
def import_image(client: Client, *, source: Path, name: str, command: tuple[str, ...]) -> None:
    """Make an image of a root file system: a folder, or a tar of one."""
    request = ImportRequest(path=str(source.resolve()), name=name, command=options.words(command))
    with progress.Progress() as waiting:
        waiting.show(f"importing {source}")
        made = client.call("POST", "/v1/images:import", ImageView, body=request, timeout_s=None)
    plaintext.echo(_name(made))


@image.command("demo")
@click.argument("name", default=_DEMO)
@click.option(
    "--busybox",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="the static busybox to take  [default: the one that is installed]",
)
@options.pass_client
def demo_image(client: Client, *, name: str, busybox: Path | None) -> None:
    """Make a small image for trials of this machine's busybox: a shell and 300 tools, without a registry.

    NAME is localhost/demo where it is left out.
    """
    # Starting a program needs asyncio, which the other verbs of this group do without.
    from fairlead.cli.image import demoimage

    with demoimage.root(busybox) as folder, progress.Progress() as waiting:
        waiting.show(f"importing {name}")
        request = ImportRequest(path=str(folder), name=name, command=("sh",))
        made = client.call("POST", "/v1/images:import", ImageView, body=request, timeout_s=None)
    plaintext.echo(_name(made))


@image.command("build")
@click.argument("context", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("name")
@click.option(
    "-f",
    "--file",
    "containerfile",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="the Containerfile  [default: the one in CONTEXT]",
)
@click.option("--build-arg", multiple=True, metavar="NAME=VALUE", help="value of an ARG; no secrets: `ps` shows them")
@click.option("--target", default="", metavar="STAGE", help="stage that is the image  [default: the last one]")
@options.pass_client
def build_image(
    client: Client, *, context: Path, name: str, containerfile: Path | None, build_arg: tuple[str, ...], target: str
) -> None:
    """Build an image from a Containerfile."""
    file = str(containerfile.resolve()) if containerfile else ""
    given = options.pairs(build_arg, "--build-arg")
    request = BuildRequest(context=str(context.resolve()), name=name, containerfile=file, args=given, target=target)
    made = ""
    for line in client.lines("POST", "/v1/images:build", body=request):
        plaintext.echo(line.get("output", ""), nl=False, err=True)
        made = line.get("image", made)
    if not made:
        raise errors.Unavailable("the build broke off", reason="ServiceBrokeOff", hint="the service's log says why")
    plaintext.echo(made)


@image.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=options.complete_images)
@options.pass_client
def remove_image(client: Client, *, names: tuple[str, ...]) -> None:
    """Remove images by name."""
    before = _named(client)
    for name in names:
        client.call("DELETE", "/v1/images", object, params={"name": name})
        left = _named(client)
        if left == before:  # the engine removes what is not there without a word
            message = f'no image is called "{name}"; nothing was removed'
            raise errors.NotFound(message, reason="ImageNotFound", hint="`fairlead images` lists them")
        before = left
        plaintext.echo(name)


def _named(client: Client) -> set[tuple[str, tuple[str, ...]]]:
    return {(item.id, item.names) for item in client.call("GET", "/v1/images", ImageList).items}


for verb in (archive.pull, archive.tag, archive.save, archive.load, prune.prune_images):
    image.add_command(verb)
