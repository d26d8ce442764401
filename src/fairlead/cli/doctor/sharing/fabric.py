"""Collects and checks what a Fabric Manager says, where this node is set to use one or passes NVSwitches through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fairlead import errors, settings
from fairlead.cli.doctor.finding import Finding
from fairlead.frozen import frozen
from fairlead.model.fabric import FailedDevice, Partition
from fairlead.model.vfio import FunctionKind, Snapshot
from fairlead.silicon.fabric import reached

_SWITCHES: Final = frozenset({FunctionKind.NVSWITCH, FunctionKind.SWITCH_BRIDGE})
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
    error: errors.FairleadError | None = None
    """Why the Manager did not answer."""


def collect(config: settings.Settings, snapshot: Snapshot) -> Facts:
    """Ask the Manager, for seconds at most; a machine without a fabric is not asked."""
    switches = sum(one.kind in _SWITCHES and one.is_bound_to_vfio for one in snapshot.functions)
    is_wanted = bool(config.fabric.agent) or config.node.fabric == "on"
    if not switches and not is_wanted:
        return Facts()
    name = config.fabric.agent or config.fabric.manager
    try:
        found = reached.reach(config.fabric, config.fabric_secret)
        wait_s = min(_ANSWER_S, found.timeout_s)
        partitions = found.connection.run_here(lambda manager: manager.list_partitions(), timeout_s=wait_s)
        failed = found.connection.run_here(lambda manager: manager.list_failed(), timeout_s=wait_s)
    except errors.FairleadError as error:
        return Facts(switches=switches, is_wanted=is_wanted, name=name, error=error)
    return Facts(switches=switches, is_wanted=is_wanted, name=name, partitions=partitions, failed=failed)


def check(facts: Facts) -> Iterator[Finding]:
    """Yield findings; none where there is no fabric to manage."""
    if not facts.switches and not facts.is_wanted:
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
    for one in facts.failed:
        kind = "NVSwitch" if one.is_switch else "GPU"
        what = f"links of {kind} {one.pci or one.uuid} failed: ports {', '.join(map(str, one.ports))}"
        fix = "reset it; if it stays, look at SXid errors in the Service VM and at the board's cables"
        yield Finding(check=_CHECK, level="warn", what=what, why=_WHY, fix=fix)
