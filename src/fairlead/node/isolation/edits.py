"""Resolves what this node's CDI specs say about a container's devices, before the engine is asked.

The embedded kubelet resolves every name itself: a name the engine might ignore in silence stops the start here. Beside
a foreign kubelet `node.trace.foreignkubelet` resolves the same names at the same moment, to say what the engine was
given. The result also says which device numbers of the same specs were *not* granted, so that the read-back can show
them denied.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.plan.cdi import requirement
from fairlead.wire.cdi import stamp, translate
from fairlead_cdi import directory
from fairlead_cdi import spec as cdi
from fairlead_cdi.host import node as host


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The edits of one container in short."""

    specs: tuple[str, ...] = ()
    """Paths of the spec files used."""
    device_nodes: tuple[str, ...] = ()
    """`/dev/nvidia0 (195:0)`."""
    mounts: tuple[str, ...] = ()
    """Container paths."""
    env: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    """Container paths of the granted device nodes."""
    nodes: tuple[tuple[str, str, str], ...] = ()
    """The same as (host path, container path, permissions)."""
    binds: tuple[tuple[str, str, bool], ...] = ()
    """Mounts as (host path, container path, whether it is read-only)."""
    numbers: tuple[tuple[int, int], ...] = ()
    """(major, minor) of the granted device nodes, of the spec or else of the host."""
    hooks: tuple[str, ...] = ()
    """Programs of the host that are run for the container."""
    others: tuple[tuple[int, int], ...] = ()
    """(major, minor) of device nodes that were not granted: of the same specs, else beside those that were."""
    driver: str = ""
    """Version of the driver whose files are mounted, by their names; empty: not in their names."""
    known: Mapping[str, list[str]] = field(default_factory=dict)
    """What the specs' stamps say of driver and GPUs; see `requirement.hosts`."""

    def hosts(self) -> list[requirement.Facts]:
        """Return what the container's requirements are held to."""
        return requirement.hosts(dict(self.known), list(self.paths), self.driver)

    def beside(self, paths: tuple[str, ...]) -> Resolved:
        """Return the same with device nodes that are granted by themselves and not by a spec: container paths."""
        return dataclasses.replace(self, paths=tuple(dict.fromkeys([*self.paths, *paths])))


class Reading:
    """The specs of a node, read once, when they are first asked for.

    What is judged of them and what is done with it are so of one reading. Folders as an engine has them: `/etc/cdi`,
    then `/var/run/cdi`, then another.
    """

    def __init__(self, folder: Path) -> None:
        """Take the folder that is another one, or one of the two."""
        self._folder = folder

    @functools.cached_property
    def _registry(self) -> directory.Registry:
        return directory.scan(dict.fromkeys((*directory.DEFAULT_DIRECTORIES, str(self._folder))))

    @translate.cdi_errors
    def defined(self) -> frozenset[str]:
        """Return the fully qualified names that the specs define."""
        return frozenset(self._registry.devices)

    @translate.cdi_errors
    def resolve(self, names: tuple[str, ...]) -> Resolved:
        """Resolve qualified names as an engine will.

        Raises: RequestError: a name that no spec defines; the message lists what is there.
        """
        return _resolved(self._registry, names) if names else Resolved()


def resolve(names: tuple[str, ...], folder: Path) -> Resolved:
    """Resolve qualified names in the specs as they are now. Raises: as `Reading.resolve`."""
    return Reading(folder).resolve(names)


def _resolved(registry: directory.Registry, names: tuple[str, ...]) -> Resolved:
    found = registry.resolve(names)
    used = {item.file.path: item.spec for item in found}
    edits = [*(spec.edits for spec in used.values()), *(item.device.edits for item in found)]
    nodes = {node.path: node for edit in edits for node in edit.device_nodes}
    granted = {_number(node) for node in nodes.values()}
    every = {_number(node) for spec in used.values() for device in spec.devices for node in device.edits.device_nodes}
    if every <= granted:  # the ledger's specs show held devices only: the others are looked for on the host
        every |= _siblings(nodes.values())
    return Resolved(
        specs=tuple(used),
        device_nodes=tuple(_shown(node) for node in nodes.values()),
        mounts=_unique(mount.container_path for edit in edits for mount in edit.mounts),
        env=_unique(text for edit in edits for text in edit.env),
        paths=tuple(nodes),
        nodes=tuple((node.host_path or node.path, node.path, node.permissions or "rwm") for node in nodes.values()),
        binds=tuple(
            (mount.host_path, mount.container_path, "ro" in mount.options) for edit in edits for mount in edit.mounts
        ),
        numbers=tuple(sorted(number for number in granted if number is not None)),
        hooks=_unique(hook.path for edit in edits for hook in edit.hooks),
        others=tuple(sorted(number for number in every - granted if number is not None)),
        driver=requirement.driver_of([mount.host_path for edit in edits for mount in edit.mounts]),
        known={key: told for path, spec in used.items() for key, told in _facts(path, spec).items()},
    )


def _facts(path: str, spec: cdi.Spec) -> dict[str, list[str]]:
    mark = stamp.read(Path(path), spec.annotations)
    return mark.facts() if mark is not None else {}


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


def _number(node: cdi.DeviceNode) -> tuple[int, int] | None:
    """Return the node's number, from the spec or else from the host; None where neither has it."""
    if node.major:
        return node.major, node.minor
    found = host.stat_node(node.host_path or node.path)
    return None if found is None else (found.major, found.minor)


def _siblings(nodes: Iterable[cdi.DeviceNode]) -> frozenset[tuple[int, int]]:
    """Return the numbers of all nodes of the same driver that the host has in the folders of these."""
    majors = {number[0] for number in map(_number, nodes) if number is not None}
    paths = {Path(node.host_path or node.path) for node in nodes}
    found: set[tuple[int, int]] = set()
    for folder in {path.parent for path in paths}:
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                number = host.stat_node(entry.path)
                if number is not None and number.type == "c" and number.major in majors:
                    found.add((number.major, number.minor))
    return frozenset(found)


def _shown(node: cdi.DeviceNode) -> str:
    number = _number(node)
    return node.path if number is None else f"{node.path} ({number[0]}:{number[1]})"
