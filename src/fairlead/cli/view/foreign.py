"""Shows programs on GPUs that Fairlead did not start, and ends them where a person confirms: `gpus --kill-foreign`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import click

from fairlead import errors
from fairlead.cli.core import output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.frozen import frozen
from fairlead.model.gpu import GPU
from fairlead.model.neighbour import Use
from fairlead.plan.lease.neighbour import OUTSIDE
from fairlead.serve.backend.hardware import EndedNeighbour, EndedNeighbours, GPUListing, GPUView, NeighbourView

_MOST: Final = 20
"""Programs that a table shows."""
_DONE: Final = frozenset({"ended", "killed", "gone"})


def _gpus(found: EndedNeighbour) -> str:
    return ",".join(map(str, found.gpus))


_COLUMNS: Final = (
    Column[EndedNeighbour]("PID", lambda item: str(item.pid)),
    Column[EndedNeighbour]("NAME", lambda item: item.name),
    Column[EndedNeighbour]("USER", lambda item: item.user, rank=1),
    Column[EndedNeighbour]("CONTAINER", lambda item: item.container, rank=2),
    Column[EndedNeighbour]("GPU", _gpus),
    Column[EndedNeighbour]("DONE", lambda item: item.done),
    Column[EndedNeighbour]("WHY", lambda item: item.why, is_folded=True),
)


@frozen
class Row:
    """One program on one GPU, or on several where it is the same."""

    gpus: tuple[int, ...]
    one: NeighbourView


_SHOWN: Final = (
    Column[Row]("OUTSIDE", lambda item: item.one.name or ("not readable" if item.one.pid else OUTSIDE)),
    Column[Row]("GPU", lambda item: ",".join(map(str, item.gpus))),
    Column[Row]("PID", lambda item: "" if item.one.pid is None else str(item.one.pid)),
    Column[Row]("USER", lambda item: item.one.user, rank=1),
    Column[Row]("IN", lambda item: item.one.container or item.one.unit, rank=2),
    Column[Row]("MEMORY", lambda item: output.size(item.one.memory_bytes) if item.one.memory_bytes else "", rank=3),
    Column[Row]("SINCE", lambda item: output.age(item.one.since) if item.one.since else "", rank=4),
    Column[Row]("USE", lambda item: item.one.use),
    Column[Row]("KEEPS THE GPU", lambda item: "yes" if item.one.keeps else "no"),
)


def show(found: GPUListing, *, form: str) -> None:
    """Show the programs on GPUs that Fairlead did not start, but the driver's own, below the table of GPUs."""
    if form not in {"table", "wide"}:
        return
    rows = [one for one in _rows(found.gpus) if form == "wide" or one.one.use != Use.SERVICE]
    if not rows:
        return
    plaintext.echo("")
    shown = rows if form == "wide" else rows[:_MOST]
    output.show_listing(shown, _SHOWN, form=form, name=lambda item: item.one.id)
    if len(shown) < len(rows):
        plaintext.echo(f"and {len(rows) - len(shown)} more, which `fairlead gpus -o wide` lists", err=True)


def _rows(gpus: Iterable[GPUView]) -> list[Row]:
    """Return each program once, those that keep a GPU first; what a program does may differ from GPU to GPU."""
    found: dict[tuple[object, ...], tuple[NeighbourView, list[int]]] = {}
    for item in gpus:
        for number, one in enumerate(item.neighbours):
            key = (one.id or (item.gpu.uuid, number), one.use, one.memory_bytes)
            found.setdefault(key, (one, []))[1].append(item.gpu.index)
    rows = [Row(gpus=tuple(sorted(on)), one=one) for one, on in found.values()]
    return sorted(rows, key=lambda row: (not row.one.keeps, row.gpus, row.one.pid or 0))


def end(client: Client, gpus: Sequence[str], *, yes: bool, form: str) -> None:
    """End the programs that keep some GPUs, or any. Raises: as the service; Conflict (`NeighbourLeft`)."""
    listing = client.call("GET", "/v1/gpus", GPUListing)
    unknown = [name for name in gpus if not any(_is_meant(item.gpu, (name,)) for item in listing.gpus)]
    if unknown:
        hint = "`fairlead gpus -o wide` lists indices and UUIDs"
        raise errors.NotFound(f'no GPU is "{unknown[0]}"', reason="GPUUnknown", hint=hint)
    chosen = [item for item in listing.gpus if not gpus or _is_meant(item.gpu, gpus)]
    rows = [row for row in _rows(chosen) if row.one.keeps or row.one.use in {Use.COMPUTE, Use.OPEN}]
    if not rows:
        plaintext.echo("no program that Fairlead did not start keeps a GPU", err=True)
        return
    if not all(row.one.id for row in rows):
        message = "who is on the GPUs is not yours to know, and not yours to end"
        raise errors.Denied(message, reason="RootOnly", hint="ask an administrator")
    for row in rows:
        one = row.one
        facts = ", ".join(filter(None, (f"pid {one.pid}", f"user {one.user}", one.container or one.unit)))
        plaintext.echo(f"GPU {', '.join(map(str, row.gpus))}: {one.name or 'not readable'} ({facts})", err=True)
    if not yes:
        click.confirm("End them? What they have not written is lost.", abort=True, err=True)
    body = {"gpus": [item.gpu.uuid for item in chosen], "ids": list(dict.fromkeys(row.one.id for row in rows))}
    _say(client.call("POST", "/v1/gpus:end-neighbours", EndedNeighbours, body=body), form=form)


def _say(done: EndedNeighbours, *, form: str) -> None:
    """Show what was done. Raises: Conflict (`NeighbourLeft`)."""
    if form in {"json", "yaml"}:
        output.show_value(done, form=form)
    else:
        output.show_listing(done.items, _COLUMNS, form=form, name=lambda item: str(item.pid))
    left = [one for one in done.items if one.done not in _DONE]
    if left:
        message = f"{len(left)} of {len(done.items)} programs are still there"
        raise errors.Conflict(message, reason="NeighbourLeft", hint="WHY says what keeps them; stop their service")


def _is_meant(gpu: GPU, names: Sequence[str]) -> bool:
    exact = {str(gpu.index), gpu.pci_bus_id}
    return any(name in exact or (name.startswith("GPU-") and gpu.uuid.startswith(name)) for name in names)
