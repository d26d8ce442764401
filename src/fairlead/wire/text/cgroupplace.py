"""Reads from the path of a cgroup what a process belongs to: a container of an engine, or a unit of systemd.

Source: systemd.unit(5), systemd.scope(5); docker and podman name a container's cgroup after its id, with either cgroup
driver: `docker-ID.scope`, `docker/ID`, `libpod-ID.scope`, `libpod_parent/libpod-ID`; `cri-containerd-ID.scope`,
`crio-ID.scope`, `nerdctl-ID.scope`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from fairlead.frozen import frozen

_CONTAINER: Final = re.compile(
    r"(?P<engine>docker|libpod|nerdctl|cri-containerd|crio)[-/](?:libpod-)?(?P<id>[0-9a-f]{64})(?:\.scope)?(?:/|$)"
)
_ENGINES: Final = {"libpod": "podman", "cri-containerd": "containerd", "crio": "cri-o"}
_UNIT: Final = re.compile(r"^[A-Za-z0-9:_.\\@-]{1,255}\.(?:service|scope)$")


@frozen
class Place:
    """What a process belongs to."""

    engine: str = ""
    """`docker`, `podman`, …; empty: it is in no engine's container."""
    container: str = ""
    """The container's id."""
    unit: str = ""
    """The innermost unit around it; empty: none."""


def parse_place(paths: Iterable[str]) -> Place:
    """Return what the paths of a process's cgroups say; the first that names a container counts, else a unit."""
    unit = ""
    for path in paths:
        if (found := _CONTAINER.search(path)) is not None:
            engine = found["engine"]
            return Place(engine=_ENGINES.get(engine, engine), container=found["id"], unit=unit)
        units = [part for part in path.split("/") if _UNIT.match(part)]
        unit = unit or (units[-1] if units else "")
    return Place(unit=unit)
