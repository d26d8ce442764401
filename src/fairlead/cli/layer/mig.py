"""`fairlead mig …`: partitions this machine's GPUs by files of mig-parted's format, without any service.

Everything is planned before the first change: existing instances that are wanted stay, and a change that would end one
in use is avoided or refused. Who uses what is asked of the driver and of this node's kubelet; `--drain` stops the
containers that the change would end.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from fairlead import errors, files
from fairlead.cli.core import connection, invocation, localcontainer, options, output, plaintext, simulated
from fairlead.model import replica
from fairlead.model.ids import GPUUUID
from fairlead.model.mig import Partition, device_name
from fairlead.node.mig import apply
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.mig import change, packing, table, wanted
from fairlead.settings import Settings
from fairlead.silicon import machine, port
from fairlead.wire.nvidia import migparted
from fairlead_cdi import yamltext

_GENERATED: Final = "the generated configurations"
_DRAIN_S: Final = 120.0
_NO_DRIVER: Final = "DriverLibraryMissing"


@click.group("mig")
def group() -> None:
    """Partition GPUs by files of mig-parted's format."""


def _chosen(function: Callable[..., Any]) -> Callable[..., Any]:
    file = click.option(
        "-f",
        "--config-file",
        "file",
        metavar="FILE",
        envvar="MIG_PARTED_CONFIG_FILE",
        help="mig-parted's file, - for standard input  [default: configurations that suit these GPUs]",
    )
    name = click.option(
        "-c",
        "--selected-config",
        "name",
        metavar="CONFIG",
        envvar="MIG_PARTED_SELECTED_CONFIG",
        help='which of its configurations  [default: the only one, or "default"]',
    )
    return file(name(function))


_mode_only = click.option("--mode-only", "--mode-change-only", "is_mode_only", is_flag=True, help="the mode alone")
_drain = click.option("--drain", "may_drain", is_flag=True, help="stop the containers that the change would end")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """This machine, and what it should be."""

    gpus: tuple[Partition, ...]
    goals: Mapping[GPUUUID, wanted.WantedGPU]
    holdings: tuple[Holding, ...] = ()

    @property
    def in_use(self) -> frozenset[str]:
        """UUIDs of GPUs and MIG devices that containers hold."""
        return frozenset(replica.origin(name) for one in self.holdings for name in one.ids)

    def changes(self, *, may_drain: bool) -> tuple[change.Change, ...]:
        return change.plan_changes(self.gpus, self.goals, in_use=self.in_use, may_drain=may_drain)


@contextlib.asynccontextmanager
async def _partitioned(config: Settings) -> AsyncIterator[port.Partitioner]:
    """Give this machine's partitioner. Raises: Unavailable: nothing here can be partitioned."""
    silicon = await asyncio.to_thread(machine.open_silicon, config.silicon, config.state.folder / "silicon")
    try:
        yield _partitioner(silicon)
    except errors.Unavailable as error:
        call = invocation.current(click.get_current_context())
        if error.reason == _NO_DRIVER and (hint := simulated.hint(call, "--silicon-simulate")):
            raise errors.Unavailable(error.message, reason=_NO_DRIVER, hint=hint) from error
        raise
    finally:
        await silicon.close()


def _partitioner(silicon: port.SampledSilicon) -> port.Partitioner:
    found = silicon.partitioner() if isinstance(silicon, port.Partitionable) else None
    if found is None:
        message = "no driver here partitions GPUs"
        raise errors.Unavailable(message, reason=_NO_DRIVER, hint="install the NVIDIA driver")
    return found


async def _look(config: Settings, partitioner: port.Partitioner, file: str | None, name: str | None) -> _Scene:
    gpus = await partitioner.list_partitions()
    parsed = _read(file) if file else wanted.generate(gpus)
    chosen = name or _only(parsed, file)
    holdings = await localcontainer.ask_kubelet(config.pod_resources)
    return _Scene(gpus=gpus, goals=wanted.plan_wanted(chosen, parsed, gpus), holdings=holdings or ())


def _read(file: str) -> migparted.Config:
    if file == "-":
        return migparted.parse_config(sys.stdin.buffer.read(migparted.LARGEST_BYTES + 1), source="standard input")
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(migparted.LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        message = f"cannot read {file}: {said}"
        raise errors.NotFound(message, reason="MIGConfigUnreadable") from error
    return migparted.parse_config(data, source=file)


def _only(parsed: migparted.Config, file: str | None) -> str:
    if len(parsed.configs) == 1:
        return next(iter(parsed.configs))
    if "default" in parsed.configs:
        return "default"
    offered = ", ".join(sorted(parsed.configs)) or "none"
    message = f"{file or _GENERATED}: which configuration is meant"
    raise errors.Invalid(message, reason="MIGConfigUnknown", hint=f"give -c; offered: {offered}")


@group.command("list")
@options.json_option
@options.settings_options("silicon", hidden=True)
def list_verb(config: Settings, /, *, form: str) -> None:
    """Show each GPU's instances, what still fits, and how much room is lost to fragments."""

    async def look() -> tuple[Partition, ...]:
        async with _partitioned(config) as found:
            return await found.list_partitions()

    gpus = asyncio.run(look())
    if form != "text":
        output.show_value([_plain(gpu) for gpu in gpus], form=form)
        return
    for gpu in gpus:
        _show_gpu(gpu)


def _show_gpu(gpu: Partition) -> None:
    if gpu.problem:
        plaintext.echo(f"GPU {gpu.index}: {gpu.problem}")
        return
    mode = "MIG cannot be used" if not gpu.profiles else f"MIG {'on' if gpu.is_enabled else 'off'}"
    if gpu.is_pending != gpu.is_enabled:
        mode += f", {'on' if gpu.is_pending else 'off'} after the next reset"
    plaintext.echo(f"GPU {gpu.index}: {gpu.name}, {mode}")
    if not gpu.is_enabled:
        return
    for instance in gpu.instances:
        profile = gpu.find_profile(instance.profile)
        size = profile.size if profile else 0
        plaintext.echo(
            f"  {instance.start}-{instance.start + size - 1}  {instance.profile}, GPU instance {instance.id}"
        )
        for one in instance.computes:
            name = device_name(profile, one.slices) if profile else ""
            plaintext.echo(f"       {name} {one.uuid or 'not a device'}{', in use' if one.is_busy else ''}")
    layout = [instance.slot for instance in gpu.instances]
    left = {name: count for name, count in packing.remaining(gpu.profiles, layout).items() if count}
    plaintext.echo(f"  still fits: {' or '.join(f'{count} x {name}' for name, count in left.items()) or 'nothing'}")
    plaintext.echo(f"  fragmentation: {packing.fragmentation(gpu.profiles, layout):.0%}")


def _plain(gpu: Partition) -> dict[str, Any]:
    layout = [instance.slot for instance in gpu.instances]
    return {
        "index": gpu.index,
        "uuid": gpu.gpu,
        "name": gpu.name,
        "problem": gpu.problem,
        "migEnabled": gpu.is_enabled,
        "migPending": gpu.is_pending,
        "profiles": [one.name for one in gpu.profiles],
        "instances": [
            {
                "id": instance.id,
                "profile": instance.profile,
                "start": instance.start,
                "devices": [
                    {"uuid": one.uuid, "slices": one.slices, "inUse": one.is_busy} for one in instance.computes
                ],
            }
            for instance in gpu.instances
        ],
        "remaining": packing.remaining(gpu.profiles, layout) if gpu.is_enabled else {},
        "fragmentation": round(packing.fragmentation(gpu.profiles, layout), 3),
    }


@group.command("plan")
@_chosen
@_drain
@_mode_only
@click.option(
    "--model",
    metavar="MODEL",
    type=click.Choice(sorted(table.MODELS)),
    help="plan for an empty GPU of this model, as h100-80, in place of this machine",
)
@options.json_option
@options.settings_options("silicon", hidden=True)
def plan_verb(
    config: Settings,
    /,
    *,
    file: str | None,
    name: str | None,
    may_drain: bool,
    is_mode_only: bool,
    model: str | None,
    form: str,
) -> None:
    """Print what `apply` would do, and change nothing."""
    scene = _modelled(model, file, name) if model else asyncio.run(_scene(config, file, name))
    if is_mode_only:
        scene = _only_modes(scene)
    changes = scene.changes(may_drain=may_drain)
    if form != "text":
        output.show_value([_plain_change(one) for one in changes], form=form)
        return
    _show_changes(changes)


async def _scene(config: Settings, file: str | None, name: str | None) -> _Scene:
    async with _partitioned(config) as found:
        return await _look(config, found, file, name)


def _modelled(model: str, file: str | None, name: str | None) -> _Scene:
    found = table.MODELS[model]
    device = found.device_ids[0] if found.device_ids else 0
    gpu = Partition(
        gpu=GPUUUID("GPU-0"),
        index=0,
        name=found.title,
        pci_bus_id="",
        device_filter=f"0x{device:04X}10DE",
        profiles=found.profiles,
        is_enabled=True,
        is_pending=True,
    )
    parsed = _read(file) if file else wanted.generate([gpu])
    return _Scene(gpus=(gpu,), goals=wanted.plan_wanted(name or _only(parsed, file), parsed, [gpu]))


def _only_modes(scene: _Scene) -> _Scene:
    goals = wanted.modes_only(scene.gpus, scene.goals)
    return _Scene(gpus=scene.gpus, goals=goals, holdings=scene.holdings)


def _show_changes(changes: Sequence[change.Change]) -> None:
    for one in changes:
        plaintext.echo(f"GPU {one.gpu.index} ({one.gpu.gpu})")
        for slot in one.kept:
            plaintext.echo(f"    = GPU instance {slot.profile} at {slot.start} stays")
        for step in one.steps:
            plaintext.echo(f"    {step}")
        for device in one.drained:
            plaintext.echo(f"    ! {device} is in use and ends")
        if one.layout:
            plaintext.echo(f"    fragmentation afterwards: {one.fragmentation:.0%}")
    if not changes:
        plaintext.echo("nothing to change")


def _plain_change(one: change.Change) -> dict[str, Any]:
    return {
        "gpu": one.gpu.index,
        "uuid": one.gpu.gpu,
        "kept": [str(slot) for slot in one.kept],
        "steps": [str(step) for step in one.steps],
        "drained": list(one.drained),
        "layout": [str(slot) for slot in one.layout],
        "fragmentation": round(one.fragmentation, 3),
    }


@group.command("apply")
@_chosen
@_drain
@_mode_only
@click.option("--skip-reset", "skips_reset", is_flag=True, help="leave a mode pending that needs a reset of the GPU")
@options.settings_options("silicon", hidden=True)
@click.pass_context
def apply_verb(
    ctx: click.Context,
    config: Settings,
    /,
    *,
    file: str | None,
    name: str | None,
    may_drain: bool,
    is_mode_only: bool,
    skips_reset: bool,
) -> None:
    """Make the GPUs what a configuration says, by as few changes as possible."""

    async def work() -> None:
        async with _partitioned(config) as found:
            scene = await _look(config, found, file, name)
            scene = _only_modes(scene) if is_mode_only else scene
            changes = scene.changes(may_drain=may_drain)
            await asyncio.to_thread(_drain_holders, invocation.current(ctx), scene, changes)
            await apply.apply_changes(found, changes, told=_tell, skips_reset=skips_reset)
            if not changes:
                plaintext.echo("nothing to change")
            if not skips_reset:
                _assert_done(await found.list_partitions(), scene.goals, is_mode_only=is_mode_only)

    asyncio.run(work())


def _tell(one: change.Change, step: change.Step) -> None:
    plaintext.echo(f"GPU {one.gpu.index}: {step}")


def _drain_holders(call: invocation.Invocation, scene: _Scene, changes: Sequence[change.Change]) -> None:
    """Stop the containers that hold what the changes end, and wait for their end."""
    ended = {str(device) for one in changes for device in one.drained}
    ended |= {str(one.gpu.gpu) for one in changes if one.ends_gpu}
    holders = {(one.namespace, one.pod) for one in scene.holdings if ended & {replica.origin(name) for name in one.ids}}
    if not holders:
        return
    with connection.opened(call) as client:
        for namespace, pod in sorted(holders):
            plaintext.echo(f"stopping {namespace}/{pod}")
            client.stop(pod, namespace, grace_s=None)
        for namespace, pod in sorted(holders):
            with contextlib.suppress(errors.NotFound):  # a cluster keeps no record of what was stopped
                client.wait(pod, namespace, state="ended", timeout_s=_DRAIN_S)


@group.command("assert")
@_chosen
@_mode_only
@click.option("--valid-config", "is_file_only", is_flag=True, help="whether the file and its configuration are valid")
@options.settings_options("silicon", hidden=True)
def assert_verb(
    config: Settings, /, *, file: str | None, name: str | None, is_mode_only: bool, is_file_only: bool
) -> None:
    """Exit with 0 where the GPUs are what a configuration says, else say what is not and exit with 4."""
    scene = asyncio.run(_scene(config, file, name))
    if not is_file_only:
        _assert_done(scene.gpus, scene.goals, is_mode_only=is_mode_only)
    plaintext.echo("the configuration is valid" if is_file_only else "every GPU is as it should be")


def _assert_done(gpus: Sequence[Partition], goals: Mapping[GPUUUID, wanted.WantedGPU], *, is_mode_only: bool) -> None:
    found = wanted.differences(gpus, goals, mode_only=is_mode_only)
    if found:
        raise errors.Conflict("; ".join(found), reason="MIGDiffers", hint="`fairlead mig plan` says what is missing")


@group.command("export")
@click.option("-c", "--config-label", "name", default="current", show_default=True, help="name of the configuration")
@click.option("-f", "--output-file", "target", type=click.Path(path_type=Path), help="where it is written, atomically")
@click.option("-o", "--output", "form", type=click.Choice(("yaml", "json")), default="yaml", show_default=True)
@options.settings_options("silicon", hidden=True)
def export_verb(config: Settings, /, *, name: str, target: Path | None, form: str) -> None:
    """Print the GPUs as they are, as a file that `apply` takes."""

    async def look() -> tuple[Partition, ...]:
        async with _partitioned(config) as found:
            return await found.list_partitions()

    _write(wanted.export([gpu for gpu in asyncio.run(look()) if not gpu.problem], name), target, form)


@group.command("generate-config")
@click.option("-f", "--output-file", "target", type=click.Path(path_type=Path), help="where it is written, atomically")
@click.option("-o", "--output", "form", type=click.Choice(("yaml", "json")), default="yaml", show_default=True)
@options.settings_options("silicon", hidden=True)
def generate_verb(config: Settings, /, *, target: Path | None, form: str) -> None:
    """Print configurations that suit these GPUs: all-disabled, all-enabled, all-PROFILE, all-balanced."""

    async def look() -> tuple[Partition, ...]:
        async with _partitioned(config) as found:
            return await found.list_partitions()

    _write(wanted.generate(asyncio.run(look())), target, form)


def _write(found: migparted.Config, target: Path | None, form: str) -> None:
    document = migparted.emit_config(found)
    text = yamltext.dump(document) if form == "yaml" else plaintext.as_json(document, indent=2) + "\n"
    if target is None:
        plaintext.echo(text, nl=False)
    else:
        files.write_atomic(target, text.encode(), mode=0o644)
