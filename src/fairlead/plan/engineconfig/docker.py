"""Configures docker: members of `daemon.json`, which has no drop-ins; the rest of the file keeps its layout.

A reload (SIGHUP) adds handlers and changes the default, but takes no handler away and does not turn CDI on.
Source: dockerd(8), "daemon configuration file"; the `cdi` feature is there from 25.0 on; measured with 20.10 and 29.
"""

from __future__ import annotations

import json
from typing import Any, Final

from fairlead import errors
from fairlead.plan.engineconfig import change, gvisor, tree
from fairlead.plan.engineconfig.model import CDI_FOLDERS, Edit, HostFiles, Location, Member, Proposal, Request
from fairlead.wire.text import jsontext

_RUNC_KIND: Final = "io.containerd.runc."


def propose(place: Location, request: Request, host: HostFiles) -> Proposal:
    """Decide the members.

    Raises:  ProtocolError: the file cannot be read.   Conflict: the handler's name is taken.
             Unavailable: this docker does not know CDI.   Invalid: docker has no drop-ins, and no Kata handlers.
    """
    tree.refuse_kata("docker", request)
    if place.drop_in:
        raise errors.Invalid("docker reads no drop-ins", reason="DropInUnsupported", hint="leave --drop-in out")
    before = host.read(place.config)
    document = jsontext.parse(before or b"", path=place.config)
    runtimes = tree.table(document, "runtimes", where=place.config)
    tree.refuse_taken(runtimes, request, place.config)
    notes = (
        *tree.judge_release("docker", place, request),
        *tree.taken_over(runtimes, request),
        *gvisor.kept(runtimes, request),
    )
    program, underlying, handler = _handler(
        runtimes, tree.text(document, "default-runtime", "runc", where=place.config), request
    )
    changes = _changes(document, request, handler)
    if before is None or not before.strip():
        made: dict[str, Any] = {}
        for one in changes:
            tree.put(made, one.path, one.value)
        text = json.dumps(made, indent=2) + "\n"
        edits: tuple[Edit, ...] = (Edit(path=place.config, before=before, after=text.encode(), changes=tuple(changes)),)
    else:
        found = change.edit(place.config, before, changes)
        edits = (found,) if found else ()
    return Proposal(program=program, runtimes=underlying, edits=edits, notes=notes)


def _handler(runtimes: dict[str, Any], default: str, request: Request) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """Return our program, what it becomes, and the handler, which inherits from the default runtime if that is runc's.

    A runtime is a `path` with arguments or, from 23.0 on, a `runtimeType` with options; docker refuses both at once.
    """
    source = tree.table(runtimes, default, where="runtimes")
    if str(source.get("runtimeType", "")).startswith(_RUNC_KIND):
        options = tree.table(source, "options", where=f"runtimes.{default}")
        program, underlying = tree.program("docker", tree.text(options, "BinaryName", where="runtimes"), request)
        return program, underlying, {**source, "options": {**options, "BinaryName": program}}
    program, underlying = tree.program("docker", tree.text(source, "path", where="runtimes"), request)
    return program, underlying, {**(source if underlying else {}), "path": program}


def _changes(document: dict[str, Any], request: Request, handler: dict[str, Any]) -> list[Member]:
    changes = [Member(path=("runtimes", name), value=handler) for name in request.names]
    if request.gvisor and gvisor.NAME not in tree.table(document, "runtimes", where="daemon.json"):
        changes.append(Member(path=("runtimes", gvisor.NAME), value={"path": gvisor.program("docker", request)}))
    if request.is_default:
        changes.append(Member(path=("default-runtime",), value=request.name))
    if request.enables_cdi:
        changes.append(Member(path=("features", "cdi"), value=True))
        folders = tree.texts(document, "cdi-spec-dirs", CDI_FOLDERS, where="daemon.json")
        if not set(CDI_FOLDERS) <= set(folders):
            # An empty name turns CDI off where it is alone; beside others it would be docker's own folder.
            more = [folder for folder in CDI_FOLDERS if folder not in folders]
            changes.append(Member(path=("cdi-spec-dirs",), value=[*filter(None, folders), *more]))
    return changes
