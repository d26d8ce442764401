"""`fairlead runtime …`: configures container engines for GPUs, without any service.

Engines are configured for the runtime shim and CDI, and back; what is written is decided in `plan.engineconfig` and
done in `node.engines.files`. The shim's launchers are written first, so that no engine ever names a program that is not
there.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import click

from fairlead import errors, files
from fairlead.cli.core import invocation, plaintext, stopping
from fairlead.inject import launcher, policy
from fairlead.node.engines import charlinks, judge, records
from fairlead.node.engines import files as enginefiles
from fairlead.plan import charlinks as charlinks_plan
from fairlead.plan.engineconfig import commandline, gvisor, table
from fairlead.plan.engineconfig.model import Location, Request
from fairlead.plan.gpu.allocation import enginesupport

_FOLDER: Final = "/usr/libexec/fairlead"
_DRIVER: Final = Path("/proc/driver/nvidia/version")
_PATH: Final = click.Path(path_type=Path)


def _engine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    engine = click.option(
        "--engine", required=True, type=click.Choice(list(table.ENGINES)), help="whose files are written"
    )
    config = click.option(
        "--config", metavar="PATH", help="its main file  [default: where the engine looks]", callback=_absolute
    )
    return engine(config(function))


def _absolute(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    # Not resolved: a file that is a link stays one.
    return str(Path.cwd() / value) if value else None


_dry_run = click.option("--dry-run", "is_dry", is_flag=True, help="print what would change, as a unified diff")


def _recorded(ctx: click.Context) -> records.ChangeRecords:
    return records.ChangeRecords(invocation.current(ctx).settings().state.folder / "engines")


@click.group("runtime")
def group() -> None:
    """Configure engines for GPUs; links that systemd needs."""


@group.command("configure")
@_engine_options
@click.option("--drop-in", metavar="PATH", callback=_absolute, help="our own file  [default: where the engine looks]")
@_dry_run
@click.option("--set-as-default", "is_default", is_flag=True, help="containers that name no runtime use it too")
@click.option("--enable-cdi/--no-enable-cdi", default=True, show_default=True, help="the engine injects CDI devices")
@click.option("--runtime-name", "name", default="fairlead", show_default=True, help="name of the handler")
@click.option("--alias/--no-alias", default=True, show_default=True, help='the handler answers to "nvidia" too')
@click.option("--kata", is_flag=True, help="add the handler of Kata machines with GPUs (containerd, crio)")
@click.option("--kata-folder", default="/opt/kata", show_default=True, help="where Kata is installed")
@click.option("--gvisor", is_flag=True, help='add the handler "gvisor", a kernel in user space')
@click.option("--gvisor-program", metavar="PATH", help="gVisor's runsc  [default: the one on PATH]", callback=_absolute)
@click.option("--gvisor-flag", "gvisor_flags", multiple=True, metavar="NAME[=VALUE]", help="option of runsc")
@click.option(
    "--gvisor-dev", metavar="FOLDER", help="device nodes of GPUs, where they are not in /dev", callback=_absolute
)
@click.option("--folder", type=_PATH, default=_FOLDER, show_default=True, help="where the shim's programs are written")
@click.option("--policy", type=_PATH, default=policy.DEFAULT_PATH, show_default=True, help="the shim's policy file")
@click.option("--engine-version", metavar="VERSION", help="release of the engine  [default: it is asked]")
@click.pass_context
def configure_verb(ctx: click.Context, /, *, engine: str, is_dry: bool, **options: Any) -> None:
    """Configure an engine for the runtime shim and CDI; may be repeated, with other options too."""
    request = Request(
        folder=str(Path.cwd() / options["folder"]),
        name=options["name"],
        alias="nvidia" if options["alias"] and options["name"] != "nvidia" else "",
        is_default=options["is_default"],
        enables_cdi=options["enable_cdi"],
        has_kata=options["kata"],
        kata_folder=options["kata_folder"],
        gvisor=_runsc(options["gvisor_program"]) if options["gvisor"] else "",
        gvisor_flags=gvisor.flags(engine, options["gvisor_flags"], has_driver=_DRIVER.exists() and options["gvisor"]),
        gvisor_dev=options["gvisor_dev"] or "",
        **({"python": str(launcher.find_interpreter())} if options["gvisor"] else {}),
    )
    config = options["config"] or table.ENGINES[engine].config
    found = asyncio.run(judge.find_running(engine, config))
    if not options["config"]:
        commandline.refuse_elsewhere(engine, config, found)
    program = judge.find_program(engine, found)
    release = asyncio.run(enginefiles.ask_release(engine, program=program))
    version = _version(engine, options["engine_version"], release)
    place = Location(config=config, drop_in=options["drop_in"] or "", version=version)
    recorded = _recorded(ctx)
    planned, proposal = enginefiles.configure(engine, place, request, recorded=recorded, is_dry=True)
    conflicts = commandline.find_conflicts(engine, found, proposal)
    _refuse_unmet(engine, (*conflicts, *asyncio.run(judge.ask(release, place, request, proposal))))
    for line in filter(None, (*proposal.unmet, commandline.elsewhere(engine, config, found))):
        plaintext.echo(f"warning: {line}", err=True)
    if is_dry:
        _show_diff(planned)
        return
    _install(Path(planned.program).parent, options["policy"], planned.runtimes)
    _install_gvisor(engine, request)
    done, _ = enginefiles.configure(engine, place, request, recorded=recorded)
    _show(done, engine)


def _refuse_unmet(engine: str, lines: Sequence[str]) -> None:
    if lines:
        message = f"{engine} would not do what is asked for: {'; '.join(lines)}"
        raise errors.Conflict(
            message, reason="EngineIgnoresConfig", hint="mend what is named there; nothing was written"
        )


def _version(engine: str, given: str | None, release: enginefiles.Release | None) -> tuple[int, ...] | None:
    if given is None:
        return None if release is None else release.version
    found = enginesupport.parse_version(given)
    if found is None:
        message = f'"{given}" is not a release of {engine}'
        raise errors.Invalid(message, reason="VersionInvalid", hint="as in --engine-version 1.7.24")
    return found


def _install(folder: Path, rules: Path, runtimes: tuple[str, ...]) -> None:
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot make {folder}: {error.strerror}"
        raise errors.Unavailable(
            message, reason="LauncherFolderRefused", hint="run as root, or set --folder"
        ) from error
    launcher.install(folder, config=rules, runtimes=runtimes)


def _runsc(given: str | None) -> str:
    """Return the path of runsc. Raises: Unavailable (`GVisorMissing`)."""
    path = given or shutil.which("runsc")
    with contextlib.suppress(OSError, ValueError):  # a word that no file can be called by
        if path and Path(path).is_file() and os.access(path, os.X_OK):
            return path
    shown = errors.readable((given or "")[:200])
    message = f"{shown} is not there, or is no program" if given else "runsc is not on PATH: gVisor is not installed"
    raise errors.Unavailable(message, reason="GVisorMissing", hint="--gvisor-program PATH says where it is")


def _install_gvisor(engine: str, request: Request) -> None:
    for path, (content, mode) in gvisor.made(engine, request).items():
        Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        files.write_atomic(Path(path), content, mode=mode)


def _show(outcome: enginefiles.Outcome, engine: str) -> None:
    for step in outcome.steps:
        verb = "removed" if step.after is None else "written" if step.before is None else "changed"
        plaintext.echo(f"{step.path}: {verb}")
    for note in outcome.notes:
        plaintext.echo(f"note: {note}", err=True)
    restart = table.ENGINES[engine].restart
    if not outcome.steps:
        plaintext.echo("nothing to change")
    elif restart:
        plaintext.echo(f"next: {restart}")


def _show_diff(outcome: enginefiles.Outcome) -> None:
    for step in outcome.steps:
        old, new = ("/dev/null" if content is None else step.path for content in (step.before, step.after))
        difference = difflib.unified_diff(_lines(step.before), _lines(step.after), fromfile=old, tofile=new)
        plaintext.echo("".join(difference), nl=False)
    for note in outcome.notes:
        plaintext.echo(f"note: {note}", err=True)
    if not outcome.steps:
        plaintext.echo("nothing to change", err=True)


def _lines(content: bytes | None) -> list[str]:
    lines = (content or b"").decode(errors="replace").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n\\ No newline at end of file\n"
    return lines


@group.command("unconfigure")
@_engine_options
@click.option("--drop-in", metavar="PATH", callback=_absolute, help="refuse if ours is another file than this one")
@_dry_run
@click.pass_context
def unconfigure_verb(ctx: click.Context, *, engine: str, config: str | None, drop_in: str | None, is_dry: bool) -> None:
    """Take everything back: files are what they were, later changes by others stay."""
    place = config or table.ENGINES[engine].config
    outcome = enginefiles.unconfigure(engine, place, recorded=_recorded(ctx), drop_in=drop_in or "", is_dry=is_dry)
    if is_dry:
        _show_diff(outcome)
    else:
        _show(outcome, engine)


@group.command("check")
@_engine_options
@click.pass_context
def check_verb(ctx: click.Context, *, engine: str, config: str | None) -> None:
    """Say whether an engine is still configured as it should be, and whether it injects CDI devices at all."""
    place = config or table.ENGINES[engine].config
    found = asyncio.run(judge.judge_written(engine, place, recorded=_recorded(ctx)))
    for line in found.findings:
        plaintext.echo(line)
    for line in found.notes:
        plaintext.echo(f"note: {line}", err=True)
    if found.findings:
        message = f"{engine} is not configured as it should be ({len(found.findings)} findings)"
        hint = f"fairlead runtime configure --engine {engine}, with the options as before"
        raise errors.Conflict(message, reason="EngineConfigStale", hint=hint)
    plaintext.echo(f"{engine} is configured ({place})")


@group.command("char-links")
@click.option("--watch", "is_watching", is_flag=True, help="stay, and follow devices as they come and go")
@click.option("--ahead", is_flag=True, help="also for GPUs whose device nodes are not made yet")
@click.option("--dry-run", "is_dry", is_flag=True, help="print what would change")
@click.option("--udev-rule", "is_rule", is_flag=True, help="print the udev rule that calls this verb, and do nothing")
@click.option("--root", type=_PATH, default="/", show_default=True, help="root under which /dev, /proc and /sys are")
def char_links_verb(*, is_watching: bool, ahead: bool, is_dry: bool, is_rule: bool, root: Path) -> None:
    """Make the links in /dev/char that containers under systemd's cgroup driver need to keep their GPUs."""
    if is_rule:
        found = shutil.which(sys.argv[0] if Path(sys.argv[0]).name == "fairlead" else "fairlead")
        plaintext.echo(charlinks_plan.udev_rule(str(Path(found or "/usr/bin/fairlead").absolute())), nl=False)
    elif is_watching:
        asyncio.run(_keep_links(root, ahead=ahead))
    else:
        decision = charlinks.inspect(root, ahead=ahead)
        if not is_dry:
            charlinks.apply(root, decision)
        _show_links(decision)


async def _keep_links(root: Path, *, ahead: bool) -> None:
    stop = stopping.stop_event()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(_follow_links(root, ahead=ahead))
        await stop.wait()
        task.cancel()


async def _follow_links(root: Path, *, ahead: bool) -> None:
    async with aclosing(charlinks.keep(root, ahead=ahead)) as decisions:
        async for decision in decisions:
            _show_links(decision)


def _show_links(decision: charlinks_plan.Decision) -> None:
    for name, target in decision.make.items():
        plaintext.echo(f"/dev/char/{name} -> {target}")
    for name in decision.remove:
        plaintext.echo(f"/dev/char/{name} removed")
    for name in decision.blocked:
        plaintext.echo(f"warning: /dev/char/{name} is not a link and is left alone", err=True)
