"""Checks a cluster's promises: no GPU twice, rights and policies in force, GPUs offered by agents, pods that start."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from fairlead import errors
from fairlead.cli.doctor import gpu_checks
from fairlead.cli.doctor.finding import Finding
from fairlead.node.lease import asked
from fairlead.plan.cdi import conflict
from fairlead.plan.gpu import clash, health
from fairlead.plan.gpu import gpudevice as planner
from fairlead.store.kubernetes.rights import Right
from fairlead.wire.fairlead.firmwarebaseline import FirmwareBaseline
from fairlead.wire.kubernetes import core, gpudevice, quantity

RESERVED: Final = "reserved-names"
_NOT_MADE: Final = frozenset({"CreateContainerError", "CreateContainerConfigError", "RunContainerError"})
_LISTED: Final = 10
_AGENT: Final = {"app.kubernetes.io/part-of": "fairlead", "app.kubernetes.io/component": "agent"}


def check_rivals(gpus: Iterable[gpudevice.GPUDevice]) -> Iterator[Finding]:
    """Fail for every GPU that two pods have the same part of."""
    for gpu in gpus:
        found = clash.find_rivals(gpu.status.holders)
        if found is None:
            continue
        who = " and ".join(f"{one.namespace}/{one.pod} (as {one.resource or 'it is not known what'})" for one in found)
        _, second = found
        yield Finding(
            check="gpus",
            level="fail",
            what=f"GPU {gpu.spec.index} of node {gpu.spec.node_name} is in two pods: {who}",
            why="neither is isolated from the other; kubelets count by resource name, so two names give one GPU twice",
            fix=f"end one, `kubectl delete pod -n {second.namespace} {second.pod}`; then offer each GPU under one name:"
            " one device plugin a node, and change `resource` on drained nodes",
        )


_MENDING: Final = {
    gpudevice.LOST: "look for its Xid in the node's `dmesg`; a reset or a reboot brings most back, else replace it",
    conflict.REASON: "run the commands named there on that node; until then engines refuse what both files define",
    clash.REASON: "wait until that pod has ended, or end it; one name a GPU: change `resource` on drained nodes",
    clash.UNKNOWN: "see whether the kubelet runs, and whether `paths.podResources` is where it has its socket",
    asked.REASON: "empty `spec.quarantine` of its GPUDevice, which says why",
    planner.AGENT_GONE: "bring its agent back: `kubectl get pods -A -o wide -l app.kubernetes.io/component=agent`",
    gpudevice.UNKNOWN: "bring its node back; the agent there says anew how it is",
}


def check_gpus(gpus: Sequence[gpudevice.GPUDevice], pods: Iterable[core.Pod]) -> Iterator[Finding]:
    """Yield a finding for each GPU that pods do not get, or one that says that all are well."""
    ill = [gpu for gpu in gpus if gpu.status.health not in {gpudevice.HEALTHY, ""}]
    agents = _agents(pods)
    for gpu in ill:
        spec, status = gpu.spec, gpu.status
        said = ": ".join(part for part in (status.reason, status.message) if part)
        held = ", ".join(f"{one.namespace}/{one.pod}" for one in status.holders)
        kept = gpu_checks.find_ledgers_fix(status.reason, spec.uuid)
        yield Finding(
            check="gpus",
            level="fail" if status.reason == conflict.REASON else "warn",
            what=f"GPU {spec.index} of node {spec.node_name} is {status.health}" + (f" ({said})" if said else ""),
            why="no pod is given it" + (f"; {held} still has it" if held else ""),
            fix=_on_node(kept, agents.get(spec.node_name)) or _mend(status.reason, status.health, spec.index),
        )
    if not ill and gpus:
        simulated = sum(gpu.spec.simulated for gpu in gpus)
        note = f", {simulated} of them SIMULATED" if simulated else ""
        many = f"{len(gpus)} GPU" + ("" if len(gpus) == 1 else "s")
        yield Finding(check="gpus", level="ok", what=f"{many}, all healthy{note}")


def _mend(reason: str, state: str, index: int) -> str:
    """Return what mends a GPU that no ledger keeps back."""
    if reason in _MENDING:
        return _MENDING[reason]
    default = "`nvidia-smi -q -i {index}`; a reset clears most faults"
    return _MENDING.get(state) or "on its node: " + health.MENDING.get(reason, default).format(index=index)


def check_baselines(found: Iterable[FirmwareBaseline], pods: Iterable[core.Pod]) -> Iterator[Finding]:
    """Warn of firmware that waits for a second person; what is not approved at all is said of each GPU."""
    agents = _agents(pods)
    for one in found:
        if not one.status.proposed_by:
            continue
        node, board = one.spec.node_name, errors.readable(one.spec.board)
        step = f"`fairlead lease baseline approve --by YOU -- {shlex.quote(board)}`"
        yield Finding(
            check="baselines",
            level="warn",
            what=f"node {node}: firmware of board {board} is proposed by {errors.readable(one.status.proposed_by)}"
            " alone",
            why=f"{one.status.approvals} persons must approve it before GPUs that have it are given away",
            fix=_on_node(step, agents.get(node)) + "; `kubectl get firmwarebaselines -o wide` shows what it is",
        )


def _agents(pods: Iterable[core.Pod]) -> dict[str, core.Pod]:
    """Return the agent's pod of each node."""
    return {pod.spec.node_name: pod for pod in pods if _AGENT.items() <= pod.metadata.labels.items()}


def _on_node(step: str, agent: core.Pod | None) -> str:
    """Return a step with its commands as they are run from anywhere, where the node's agent is a pod."""
    if agent is None:
        return f"{step} (on its node)" if step else ""
    about = agent.metadata
    return step.replace("`fairlead ", f"`kubectl -n {about.namespace} exec {about.name} -- fairlead ")


def check_rights(lacking: Mapping[str, tuple[Right, ...]]) -> Iterator[Finding]:
    """Fail for every right that an agent's account does not have."""
    for user, missing in lacking.items():
        if missing:
            yield Finding(
                check="agent rights",
                level="fail",
                what=f"{user} may not {', '.join(one.text for one in missing)}",
                why="its agents serve GPUs and cannot report them to the cluster: not Ready, and what is shown is old",
                fix="`helm upgrade` with rbac.create=true, or bind the chart's role of the agent again",
            )


def check_device_taints(*, is_unread: bool) -> Iterator[Finding]:
    """Warn where agents taint devices of a DRA driver and kube-scheduler may not read the rules."""
    if is_unread:
        yield Finding(
            check="device taints",
            level="warn",
            what="agents write DeviceTaintRules, and kube-scheduler may not read them",
            why="the cluster's feature gate DRADeviceTaintRules is off: claims get GPUs that are ill all the same",
            fix="--feature-gates=DRADeviceTaintRules=true for kube-apiserver, kube-controller-manager and"
            " kube-scheduler; or unset health.deviceTaint",
        )


def check_user_namespaces(lacking: frozenset[str], pods: Iterable[core.Pod]) -> Iterator[Finding]:
    """Fail for every node that has pods which are to have user namespaces, and cannot give them."""
    asked = [pod for pod in pods if pod.spec.host_users is False and pod.spec.node_name in lacking]
    for name in sorted({pod.spec.node_name for pod in asked}):
        waits = sorted(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in asked if pod.spec.node_name == name)
        shown = ", ".join(waits[:_LISTED])
        yield Finding(
            check="user namespaces",
            level="fail",
            what=f"node {name} cannot give pods user namespaces, and these ask for them (hostUsers: false): {shown}",
            why="they do not start there: root inside would be root of the node",
            fix="containerd 2.0 or CRI-O 1.25, runc 1.2 or crun 1.9, Linux 6.3 with user.max_user_namespaces above 0"
            "; or keep such pods off that node",
        )


def check_policies(policies: frozenset[str]) -> Iterator[Finding]:
    """Warn where every user may set names of Fairlead's."""
    if any(name.endswith(f"-{RESERVED}") for name in policies):
        return
    yield Finding(
        check="policies",
        level="warn",
        what="no admission policy keeps labels and annotations under fairlead.dev/ for Fairlead",
        why="a tenant can write events and marks that look like Fairlead's; no GPU is given away by them",
        fix="`helm upgrade --set admission.reservedNames.enabled=true`; its binding must be there and deny",
    )


def check_agents(gpus: Iterable[gpudevice.GPUDevice], pods: Iterable[core.Pod]) -> Iterator[Finding]:
    """Fail for every node whose GPUs are published and that has no agent at all; those not ready are named."""
    for name in sorted({gpu.spec.node_name for gpu in gpus} - _agents(pods).keys()):
        yield Finding(
            check="agent",
            level="fail",
            what=f"node {name} has GPUs and no agent",
            why="the agent is the device plugin: pods get no GPU there, and nobody sees a fault",
            fix=f"let the DaemonSet select it: `kubectl label node {name} accelerator=nvidia` (amd, intel), its taints"
            " into agent.tolerations; or `kubectl delete gpudevices --field-selector"
            f" spec.nodeName={name}`, where it is to have none",
        )


def count(amounts: Mapping[str, str], resource: str) -> int:
    """Return how many of a resource there are."""
    return int(quantity.parse_quantity(amounts.get(resource, "0")))


def _name_of(gpu: gpudevice.GPUDevice, configured: str) -> str:
    """Return what one of NVIDIA's GPUs is offered as, whole or in shares; empty: it is divided, or not NVIDIA's."""
    is_whole = gpu.spec.mig_mode != "Enabled" and gpu.spec.vendor == "nvidia"
    return gpu.spec.resource or configured if is_whole else ""


def resources_of(gpus: Iterable[gpudevice.GPUDevice], configured: str) -> set[str]:
    """Return what NVIDIA's undivided GPUs are offered as. Args: configured: where none says it."""
    return {_name_of(gpu, configured) for gpu in gpus} - {""} or {configured}


def check_offered(node: core.Node, gpus: Sequence[gpudevice.GPUDevice], configured: str) -> Iterator[Finding]:
    """Judge each resource of a node by the GPUs that are offered as it."""
    name = node.metadata.name
    fix = f"see the agent of {name}: `kubectl get pods -A -o wide -l app.kubernetes.io/component=agent`, and its log"
    for resource in sorted(resources_of(gpus, configured)):
        capacity, allocatable = (count(one, resource) for one in (node.status.capacity, node.status.allocatable))
        whole = [gpu for gpu in gpus if _name_of(gpu, configured) == resource]
        healthy = [gpu for gpu in whole if gpu.status.health == gpudevice.HEALTHY or planner.is_silenced(gpu)]
        if whole and not capacity:
            what = f"{len(whole)} GPUs are published of node {name}, and its kubelet knows no {resource}"
            why = "no device plugin has registered there: no pod gets a GPU"
            yield Finding(check="nodes", level="fail", what=what, why=why, fix=fix)
        elif healthy and not allocatable:
            what = f"node {name} has {capacity} {resource} and offers none of them"
            why = "its device plugin has gone away: the agent is stopped or cannot reach the kubelet"
            yield Finding(check="nodes", level="fail", what=what, why=why, fix=fix)
        elif allocatable < capacity:
            what = f"node {name} offers {allocatable} of {capacity} {resource}"
            why = "the others are not healthy, or reserved"
            yield Finding(check="nodes", level="warn", what=what, why=why, fix="the GPUs below say why")


def check_starts(asking: Sequence[core.Pod]) -> Iterator[Finding]:
    """Fail for pods with GPUs whose containers their engine cannot make."""
    found = [(pod, *stuck) for pod in asking if (stuck := _find_stuck(pod)) is not None]
    for pod, container, reason, message in found[:_LISTED]:
        about = pod.metadata
        yield Finding(
            check="pods",
            level="fail",
            what=f"{about.namespace}/{about.name} does not start on {pod.spec.node_name}: container {container} is in"
            f" {reason}" + (f" ({message})" if message else ""),
            why="it holds its GPUs meanwhile, and nobody else gets them",
            fix=f"`fairlead trace -n {about.namespace} {about.name}`; unresolvable CDI devices: `fairlead cdi list` on"
            " its node; a missing ConfigMap or Secret: `kubectl describe pod`",
        )
    if len(found) > _LISTED:
        yield Finding(
            check="pods",
            level="fail",
            what=f"{len(found) - _LISTED} more pods do not start",
            fix="`fairlead ps -o wide`",
        )


def _find_stuck(pod: core.Pod) -> tuple[str, str, str] | None:
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is not None and waiting.reason in _NOT_MADE:
            return status.name, waiting.reason, waiting.message
    return None
