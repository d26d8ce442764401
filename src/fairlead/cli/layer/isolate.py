"""`fairlead isolate …`: compares what the kernel enforces for containers with what they were given.

No service is needed: runtimes' own state says which containers run, the kubelet of the node (if one answers) says who
holds what, podman (if installed) says names and labels. Needs root.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fairlead import errors, telemetry
from fairlead.cli.core import invocation, localcontainer, options, output, plaintext
from fairlead.kernel import cgroup
from fairlead.node.isolation import audit, entitlement
from fairlead.settings import Settings
from fairlead_cdi import directory


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
    "--device",
    "devices",
    multiple=True,
    metavar="CDI_NAME",
    help="what it should have, instead of what kubelet and engine say",
)
@click.option("--spec-dir", "spec_dirs", multiple=True, metavar="DIR", help="folder of CDI specs, repeatable")
@click.option("--repair", "repairs", is_flag=True, help="make it as it should be")
@options.json_option
@click.pass_context
def audit_verb(ctx: click.Context, /, *, form: str, devices: tuple[str, ...], repairs: bool, **asked: Any) -> None:
    """Compare device rules and nodes in force with what containers were given; all of this machine, or those named."""
    config = invocation.current(ctx).settings()
    _refuse_blindness()
    telemetry.configure("error", "console")
    folders = asked["spec_dirs"] or (*directory.DEFAULT_DIRECTORIES, str(config.node.cdi_folder))
    reports = asyncio.run(
        _audit(config, folders=tuple(dict.fromkeys(folders)), devices=devices, repairs=repairs, asked=asked)
    )
    if form == "text":
        for name, report in reports:
            _show(name, report)
        if not reports:
            plaintext.echo("no container runs here", err=True)
    else:
        output.show_value([{"name": name} | _plain(report) for name, report in reports], form=form)
    if bad := [name for name, report in reports if not report.is_clean and not report.doubt]:
        raise audit.differs(bad)
    if unknown := [name for name, report in reports if report.doubt]:
        raise audit.unjudged(unknown)


async def _audit(
    config: Settings, *, folders: Sequence[str], devices: Sequence[str], repairs: bool, asked: dict[str, Any]
) -> list[tuple[str, audit.Report]]:
    known = await localcontainer.sources(config, folders)
    is_chosen = bool(asked["containers"] or asked["pids"] or asked["cgroups"])
    targets = await localcontainer.find(config, asked["containers"], [*asked["pids"], *_first_of(asked["cgroups"])])
    reports = await localcontainer.audit_targets(targets, known, devices=devices, repairs=repairs, is_chosen=is_chosen)
    return reports if is_chosen else [*reports, *await asyncio.to_thread(localcontainer.unread_states)]


def _refuse_blindness() -> None:
    """Raises Unavailable (`NotRoot`): runtimes' states are root's to read, so nothing could be judged."""
    if os.geteuid():
        message = "isolate audit reads runtimes' state and the kernel's rules, which are root's: nothing was judged"
        raise errors.Unavailable(message, reason="NotRoot", hint="run it with sudo")


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


def _plain(report: audit.Report) -> dict[str, Any]:
    findings = [
        {"verdict": one.verdict.value, "subject": one.subject, "message": one.message} for one in report.findings
    ]
    return {
        "pid": report.pid,
        "clean": report.is_clean,
        "doubt": report.doubt,
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
    word, colour = ("????", "yellow") if report.doubt else ("ok  ", "green") if report.is_clean else ("DIFF", "red")
    text = f"{name} (pid {report.pid}), {report.source}: {report.doubt or given}"
    first, *further = output.wrapped(text, indent=6)
    plaintext.echo(f"{click.style(word, fg=colour)}  {first}")
    for line in further:
        plaintext.echo(f"      {line}")
    for finding in report.findings:
        plaintext.echo(f"      {finding.verdict.value}: {finding.subject}: {finding.message}")
    for text in report.repaired:
        plaintext.echo(f"      repaired: {text}")
    for text in report.unread:
        plaintext.echo(f"      not read: {text}")
