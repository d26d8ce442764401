"""`fairlead manifests`: the chart's objects without helm, for `kubectl apply -f -`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from fairlead import errors
from fairlead.wire.chart import files as chart

FOLDER: Final = Path(__file__).parents[2] / "chart"
"""The chart as it is installed."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@click.command()
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="a value, as helm's --set; repeatable")
@click.option("--set-string", "texts", multiple=True, metavar="KEY=VALUE", help="the same, always as text")
@click.option(
    "-f",
    "--values",
    "files",
    multiple=True,
    type=click.File("rb"),
    help="a file of values (-: standard input); later ones win, --set wins over all",
)
@click.option("-n", "--namespace", default="fairlead", show_default=True, help="namespace of agent and controllers")
@click.option("--name", default="fairlead", show_default=True, help="name of the release: the beginning of all names")
@click.option("--include-crds/--no-crds", "crds", default=True, show_default=True, help="with the kinds' definitions")
@click.option("--create-namespace/--no-create-namespace", "creates", default=True, help="with the Namespace  [default]")
def manifests(
    *,
    settings: tuple[str, ...],
    texts: tuple[str, ...],
    files: tuple[BinaryIO, ...],
    namespace: str,
    name: str,
    crds: bool,
    creates: bool,
) -> None:
    """Print what runs on a cluster: agent, scheduler, controllers, their rights and policies.

    The same templates and values as the helm chart; every value is in docs/reference/chart.md. To try it on any
    cluster: fairlead manifests --set silicon.simulate=h100x8 | kubectl apply -f -
    """
    _assert_name(namespace, "namespace")
    _assert_name(name, "release")
    given: list[Mapping[str, Any]] = [{"namespace": {"create": creates}}]
    given += [chart.parse_values(file.read(), name=getattr(file, "name", "standard input")) for file in files]
    given += [chart.parse_setting(text) for text in settings]
    given += [chart.parse_setting(text, is_text=True) for text in texts]
    found = chart.render(chart.load(FOLDER), given, name=name, namespace=namespace, crds=crds)
    click.echo(chart.emit(found), nl=False)


def _assert_name(name: str, what: str) -> None:
    if not _NAME.fullmatch(name):
        message = f'{what} name "{name}" is not lower-case letters, digits and dashes, at most 63'
        raise errors.Invalid(message, reason="NameInvalid", hint="choose another")
