"""`fairlead fabric …`: shows and changes the NVLink partitions of a Fabric Manager, without any service of ours.

`list` prints the table that `fmctl` prints, column for column, so that what reads the one reads the other.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.core import lazygroup, options, output, plaintext
from fairlead.cli.layer.fabric import reach
from fairlead.frozen import frozen
from fairlead.model.fabric import FabricGPU, FailedDevice, Partition, UnsupportedPartition
from fairlead.settings import Settings
from fairlead.silicon.fabric.port import FabricManager
from fairlead.silicon.fabric.reached import Reached

_GAP: Final = "  "
_TITLES: Final = ("PARTITION ID", "STATUS", "GPUs", "NVLINKS", "GPU PHYSICAL IDs")
_VERBS: Final = {
    name: lazygroup.Verb("Commands", f"layer.fabric.{target}", text)
    for name, target, text in (
        ("list", "group:list_verb", "List the fabric's partitions and which are active."),
        ("status", "group:status_verb", "Say whether the Manager answers, and what failed."),
        ("activate", "group:activate_verb", "Activate partitions, before their machine starts."),
        ("deactivate", "group:deactivate_verb", "Deactivate partitions, after their machine ended."),
        ("serve", "serve:serve", "Serve the Manager's calls in its Service VM."),
        ("machine", "machine:machine", "Run this node's Service VM, and start it again when it is over."),
        ("vm", "vm:vm", "Print a Service VM for this node's NVSwitches."),
    )
}


class _PartitionID(click.IntRange):
    name = "id of a partition"


_partitions = click.argument("partitions", nargs=-1, metavar="PARTITION...", required=True, type=_PartitionID(min=0))


@click.group("fabric", cls=lazygroup.LazyGroup, verbs=_VERBS)
@reach.named_options
def group() -> None:
    """Show and change NVLink partitions.

    Talks to NVIDIA's Fabric Manager by its library, or to the agent in its Service VM. Options may stand before the
    command or after it.
    """


@frozen
class Row:
    """One partition, as programs read it."""

    id: int
    is_active: bool
    modules: tuple[int, ...]
    """Physical ids of its GPUs, which are their module numbers."""
    links: int
    """NVLinks of all its GPUs together."""
    gpus: tuple[FabricGPU, ...]


def _row(one: Partition) -> Row:
    return Row(id=one.id, is_active=one.is_active, modules=one.modules, links=one.links, gpus=one.gpus)


def _status(one: Partition) -> str:
    return "Active" if one.is_active else "Inactive"


def table(found: Sequence[Partition]) -> list[str]:
    """Return the lines of the table, each column as wide as its longest value, two blanks between them."""
    rows = [
        (str(one.id), _status(one), str(len(one.gpus)), str(one.links), ",".join(map(str, one.modules)))
        for one in found
    ]
    lines = [_TITLES, tuple("-" * len(title) for title in _TITLES), *rows]
    form = _GAP.join(f"{{:<{max(map(len, column))}}}" for column in zip(*lines, strict=True))
    return [form.format(*line).rstrip() for line in lines]


_WIDE: Final[Sequence[output.Column[Partition]]] = (
    output.Column("PARTITION ID", lambda one: str(one.id)),
    output.Column("STATUS", _status),
    output.Column("GPUs", lambda one: str(len(one.gpus))),
    output.Column("NVLINKS", lambda one: str(one.links)),
    output.Column("GPU PHYSICAL IDs", lambda one: ",".join(map(str, one.modules))),
    output.Column("MB/S A LINK", lambda one: str(max((gpu.link_mbps for gpu in one.gpus), default=0))),
    output.Column("PCI", lambda one: ",".join(gpu.pci for gpu in one.gpus if gpu.pci)),
    output.Column("UUID", lambda one: ",".join(gpu.uuid for gpu in one.gpus if gpu.uuid)),
)


@click.command("list")
@reach.named_options
@options.output_option
@options.settings_options("fabric", "state", hidden=True)
def list_verb(config: Settings, /, *, form: str) -> None:
    """List the fabric's partitions, which are active, and their GPUs by physical id."""
    found = reach.reach(config).call(lambda manager: manager.list_partitions())
    if form == "table":
        for line in table(found):
            plaintext.echo(line)
    elif form == "wide":
        output.show_listing(found, _WIDE, form=form, name=lambda one: str(one.id))
    else:
        output.show_listing([_row(one) for one in found], (), form=form, name=lambda one: str(one.id))


@frozen
class Status:
    """How a Manager is."""

    manager: str
    through: str
    """`library` or `agent`."""
    version: str
    """Of the Manager; empty: neither it nor fabric.version says it."""
    guest_driver: str
    """Of the driver in tenants' machines, as fabric.guest_driver says it; must equal `version`."""
    answer_ms: float
    """Time that the first listing took, connection included."""
    partitions: int
    sizes: dict[int, int]
    """How many partitions there are, by number of GPUs."""
    active: tuple[int, ...]
    failed: tuple[FailedDevice, ...]
    unsupported: tuple[UnsupportedPartition, ...]


@click.command("status")
@reach.named_options
@options.json_option
@options.settings_options("fabric", "state", hidden=True)
def status_verb(config: Settings, /, *, form: str) -> None:
    """Say whether the Manager answers, what is active, and which links failed."""
    reached = reach.reach(config)
    began = time.monotonic()
    found = reached.call(lambda manager: manager.list_partitions())
    took = time.monotonic() - began
    said = Status(
        manager=reached.name,
        through="agent" if reached.is_agent else "library",
        version=_version(reached) or config.fabric.version,
        guest_driver=config.fabric.guest_driver,
        answer_ms=round(took * 1000, 1),
        partitions=len(found),
        sizes=dict(sorted(Counter(len(one.gpus) for one in found).items(), reverse=True)),
        active=tuple(one.id for one in found if one.is_active),
        failed=_optional(reached, lambda manager: manager.list_failed()),
        unsupported=_optional(reached, lambda manager: manager.list_unsupported()),
    )
    if form != "text":
        output.show_value(said, form=form)
        return
    for label, text in _lines(said):
        for at, line in enumerate(output.wrapped(text, indent=12)):
            plaintext.echo(f"{'' if at else label:<12}{line}")


def _version(reached: Reached) -> str:
    """Return the Manager's version; an agent of an earlier release does not know the question."""
    try:
        return reached.call(lambda manager: manager.identify()).version
    except errors.FairleadError as error:
        plaintext.echo(f"warning: its version is not known: {errors.sentence(error)}", err=True)
        return ""


def _optional(reached: Reached, call: Callable[[FabricManager], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return what a Manager may not be able to say: one that is too new for it refuses."""
    try:
        return reached.call(call)
    except errors.FairleadError as error:
        plaintext.echo(f"warning: {errors.sentence(error)}", err=True)
        return ()


def _versions(said: Status) -> str:
    guests = said.guest_driver or "not said"
    differs = bool(said.version and said.guest_driver) and said.version != said.guest_driver
    fate = ": slots of several GPUs are refused until both are one" if differs else ""
    return f"{said.version or 'not known (fabric.version)'}; tenants' driver {guests}{fate}"


def _lines(said: Status) -> list[tuple[str, str]]:
    sizes = ", ".join(f"{count} of {size}" for size, count in said.sizes.items())
    lines = [
        ("manager", f"{said.manager}, by its {said.through}; answered in {said.answer_ms:g} ms"),
        ("version", _versions(said)),
        ("partitions", f"{said.partitions} ({sizes} GPUs)" if sizes else "none"),
        ("active", ", ".join(map(str, said.active)) or "none"),
    ]
    for one in said.failed:
        kind = "NVSwitch" if one.is_switch else "GPU"
        ports = ", ".join(map(str, one.ports))
        lines.append(("failed", f"{kind} {one.pci or one.uuid or 'without a name'}: links of the ports {ports}"))
    lines += [
        ("unsupported", f"partition {one.id} (GPUs {', '.join(map(str, one.modules))})") for one in said.unsupported
    ]
    return lines


@click.command("activate")
@reach.named_options
@_partitions
@options.json_option
@options.settings_options("fabric", "state", hidden=True)
def activate_verb(config: Settings, /, *, partitions: tuple[int, ...], form: str) -> None:
    """Activate partitions, before the machine that has their GPUs starts."""
    _switch(config, partitions, form=form, is_active=True)


@click.command("deactivate")
@reach.named_options
@_partitions
@options.json_option
@options.settings_options("fabric", "state", hidden=True)
def deactivate_verb(config: Settings, /, *, partitions: tuple[int, ...], form: str) -> None:
    """Deactivate partitions, after the machine that had their GPUs has ended."""
    _switch(config, partitions, form=form, is_active=False)


def _switch(config: Settings, partitions: Sequence[int], *, form: str, is_active: bool) -> None:
    reached = reach.reach(config)
    known = {one.id: one for one in reached.call(lambda manager: manager.list_partitions())}
    for one in partitions:
        if one not in known:
            message = f"the Fabric Manager at {reached.name} offers no partition {one}"
            raise errors.NotFound(message, reason="FabricPartitionUnknown", hint="fairlead fabric list")
    done = list[dict[str, object]]()
    try:
        for one in dict.fromkeys(partitions):
            if known[one].is_active is not is_active:
                try:
                    reached.call(lambda manager, one=one: _set(manager, one, is_active=is_active))  # type: ignore[misc]
                except errors.Conflict as error:
                    if is_active:
                        error.hint = _overlap(reached, known[one]) or error.hint
                    raise
            done.append({"id": one, "is_active": is_active, "was_active": known[one].is_active})
            if form == "text":
                already = " already" if known[one].is_active is is_active else ""
                plaintext.echo(f"partition {one}: {'active' if is_active else 'inactive'}{already}")
    finally:
        if form != "text":
            output.show_value(done, form=form)


def _overlap(reached: Reached, wanted: Partition) -> str:
    """Return what to deactivate before a partition can be active; empty: no active one is known.

    A Manager that does not list its partitions now leaves its own refusal as it is.
    """
    now: Sequence[Partition] = ()
    with contextlib.suppress(errors.FairleadError):
        now = reached.call(lambda manager: manager.list_partitions())
    modules = set(wanted.modules)
    others = [one for one in now if one.is_active and one.id != wanted.id and modules.intersection(one.modules)]
    if not others:
        return ""
    each = ", ".join(f"{one.id} (modules {', '.join(map(str, sorted(one.modules)))})" for one in others)
    named = " ".join(str(one.id) for one in others)
    return f"active with GPUs of it: {each}; once their machines have ended: `fairlead fabric deactivate {named}`"


def _set(manager: FabricManager, partition: int, *, is_active: bool) -> None:
    (manager.activate if is_active else manager.deactivate)(partition)
