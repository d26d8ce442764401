"""Collects and checks what a Fabric Manager says, where this node is set to use one or passes NVSwitches through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fairlead import errors, settings
from fairlead.cli.doctor.finding import Finding
from fairlead.frozen import frozen
from fairlead.model.fabric import FailedDevice, Partition
from fairlead.model.vfio import SWITCHES, Snapshot
from fairlead.node.fabric import memory
from fairlead.silicon.fabric import reached
from fairlead.silicon.vfio import registers
from fairlead.wire.kubernetes import names

_CHECK: Final = "fabric"
_WHY: Final = "no virtual machine gets several GPUs with NVLink between them"
_ANSWER_S: Final = 5.0


@frozen
class Facts:
    """What was found."""

    switches: int = 0
    """NVSwitches, or functions that manage them, that are bound to VFIO here."""
    is_wanted: bool = False
    """Whether the settings have partitions switched, or name an agent of a Fabric Manager."""
    name: str = ""
    partitions: tuple[Partition, ...] = ()
    failed: tuple[FailedDevice, ...] = ()
    version: str = ""
    """Of the Manager; empty: nothing tells it."""
    guests: str = ""
    """Of the driver in tenants' machines, as the settings say it."""
    error: errors.FairleadError | None = None
    """Why the Manager did not answer."""
    cards: tuple[str, ...] = ()
    """Models of this node's GPUs, where none of them can be on a board with NVSwitches and none ever was."""


def collect(config: settings.Settings, snapshot: Snapshot) -> Facts:
    """Ask the Manager, for seconds at most; a machine without a fabric is not asked."""
    switches = sum(one.kind in SWITCHES and one.is_bound_to_vfio for one in snapshot.functions)
    agent = reached.agent_of(config.fabric)
    is_wanted = bool(agent) or config.node.fabric == "on"
    if not switches and not is_wanted:
        return Facts()
    if not switches and (cards := _cards(config, snapshot)):
        return Facts(is_wanted=is_wanted, cards=cards)
    name = agent or config.fabric.manager
    try:
        found = reached.reach(config.fabric, config.fabric_secret)
        wait_s = min(_ANSWER_S, found.timeout_s)
        partitions = found.connection.run_here(lambda manager: manager.list_partitions(), timeout_s=wait_s)
        failed = found.connection.run_here(lambda manager: manager.list_failed(), timeout_s=wait_s)
    except errors.FairleadError as error:
        return Facts(switches=switches, is_wanted=is_wanted, name=name, error=error)
    return Facts(
        switches=switches,
        is_wanted=is_wanted,
        name=name,
        partitions=partitions,
        failed=failed,
        version=_version(found, wait_s) or config.fabric.version,
        guests=config.fabric.guest_driver,
    )


def _cards(config: settings.Settings, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the models of the GPUs where the agent asks no Manager for them (`node.fabric.keeper`); empty: it asks."""
    passed = [one for one in snapshot.gpus if one.is_bound_to_vfio] or snapshot.gpus
    was_here = (config.state.folder / "agent" / memory.FILE).exists()
    if config.node.fabric != "on" or was_here or not all(map(registers.is_card, passed)):
        return ()
    return tuple(dict.fromkeys(one.model or one.address for one in passed))


def _version(found: reached.Reached, wait_s: float) -> str:
    """Return the Manager's version; empty: an agent of an earlier release does not know the question."""
    try:
        return found.connection.run_here(lambda manager: manager.identify(), timeout_s=wait_s).version
    except errors.FairleadError:
        return ""


def check(facts: Facts) -> Iterator[Finding]:
    """Yield findings; none where there is no fabric to manage."""
    if not facts.switches and not facts.is_wanted:
        return
    if facts.cards:
        what = f"node.fabric=on does nothing here: {', '.join(facts.cards)}"
        why = "no GPU of this node can be a module of a board with NVSwitches, so that no Fabric Manager is asked"
        yield Finding(check=_CHECK, level="ok", what=what, why=why)
        return
    if facts.error is not None:
        what, fix = facts.error.message, facts.error.hint or "see its log"
        if facts.switches and not facts.is_wanted:
            what = f"{facts.switches} switches are passed through, and {what}"
            fix = "name the agent of the Service VM by fabric.agent (docs/how-to/nvlink-partitions.md)"
        yield Finding(check=_CHECK, level="fail" if facts.is_wanted else "warn", what=what, why=_WHY, fix=fix)
        return
    active = ", ".join(str(one.id) for one in facts.partitions if one.is_active) or "none"
    what = f"the Fabric Manager at {facts.name} offers {len(facts.partitions)} partitions; active: {active}"
    yield Finding(check=_CHECK, level="ok", what=what)
    yield from _versions(facts)
    for one in facts.failed:
        kind = "NVSwitch" if one.is_switch else "GPU"
        what = f"links of {kind} {one.pci or one.uuid} failed: ports {', '.join(map(str, one.ports))}"
        fix = "reset it; if it stays, look at SXid errors in the Service VM and at the board's cables"
        yield Finding(check=_CHECK, level="warn", what=what, why=_WHY, fix=fix)


def _versions(facts: Facts) -> Iterator[Finding]:
    """Yield that Manager and tenants' driver are of two versions, or that this cannot be told."""
    if facts.version and facts.guests:
        if facts.version != facts.guests:
            what = f"the Fabric Manager is of version {facts.version}, and tenants' driver of {facts.guests}"
            why = "NVLink does not work between two versions, so slots of several GPUs are refused"
            fix = f"install the Manager in {facts.guests}, or boot tenants' machines from an image with {facts.version}"
            yield Finding(check=_CHECK, level="fail", what=f"{what} (fabric.guest_driver)", why=why, fix=fix)
        return
    if facts.is_wanted:
        missing = "fabric.guest_driver" if facts.version else "fabric.version"
        what = "the versions of the Fabric Manager and of tenants' driver are not compared on this node"
        why = "with different ones machines start, and their NVLink does not work"
        both = " and fabric.guest_driver" if not facts.version and not facts.guests else ""
        fix = f"say {missing}{both} in the settings; on a cluster the scheduler compares what RuntimeClasses say too"
        yield Finding(check=_CHECK, level="warn", what=what, why=why, fix=f"{fix} ({names.GUEST_DRIVER})")
