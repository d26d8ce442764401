"""`fairlead vfio …`: passes whole GPUs through to virtual machines, from sysfs and without any service or driver.

`list` and `check` look, `plan` shows the writes that `bind` does; `bind`, `release` and `reset` write. A GPU goes with
its board's other functions and with its IOMMU group; what a process has open is never touched.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from fairlead import errors
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.layer.vfio import guest, row
from fairlead.frozen import frozen
from fairlead.model.vfio import Snapshot
from fairlead.node.vfio import executor
from fairlead.plan.vfio import binding, resetting, verdict
from fairlead.plan.vfio.step import Step
from fairlead.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

_gpus = click.argument("gpus", nargs=-1, metavar="[GPU]...")
_some = click.argument("gpus", nargs=-1, metavar="GPU...", required=True)
_dry = click.option("--dry-run", "is_dry", is_flag=True, help="show the steps and do nothing")
_HELD: Final = frozenset({verdict.Why.HELD, verdict.Why.PERSISTENCE})


@click.group("vfio")
def group() -> None:
    """Pass whole GPUs through to virtual machines: look, bind, release, reset.

    A GPU is named by its PCI address (0000: may be left out), its serial number or its key.
    """


@frozen
class _Scene:
    """This machine as it is now."""

    root: Path
    executor: executor.Executor
    snapshot: Snapshot
    holders: verdict.Holders

    def rows(self, names: Sequence[str], *, is_all: bool = False) -> list[row.Row]:
        """Return what is named; with no name the GPUs, or everything."""
        everything = self.snapshot.functions if is_all else self.snapshot.gpus
        chosen = row.find_addresses(self.snapshot, names) or tuple(one.address for one in everything)
        return row.list_rows(self.root, self.snapshot, chosen, self.holders)


async def _look(config: Settings) -> _Scene:
    """Scan this machine. Raises: Invalid: its GPUs are simulated."""
    if config.silicon.simulate:
        message = f"simulated silicon ({config.silicon.simulate}) has no GPU that can be passed through"
        raise errors.Invalid(message, reason="VFIOSimulated", hint="leave silicon.simulate out")
    made = executor.Executor(config.silicon.root)
    snapshot = await made.scan()
    holders = await made.find_holders(snapshot.functions)
    for line in (*snapshot.problems, *(one.message for one in snapshot.unreadable)):
        plaintext.echo(f"warning: {line}", err=True)
    if os.geteuid():
        plaintext.echo("warning: only root sees every serial number and who has a GPU open", err=True)
    return _Scene(root=config.silicon.root, executor=made, snapshot=snapshot, holders=holders)


@group.command("list")
@_gpus
@options.output_option
@options.settings_options("silicon", hidden=True)
def list_verb(config: Settings, /, *, gpus: tuple[str, ...], form: str) -> None:
    """List GPUs, NVSwitches and what goes with them: driver, group, holder, and what stands in the way."""
    scene = asyncio.run(_look(config))
    output.show_listing(scene.rows(gpus, is_all=True), row.COLUMNS, form=form, name=lambda one: one.address)


@group.command("check")
@_gpus
@options.json_option
@options.settings_options("silicon", hidden=True)
@click.pass_context
def check_verb(ctx: click.Context, /, config: Settings, *, gpus: tuple[str, ...], form: str) -> None:
    """Say all that keeps GPUs from being passed through, and what mends it; the exit code is 1 if anything does."""
    rows = asyncio.run(_look(config)).rows(gpus)
    if form != "text":
        output.show_value(rows, form=form)
    elif not rows:
        plaintext.echo("no GPU is here", err=True)
    for one in rows if form == "text" else ():
        _show_check(one)
    ctx.exit(0 if rows and all(one.is_ready for one in rows) else 1)


def _show_check(one: row.Row) -> None:
    plaintext.echo(f"{one.address}  {one.model or one.ids}: {'ready' if one.is_ready else 'not ready'}")
    for obstacle in one.obstacles:
        _show_text(obstacle.message, "note: " if obstacle.stage is verdict.Stage.NOTE else "")
        if obstacle.mend:
            _show_text(obstacle.mend, "mend: ")
    for problem in one.problems:
        _show_text(problem, "note: ")


def _show_text(text: str, label: str) -> None:
    for at, line in enumerate(output.wrapped(text, indent=4 + len(label))):
        plaintext.echo(f"    {' ' * len(label) if at else label}{line}")


@group.command("plan")
@_gpus
@options.json_option
@options.settings_options("silicon", hidden=True)
def plan_verb(config: Settings, /, *, gpus: tuple[str, ...], form: str) -> None:
    """Show the steps of `bind`, as a shell would do them; of every GPU unless some are named."""
    scene = asyncio.run(_look(config))
    chosen = row.find_addresses(scene.snapshot, gpus) or tuple(one.address for one in scene.snapshot.gpus)
    _show_plans(binding.plan_bind(scene.snapshot, chosen, scene.holders), form=form, what="bound")


@group.command("bind")
@_some
@_dry
@options.json_option
@options.settings_options("silicon", hidden=True)
def bind_verb(config: Settings, /, *, gpus: tuple[str, ...], is_dry: bool, form: str) -> None:
    """Bind GPUs to VFIO, each with all that goes where it goes; a half-done binding is undone."""
    asyncio.run(_move(config, gpus, is_dry=is_dry, form=form, is_binding=True))


@group.command("release")
@_some
@_dry
@options.json_option
@options.settings_options("silicon", hidden=True)
def release_verb(config: Settings, /, *, gpus: tuple[str, ...], is_dry: bool, form: str) -> None:
    """Give GPUs back to their vendor's driver."""
    asyncio.run(_move(config, gpus, is_dry=is_dry, form=form, is_binding=False))


async def _move(config: Settings, gpus: Sequence[str], *, is_dry: bool, form: str, is_binding: bool) -> None:
    scene = await _look(config)
    chosen = row.find_addresses(scene.snapshot, gpus)
    what = "bound" if is_binding else "released"
    if is_dry:
        plan = binding.plan_bind if is_binding else binding.plan_release
        _show_plans(plan(scene.snapshot, chosen, scene.holders), form=form, what=what)
        return
    _refuse_others()
    outcomes = await (scene.executor.bind(chosen) if is_binding else scene.executor.release(chosen))
    if form != "text":
        output.show_value([_plain(one) for one in outcomes], form=form)
    for one in outcomes if form == "text" else ():
        if one.is_good:
            names = ", ".join(function.address for function in one.functions)
            plaintext.echo(f"{names}: {what if one.done else f'{what} already'}")
    _raise_bad([error for one in outcomes if (error := _error(one, what)) is not None], len(outcomes), what)


def _plain(one: executor.Outcome) -> dict[str, Any]:
    return {
        "functions": [function.address for function in one.functions],
        "is_good": one.is_good,
        "steps": [step.shown for step in one.done],
        "refusals": one.refusals,
        "failure": one.failure.message if one.failure is not None else None,
        "left": one.left,
    }


def _error(one: executor.Outcome, what: str) -> errors.FairleadError | None:
    """Return why a unit is not as it was asked to be."""
    if one.refusals:
        return _refusal(one.refusals)
    if one.failure is None:
        return None
    names = ", ".join(function.address for function in one.functions)
    message = f"{names} was not {what}: {one.failure.message}"
    if not one.left:
        return errors.Unavailable(f"{message}; it is as before", reason="VFIOStepFailed")
    return errors.Unavailable(f"{message}; left half-way: {'; '.join(one.left)}", reason="VFIOHalfDone")


def _refusal(refusals: Sequence[verdict.Obstacle]) -> errors.FairleadError:
    first = refusals[0]
    kind = errors.Conflict if first.why in _HELD else errors.Unavailable
    more = "".join(f"; {one.sentence}" for one in refusals[1:4])
    return kind(f"{first.message}{more}", reason=f"VFIO{first.why.value}", hint=first.mend or None)


def _raise_bad(bad: Sequence[errors.FairleadError], count: int, what: str) -> None:
    """Raise what went wrong: the one error there is, or all of them on standard error and their number."""
    if len(bad) == 1:
        raise bad[0]
    for error in bad:
        plaintext.echo(errors.sentence(error), err=True)
    if bad:
        message = f"{len(bad)} of {count} were not {what}"
        raise errors.Unavailable(message, reason="VFIOStepFailed", hint="fairlead vfio check")


def _show_plans(plans: Sequence[binding.UnitPlan], *, form: str, what: str) -> None:
    if form != "text":
        output.show_value([_plain_plan(one.addresses, one.steps, one.refusals) for one in plans], form=form)
    for one in plans if form == "text" else ():
        if not one.refusals:
            done = "" if one.steps else f": {what} already"
            plaintext.echo(f"# {', '.join(one.addresses)}{done}")
            _show_steps(one.steps)
    _raise_bad([_refusal(one.refusals) for one in plans if one.refusals], len(plans), f"to be {what}")


def _plain_plan(
    addresses: Sequence[str], steps: Sequence[Step], refusals: Sequence[verdict.Obstacle]
) -> dict[str, Any]:
    return {"functions": addresses, "steps": [step.shown for step in steps], "refusals": refusals}


def _show_steps(steps: Sequence[Step]) -> None:
    for step in steps:
        plaintext.echo(step.shown)


@group.command("reset")
@_some
@_dry
@options.json_option
@options.settings_options("silicon", hidden=True)
def reset_verb(config: Settings, /, *, gpus: tuple[str, ...], is_dry: bool, form: str) -> None:
    """Reset GPUs that no process has open, and wait until their memory is erased."""
    asyncio.run(_reset(config, gpus, is_dry=is_dry, form=form))


async def _reset(config: Settings, gpus: Sequence[str], *, is_dry: bool, form: str) -> None:
    scene = await _look(config)
    chosen = row.find_addresses(scene.snapshot, gpus)
    plan = resetting.plan_reset(scene.snapshot, chosen, scene.holders)
    names = [one.address for one in plan.functions]
    if is_dry and form != "text":
        output.show_value(_plain_plan(names, plan.steps, plan.refusals) | {"reasons": plan.reasons}, form=form)
    elif is_dry:
        _show_steps(plan.steps)
        for reason in plan.reasons:
            plaintext.echo(f"# not done: {reason}")
    if plan.refusals:
        raise _refusal(plan.refusals)
    if is_dry:
        return
    _refuse_others()
    await scene.executor.reset(chosen)
    if form != "text":
        output.show_value({"functions": names, "is_good": True}, form=form)
    else:
        plaintext.echo(f"{', '.join(names)}: reset, and its memory is erased")


def _refuse_others() -> None:
    """Refuse users other than root. Raises: Denied."""
    if os.geteuid():
        raise errors.Denied("only root binds, releases and resets devices", reason="NotRoot", hint="run it with sudo")


group.add_command(guest.report_verb)
group.add_command(guest.digest_verb)
