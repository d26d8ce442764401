"""Configures podman: a drop-in whose runtimes join those podman knows; CDI is always on.

Source: containers.conf(5); drop-ins are read in the order of their names, after the main file.
"""

from __future__ import annotations

import posixpath
from typing import Any, Final

from fairlead.plan.engineconfig import gvisor, tree
from fairlead.plan.engineconfig.model import HEADER, Edit, HostFiles, Location, Proposal, Request
from fairlead.wire.text import toml

_DROP_IN: Final = "zz-fairlead.conf"
_SHIPPED: Final = "/usr/share/containers/containers.conf"


def propose(place: Location, request: Request, host: HostFiles) -> Proposal:
    """Decide the drop-in.

    Raises:  ProtocolError: a file cannot be read.   Conflict: the handler's name is taken.
             Unavailable: this podman ignores CDI.   Invalid: Kata was asked for.
    """
    tree.refuse_kata("podman", request)
    drop_in = place.drop_in or posixpath.join(f"{place.config}.d", _DROP_IN)
    engine: dict[str, Any] = {}
    for path in (_SHIPPED, place.config, *host.glob(posixpath.join(posixpath.dirname(drop_in), "*.conf"))):
        data = host.read(path)
        if data is not None:
            engine = tree.merged(engine, tree.table(toml.parse(data, path=path), "engine", where=path))
    runtimes = tree.table(engine, "runtimes", where=place.config)
    tree.refuse_taken(runtimes, request, place.config)
    notes = (
        *tree.judge_release("podman", place, request),
        *tree.taken_over(runtimes, request),
        *gvisor.kept(runtimes, request),
    )
    program, underlying = _program(engine, runtimes, request)
    ours: dict[str, Any] = {"runtime": request.name} if request.is_default else {}
    handlers = {name: [program] for name in request.names}
    if request.gvisor and gvisor.NAME not in runtimes:
        handlers[gvisor.NAME] = [gvisor.program("podman", request)]
    body = toml.emit({"engine": {**ours, "runtimes": handlers}})
    head = f"{HEADER}; `fairlead runtime unconfigure` takes it away.\n\n"
    made = Edit(path=drop_in, before=None, after=head.encode() + body)
    return Proposal(program=program, runtimes=underlying, edits=(made,), notes=notes)


def _program(engine: dict[str, Any], runtimes: dict[str, Any], request: Request) -> tuple[str, tuple[str, ...]]:
    """Return our program and what it becomes: every path of the runtime that was chosen, podman takes the first."""
    default = tree.text(engine, "runtime", where="engine")
    program, underlying = tree.program("podman", default, request)
    paths = tree.texts(runtimes, default, where="engine.runtimes")
    return program, tuple(paths) if underlying and paths else underlying
