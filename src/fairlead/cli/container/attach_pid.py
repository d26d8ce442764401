"""`fairlead attach|detach --pid`: change a container's devices without any service.

What is given are the device nodes of one CDI device. Before a GPU is given away every possible holder is checked: the
kubelet of this node over PodResources, and the device rules in force of every other container of this machine that is
not privileged. Nothing is recorded: a restart, `runc update` or a kubelet that places a pod afterwards do not know of
it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from fairlead import errors
from fairlead.cli.core import localcontainer
from fairlead.kernel import cgroup, ocistate, readback
from fairlead.model.devicerule import DeviceRules
from fairlead.node.isolation import attach, entitlement
from fairlead.plan.audit import GrantedNode
from fairlead.serve.backend.deviceview import DeviceChanged, EndedProcess, NodeChange
from fairlead.settings import Settings
from fairlead_cdi import directory


async def change(
    config: Settings, action: str, pid: int, gpu: str, *, folders: Sequence[str], is_forced: bool
) -> DeviceChanged:
    """Change one device of the container of a process.

    Args:    gpu: a qualified CDI name, or the part behind its `=` where one spec only has it.
    Raises:  NotFound, Conflict (`DeviceHeld`, `DeviceInUse`), Unavailable.
    """
    chosen = tuple(dict.fromkeys(folders or (*directory.DEFAULT_DIRECTORIES, str(config.node.cdi_folder))))
    registry = await asyncio.to_thread(attach.scan, chosen)
    name = find_device(registry, gpu)
    (target,) = await localcontainer.find(config, (), (pid,))
    if action == "attach":
        await _assert_free(config, registry, name, target.pid)
        nodes = await asyncio.to_thread(attach.nodes_of, (name,), registry)
        outcome = await attach.attach(target.pid, nodes)
    else:
        nodes = await _to_take(registry, name, target.pid)
        outcome = await attach.detach(target.pid, nodes, is_forced=is_forced)
    return DeviceChanged(
        container=target.name,
        resource="",
        device=name,
        rules=outcome.rules,
        nodes=tuple(NodeChange(path=path, done=what) for path, what in outcome.nodes),
        opens=outcome.opens,
        ended=tuple(EndedProcess(pid=one.pid, name=one.name) for one in outcome.ended),
        unread=outcome.unread,
    )


def find_device(registry: directory.Registry, text: str) -> str:
    """Return the CDI name meant. Raises: NotFound (`DeviceUnknown`)."""
    found = [name for name in registry.devices if text in {name, name.partition("=")[2]}]
    if len(found) == 1:
        return found[0]
    what = f"are {len(found)} devices: {', '.join(found)}" if found else "is in no CDI spec read"
    message = f'"{text}" {what}'
    raise errors.NotFound(
        message, reason="DeviceUnknown", hint="`fairlead cdi list` shows names; --spec-dir adds a folder"
    )


async def _assert_free(config: Settings, registry: directory.Registry, name: str, pid: int) -> None:
    """Raises: Conflict (`DeviceHeld`): the kubelet has given it away, or another container may open it."""
    own = _own_nodes(registry, name)
    numbers = {node.number for node in own}
    for one in await localcontainer.ask_kubelet(config.pod_resources) or ():
        with contextlib.suppress(errors.NotFound):  # a device of another kind, without a CDI spec
            for held in entitlement.cdi_names({one.resource: one.ids}, registry):
                if numbers & {node.number for node in _own_nodes(registry, held)}:
                    raise _held(name, f"pod {one.namespace}/{one.pod} by the kubelet's checkpoint")
    for item in await asyncio.to_thread(ocistate.list_running):
        if item.pid != pid and await asyncio.to_thread(_may_open, item, own):
            raise _held(name, f"container {item.id[:12]} (pid {item.pid}) by the rules in force")


def _held(name: str, who: str) -> errors.Conflict:
    hint = "`fairlead isolate audit` says what is in force; detach it there first"
    return errors.Conflict(f"{name} is held by {who}", reason="DeviceHeld", hint=hint)


def _own_nodes(registry: directory.Registry, name: str) -> tuple[GrantedNode, ...]:
    """Return the nodes that no other container should have: the device's own, not those of its whole spec."""
    return tuple(node for node in attach.nodes_of((name,), registry) if node.source == name)


def _may_open(item: ocistate.Running, nodes: Sequence[GrantedNode]) -> bool:
    """Return whether a container may open one of them; privileged ones, which may open all, are not counted."""
    if entitlement.by_spec(ocistate.read_config(item.bundle)).is_unconfined:
        return False
    try:
        rules = _rules(item.pid)
    except errors.NotFound:
        return False
    return any(_opens(rules, node) for node in nodes)


def _rules(pid: int) -> DeviceRules:
    """Return the rules in force. Raises: NotFound (`ProcessGone`); Unavailable (`RulesUnreadable`)."""
    try:
        found = cgroup.read(cgroup.of_process(Path(f"/proc/{pid}"), Path("/")))
    except OSError as error:
        raise readback.gone(pid) from error
    if found.rules is None:
        message = f"the rules in force of process {pid} cannot be read: {'; '.join(found.unread)}"
        raise errors.Unavailable(message, reason="RulesUnreadable", hint="root with CAP_BPF can read them")
    return found.rules


def _opens(rules: DeviceRules, node: GrantedNode) -> bool:
    return bool(set("rw") & set(rules.access(*node.number)))


async def _to_take(registry: directory.Registry, name: str, pid: int) -> tuple[GrantedNode, ...]:
    """Return the device's nodes, without those that another device of the container still needs."""

    def read() -> tuple[GrantedNode, ...]:
        rules, kept = _rules(pid), set[str]()
        for other in registry.devices:
            if other != name and registry.devices[other].file.path == registry.devices[name].file.path:
                nodes = attach.nodes_of((other,), registry)
                own = [node for node in nodes if node.source == other]
                if own and all(_opens(rules, node) for node in own) and not _same(own, name, registry):
                    kept |= {node.path for node in nodes}
        return tuple(node for node in attach.nodes_of((name,), registry) if node.path not in kept)

    return await asyncio.to_thread(read)


def _same(own: Sequence[GrantedNode], name: str, registry: directory.Registry) -> bool:
    """Return whether these are the device's own nodes under another name (index, UUID), or hold them (`all`)."""
    return {node.number for node in _own_nodes(registry, name)} <= {node.number for node in own}
