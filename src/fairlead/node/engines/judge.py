"""Judges whether an engine does what its files are meant to make it do, before they are written and while they stand.

Three things keep a file from having an effect: the engine that runs reads another one, its command line overrules the
file, or its own rules of putting files together do. The first two are read from /proc and units (`running`), the last
from the engine's own program. Two can be asked: containerd (`containerd config dump`, which opens no socket and writes
nothing), and podman, which reads its files at each run, about those that stand (`podman info`); for the others the
model of `plan.engineconfig` stands alone. Files that are not written yet are put into a
folder of their own, as one main file that imports the others by name in the order in which they would be read. A
program of another release than the one in question is not asked.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairlead import command, errors, temporary
from fairlead.engine.podman import host
from fairlead.node.engines import files as enginefiles
from fairlead.node.engines import records, running
from fairlead.plan.engineconfig import commandline, containerdset, table
from fairlead.plan.engineconfig.model import CDI_FOLDERS, Location, Proposal, Request
from fairlead.wire.text import toml

PODMAN: Final = "podman"
_ASK_S: Final = 20.0
_LARGEST: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the engine would not do, or does not."""

    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What a person should know; the engine does what is meant all the same, or may, once it is restarted."""


async def find_running(engine: str, config: str) -> tuple[commandline.Running, ...]:
    """Return the engines that run here; whose main file is ours bears our name for it."""
    return tuple(running.same_file(one, config) for one in await running.find(engine))


async def judge_written(engine: str, config: str, *, recorded: records.ChangeRecords) -> Verdict:
    """Judge what was configured, as it stands: for `fairlead runtime check` and `fairlead doctor`.

    Raises:  NotFound (`EngineUnconfigured`): we never configured it.   Others as `enginefiles.configure`.
    """
    found = await find_running(engine, config)
    program = find_program(engine, found)
    release = await enginefiles.ask_release(engine, program=program)
    version = None if release is None else release.version
    review = enginefiles.review(engine, config, recorded=recorded, version=version)
    findings = [*review.findings, *review.proposal.unmet]
    findings += commandline.find_conflicts(engine, found, review.proposal)
    notes: list[str] = []
    if other := commandline.elsewhere(engine, config, found):
        # A path that the operator chose may be meant for an engine that does not run yet.
        (findings if config == table.ENGINES[engine].config else notes).append(other)
    if not review.findings and release is not None:
        findings += await _ask_written(release.program, engine, review)
        notes += _unread(engine, config)
    return Verdict(findings=tuple(findings), notes=tuple(notes))


async def judge_all(recorded: records.ChangeRecords) -> dict[tuple[str, str], Verdict]:
    """Judge every engine that was configured here, by its name and main file; what cannot be judged is a finding."""
    verdicts = {}
    for engine, config in recorded.list_places():
        try:
            verdicts[engine, config] = await judge_written(engine, config, recorded=recorded)
        except errors.FairleadError as error:
            verdicts[engine, config] = Verdict(findings=(errors.sentence(error),))
    return verdicts


async def ask(
    release: enginefiles.Release | None, place: Location, request: Request, proposal: Proposal
) -> tuple[str, ...]:
    """Return what containerd would not do of a proposal; nothing: it would do all of it, or cannot be asked.

    Args: release: of the program there is, which is not asked where another one is meant.
    """
    if not proposal.documents or release is None or place.version is None or release.version != place.version:
        return ()
    with temporary.folder(temporary.ENGINE) as folder:
        main = _write(folder, proposal.documents)
        return await _judge(release.program, main, place, request, proposal)


async def _ask_written(program: str, engine: str, review: enginefiles.Review) -> tuple[str, ...]:
    """Return what an engine does not do with the files as they stand; nothing: all is done, or it cannot be asked."""
    if engine == PODMAN and review.place.config == table.ENGINES[PODMAN].config:
        return await ask_podman(program, review.request, review.proposal) + _unread_specs(review.place.version)
    if not review.proposal.documents or review.place.version is None:
        return ()
    return await _judge(program, Path(review.place.config), review.place, review.request, review.proposal)


async def ask_podman(program: str, request: Request, proposal: Proposal) -> tuple[str, ...]:
    """Return what podman does not do with the files that it reads, by what it says of itself (podman-info(1)).

    It reads them at each run and has no process that could be looked at. An unknown runtime is an error of any verb.
    """
    findings = []
    for name in request.names:
        done = await _podman(program, "--runtime", name, "info", "--format", "{{.Host.OCIRuntime.Path}}")
        path = done.stdout.decode(errors="replace").strip()
        if done.code != 0:
            findings.append(f'podman itself refuses the handler "{name}": {done.last_line or f"exit code {done.code}"}')
        elif path != proposal.program:
            findings.append(f'podman starts {path} for the handler "{name}", and not {proposal.program}')
    if request.is_default and not findings:
        done = await _podman(program, "info", "--format", "{{.Host.OCIRuntime.Path}}")
        path = done.stdout.decode(errors="replace").strip()
        if done.code != 0 or path != proposal.program:
            said = f"starts {path}" if done.code == 0 else f"says: {done.last_line}"
            findings.append(f"podman {said} for containers that name no handler, and not {proposal.program}")
    return tuple(findings)


def _unread_specs(version: tuple[int, ...] | None) -> tuple[str, ...]:
    """Return a finding where podman looks for CDI specs in none of the folders in which they are written."""
    read = host.cdi_folders(".".join(map(str, version or ())), Path("/"))
    if {*read} & {*CDI_FOLDERS}:
        return ()
    named = " and ".join(read) or "no folder"
    return (f"podman reads CDI specs in {named} (engine.cdi_spec_dirs), in none of {', '.join(CDI_FOLDERS)}",)


async def _podman(program: str, *words: str) -> command.Result:
    return await command.run((program, *words), env=command.base_env(), timeout_s=_ASK_S, largest=_LARGEST)


def _unread(engine: str, config: str) -> tuple[str, ...]:
    """Return a note where podman reads another file than ours: no process of it says which."""
    usual = table.ENGINES[PODMAN].config
    if engine != PODMAN or config == usual:
        return ()
    return (f"podman reads {usual} and what stands beside it; {config} alone where CONTAINERS_CONF names it",)


def _write(folder: Path, documents: Sequence[tuple[str, Mapping[str, Any]]]) -> Path:
    paths = [folder / f"{number:03}.toml" for number in range(len(documents))]
    for number, (path, (_, document)) in enumerate(zip(paths, documents, strict=True)):
        rest = {key: value for key, value in document.items() if key != "imports"}
        more = {"imports": [str(one) for one in paths[1:]]} if not number and paths[1:] else {}
        path.write_bytes(toml.emit({**rest, **more}))
    return paths[0]


async def _judge(program: str, main: Path, place: Location, request: Request, proposal: Proposal) -> tuple[str, ...]:
    argv = (program, "--config", str(main), "config", "dump")
    done = await command.run(argv, env=command.base_env(), timeout_s=_ASK_S, largest=_LARGEST)
    if done.code != 0:
        return (f"containerd itself refuses these files: {done.last_line or f'exit code {done.code}'}",)
    dump = toml.parse(done.stdout, path="containerd config dump")
    return containerdset.judge_dump(dump, request, proposal.program, place.version)


def find_program(engine: str, found: Sequence[commandline.Running]) -> str:
    """Return the program to ask: the one that runs if its path says which, else the one on the PATH."""
    for one in found:
        if one.program.startswith("/"):
            return one.program
    name = commandline.PROGRAMS.get(engine, engine)
    return shutil.which(name) or name
