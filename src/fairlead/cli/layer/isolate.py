"""`fairlead isolate …`: what the kernel really enforces for containers, compared with what they were given.

No service is needed: runtimes' own state says which containers run, the kubelet of the node (if one answers) says who
holds what, podman (if installed) says names and labels. Needs root.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fairlead import errors
from fairlead.cli.core import invocation, options, output
from fairlead.engine.podman import engine
from fairlead.engine.port import ContainerState
from fairlead.kernel import cgroup, ocistate, readback
from fairlead.node.deviceplugin import podresources
from fairlead.node.isolation import attach, audit, entitlement
from fairlead.plan.gpu.attribution import Holding
from fairlead.settings import Settings
from fairlead.wire.kubernetes import names
from fairlead_cdi import directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One container to look into."""

    name: str
    pid: int
    subject: entitlement.Subject
    aliases: frozenset[str] = frozenset()
    """All that it may be called on the command line."""


@click.group("isolate")
def group() -> None:
    """Read, audit and repair what the kernel enforces for containers."""


@group.command("audit")
@click.argument("containers", nargs=-1, metavar="[CONTAINER]...")
@click.option("--pid", "pids", type=int, multiple=True, help="a process of any container, repeatable")
@click.option(
    "--cgroup",
    "cgroups",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    multiple=True,
    help="cgroup folder of any container, repeatable",
)
@click.option(
    "--device", "devices", multiple=True, metavar="CDI_NAME", help="what it should have, instead of any books"
)
@click.option("--spec-dir", "spec_dirs", multiple=True, metavar="DIR", help="folder of CDI specs, repeatable")
@click.option("--repair", "repairs", is_flag=True, help="make it as it should be")
@options.json_option
@click.pass_context
def audit_verb(ctx: click.Context, /, *, form: str, devices: tuple[str, ...], repairs: bool, **asked: Any) -> None:
    """Compare device rules and nodes in force with what containers were given; all of this machine, or those named."""
    config = invocation.current(ctx).settings()
    folders = asked["spec_dirs"] or (*directory.DEFAULT_DIRECTORIES, str(config.node.cdi_folder))
    reports = asyncio.run(
        _audit(config, folders=tuple(dict.fromkeys(folders)), devices=devices, repairs=repairs, asked=asked)
    )
    if form == "text":
        for name, report in reports:
            _show(name, report)
    else:
        output.show_value([{"name": name} | _plain(report) for name, report in reports], form=form)
    bad = [name for name, report in reports if not report.is_clean]
    if bad:
        raise audit.differs(bad)


async def _audit(
    config: Settings, *, folders: Sequence[str], devices: Sequence[str], repairs: bool, asked: dict[str, Any]
) -> list[tuple[str, audit.Report]]:
    registry = await asyncio.to_thread(attach.scan, folders)
    books = entitlement.AllocationSources(registry=registry, holdings=await ask_kubelet(config.pod_resources))
    is_chosen = bool(asked["containers"] or asked["pids"] or asked["cgroups"])
    targets = await find_targets(config, asked["containers"], [*asked["pids"], *_first_of(asked["cgroups"])])
    reports: list[tuple[str, audit.Report]] = []
    for target in targets:
        # Of all containers, one that ends meanwhile is no error.
        with contextlib.suppress(*(() if is_chosen else (errors.NotFound,))):
            found = await asyncio.to_thread(entitlement.find, target.subject, books, asked=devices)
            reports.append((target.name, await audit.audit(target.pid, found, books, repairs=repairs)))
    return reports


async def ask_kubelet(socket: Path) -> tuple[Holding, ...] | None:
    """Ask the kubelet of this node; None: none answers."""
    if not await asyncio.to_thread(socket.exists):
        return None
    client = podresources.Client(socket)
    try:
        return await client.list_holdings()
    except errors.Unavailable:
        return None
    finally:
        await client.close()


def _first_of(folders: Sequence[Path]) -> list[int]:
    """Return a process of each cgroup. Raises: NotFound: there is none in it."""
    found: list[int] = []
    for folder in folders:
        members = cgroup.members(cgroup.at(folder.resolve(), Path("/")))
        if not members:
            message = f"no process is in cgroup {folder}"
            raise errors.NotFound(message, reason="CgroupEmpty", hint="it is audited through one of its processes")
        found.append(min(members))
    return found


async def find_targets(config: Settings, wanted: Sequence[str], pids: Sequence[int]) -> list[Target]:
    """Return the containers named, and those of the processes; all of this machine where none are.

    Raises: NotFound (`ContainerNotFound`, `ProcessGone`).
    """
    running = await asyncio.to_thread(ocistate.list_running)
    states = await _states(config)
    every = [_target(item, states.get(item.id)) for item in running]
    if not wanted and not pids:
        return every
    found = [_named(name, every) for name in wanted]
    return found + [_of_pid(pid, every) for pid in pids]


async def _states(config: Settings) -> dict[str, ContainerState]:
    """Return podman's containers by id; none where there is no podman."""
    with contextlib.suppress(errors.FairleadError):
        return {state.id: state for state in await engine.PodmanEngine(config.engine).list_containers({})}
    return {}


def _target(item: ocistate.Running, state: ContainerState | None) -> Target:
    labels = state.labels if state is not None else {}
    subject = entitlement.Subject(config=ocistate.read_config(item.bundle), labels=labels)
    who = entitlement.identity(subject)
    name = f"{who[1]}/{who[2]}" if who is not None else state.name if state is not None else item.id
    aliases = {item.id, item.id[:12], name, *((state.name,) if state is not None else ())}
    if labels.get(names.POD_NAME):
        aliases.add(labels[names.POD_NAME])
    return Target(name=name, pid=item.pid, subject=subject, aliases=frozenset(aliases))


def _named(name: str, every: Sequence[Target]) -> Target:
    found = [target for target in every if name in target.aliases and not target.name.endswith("/sandbox")]
    if len(found) == 1:
        return found[0]
    if found:
        message = f'"{name}" are {len(found)} containers: {", ".join(target.name for target in found)}'
        raise errors.NotFound(message, reason="ContainerAmbiguous", hint="name one of them")
    message = f'no running container of this machine is called "{name}"'
    raise errors.NotFound(message, reason="ContainerNotFound", hint="its name, engine name or id; or --pid")


def _of_pid(pid: int, every: Sequence[Target]) -> Target:
    """Return the container a process is in: by its first process, else one that shares its mount namespace."""
    for target in every:
        if target.pid == pid or _same_namespace(target.pid, pid):
            return target
    if _same_namespace(os.getpid(), pid):
        message = f"process {pid} is in no container: it shares the mounts of this one"
        raise errors.Invalid(message, reason="NotContained", hint="name a process inside a container")
    if not Path(f"/proc/{pid}").exists():
        raise readback.gone(pid)
    return Target(name=f"pid {pid}", pid=pid, subject=entitlement.Subject())


def _same_namespace(one: int, other: int) -> bool:
    try:
        return Path(f"/proc/{one}/ns/mnt").readlink() == Path(f"/proc/{other}/ns/mnt").readlink()
    except OSError:
        return False


def _plain(report: audit.Report) -> dict[str, Any]:
    findings = [
        {"verdict": one.verdict.value, "subject": one.subject, "message": one.message} for one in report.findings
    ]
    return {
        "pid": report.pid,
        "clean": report.is_clean,
        "source": report.source,
        "devices": list(report.devices),
        "findings": findings,
        "repaired": list(report.repaired),
        "rules": list(report.rules),
        "opens": report.opens,
        "unread": list(report.unread),
    }


def _show(name: str, report: audit.Report) -> None:
    given = ", ".join(report.devices) or ("as written there" if report.source == entitlement.SPEC else "no devices")
    mark = click.style("ok  ", fg="green") if report.is_clean else click.style("DIFF", fg="red")
    click.echo(f"{mark}  {name} (pid {report.pid}), {report.source}: {given}")
    for finding in report.findings:
        click.echo(f"      {finding.verdict.value}: {finding.subject}: {finding.message}")
    for text in report.repaired:
        click.echo(f"      repaired: {text}")
    for text in report.unread:
        click.echo(f"      not read: {text}")
