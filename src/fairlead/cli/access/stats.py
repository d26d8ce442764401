"""`fairlead stats` and `top`: what containers use of CPUs, memory and GPUs, now and over time, and their processes."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
import msgspec

from fairlead import errors
from fairlead.cli.access import statshistory
from fairlead.cli.core import client as api
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.cli.core.terminal import gotemplate, starting
from fairlead.plan.pod import podstate
from fairlead.serve.backend.hardware import GPUListing, GPUView
from fairlead.serve.v1.containers.access.view import ProcessTable, UsageView
from fairlead.wire.text import timestamp

_APART_S: Final = 1.0
_SUBSECOND: Final = re.compile(r"(?<=[0-9])\.[0-9]{3,}s$")
"""podman's times: 2m15.50568752s."""


@dataclass(frozen=True, slots=True)
class GPUUse:
    """What the GPUs do that a container holds."""

    percents: tuple[float, ...] = ()
    """Load of each GPU that reports it."""
    memory_bytes: int | None = None
    """Sum over the GPUs that report it; None: none does."""
    is_shared: bool = False
    """Other containers hold some of these GPUs as well, so the figures include theirs."""

    @property
    def percent(self) -> float | None:
        """Return the mean."""
        return sum(self.percents) / len(self.percents) if self.percents else None


@dataclass(frozen=True, slots=True)
class Row:
    """One container: its use, the reading before, and its GPUs'."""

    now: UsageView
    before: UsageView | None
    gpus: GPUUse

    @property
    def cpu_percent(self) -> float | None:
        """CPU load between the two readings; 100 is one CPU."""
        if self.before is None or self.now.cpu_ns is None or self.before.cpu_ns is None:
            return None
        seconds = timestamp.unix_seconds(self.now.at) - timestamp.unix_seconds(self.before.at)
        return 100 * (self.now.cpu_ns - self.before.cpu_ns) / (seconds * 1e9) if seconds > 0 else None


def _size(count: int | None) -> str:
    return "" if count is None else output.size(count)


def _memory(row: Row) -> str:
    limit = row.now.memory_limit_bytes
    return _at_most(_size(row.now.memory_bytes), is_so=row.now.is_pods) + (f" / {_size(limit)}" if limit else "")


def _share(row: Row) -> str:
    used, limit = row.now.memory_bytes, row.now.memory_limit_bytes
    return _at_most(f"{100 * used / limit:.0f}%" if used is not None and limit else "", is_so=row.now.is_pods)


def _cpu(row: Row) -> str:
    return _at_most("" if row.cpu_percent is None else f"{row.cpu_percent:.1f}%", is_so=row.now.is_pods)


def _processes(row: Row) -> str:
    return _at_most("" if row.now.processes is None else str(row.now.processes), is_so=row.now.is_pods)


def _net(row: Row) -> str:
    received, sent = row.now.received_bytes, row.now.sent_bytes
    return "" if received is None else f"{_size(received)} / {_size(sent)}"


def gpu_use(listing: GPUListing) -> dict[tuple[str, str], GPUUse]:
    """Return what GPUs do, by namespace and name of the containers that hold them."""
    held: dict[tuple[str, str], list[GPUView]] = {}
    for one in listing.gpus:
        for key in dict.fromkeys((holder.namespace, holder.container) for holder in one.holders):
            held.setdefault(key, []).append(one)
    return {key: _use(views) for key, views in held.items()}


def _use(views: Sequence[GPUView]) -> GPUUse:
    now = [one.gpu.health for one in views]
    memory = [one.memory_used_bytes for one in now if one.memory_used_bytes is not None]
    return GPUUse(
        percents=tuple(one.utilization_percent for one in now if one.utilization_percent is not None),
        memory_bytes=sum(memory) if memory else None,
        is_shared=any(len({(one.namespace, one.container) for one in view.holders}) > 1 for view in views),
    )


def _devices(row: Row) -> str:
    return podstate.say_devices({name: len(ids) for name, ids in row.now.devices.items()})


def _at_most(text: str, *, is_so: bool) -> str:
    """Return a figure of one container; marked where it has others' in it."""
    return f"<={text}" if text and is_so else text


def _gpu(row: Row) -> str:
    return _at_most("" if row.gpus.percent is None else f"{row.gpus.percent:.0f}%", is_so=row.gpus.is_shared)


def _gpu_memory(row: Row) -> str:
    return _at_most(_size(row.gpus.memory_bytes), is_so=row.gpus.is_shared)


_COLUMNS: Final = (
    Column[Row]("NAME", lambda row: row.now.name),
    Column[Row]("CPU", _cpu),
    Column[Row]("MEM", _memory),
    Column[Row]("MEM %", _share, rank=1),
    Column[Row]("NET IN/OUT", _net, rank=3),
    Column[Row]("PIDS", _processes, rank=2),
    Column[Row]("GPUS", _devices),
    Column[Row]("GPU", _gpu),
    Column[Row]("GPU MEM", _gpu_memory),
)


def fields(row: Row) -> Mapping[str, Any]:
    """Return the values of a row under the names of docker's `--format`."""
    return {
        "Name": row.now.name,
        "Container": row.now.name,
        "ID": row.now.name,
        "CPUPerc": _cpu(row) or "--",
        "MemUsage": _memory(row),
        "MemPerc": _share(row) or "--",
        "NetIO": _net(row),
        "PIDs": _processes(row) if row.now.is_pods else row.now.processes,
        "GPUs": sum(map(len, row.now.devices.values())) if len(row.now.devices) < 2 else _devices(row),
        "GPUPerc": _gpu(row) or "--",
        "GPUMemUsage": _gpu_memory(row),
    }


@click.command()
@options.container_argument("names", many=True, required=False)
@options.namespace_option
@click.option("-a", "--all", "_all", is_flag=True, help="accepted and without meaning: what has ended uses nothing")
@click.option("--no-stream", is_flag=True, help="once, not again and again")
@click.option("--no-trunc", is_flag=True, help="accepted and without meaning: nothing is cut")
@click.option("--format", "template", help="a Go template: '{{.Name}} {{.CPUPerc}}'")
@click.option("--since", metavar="TIME", help="over time, from then on: 1h, 7d, 2026-11-01T00:00:00Z")
@click.option("--until", metavar="TIME", help="with --since: to then  [default: now]")
@click.option("--step", type=int, metavar="SECONDS", help="with --since: between two points, a multiple of 10")
@click.option("--plot", is_flag=True, help="with --since: draw it")
@click.option("--gpu", default="", metavar="GPU", help="with --since: a GPU's figures, by index or UUID")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice((*output.FORMS, "csv")),
    default="table",
    show_default=True,
    help="how to show it; csv with --since",
)
@options.pass_client
def stats(client: Client, /, *, names: tuple[str, ...], namespace: str, form: str, **given: Any) -> None:
    """Show what running containers use, anew every two seconds until Ctrl-C.

    GPU is the mean load of the GPUs that a container holds; <= where others hold them as well. CPU, MEM and PIDS are
    marked so where the containers of a group run in one sandbox of gVisor: they are the group's.

    With --since: what they did over time, ended ones too. `history.days` says how long that is kept.
    """
    if given["since"]:
        asked = statshistory.Asked(since=given["since"], until=given["until"] or "", step=given["step"])
        found = statshistory.read(client, names, namespace, given["gpu"], asked)
        statshistory.show(found, form=form, plots=given["plot"])
        return
    _refuse_history(form, given)
    for name in names:
        starting.await_running(client, name, namespace)
    _watch(client, names, namespace, form=form, template=given["template"], once=given["no_stream"])


def _refuse_history(form: str, given: Mapping[str, Any]) -> None:
    """Refuse what means something over time alone. Raises: Invalid (`SinceMissing`)."""
    named = [f"--{name}" for name in ("until", "step", "plot", "gpu") if given[name]]
    named += ["-o csv"] if form == "csv" else []
    if named:
        message = f"{', '.join(named)}: of figures over time, whose begin is not given"
        raise errors.Invalid(message, reason="SinceMissing", hint="for example --since 1h")


def _watch(
    client: Client, names: Sequence[str], namespace: str, *, form: str, template: str | None = None, once: bool = False
) -> None:
    """Show what containers use, again and again on a terminal."""
    before: dict[tuple[str, str], UsageView] = {}

    def show() -> None:
        found = _read(client, names, namespace)
        held = gpu_use(client.call("GET", "/v1/gpus", GPUListing)) if any(one.devices for one in found) else {}
        rows = [
            Row(one, before.get(key), held.get(key, GPUUse())) for one in found for key in [(one.namespace, one.name)]
        ]
        before.update({(one.namespace, one.name): one for one in found})
        if template:
            gotemplate.show([fields(row) for row in rows], template)
        else:
            show_rows(rows, form=form)

    for one in _read(client, names, namespace):
        before[one.namespace, one.name] = one
    time.sleep(_APART_S)
    if once or not sys.stdout.isatty():
        show()
    else:
        output.repeat(show)


def show_rows(rows: Sequence[Row], *, form: str) -> None:
    """Show what containers use, once."""
    if form in {"json", "yaml"}:
        output.show_value([_plain(row) for row in rows], form=form)
    else:
        output.show_listing(rows, _COLUMNS, form=form, name=lambda row: row.now.name)


def _plain(row: Row) -> dict[str, Any]:
    """Return a row for programs: the reading as the service gave it, and its GPUs' figures."""
    return {
        **msgspec.to_builtins(row.now),
        "gpu_utilization_percent": row.gpus.percent,
        "gpu_memory_bytes": row.gpus.memory_bytes,
        "are_gpus_shared": row.gpus.is_shared,
    }


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
@options.container_argument(required=False)
@options.namespace_option
@click.option("-c", "--container", default="", help="which container of a group  [default: the first]")
@options.pass_client
def top(client: Client, *, name: str | None, namespace: str, container: str) -> None:
    """List a container's processes; without one: what all use, as stats does.

    On a cluster the image's own ps lists the processes.
    """
    if name is None:
        _watch(client, (), namespace, form="table")
        return
    starting.await_running(client, name, namespace, container)
    params = {"namespace": namespace, "container": container or None}
    found = client.call("GET", f"{api.container_path(name)}/processes", ProcessTable, params=params)
    width = len(found.titles)
    rows = [[_SUBSECOND.sub("s", cell) for cell in (*row, *[""] * (width - len(row)))][:width] for row in found.rows]
    for line in output.lines_of([list(found.titles), *rows]):
        plaintext.echo(line)
