"""Gives devices to a running container and takes them back: rules, device nodes, and open files.

Attach: allow the numbers in the container's cgroups (`kernel.cgroup`, both versions), then make the nodes in its
mount namespace (`kernel.programs.mknod`, a child process). Detach: deny the numbers first, so that no process opens
them from then on; then see who has them open (`kernel.openfiles`): without `is_forced` that undoes the denial and is
refused, with it they are ended; then remove the nodes. Either way what the kernel then says is read back and returned.
Idempotent: half an attach is finished by a second one.

Which devices a container may be given is the caller's matter. Files of the driver and environment are not brought: they
are mounted when a container is made, or not at all.
"""

from __future__ import annotations

import asyncio
import dataclasses
import stat
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from fairlead import command, errors
from fairlead.kernel import cgroup, openfiles, processid, readback
from fairlead.kernel.programs import mknod
from fairlead.model import cdikind, devicerule
from fairlead.model.devicerule import DeviceRule, DeviceRules, Kind
from fairlead.plan.audit import GrantedNode
from fairlead.wire.cdi import translate
from fairlead.wire.oci import devicerule as wire
from fairlead.wire.text import typedjson
from fairlead_cdi import directory, inject
from fairlead_cdi.host import node as host

_WORK_S: Final = 15.0
_ROUNDS: Final = 5
_EMPTY: Final = {"ociVersion": "1.0.2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was done and what the kernel says now."""

    rules: tuple[str, ...]
    """Rules changed, in the kernel's words."""
    nodes: tuple[tuple[str, str], ...]
    """Path, and what was done: `made`, `kept`, `replaced`, `removed`, `absent`."""
    opens: dict[str, str]
    """What `open()` says of each node now, by path."""
    ended: tuple[openfiles.Holder, ...] = ()
    """Processes that were ended because they held a device."""
    unread: tuple[str, ...] = ()


def scan(folders: Iterable[str | Path]) -> directory.Registry:
    """Read spec folders, in rising priority."""
    return directory.scan([str(folder) for folder in folders])


@translate.cdi_errors
def nodes_of(names: Sequence[str], registry: directory.Registry) -> tuple[GrantedNode, ...]:
    """Return the device nodes that CDI names stand for, those of their spec files too, numbers read from the host now.

    The source of a node is the CDI name, or the path of the spec file that gives it with each of its devices.

    Raises: RequestError: a name no spec defines; Unavailable, ProtocolError: a node is not there or another.
    """
    found: dict[str, GrantedNode] = {}
    for resolved in registry.resolve(tuple(names)):
        for source, asked in inject.sources_of([resolved]):
            places = {one.path: one.host_path or one.path for one in asked.device_nodes}
            config = inject.inject_edits(_EMPTY, [(source, asked)])
            linux = config.get("linux", {})
            rules = wire.parse_oci(linux.get("resources", {}).get("devices", ()))
            for entry in linux.get("devices", ()):
                node = node_of(entry, rules, source=source)
                if node is not None and node.access:  # without access nothing is granted
                    found[node.path] = dataclasses.replace(node, host_path=places.get(node.path, ""))
    return tuple(found.values())


def node_of(entry: dict[str, object], rules: DeviceRules, *, source: str) -> GrantedNode | None:
    """Return an entry of a runtime spec's `linux.devices`; None for a pipe."""
    kind: Kind = "b" if entry.get("type") == "b" else "c"
    path, major, minor = entry.get("path"), entry.get("major"), entry.get("minor")
    if entry.get("type") not in {"b", "c", "u"} or not isinstance(major, int) or not isinstance(minor, int):
        return None
    mode, uid, gid = (entry.get(key) for key in ("fileMode", "uid", "gid"))
    return GrantedNode(
        path=str(path),
        kind=kind,
        major=major,
        minor=minor,
        access=rules.access(kind, major, minor),
        source=source,
        mode=stat.S_IMODE(mode) if isinstance(mode, int) else 0o666,
        uid=uid if isinstance(uid, int) else 0,
        gid=gid if isinstance(gid, int) else 0,
    )


@translate.cdi_errors
def host_node(host_path: str, container_path: str, access: str) -> GrantedNode:
    """Return a device node that a plugin named by its path on the host. Raises: Unavailable: it is not there."""
    found = host.stat_node(host_path)
    if found is None or found.type not in {"b", "c"}:
        message = f"device node {host_path} is not on this host"
        raise errors.Unavailable(message, reason="DeviceNodeMissing", path=host_path)
    return GrantedNode(
        path=container_path or host_path,
        kind="b" if found.type == "b" else "c",
        major=found.major,
        minor=found.minor,
        access=devicerule.united(access, "") or devicerule.ACCESS,
        source=host_path,
        mode=found.mode,
        host_path=host_path,
    )


@translate.cdi_errors
def known_nodes(registry: directory.Registry) -> tuple[GrantedNode, ...]:
    """Return every device node that any spec offers and this host has; what cannot be read is left out.

    Devices of `cdikind.COMPANIONS` are left out too: several containers have the same ones.
    """
    found: dict[tuple[str, int, int], GrantedNode] = {}
    for name, resolved in registry.devices.items():
        if cdikind.kind_of(name) in cdikind.COMPANIONS.values():
            continue
        for node in resolved.device.edits.device_nodes:
            at = host.stat_node(node.host_path or node.path)
            if at is not None and at.type in {"b", "c"}:
                kind: Kind = "b" if at.type == "b" else "c"
                one = GrantedNode(
                    path=node.path, kind=kind, major=at.major, minor=at.minor, access=devicerule.ACCESS, source=name
                )
                found.setdefault(one.number, one)
    return tuple(found.values())


async def attach(pid: int, nodes: Sequence[GrantedNode], *, container: str = "") -> Outcome:
    """Give a container devices.

    Args:    pid: host pid of its first process.   container: its engine's id, where that is known: the process must
             be in a cgroup of that name.
    Raises:  NotFound (`ProcessGone`); Unavailable, Conflict: the kernel does not take the rules, or something stands
             where a node belongs; the rules are then as they were.
    """
    process, cgroups = await _cgroups(pid, container)
    before = await asyncio.to_thread(cgroup.read, cgroups)
    rules = [node.rule for node in nodes]
    fresh = [rule for rule in rules if before.rules is not None and _lacks(before.rules, rule)]
    try:
        await asyncio.to_thread(cgroup.change, cgroups, allow=rules)
        done = await work(pid, make=nodes, process=process)
    except errors.FairleadError as error:
        if fresh:
            await _take_back(cgroups, [_to_deny(rule, before.rules) for rule in fresh], error)
        raise
    found = await readback.read_back(pid, paths=tuple(node.path for node in nodes), numbers=())
    return Outcome(rules=tuple(str(rule) for rule in rules), nodes=done, opens=dict(found.opens), unread=found.unread)


async def _take_back(
    cgroups: tuple[cgroup.Cgroup, ...], rules: Sequence[DeviceRule], cause: errors.FairleadError
) -> None:
    """Deny what an attach that failed had allowed. Raises: Unavailable, Conflict: that failed too; both are said."""
    try:
        await asyncio.to_thread(cgroup.change, cgroups, deny=rules)
    except errors.FairleadError as error:
        message = f"{cause.message}; what was allowed could not be taken back: {error.message}"
        raise type(error)(message, reason=error.reason, hint=error.hint) from cause


async def detach(pid: int, nodes: Sequence[GrantedNode], *, is_forced: bool, container: str = "") -> Outcome:
    """Take devices from a container.

    Args:    pid, container: as for `attach`.
             is_forced: processes that have them open are ended; the first process's end is the container's.
    Raises:  Conflict (`DeviceInUse`): processes have them open, which are named. Without `is_forced` all is as it was;
             with it the numbers stay denied, and processes were ended.
             NotFound (`ProcessGone`); Unavailable, Conflict: the kernel does not take the rules.
    """
    process, cgroups = await _cgroups(pid, container)
    before = await asyncio.to_thread(cgroup.read, cgroups)
    rules = [_to_deny(node.rule, before.rules) for node in nodes]
    await asyncio.to_thread(cgroup.change, cgroups, deny=rules)
    numbers = [node.number for node in nodes]
    ended = await _holders_gone(pid, numbers, is_forced=is_forced, undo=(cgroups, before, nodes))
    done = await _removed(process, nodes)
    try:
        found = await readback.read_back(
            pid,
            paths=tuple(node.path for node in nodes),
            numbers=tuple((node.major, node.minor) for node in nodes if node.kind == "c"),
        )
    except errors.NotFound:
        return Outcome(rules=tuple(map(str, rules)), nodes=done, opens={}, ended=ended, unread=("it has ended",))
    return Outcome(
        rules=tuple(f"deny {rule}" for rule in rules),
        nodes=done,
        opens=dict(found.opens),
        ended=ended,
        unread=found.unread,
    )


async def _cgroups(pid: int, container: str) -> tuple[processid.ProcessID, tuple[cgroup.Cgroup, ...]]:
    """Return which process it is, and the cgroups that were this very process's."""
    process = await asyncio.to_thread(processid.find, pid, container=container)
    try:
        found = await asyncio.to_thread(cgroup.of_process, Path(f"/proc/{pid}"), Path("/"))
    except OSError as error:
        raise readback.gone(pid) from error
    await asyncio.to_thread(processid.assert_same, process)
    return process, found


def _lacks(rules: DeviceRules, rule: DeviceRule) -> bool:
    return bool(devicerule.without(rule.access, rules.access(rule.kind, rule.major, rule.minor)))


def _to_deny(rule: DeviceRule, rules: DeviceRules | None) -> DeviceRule:
    """Return the rule to deny, less the access that every number of its kind has (mknod, in most containers)."""
    common = rules.access(rule.kind, None, None) if rules is not None else ""
    return DeviceRule(
        kind=rule.kind, major=rule.major, minor=rule.minor, access=devicerule.without(devicerule.ACCESS, common) or "rw"
    )


async def _holders_gone(
    pid: int,
    numbers: Sequence[openfiles.Number],
    *,
    is_forced: bool,
    undo: tuple[tuple[cgroup.Cgroup, ...], cgroup.Reading, Sequence[GrantedNode]],
) -> tuple[openfiles.Holder, ...]:
    """Return the processes that were ended; a child they made meanwhile has its turn in the next round."""
    ended: list[openfiles.Holder] = []
    for _ in range(_ROUNDS):
        found = await asyncio.to_thread(openfiles.find_holders, pid, numbers)
        if not found:
            return tuple(ended)
        if not is_forced:
            cgroups, before, nodes = undo
            allowed = [node.rule for node in nodes if before.rules is not None and not _lacks(before.rules, node.rule)]
            await asyncio.to_thread(cgroup.change, cgroups, allow=allowed)
            raise _in_use(found)
        await asyncio.to_thread(openfiles.end, found)
        ended += found
    found = await asyncio.to_thread(openfiles.find_holders, pid, numbers)
    if found:
        raise _in_use(found)
    return tuple(ended)


def _holder_in_words(one: openfiles.Holder) -> str:
    first = ", its first process" if one.is_first else ""
    doubt = f", {one.doubt}" if one.doubt and not one.devices else ""
    return f"{one.name} (pid {one.pid}{first}{doubt})"


def _in_use(found: Sequence[openfiles.Holder]) -> errors.Conflict:
    who = ", ".join(_holder_in_words(one) for one in found)
    may_be = "" if all(one.devices for one in found) else ", or may be,"
    message = f"the device is open{may_be} in {len(found)} processes of the container: {who}"
    hint = "let them close it, or use --force, which ends them"
    return errors.Conflict(message, reason="DeviceInUse", hint=hint, pids=[one.pid for one in found])


async def _removed(process: processid.ProcessID, nodes: Sequence[GrantedNode]) -> tuple[tuple[str, str], ...]:
    try:
        return await work(process.pid, remove=nodes, process=process)
    except errors.NotFound:
        return tuple((node.path, "absent") for node in nodes)  # its first process was ended: the nodes went with it


async def work(
    pid: int,
    *,
    make: Sequence[GrantedNode] = (),
    remove: Sequence[GrantedNode] = (),
    process: processid.ProcessID | None = None,
) -> tuple[tuple[str, str], ...]:
    """Make and remove device nodes in a container; returns each path with what was done.

    Args:   process: which one the pid meant when it was looked at; None: the one that has it now.
    Raises: NotFound (`ProcessGone`); Conflict (`NodeRefused`): something stands in the way, the others are done.
    """
    asked = {key: [_asked(node) for node in nodes] for key, nodes in (("make", make), ("remove", remove))}
    meant = process if process is not None else await asyncio.to_thread(processid.find, pid)
    argv = [
        sys.executable,
        "-I",
        "-S",
        str(mknod.__file__),
        str(pid),
        meant.started,
        msgspec.json.encode(asked).decode(),
    ]
    result = await command.run(argv, env={}, timeout_s=_WORK_S)
    if result.code != 0:
        if not await asyncio.to_thread(Path(f"/proc/{pid}").exists):
            raise readback.gone(pid)
        why = result.last_line or f"the program ended with {result.code}"
        message = f"no device node can be made or removed in the container of process {pid}: {why}"
        raise errors.Unavailable(message, reason="NodeWorkFailed", hint="root may, for a container of root's own")
    done = tuple((path, what) for path, what in typedjson.decode(result.stdout, type=list[tuple[str, str]]))
    refused = [f"{path}: {what.removeprefix('refused: ')}" for path, what in done if what.startswith("refused")]
    if refused:
        message = f"device nodes were refused in the container: {'; '.join(refused)}"
        raise errors.Conflict(message, reason="NodeRefused", hint="what stands there is the container's own doing")
    return done


def _asked(node: GrantedNode) -> dict[str, object]:
    asked = {key: getattr(node, key) for key in ("path", "kind", "major", "minor", "mode", "uid", "gid")}
    return {**asked, "host": node.host_path or node.path}
