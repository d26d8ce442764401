"""Finds the running containers of this machine, whichever engine started them, and who holds which device; audits them.

An audit judges every container, or says of each that it could not be judged and why.
Runtimes' own state says which containers run, podman (if installed) says names and labels.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors
from fairlead.engine import machine as engines
from fairlead.engine.port import ContainerState
from fairlead.kernel import ocistate, readback
from fairlead.node.deviceplugin import podresources
from fairlead.node.isolation import attach, audit, entitlement
from fairlead.node.kubelet.devices import checkpoint
from fairlead.node.kubelet.dra import claimrecord
from fairlead.plan.gpu.attribution import Holding
from fairlead.settings import Settings
from fairlead.store.sqlite import database
from fairlead.wire.kubernetes import names

_PODS: Final = "v1/Pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One container to look into."""

    name: str
    pid: int
    subject: entitlement.Subject
    aliases: frozenset[str] = frozenset()
    """All that it may be called on the command line."""


async def ask_kubelet(socket: Path) -> tuple[Holding, ...] | None:
    """Ask the kubelet of this node; None: none answers."""
    if not await asyncio.to_thread(socket.exists):
        return None
    try:
        return await podresources.list_holdings(socket)
    except errors.Unavailable:
        return None


class _Named(msgspec.Struct, frozen=True):
    name: str = ""


class _About(msgspec.Struct, frozen=True):
    uid: str = ""


class _Machine(msgspec.Struct, frozen=True):
    devices: tuple[str, ...] = ()


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    containers: tuple[_Named, ...] = ()
    init_containers: tuple[_Named, ...] = ()
    machine: _Machine = _Machine()


class _Pod(msgspec.Struct, frozen=True):
    """What of a stored pod says which devices it asked for by name; reading whole pods takes the service's modules."""

    metadata: _About
    spec: _Spec = _Spec()


def read_named(path: Path) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the CDI devices that pods asked for by name, by pod uid and container.

    Args:   path: of the store's file; where there is none, there are no pods.
    Raises: Unavailable, ProtocolError: it cannot be read.
    """
    if not path.exists():
        return {}
    try:
        pods = [msgspec.json.decode(text, type=_Pod) for text in database.list_documents(path, _PODS)]
    except msgspec.MsgspecError as error:
        raise errors.ProtocolError(f"a pod in {path} cannot be read: {error}", reason="PodUnreadable") from error
    return {
        (pod.metadata.uid, item.name): pod.spec.machine.devices
        for pod in pods
        if pod.spec.machine.devices
        for item in (*pod.spec.init_containers, *pod.spec.containers)
    }


def read_checkpoint(folder: Path) -> entitlement.KubeletCheckpoint:
    """Read what the embedded kubelet has written down, whether it runs or not.

    Args: folder: the kubelet's, in the folder of this machine's state.
    """
    home, problem, grants = "", "", tuple[checkpoint.Grant, ...]()
    claims, named = tuple[claimrecord.ClaimRecord, ...](), dict[tuple[str, str], tuple[str, ...]]()
    try:
        home = checkpoint.read_home(folder)
        grants = checkpoint.Checkpoint(folder).peek()
        if (folder / claimrecord.NAME).exists():  # there is none until a container has claims
            claims = claimrecord.state_file(folder).peek()
        named = read_named(folder.parent / "state.db")
    except errors.FairleadError as error:
        problem = str(error)
    except OSError as error:
        problem = f"cannot read {error.filename}: {error.strerror}"
    held: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
    for grant in grants:
        held.setdefault((grant.pod_uid, grant.container), {})[grant.resource] = grant.device_ids
    claimed: dict[str, tuple[str, ...]] = {}
    for claim in claims:
        given = tuple(name for one in claim.drivers for device in one.devices for name in device.cdi_devices)
        claimed |= {pod: (*claimed.get(pod, ()), *given) for pod in claim.pods}
    return entitlement.KubeletCheckpoint(home=home, held=held, claimed=claimed, named=named, problem=problem)


async def find(config: Settings, wanted: Sequence[str], pids: Sequence[int]) -> list[Target]:
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
        return {state.id: state for state in await engines.open_engine(config.engine).list_containers({})}
    return {}


def _target(item: ocistate.Running, state: ContainerState | None) -> Target:
    labels = state.labels if state is not None else {}
    subject = entitlement.Subject(config=ocistate.read_config(item.bundle), labels=labels, id=item.id)
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


_GONE: Final = "ProcessGone"


async def sources(config: Settings, folders: Sequence[str]) -> entitlement.AllocationSources:
    """Read who holds what: specs, the kubelet's word, its checkpoint."""
    return entitlement.AllocationSources(
        registry=await asyncio.to_thread(attach.scan, folders),
        holdings=await ask_kubelet(config.pod_resources),
        written=await asyncio.to_thread(read_checkpoint, config.state.folder / "kubelet"),
    )


async def audit_targets(
    targets: Sequence[Target],
    known: entitlement.AllocationSources,
    *,
    devices: Sequence[str] = (),
    repairs: bool = False,
    is_chosen: bool = False,
) -> list[tuple[str, audit.Report]]:
    """Audit containers; one that cannot be judged has a report with the doubt.

    Args:    devices: what each should have, instead of what the sources say.
             is_chosen: they were named, so one that has ended meanwhile is an error.
    Raises:  NotFound (`ProcessGone`); with `repairs` Unavailable, Conflict: what was to be changed is refused.
    """
    reports = []
    for target in targets:
        try:
            found = await asyncio.to_thread(entitlement.find, target.subject, known, asked=devices)
            reports.append((target.name, await audit.audit(target.pid, found, known, repairs=repairs)))
        except errors.FairleadError as error:
            if error.reason != _GONE and not is_chosen:
                reports.append((target.name, unjudged(target.pid, errors.sentence(error))))
            elif is_chosen:
                raise
    return reports


def unread_states(root: Path = Path("/")) -> list[tuple[str, audit.Report]]:
    """Return a report of doubt for each container whose runtime's state is there and cannot be read."""
    return [(name, unjudged(0, f"cannot be judged: {why}")) for name, why in ocistate.list_unread(root)]


def unjudged(pid: int, doubt: str) -> audit.Report:
    """Return the report of a container that cannot be judged."""
    return audit.Report(
        pid=pid,
        source=entitlement.NOTHING,
        devices=(),
        findings=(),
        repaired=(),
        rules=(),
        opens={},
        unread=(),
        doubt=doubt,
    )
