"""Reads the command lines of engines that run: which file one reads, and which options overrule that file.

An engine in an unusual place (k3s, k0s, microk8s, a unit's own ExecStart) reads another main file than the usual one;
what is written into the usual one has no effect then. dockerd does not start where an option and its file both set the
same thing (runtimes excepted, from 20.10 on); CRI-O takes the option.
Source: containerd(8), dockerd(8) and crio(8); docker's daemon/config findConfigurationConflicts, `dockerd --validate`
of 29.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairlead import errors
from fairlead.plan.engineconfig.model import Edit, Member, Proposal

_FILE_OPTIONS: Final = {
    "containerd": frozenset({"config", "c"}),
    "docker": frozenset({"config-file"}),
    "crio": frozenset({"config", "c"}),
}
PROGRAMS: Final = {"containerd": "containerd", "docker": "dockerd", "crio": "crio"}
"""The program that stays, by engine; podman has none."""
_OTHER_OPTIONS: Final = {
    "containerd": frozenset({"log-level", "l", "address", "a", "root", "state"}),
    "docker": frozenset({"add-runtime", "default-runtime", "cdi-spec-dir", "feature"}),
    "crio": frozenset({"config-dir", "d", "default-runtime", "runtimes", "cdi-spec-dirs", "log-level", "l"}),
}
"""Options with a value that are looked at, or whose value could be taken for a command."""
_COMMANDS: Final = {
    "containerd": frozenset({"config", "publish", "oci-hook", "help", "h"}),
    "docker": frozenset[str](),
    "crio": frozenset({"config", "status", "wipe", "version", "check", "complete", "completion", "man", "help", "h"}),
}
"""First words that make the program something else than the engine."""
_DOCKER_FLAGS: Final = {
    "default-runtime": "default-runtime",
    "cdi-spec-dirs": "cdi-spec-dir",
    "features": "feature",
}
_GENERATED: Final = ("/var/lib/rancher/", "/run/docker/", "/var/run/docker/")
"""Where the files lie that k3s, rke2 and docker write at each start of the containerd they bring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """An engine that runs, or whose unit says how it would."""

    program: str
    config: str
    """Its main file, absolute; the usual one where the command line names none."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pid: int = 0
    """0: only its unit was read."""


def parse(engine: str, argv: Sequence[str], *, usual: str, folder: str = "/", pid: int = 0) -> Running | None:
    """Return what a command line says; None: it is not that engine, or one of its other commands.

    Args: usual: the main file where none is named.   folder: the process's working folder, for relative paths.
    """
    if not argv or engine not in PROGRAMS or posixpath.basename(argv[0]) != PROGRAMS[engine]:
        return None
    valued = _FILE_OPTIONS[engine] | _OTHER_OPTIONS[engine]
    options: dict[str, tuple[str, ...]] = {}
    rest = list(argv[1:])
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if word in _COMMANDS[engine]:
                return None
            continue
        name, mark, value = word.lstrip("-").partition("=")
        if name in valued:
            value = value if mark else rest.pop(0) if rest else ""
            options[name] = (*options.get(name, ()), value)
    named = [value for name in _FILE_OPTIONS[engine] for value in options.get(name, ())[-1:] if value]
    config = posixpath.normpath(posixpath.join(folder, named[-1])) if named else usual
    return Running(program=argv[0], config=config, options=options, pid=pid)


def elsewhere(engine: str, config: str, running: Sequence[Running]) -> str:
    """Return the sentence that no engine which runs reads a main file; empty: one does, or none runs."""
    if not running or any(one.config == config for one in running):
        return ""
    who = ", ".join(
        f"{one.program} (pid {one.pid}) reads {one.config}" if one.pid else f"its unit starts it with {one.config}"
        for one in running
    )
    return f"no running {engine} reads {config}: {who}"


def refuse_elsewhere(engine: str, config: str, running: Sequence[Running]) -> None:
    """Refuse to write where no running engine reads. Raises: Conflict (`EngineReadsElsewhere`)."""
    if message := elsewhere(engine, config, running):
        raise errors.Conflict(message, reason="EngineReadsElsewhere", hint=hint_elsewhere(running))


def hint_elsewhere(running: Sequence[Running]) -> str:
    """Return what to do about an engine that reads another file."""
    path = running[0].config
    if path.startswith(_GENERATED):
        return f"that file is written at each start: let its template import ours, then --config {path} --drop-in PATH"
    return f"--config {path}, or --config with the path you mean, if that engine will read it later"


def find_conflicts(engine: str, running: Sequence[Running], proposal: Proposal) -> tuple[str, ...]:
    """Return what the command line of the engine overrules or refuses of what the files would say."""
    if engine == "docker":
        return tuple(line for one in running for edit in proposal.edits for line in _docker_conflicts(one, edit))
    if engine == "crio":
        return tuple(line for one in running for line in _crio_conflicts(one, proposal))
    return ()


def _docker_conflicts(one: Running, edit: Edit) -> list[str]:
    members = [change for change in edit.changes if isinstance(change, Member)]
    keys = {member.path[0] for member in members}
    found = [
        f"dockerd was started with --{flag} {' '.join(one.options[flag])}, and does not start where {edit.path} has "
        f'"{key}" too: move that option into the file'
        for key, flag in _DOCKER_FLAGS.items()
        if key in keys and flag in one.options
    ]
    # Runtimes of both are put together, member by member of one name: ours counts, but not as both kinds at once.
    kinds = {member.path[1] for member in members if member.path[0] == "runtimes" and "runtimeType" in member.value}
    found += [
        f"dockerd was started with --add-runtime {value}, and {edit.path} has that name with a runtimeType: docker "
        "refuses both at once; move that option into the file"
        for value in one.options.get("add-runtime", ())
        if value.partition("=")[0] in kinds
    ]
    return found


def _crio_conflicts(one: Running, proposal: Proposal) -> list[str]:
    found, drop_in = [], proposal.edits[0].path
    folders = [value for name in ("config-dir", "d") for value in one.options.get(name, ())]
    if folders and posixpath.normpath(folders[-1]) != posixpath.dirname(drop_in):
        found.append(f"crio was started with --config-dir {folders[-1]} and does not read {drop_in}: --drop-in there")
    text = proposal.edits[0].after.decode()
    for flag, key in (("default-runtime", "default_runtime ="), ("cdi-spec-dirs", "cdi_spec_dirs =")):
        if flag in one.options and f"\n{key}" in text:
            found.append(f"crio was started with --{flag} {one.options[flag][-1]}, which overrules {drop_in}")
    return found
