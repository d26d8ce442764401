"""Checks what NVLink needs of a cluster: Service VMs that run, and machines' drivers that fit their Fabric Managers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from fairlead.cli.doctor.finding import Finding
from fairlead.plan.schedule.fabric import guestdriver
from fairlead.wire.kubernetes import core, names, workload

COMPONENT: Final = "fabric-machine"
"""Of the chart's DaemonSet of Service VMs."""
_CHECK: Final = "fabric"
_LISTED: Final = 3


def check_machines(found: Iterable[workload.DaemonSet]) -> Iterator[Finding]:
    """Yield which DaemonSets of Service VMs have pods that are not ready. Args: found: DaemonSets of Fairlead."""
    for one in found:
        about, wanted, ready = one.metadata, one.status.desired_number_scheduled, one.status.number_ready
        if about.labels.get("app.kubernetes.io/component") != COMPONENT or ready >= wanted > 0:
            continue
        pods = f"kubectl -n {about.namespace} get pods -l app.kubernetes.io/component={COMPONENT} -o wide"
        yield Finding(
            check=_CHECK,
            level="fail" if wanted else "warn",
            what=f"{about.namespace}/{about.name}: {ready} of {wanted} Service VMs run",
            why="a node without one gives no slot of several GPUs away",
            fix=f"`{pods}`, and their logs"
            if wanted
            else "label the nodes with NVSwitches (fabric.machine.nodeSelector)",
        )


def check_drivers(classes: Mapping[str, str], nodes: Sequence[core.Node]) -> Iterator[Finding]:
    """Yield which RuntimeClasses boot another driver than the Fabric Managers of nodes have.

    Args: classes: by name, the driver that machines of a RuntimeClass boot; those that say none are not there.
    """
    managers = dict[str, list[str]]()
    for node in nodes:
        if version := node.metadata.labels.get(names.FABRIC_MANAGER):
            managers.setdefault(version, []).append(node.metadata.name)
    fits = True
    for name, driver in sorted(classes.items()):
        others = {version: there for version, there in sorted(managers.items()) if version != driver}
        for version, there in others.items():
            fits = False
            shown = guestdriver.shown(driver)
            yield Finding(
                check=_CHECK,
                level="fail" if driver not in managers else "warn",
                what=f'RuntimeClass "{name}" boots driver {shown}, and Fabric Manager {version} is on {_some(there)}',
                why="its pods with a slot of several GPUs are not placed there",
                fix=f"install the Manager in {shown} there, or boot {version} and say so ({names.GUEST_DRIVER})",
            )
    if classes and managers and fits:
        yield Finding(
            check=_CHECK, level="ok", what=f"machines boot the Fabric Managers' driver, {', '.join(managers)}"
        )


def _some(nodes: Sequence[str]) -> str:
    rest = len(nodes) - _LISTED
    return ", ".join(sorted(nodes)[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
