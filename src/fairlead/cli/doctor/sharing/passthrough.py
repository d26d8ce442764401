"""Collects and checks what passing GPUs through to virtual machines needs: IOMMU, modules, groups, locked memory.

Looked at is a machine whose agent is set to pass GPUs through, or that has a GPU bound to VFIO; others yield nothing.
Source: proc_pid_limits(5), capabilities(7); Linux 6.19, VFIO's DMA-BUF export, by which iommufd maps peers' memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Final

from fairlead import errors, settings
from fairlead.cli.doctor.finding import Finding
from fairlead.cli.doctor.sharing import fabric, otherplugins, verifier
from fairlead.frozen import frozen
from fairlead.model import cdikind
from fairlead.model.vfio import SWITCHES, Snapshot
from fairlead.plan.vfio import slot, verdict
from fairlead.silicon.vfio import attribute, discovery

_PEERS: Final = (6, 19)
_RELEASE: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})", re.ASCII)
_BESIDE: Final = ("nouveau", "nova_core", "nvidiafb")
_LAUNCHERS: Final = re.compile(r"containerd|crio|libvirtd|virtqemud|qemu-system.*")
_MAY_LOCK: Final = 1 << 14
"""CAP_IPC_LOCK: the limit does not hold for it."""
_LIMIT: Final = re.compile(r"^Max locked memory +(\S+)", re.MULTILINE)
_CAPABILITIES: Final = re.compile(r"^CapEff:\s*([0-9a-f]{1,16})$", re.MULTILINE)
_ENOUGH: Final = 1 << 30
_KNOBS: Final = (
    "between tenants memory and the mode of confidential computing are checked; firmware, ECC and MIG mode are not, "
    "which only a driver can read: a machine does with lease.verifier_image"
)
_NOT_BOUND: Final = "no virtual machine gets this GPU"


@frozen
class Launcher:
    """A process that starts virtual machines, or is one, and may lock little memory."""

    pid: int
    name: str
    limit_bytes: int


_MachineFacts = verifier.Facts


@frozen
class Facts:
    """What was found."""

    snapshot: Snapshot = Snapshot()
    is_wanted: bool = False
    """Whether the settings have GPUs passed through."""
    vm_namespace: str = ""
    """Whose pods may have the NVSwitches; empty: nobody's."""
    switches: str = cdikind.SWITCHES
    """By which resource they are asked for."""
    refused: errors.Invalid | None = None
    """Why the agent does not take the names that the settings give; None: it does."""
    has_ledger: bool = True
    """Whether the settings have the agent keep a ledger."""
    launchers: tuple[Launcher, ...] = ()
    others: otherplugins.Facts = field(default_factory=otherplugins.Facts)
    """Other plugins and CDI files of the same GPUs."""
    fabric: fabric.Facts = field(default_factory=fabric.Facts)
    """What the Manager of its NVLink fabric says."""
    service: _MachineFacts = field(default_factory=_MachineFacts)
    """What a Service VM of our own needs."""
    verifier: _MachineFacts = field(default_factory=_MachineFacts)
    """What the machine needs that reads GPUs between two tenants."""


def collect(config: settings.Settings) -> Facts:
    """Look at this machine; simulated silicon has none of it."""
    if config.silicon.simulate:
        return Facts()
    snapshot = discovery.scan(config.silicon.root)
    is_wanted = config.node.vfio != "off"
    naming, refused = _name(config.node)
    is_used = is_wanted or any(one.is_bound_to_vfio for one in snapshot.gpus)
    return Facts(
        snapshot=snapshot,
        is_wanted=is_wanted,
        vm_namespace=config.fabric.vm_namespace,
        switches=cdikind.SWITCHES if naming is None else naming.switches,
        refused=refused,
        has_ledger=config.lease.ledger == "on",
        launchers=tuple(_launchers(config.silicon.root)) if is_used else (),
        others=otherplugins.collect(config, snapshot.gpus, naming),
        fabric=fabric.collect(config, snapshot),
        verifier=verifier.collect(config) if is_wanted else verifier.Facts(),
        service=verifier.collect_service(config),
    )


def _name(chosen: settings.NodeSettings) -> tuple[slot.Naming | None, errors.Invalid | None]:
    """Return how the settings name what is passed through, or why the agent refuses them."""
    try:
        return slot.naming_of(chosen), None
    except errors.Invalid as error:
        return None, error


def _launchers(root: Path) -> Iterator[Launcher]:
    for pid in filter(str.isdecimal, attribute.names(f"{root}/proc")):
        name = attribute.find_text(f"{root}/proc/{pid}/comm")
        if not _LAUNCHERS.fullmatch(name):
            continue
        limit = _LIMIT.search(attribute.find_text(f"{root}/proc/{pid}/limits"))
        rights = _CAPABILITIES.search(attribute.find_text(f"{root}/proc/{pid}/status"))
        may_lock = rights is not None and int(rights.group(1), 16) & _MAY_LOCK
        if limit is not None and limit.group(1).isdecimal() and not may_lock and int(limit.group(1)) < _ENOUGH:
            yield Launcher(pid=int(pid), name=name, limit_bytes=int(limit.group(1)))


def check(facts: Facts) -> Iterator[Finding]:
    """Yield findings; none where nothing is passed through and nothing is to be."""
    if (refused := facts.refused) is not None:
        why = "the agent does not start with that name"
        yield Finding(check="passthrough", level="fail", what=refused.message, why=why, fix=refused.hint or "")
    yield from fabric.check(facts.fabric)
    yield from verifier.check_service(facts.service)
    gpus = facts.snapshot.gpus
    if not facts.is_wanted and not any(one.is_bound_to_vfio for one in gpus):
        return
    found = [*_machine(facts), *_gpus(facts), *_unkept(facts), *otherplugins.check(facts.others)]
    yield from found
    yield from verifier.check(facts.verifier)
    if not any(one.level == "fail" for one in found):
        ready = sum(one.is_bound_to_vfio for one in gpus)
        what = f"{ready} of {len(gpus)} GPUs are bound to VFIO"
        yield Finding(
            check="passthrough", level="ok", what=what, why=_KNOBS if ready and not facts.verifier.is_wanted else ""
        )
    yield from _switches(facts)


def _switches(facts: Facts) -> Iterator[Finding]:
    """Yield that switches are offered to nobody, where they are bound to VFIO."""
    if count := sum(one.kind in SWITCHES and one.is_bound_to_vfio for one in facts.snapshot.functions):
        who = (
            f"pods of {facts.vm_namespace} may have all of them, by {facts.switches}"
            if facts.vm_namespace
            else "no pod is offered one"
        )
        what = f"{count} functions of NVSwitches are bound to VFIO, and {who}"
        why = "who has a switch routes every tenant's NVLink"
        fix = (
            ""
            if facts.vm_namespace
            else "`fairlead fabric vm` prints a Service VM for them; fabric.vm_namespace offers them to its pod"
        )
        yield Finding(check="passthrough", level="ok", what=what, why=why, fix=fix)


def _unkept(facts: Facts) -> Iterator[Finding]:
    """Yield what is not kept where the settings pass GPUs through without a ledger."""
    if facts.is_wanted and not facts.has_ledger:
        what = "GPUs are passed through without the ledger"
        fix = "lease.ledger=on, in a container that may open /dev/vfio (privileged), as the chart's agent is"
        yield Finding(check="passthrough", level="warn", what=what, why=slot.UNKEPT, fix=fix)


def _machine(facts: Facts) -> Iterator[Finding]:
    host = facts.snapshot.host
    if not host.drivers:
        why = "no GPU can be bound, and no node of VFIO is there"
        what = "no VFIO driver is registered"
        fix = "modprobe vfio-pci; `echo vfio-pci > /etc/modules-load.d/vfio.conf` for every boot"
        yield Finding(check="passthrough", level="fail", what=what, why=why, fix=fix)
    if host.iommufd_node is not None and (release := _release(host.kernel)) and release < _PEERS:
        what = f"this kernel ({host.kernel}) has iommufd, which maps no peer's memory before Linux 6.19"
        why = "GPUs of one machine that is given devices by iommufd copy through its memory, not to each other"
        fix = "use VFIO's groups (/dev/vfio/GROUP) for machines with several GPUs, or Linux 6.19"
        yield Finding(check="passthrough", level="warn", what=what, why=why, fix=fix)
    for name in _BESIDE:
        if name in host.modules:
            what = f"the module {name} is loaded beside VFIO"
            why = "it takes GPUs at boot and after each release, before anything binds them"
            fix = f"echo 'blacklist {name}' > /etc/modprobe.d/fairlead-vfio.conf, rebuild the initramfs, reboot"
            yield Finding(check="passthrough", level="warn", what=what, why=why, fix=fix)
    for one in facts.launchers:
        what = f"process {one.pid} ({one.name}) may lock {one.limit_bytes >> 10} KiB of memory"
        why = "VFIO locks all memory of a virtual machine: machines that it starts fail with ENOMEM"
        fix = "LimitMEMLOCK=infinity in its systemd unit, then restart it"
        yield Finding(check="passthrough", level="warn", what=what, why=why, fix=fix)


_OF_MACHINE: Final = frozenset({verdict.Why.IOMMU_OFF, verdict.Why.GROUP_NOT_VIABLE, verdict.Why.NO_GROUP})


def _gpus(facts: Facts) -> Iterator[Finding]:
    """Yield what keeps GPUs from machines whatever is bound; what all of them lack is said once."""
    seen: dict[str, verdict.Obstacle] = {}
    for one in verdict.judge_gpus(facts.snapshot):
        if facts.is_wanted or one.function.is_bound_to_vfio:
            for obstacle in one.obstacles:
                if obstacle.why in _OF_MACHINE:
                    seen.setdefault(obstacle.message, obstacle)
    for obstacle in seen.values():
        yield Finding(check="passthrough", level="fail", what=obstacle.message, why=_NOT_BOUND, fix=obstacle.mend)


def _release(kernel: str) -> tuple[int, int] | None:
    match = _RELEASE.match(kernel)
    return (int(match.group(1)), int(match.group(2))) if match else None
