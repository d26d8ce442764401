"""Publishes this machine's Node object: capacity, what is allocatable, and that its kubelet is alive."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fairlead import __version__, errors
from fairlead.engine.port import EngineInfo
from fairlead.plan.pod import admission
from fairlead.store import retry
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core, meta


def machine_capacity(root: Path, *, max_pods: int, disk: Path = Path("/")) -> dict[str, str]:
    """Return cpu, memory, ephemeral-storage and pods as quantities. Raises: Unavailable (`MachineUnreadable`).

    Args:    disk: a folder of the file system that containers write to.
    Source:  /proc/meminfo; sched_getaffinity; statvfs.
    """
    lines = _read(root, "proc/meminfo").splitlines()
    words = next((line.split() for line in lines if line.startswith("MemTotal:")), [])
    total = next(iter(words[1:2]), "")
    if not total.isdecimal():
        raise _unreadable(f"{root / 'proc/meminfo'} does not say MemTotal")
    found = os.statvfs(disk)
    return {
        "cpu": str(len(os.sched_getaffinity(0))),
        "memory": f"{total}Ki",
        "ephemeral-storage": f"{found.f_blocks * found.f_frsize // 1024}Ki",
        "pods": str(max_pods),
    }


def booted_at(root: Path) -> float:
    """Return when the machine was started, Unix seconds; 0: it does not say. Source: proc_stat(5), btime."""
    found = [line.split()[1] for line in _read(root, "proc/stat").splitlines() if line.startswith("btime ")]
    return float(found[0]) if found and found[0].isdecimal() else 0.0


def _read(root: Path, place: str) -> str:
    """Read a kernel file below a root, or this machine's where that root lacks it, as a simulated one does."""
    problem: OSError | None = None
    for base in dict.fromkeys((root, Path("/"))):
        try:
            return (base / place).read_text()
        except OSError as error:
            problem = error
    raise _unreadable(f"/{place} cannot be read: {problem.strerror if problem else ''}") from problem


def _unreadable(message: str) -> errors.Unavailable:
    hint = "mount /proc, or set silicon.root to a root that has it"
    return errors.Unavailable(message, reason="MachineUnreadable", hint=hint)


def node_labels(name: str) -> dict[str, str]:
    """Return the labels every kubelet sets."""
    arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {"kubernetes.io/hostname": name, "kubernetes.io/arch": arch, "kubernetes.io/os": "linux"}


def describe(root: Path, engine: EngineInfo) -> core.NodeSystemInfo:
    """Return the machine's own description. Raises: Unavailable (`MachineUnreadable`)."""
    release = root / "etc/os-release"
    pretty = ""
    with contextlib.suppress(OSError):
        pretty = next(
            (
                line.partition("=")[2].strip('"')
                for line in release.read_text().splitlines()
                if line.startswith("PRETTY_NAME=")
            ),
            "",
        )
    return core.NodeSystemInfo(
        boot_id=_read(root, "proc/sys/kernel/random/boot_id").strip(),
        kernel_version=platform.release(),
        os_image=pretty,
        container_runtime_version=f"{engine.name}://{engine.version}",
        kubelet_version=f"fairlead/{__version__}",
        architecture=platform.machine(),
    )


async def publish(
    store: Store,
    name: str,
    machine: Mapping[str, str],
    devices: Mapping[str, tuple[int, int]],
    info: core.NodeSystemInfo | None,
    *,
    is_ready: bool,
    reason: str,
) -> None:
    """Bring the Node object to what is true now; writes only what changed, and nothing that others write is undone.

    Args:    machine: cpu, memory, ephemeral-storage, pods.   devices: (capacity, allocatable) by extended resource.
    """
    capacity = {**machine, **{resource: str(count) for resource, (count, _) in devices.items()}}
    allocatable = {**machine, **{resource: str(count) for resource, (_, count) in devices.items()}}
    wanted = "True" if is_ready else "False"
    ready = meta.Condition(type="Ready", status=wanted, reason=reason, last_transition_time=meta.now())

    def with_status(node: core.Node) -> core.Node:
        status = core.NodeStatus(
            capacity=capacity,
            allocatable=allocatable,
            conditions=meta.with_condition(node.status.conditions, ready),
            node_info=info or node.status.node_info,
        )
        return msgspec.structs.replace(node, status=status)

    await _ensure(store, name)
    await retry.change_status(store, core.Node, name, with_status)


async def forget_devices(store: Store, name: str) -> None:
    """Take out of the Node object what an earlier service offered, before a scheduler reads it.

    Sharing, MIG or a dead GPU may have changed meanwhile: a pod bound by the old number is refused by the kubelet for
    good (`UnexpectedAdmissionError`), where it should wait. The kubelet writes the devices of each plugin that
    registers.
    """

    def without(node: core.Node) -> core.Node | None:
        kept = {key: text for key, text in node.status.allocatable.items() if not admission.is_extended(key)}
        if kept == node.status.allocatable:
            return None
        capacity = {key: text for key, text in node.status.capacity.items() if not admission.is_extended(key)}
        status = msgspec.structs.replace(node.status, allocatable=kept, capacity=capacity)
        return msgspec.structs.replace(node, status=status)

    with contextlib.suppress(errors.NotFound):
        await retry.change_status(store, core.Node, name, without)


async def _ensure(store: Store, name: str) -> None:
    wanted = node_labels(name)

    def with_labels(node: core.Node) -> core.Node:
        metadata = msgspec.structs.replace(node.metadata, labels={**node.metadata.labels, **wanted})
        return msgspec.structs.replace(node, metadata=metadata)

    try:
        await retry.change(store, core.Node, name, with_labels)
    except errors.NotFound:
        await store.create(core.Node(metadata=meta.ObjectMeta(name=name, labels=wanted)))
