"""`fairlead stats` and `top`: what containers use, and which processes they have."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.core import client as api
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.cli.core.terminal import gotemplate
from fairlead.serve.v1.containers.accessview import ProcessTable, UsageView
from fairlead.wire.text import timestamp

_APART_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Row:
    """One container: its use, and the reading before."""

    now: UsageView
    before: UsageView | None

    @property
    def cpu_percent(self) -> float | None:
        """CPUs between the two readings, 100 for one."""
        if self.before is None or self.now.cpu_ns is None or self.before.cpu_ns is None:
            return None
        seconds = timestamp.unix_seconds(self.now.at) - timestamp.unix_seconds(self.before.at)
        return 100 * (self.now.cpu_ns - self.before.cpu_ns) / (seconds * 1e9) if seconds > 0 else None


def _size(count: int | None) -> str:
    return "" if count is None else output.size(count)


def _memory(row: _Row) -> str:
    limit = row.now.memory_limit_bytes
    return _size(row.now.memory_bytes) + (f" / {_size(limit)}" if limit else "")


def _share(row: _Row) -> str:
    used, limit = row.now.memory_bytes, row.now.memory_limit_bytes
    return f"{100 * used / limit:.0f}%" if used is not None and limit else ""


def _cpu(row: _Row) -> str:
    return "" if row.cpu_percent is None else f"{row.cpu_percent:.1f}%"


def _net(row: _Row) -> str:
    received, sent = row.now.received_bytes, row.now.sent_bytes
    return "" if received is None else f"{_size(received)} / {_size(sent)}"


_COLUMNS: Final = (
    Column[_Row]("NAME", lambda row: row.now.name),
    Column[_Row]("CPU", _cpu),
    Column[_Row]("MEM", _memory),
    Column[_Row]("MEM %", _share),
    Column[_Row]("NET IN/OUT", _net),
    Column[_Row]("PIDS", lambda row: "" if row.now.processes is None else str(row.now.processes)),
    Column[_Row]("GPUS", lambda row: str(sum(len(ids) for ids in row.now.devices.values()))),
)


def _fields(row: _Row) -> Mapping[str, Any]:
    """Return the values of a row under the names of docker's `--format`."""
    return {
        "Name": row.now.name,
        "Container": row.now.name,
        "ID": row.now.name,
        "CPUPerc": _cpu(row) or "--",
        "MemUsage": _memory(row),
        "MemPerc": _share(row) or "--",
        "NetIO": _net(row),
        "PIDs": row.now.processes,
        "GPUs": sum(len(ids) for ids in row.now.devices.values()),
    }


@click.command()
@options.container_argument("names", many=True, required=False)
@options.namespace_option
@click.option("-a", "--all", "_all", is_flag=True, help="accepted and without meaning: what has ended uses nothing")
@click.option("--no-stream", is_flag=True, help="once, not again and again")
@click.option("--no-trunc", is_flag=True, help="accepted and without meaning: nothing is cut")
@click.option("--format", "template", help="a Go template: '{{.Name}} {{.CPUPerc}}'")
@options.output_option
@options.pass_client
def stats(client: Client, /, *, names: tuple[str, ...], namespace: str, form: str, **given: Any) -> None:
    """Show what running containers use, once a second until Ctrl-C."""
    before: dict[tuple[str, str], UsageView] = {}

    def show() -> None:
        found = _read(client, names, namespace)
        rows = [_Row(one, before.get((one.namespace, one.name))) for one in found]
        before.update({(one.namespace, one.name): one for one in found})
        if given["template"]:
            gotemplate.show([_fields(row) for row in rows], given["template"])
        elif form in {"json", "yaml"}:
            output.show_value(found, form=form)
        else:
            output.show_listing(rows, _COLUMNS, form=form, name=lambda row: row.now.name)

    for one in _read(client, names, namespace):
        before[one.namespace, one.name] = one
    time.sleep(_APART_S)
    if given["no_stream"] or not sys.stdout.isatty():
        show()
    else:
        output.repeat(show)


def _read(client: Client, names: Sequence[str], namespace: str) -> list[UsageView]:
    """Return what the containers named use; without names all that run, in any namespace.

    One that ends meanwhile is left out, unless it was named.
    """
    asked = [(name, namespace) for name in names]
    asked = asked or [(item.name, item.namespace) for item in client.list_containers() if item.state == "running"]
    found = []
    for name, where in asked:
        try:
            path = f"{api.container_path(name)}/usage"
            found.append(client.call("GET", path, UsageView, params={"namespace": where}))
        except (errors.Conflict, errors.NotFound):
            if names:
                raise
    return found


@click.command()
@options.container_argument()
@options.namespace_option
@click.option("-c", "--container", default="", help="which container of a group  [default: the first]")
@options.pass_client
def top(client: Client, *, name: str, namespace: str, container: str) -> None:
    """List the processes of a running container.

    On a cluster the image's own ps lists them.
    """
    params = {"namespace": namespace, "container": container or None}
    found = client.call("GET", f"{api.container_path(name)}/processes", ProcessTable, params=params)
    width = len(found.titles)
    rows = [[*row, *[""] * (width - len(row))][:width] for row in found.rows]
    for line in output.lines_of([list(found.titles), *rows]):
        plaintext.echo(line)
