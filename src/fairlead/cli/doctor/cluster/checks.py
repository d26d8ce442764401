"""Checks the facts of a cluster, one pure function a check, from the API server upwards.

A check that could not be made is left out, and a finding of its own says so and why. What keeps pods from GPUs that
are there is a failure; what leaves fewer GPUs, or a pod waiting for its turn, is a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from fairlead import errors
from fairlead.cli.core import output
from fairlead.cli.doctor.cluster import fabric as cluster_fabric
from fairlead.cli.doctor.cluster import kinds as cluster_kinds
from fairlead.cli.doctor.cluster import safety as cluster_safety
from fairlead.cli.doctor.cluster import unchecked
from fairlead.cli.doctor.cluster.facts import LEADERS, POOLS, Facts
from fairlead.cli.doctor.finding import Finding
from fairlead.cli.doctor.held import lease as ledger
from fairlead.plan.pod import admission, podstate
from fairlead.plan.schedule import waiting as diagnosis
from fairlead.plan.schedule.shard import running
from fairlead.serve.v1.nodes import taken
from fairlead.wire.kubernetes import coordination, core, gpudevice, meta, workload

_INSTALL: Final = "`helm install fairlead …`, or `fairlead manifests | kubectl apply -f -`"
_NO_AGENT: Final = "the agent is the device plugin: without it a kubelet has no GPU to give"
_SLACK_S: Final = 15.0
"""How much clocks of leaders and ours may differ before a lease is called stale."""
_PATIENCE_S: Final = 10.0
"""How long a pod may go without any scheduler's word."""
_STARTS_S: Final = 30.0
"""So long an agent's pod may take to be ready before something is wrong with it."""
_LISTED: Final = 10
_LEDGER: Final = "FAIRLEAD_LEASE_LEDGER"
"""As which the chart gives an agent the setting."""


def check(seen: Facts) -> Iterator[Finding]:
    """Yield findings from the API server upwards, then what was not checked."""
    if seen.problem:
        yield Finding(
            check="api",
            level="fail",
            what=seen.problem,
            why="everything else is asked of the API server",
            fix="see whether `kubectl version` answers with the same kubeconfig and context",
        )
        return
    yield Finding(check="api", level="ok", what=f"Kubernetes {seen.version} at {seen.address}")
    yield from _rights(seen)
    if seen.definitions is not None:
        yield from cluster_kinds.check(seen.definitions)
    yield from _agent(seen)
    if seen.agents:
        yield from cluster_safety.check_rights(seen.agent_lacks or {})
        yield from cluster_safety.check_device_taints(is_unread=seen.is_taint_unread)
        if seen.policies is not None:
            yield from cluster_safety.check_policies(seen.policies)
        if seen.gpus is not None and seen.pods is not None:
            yield from cluster_safety.check_agents(seen.gpus, seen.pods)
    yield from _nodes(seen)
    yield from cluster_safety.check_user_namespaces(seen.no_user_namespaces, seen.pods or ())
    yield from cluster_safety.check_rivals(seen.gpus or ())
    if seen.gpus is not None:
        yield from cluster_safety.check_gpus(seen.gpus, seen.pods or ())
    yield from cluster_safety.check_baselines(seen.baselines or (), seen.pods or ())
    yield from _leaders(seen)
    yield from _runtime_class(seen)
    yield from cluster_fabric.check_machines(seen.agents or ())
    yield from cluster_fabric.check_drivers(seen.guest_drivers, seen.nodes or ())
    yield from _pods(seen)
    yield from unchecked.find(seen)


def _rights(seen: Facts) -> Iterator[Finding]:
    if seen.lacking is None:
        return
    if not seen.lacking:
        yield Finding(check="rights", level="ok", what="everything that the viewing verbs read may be read")
        return
    yield Finding(
        check="rights",
        level="warn",
        what=f"you may not {', '.join(need.text for need in seen.lacking)}",
        why="what is not read is not checked, and missing from lists",
        fix="an administrator binds the chart's role: `kubectl create clusterrolebinding NAME"
        " --clusterrole=fairlead-viewer --user=YOU` (the role's name begins with the release's)",
    )


def _agent(seen: Facts) -> Iterator[Finding]:
    if seen.agents is None:
        return
    agents = [one for one in seen.agents if one.metadata.labels.get("app.kubernetes.io/component", "agent") == "agent"]
    if not agents:
        published = bool(seen.gpus)
        yield Finding(
            check="agent",
            level="warn" if published else "fail",
            what="no DaemonSet of the agent" + (", though GPUs are published" if published else ""),
            why="nothing starts an agent again that ends" if published else _NO_AGENT,
            fix=_INSTALL,
        )
    for one in agents:
        yield from _rollout(seen, one)
        environment = {item.name: item.value for box in one.spec.template.spec.containers for item in box.env}
        if environment.get(_LEDGER) == "off":
            yield ledger.off(f"agents of {one.metadata.namespace}/{one.metadata.name} keep no ledger")


def _rollout(seen: Facts, agent: workload.DaemonSet) -> Iterator[Finding]:
    about, wanted, ready = agent.metadata, agent.status.desired_number_scheduled, agent.status.number_ready
    name = f"{about.namespace}/{about.name}"
    if not wanted:
        fix = (
            "label the nodes that have GPUs: `kubectl label node NODE accelerator=nvidia` (amd, intel), or run node"
            f" feature discovery; what it wants: `kubectl -n {about.namespace} describe ds {about.name}`"
        )
        yield Finding(check="agent", level="fail", what=f"{name} selects no node", why=_NO_AGENT, fix=fix)
        return
    if ready >= wanted:
        yield Finding(check="agent", level="ok", what=f"{name} is ready on {ready} of {wanted} nodes")
        return
    chosen = agent.spec.selector.match_labels.items()
    own = [pod for pod in seen.pods or () if pod.metadata.namespace == about.namespace]
    stuck = [pod for pod in own if chosen <= pod.metadata.labels.items() and not _is_ready(pod)]
    said = "; ".join(_standing(pod) for pod in stuck[:_LISTED])
    pod_name = stuck[0].metadata.name if stuck else "POD"
    is_new = bool(stuck) and all(_is_new(seen, pod) for pod in stuck)
    ask = f"`kubectl -n {about.namespace} describe pod {pod_name}`, and its log"
    yield Finding(
        check="agent",
        level="warn" if is_new else "fail",
        what=f"{name} is ready on {ready} of {wanted} nodes" + (f": {said}" if said else ""),
        why="its pods there were just made" if is_new else "the other nodes have no GPU to give",
        fix=f"look again in {_STARTS_S:g} s; then {ask}" if is_new else ask,
    )


def _is_new(seen: Facts, pod: core.Pod) -> bool:
    created = meta.timestamp(pod.metadata.creation_timestamp)
    return created is not None and seen.now - created < _STARTS_S


def _is_ready(pod: core.Pod) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)


def _standing(pod: core.Pod) -> str:
    why = ": ".join(part for part in podstate.why(pod) if part)
    where = f" on {pod.spec.node_name}" if pod.spec.node_name else ""
    return f"{pod.metadata.name}{where} is {podstate.state_of(pod)}" + (f" ({why})" if why else "")


def _nodes(seen: Facts) -> Iterator[Finding]:
    if seen.nodes is None:
        return
    published: dict[str, list[gpudevice.GPUDevice]] = {}
    for gpu in seen.gpus or ():
        published.setdefault(gpu.spec.node_name, []).append(gpu)
    with_gpus = [
        node
        for node in seen.nodes
        if node.metadata.name in published or cluster_safety.count(node.status.capacity, seen.resource)
    ]
    bad = False
    for node in with_gpus:
        for found in _node(seen, node, published.get(node.metadata.name, [])):
            bad = True
            yield found
    if not with_gpus:
        yield Finding(
            check="nodes",
            level="fail",
            what=f"none of {len(seen.nodes)} nodes has GPUs",
            why="no kubelet offers any and no agent publishes any",
            fix="see the log of the agent on a GPU node; `silicon.simulate=h100x8` in the chart tries it without any",
        )
    elif not bad:
        names = _offers(seen)
        counts = [
            (sum(cluster_safety.count(node.status.allocatable, name) for node in with_gpus), name) for name in names
        ]
        shown = ", ".join(f"{count} {name}" for count, name in counts if count) or f"0 {seen.resource}"
        yield Finding(check="nodes", level="ok", what=f"{_many(len(with_gpus), 'node')} with GPUs, {shown} offered")


def _node(seen: Facts, node: core.Node, gpus: Sequence[gpudevice.GPUDevice]) -> Iterator[Finding]:
    name = node.metadata.name
    shown = taken.node_view(node, ())
    if shown.state != "ready":
        yield Finding(
            check="nodes",
            level="fail",
            what=f"node {name} is {shown.state}" + (f": {shown.reason}" if shown.reason else ""),
            why="no pod goes there, and nobody can say how its GPUs are",
            fix=f"`kubectl describe node {name}`; on the node, the kubelet's log",
        )
        return
    yield from cluster_safety.check_offered(node, gpus, seen.resource)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _leaders(seen: Facts) -> Iterator[Finding]:
    if seen.leases is None:
        return
    pools = {one.metadata.name for one in seen.leases if one.metadata.name.startswith(POOLS)}
    for name in (*LEADERS, *sorted(pools)):
        component = name.removeprefix("fairlead-")
        leases = [one for one in seen.leases if one.metadata.name == name]
        deployed = [
            one for one in seen.deployments or () if one.metadata.labels.get("app.kubernetes.io/component") == component
        ]
        if not leases and not deployed:
            what = f"no {component} of Fairlead's runs here" + _WITHOUT[component]
            yield Finding(check=component, level="ok", what=what)
        elif not leases:
            yield _unled(component, f"no process has ever led: there is no lease {name}", deployed)
        for lease in leases:
            yield _leader(seen, component, lease, deployed)


_WITHOUT: Final = {
    "scheduler": "; pods go through the cluster's own",
    "controller": "; GPUs of nodes that are gone keep their last health",
}


def _leader(seen: Facts, component: str, lease: coordination.Lease, deployed: Sequence[workload.Deployment]) -> Finding:
    name = f"{lease.metadata.namespace}/{lease.metadata.name}"
    renewed, spec = meta.timestamp(lease.spec.renew_time), lease.spec
    if not spec.holder_identity:
        return _unled(component, f"no process holds lease {name}", deployed)
    age_s = seen.now - renewed if renewed is not None else float("inf")
    if age_s > (spec.lease_duration_seconds or 0) + _SLACK_S:
        when = f"{output.span(age_s)} ago" if renewed is not None else "never"
        return _unled(component, f"lease {name} of {spec.holder_identity} is stale: renewed {when}", deployed)
    return Finding(check=component, level="ok", what=f"{spec.holder_identity} leads ({name})")


def _unled(component: str, what: str, deployed: Sequence[workload.Deployment]) -> Finding:
    kind = component.partition("-")[0]
    stands = "; ".join(
        f"deployment {one.metadata.namespace}/{one.metadata.name} has {one.status.ready_replicas} of "
        f"{1 if one.spec.replicas is None else one.spec.replicas} replicas ready"
        for one in deployed
    )
    place = f"-n {deployed[0].metadata.namespace} " if deployed else "-A "
    return Finding(
        check=component,
        level="fail" if kind == "scheduler" else "warn",
        what=what + (f"; {stands}" if stands else ""),
        why={
            "scheduler": "pods with schedulerName fairlead wait"
            + (" that are of its pool" if kind != component else ""),
            "controller": "GPUs of nodes that are gone keep their last health",
        }[kind],
        fix=f"`kubectl get pods {place}-l app.kubernetes.io/component={component}`, and their logs",
    )


def _runtime_class(seen: Facts) -> Iterator[Finding]:
    wanted = {one.spec.template.spec.runtime_class_name: one.metadata.name for one in seen.agents or ()}
    wanted |= {name: event.involved_object.name for event in seen.refusals or () for name in _class_refused(event)}
    there = seen.runtime_classes
    if there is None:
        return
    missing = {name: who for name, who in wanted.items() if name and name not in there}
    for name, who in missing.items():
        yield Finding(
            check="runtime",
            level="fail",
            what=f'RuntimeClass "{name}" does not exist, and {who} asks for it',
            why="the API server refuses its pods",
            fix="`runtimeClass.create=true` in the chart makes it; or take runtimeClassName away: GPU pods need none",
        )
    if not missing:
        yield Finding(check="runtime", level="ok", what=f"runtime classes: {', '.join(sorted(there)) or 'none needed'}")


def _class_refused(event: core.Event) -> Iterator[str]:
    """Yield the class in `… forbidden: pod rejected: RuntimeClass "x" not found`. Source: plugin/pkg/admission."""
    _, found, rest = event.message.partition('RuntimeClass "')
    if found and "not found" in rest:
        yield rest.partition('"')[0]


def _pods(seen: Facts) -> Iterator[Finding]:
    if seen.pods is None:
        return
    names = _offers(seen)
    asking = [pod for pod in seen.pods if _asked(pod, names)]
    yield from cluster_safety.check_starts(asking)
    refused = [pod for pod in asking if pod.status.reason == "UnexpectedAdmissionError"]
    waiting = [pod for pod in asking if not pod.spec.node_name and not podstate.is_final(pod)]
    for pod in refused[:_LISTED]:
        about = pod.metadata
        yield Finding(
            check="pods",
            level="warn",
            what=f"{about.namespace}/{about.name} was refused by {pod.spec.node_name}: {pod.status.message}",
            why="its kubelet or the device plugin did not give it the GPUs that the scheduler had counted on",
            fix=f"`fairlead trace -n {about.namespace} {about.name}`; a new pod of its workload is placed anew",
        )
    for pod in waiting[:_LISTED]:
        yield _waiting(seen, pod, _asked(pod, names))
    rest = max(0, len(refused) - _LISTED) + max(0, len(waiting) - _LISTED)
    if rest:
        yield Finding(check="pods", level="warn", what=f"{rest} more pods like these", fix="`fairlead ps -o wide`")
    if not refused and not waiting:
        running = sum(podstate.state_of(pod) == "running" for pod in asking)
        yield Finding(check="pods", level="ok", what=f"no pod waits for {', '.join(names)}; {running} with it run")


def _offers(seen: Facts) -> list[str]:
    """Return the resources that GPUs and MIG devices are offered as, and the one that was configured."""
    parts = {part.resource for gpu in seen.gpus or () for part in gpu.spec.mig_devices if part.resource}
    return sorted(cluster_safety.resources_of(seen.gpus or (), seen.resource) | parts | {seen.resource})


def _asked(pod: core.Pod, names: Iterable[str]) -> dict[str, int]:
    """Return how many of a vendor's resources a pod asks for: also of those that are offered no more."""
    vendors = {name.partition("/")[0] for name in names}
    found = admission.effective_requests(pod.spec).items()
    return {name: int(count) for name, count in found if count > 0 and name.partition("/")[0] in vendors}


def _waiting(seen: Facts, pod: core.Pod, asked: Mapping[str, int]) -> Finding:
    about = pod.metadata
    wanted = ", ".join(f"{count} {name}" for name, count in asked.items())
    none = [
        name
        for name in asked
        if not any(cluster_safety.count(one.status.allocatable, name) for one in seen.nodes or ())
    ]
    said = _refusal(pod.status.conditions)
    created = meta.timestamp(about.creation_timestamp)
    unseen = not said and created is not None and seen.now - created > _PATIENCE_S
    if unseen:
        said = f'no scheduler named "{pod.spec.scheduler_name}" has looked at it'
    why = _why(seen, pod)
    is_room_held = any(one.status.nominated_node_name for one in seen.pods or ())  # it is not in the nodes' amounts
    if pod.spec.scheduler_name == seen.scheduler and not is_room_held and diagnosis.is_overlooked(pod, why, seen.now):
        return Finding(
            check="pods",
            level="fail",
            what=f"{about.namespace}/{about.name} waits for {wanted} beside room for it",
            why=f"{why}; it was overlooked, which the scheduler counts in fairlead_scheduler_overlooked_pods_total",
            fix="`fairlead scheduler --snapshot FILE`, then restart the scheduler; the file shows us the fault",
        )
    return Finding(
        check="pods",
        level="fail" if unseen or (seen.nodes is not None and none) else "warn",
        what=f"{about.namespace}/{about.name} waits for {wanted}" + (f": {said}" if said else ""),
        why=why,
        fix=f"`fairlead explain -n {about.namespace} {about.name}`; `fairlead gpus` shows who holds what",
    )


def _why(seen: Facts, pod: core.Pod) -> str:
    if seen.nodes is None or seen.pods is None:
        return "nodes may not be read, so what fits it is not known"
    try:
        shards = running.shards_of(seen.leases or (), seen.now)
        if unled := shards.refusal(pod):
            return unled
        nodes = shards.nodes_for(pod, seen.nodes)
        return f"{diagnosis.why(pod, nodes, seen.pods, ours=seen.scheduler)}{shards.words(pod)}"
    except errors.Invalid as error:
        return f"its need cannot be compared with the nodes: {errors.sentence(error)}"


def _refusal(conditions: Iterable[meta.Condition]) -> str:
    found = (one for one in conditions if one.type == "PodScheduled" and one.status == "False")
    return next((one.message or one.reason for one in found), "")
