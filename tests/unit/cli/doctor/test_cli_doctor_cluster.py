"""The doctor's judgement of a cluster: each fault is found once, says why it matters, and names the next step."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

import fairlead
from fairlead import errors, settings
from fairlead.cli.doctor.cluster import checks as cluster_checks
from fairlead.cli.doctor.cluster import facts as cluster_facts
from fairlead.cli.doctor.cluster import kinds as cluster_kinds
from fairlead.cli.doctor.cluster import unchecked
from fairlead.cli.doctor.cluster.facts import Facts
from fairlead.cli.doctor.cluster.kinds import Served
from fairlead.store.embedded import memory
from fairlead.store.kubernetes import rights
from fairlead.wire.fairlead.firmwarebaseline import FirmwareBaseline, FirmwareBaselineSpec, FirmwareBaselineStatus
from fairlead.wire.kubernetes import api, coordination, core, gpudevice, meta, workload
from fairlead.wire.kubernetes.node.noderuntimes import NodeRuntimes
from tests import gpus

NOW: Final = 1_800_000_000.0
RESOURCE: Final = "nvidia.com/gpu"
OURS: Final = {"app.kubernetes.io/part-of": "fairlead", "app.kubernetes.io/name": "fairlead"}


def about(name: str, component: str = "", namespace: str = "fairlead") -> meta.ObjectMeta:
    labels = OURS | ({"app.kubernetes.io/component": component} if component else {})
    return meta.ObjectMeta(name=name, namespace=namespace, labels=labels, creation_timestamp=meta.emit_time(NOW - 60))


def node(name: str = "a", *, capacity: str = "2", allocatable: str = "2", ready: str = "True") -> core.Node:
    return core.Node(
        metadata=meta.ObjectMeta(name=name),
        status=core.NodeStatus(
            capacity={RESOURCE: capacity} if capacity else {},
            allocatable={RESOURCE: allocatable} if capacity else {},
            conditions=(meta.Condition(type="Ready", status=ready, reason="KubeletSaysSo"),),
        ),
    )


def gpu(
    index: int,
    health: str = gpudevice.HEALTHY,
    reason: str = "",
    *,
    where: str = "a",
    holders: tuple[gpudevice.Holder, ...] = (),
) -> gpudevice.GPUDevice:
    return gpudevice.GPUDevice(
        metadata=meta.ObjectMeta(name=f"{where}.gpu-{index}"),
        spec=gpus.spec(where, index),
        status=gpudevice.GPUDeviceStatus(
            health=health, reason=reason, message="it fell off" if reason else "", holders=holders
        ),
    )


def agent(*, wanted: int = 1, ready: int = 1, runtime_class: str = "") -> workload.DaemonSet:
    return workload.DaemonSet(
        metadata=about("fairlead-agent", "agent"),
        spec=workload.WorkloadSpec(
            selector=meta.LabelSelector(match_labels={"app.kubernetes.io/component": "agent"}),
            template=workload.Template(
                spec=workload.TemplateSpec(runtime_class_name=runtime_class, service_account_name="fairlead-agent")
            ),
        ),
        status=workload.DaemonSetStatus(desired_number_scheduled=wanted, number_ready=ready),
    )


def deployment(component: str) -> workload.Deployment:
    return workload.Deployment(metadata=about(f"fairlead-{component}", component))


def lease(component: str, *, age_s: float = 1, holder: str = "one") -> coordination.Lease:
    renewed = meta.emit_time(NOW - age_s)
    spec = coordination.LeaseSpec(holder_identity=holder, lease_duration_seconds=15, renew_time=renewed)
    return coordination.Lease(metadata=about(f"fairlead-{component}"), spec=spec)


def pod(
    name: str, *, gpus: str = "1", status: core.PodStatus | None = None, where: str = "", resource: str = RESOURCE
) -> core.Pod:
    asked = core.ResourceRequirements(limits={resource: gpus}, requests={resource: gpus})
    main = core.Container(name="main", resources=asked)
    spec = core.PodSpec(containers=(main,), node_name=where, scheduler_name="fairlead")
    return core.Pod(metadata=about(name, namespace="team"), spec=spec, status=status or core.PodStatus(phase="Pending"))


def refused(ago_s: float, *, node: str = "") -> core.PodStatus:
    """Return what a scheduler says of a pod that it refused, and which room it holds for it."""
    condition = meta.Condition(
        type="PodScheduled",
        status="False",
        reason="Unschedulable",
        message="0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
        last_transition_time=meta.emit_time(NOW - ago_s),
    )
    return core.PodStatus(phase="Pending", conditions=(condition,), nominated_node_name=node)


def holder(name: str, resource: str) -> gpudevice.Holder:
    return gpudevice.Holder(namespace="team", pod=name, container="main", resource=resource, devices=("GPU-0",))


def unmade(reason: str, message: str = "") -> core.PodStatus:
    waiting = core.ContainerStateUnion(waiting=core.ContainerStateWaiting(reason=reason, message=message))
    return core.PodStatus(phase="Pending", container_statuses=(core.ContainerStatus(name="main", state=waiting),))


AGENT_POD: Final = core.Pod(
    metadata=about("fairlead-agent-a", "agent"),
    spec=core.PodSpec(node_name="a"),
    status=core.PodStatus(phase="Running", conditions=(meta.Condition(type="Ready", status="True"),)),
)
RUNS: Final = pod("runs", where="a", status=core.PodStatus(phase="Running"))
REFUSED: Final = core.PodStatus(
    phase="Pending",
    conditions=(meta.Condition(type="PodScheduled", status="False", reason="Unschedulable", message="0/1 nodes fit"),),
)
ADMISSION: Final = core.PodStatus(phase="Failed", reason="UnexpectedAdmissionError", message="GPU-0 is not healthy")
STARTING: Final = core.PodStatus(
    phase="Pending",
    container_statuses=(
        core.ContainerStatus(
            name="agent",
            state=core.ContainerStateUnion(waiting=core.ContainerStateWaiting(reason="ImagePullBackOff")),
        ),
    ),
)
SERVED: Final = {kind.KIND: Served(is_served=True) for kind in cluster_kinds.KINDS}
GOOD: Final = Facts(
    now=NOW,
    address="https://cluster",
    resource=RESOURCE,
    version="v1.36.2",
    definitions=dict(SERVED),
    agents=(agent(),),
    deployments=(deployment("scheduler"), deployment("controller")),
    nodes=(node(), node("b", capacity="")),
    gpus=(gpu(0), gpu(1)),
    baselines=(),
    pods=(RUNS, AGENT_POD),
    leases=(lease("scheduler"), lease("controller")),
    runtime_classes=frozenset(),
    refusals=(),
    policies=frozenset({"fairlead-reserved-names", "fairlead-own-node"}),
    agent_lacks={"system:serviceaccount:fairlead:fairlead-agent": ()},
)


def alone(one: core.Pod) -> core.Pod:
    """Return a pod that asks for a user namespace."""
    return msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, host_users=False))


PROPOSED: Final = FirmwareBaseline(
    spec=FirmwareBaselineSpec(node_name="a", board="233010de"),
    status=FirmwareBaselineStatus(state="Proposed", approvals=2, proposed_by="ann"),
)
NO_CLASS: Final = 'pods "x" is forbidden: pod rejected: RuntimeClass "fairlead" not found'


def changed(**changes: Any) -> Facts:
    return dataclasses.replace(GOOD, **changes)


@pytest.mark.parametrize(
    ("handlers", "lacks"),
    [
        ([], False),
        ([{"name": "", "features": {"recursiveReadOnlyMounts": True}}], True),
        ([{"name": "", "features": {"userNamespaces": True}}, {"name": "kata", "features": {}}], False),
        ([{"name": "kata"}], False),
    ],
)
def test_a_node_says_whether_it_has_user_namespaces(handlers: list[dict[str, Any]], lacks: bool) -> None:
    found = msgspec.convert({"metadata": {"name": "a"}, "status": {"runtimeHandlers": handlers}}, NodeRuntimes)
    assert found.lacks_user_namespaces is lacks


def test_a_good_cluster_has_one_good_word_for_every_layer() -> None:
    found = list(cluster_checks.check(GOOD))
    assert {item.level for item in found} == {"ok"}
    layers = ["api", "rights", "crd", "agent", "nodes", "gpus", "scheduler", "controller", "runtime", "pods"]
    assert [item.check for item in found] == layers


@pytest.mark.parametrize(
    ("changes", "check", "level", "says"),
    [
        ({"problem": "does not answer"}, "api", "fail", "does not answer"),
        ({"lacking": cluster_facts.NEEDS[2:4]}, "rights", "warn", "get pods/log, list nodes"),
        ({"definitions": SERVED | {"GPUDevice": Served(is_served=False)}}, "crd", "fail", "GPUDevice is not installed"),
        ({"definitions": SERVED | {"Queue": Served(is_served=False)}}, "crd", "warn", "Queue is not installed"),
        (
            {"definitions": SERVED | {"GPULease": Served(is_served=True, lacking=("spec.a", "status.b"))}},
            "crd",
            "warn",
            "the definition of GPULease is of another version: it lacks spec.a, status.b",
        ),
        ({"agents": ()}, "agent", "warn", "though GPUs are published"),
        ({"agents": (), "gpus": ()}, "agent", "fail", "no DaemonSet"),
        ({"agents": (agent(wanted=0, ready=0),)}, "agent", "fail", "selects no node"),
        ({"agents": (agent(wanted=3, ready=2),)}, "agent", "fail", "2 of 3 nodes"),
        ({"nodes": (node(ready="False"),)}, "nodes", "fail", "node a is notready: KubeletSaysSo"),
        ({"nodes": (node(capacity=""),)}, "nodes", "fail", "kubelet knows no nvidia.com/gpu"),
        ({"nodes": (node(allocatable="0"),)}, "nodes", "fail", "offers none"),
        ({"nodes": (node(allocatable="1"),)}, "nodes", "warn", "offers 1 of 2"),
        ({"nodes": (node("b", capacity=""),), "gpus": ()}, "nodes", "fail", "none of 1 nodes has GPUs"),
        ({"gpus": (gpu(0), gpu(1, gpudevice.UNHEALTHY, "XID79"))}, "gpus", "warn", "Unhealthy (XID79: it fell off)"),
        ({"gpus": (gpu(0), gpu(1, gpudevice.LOST, "Lost"))}, "gpus", "warn", "GPU 1 of node a is Lost"),
        ({"leases": (lease("scheduler", age_s=180), lease("controller"))}, "scheduler", "fail", "renewed 3m ago"),
        ({"leases": (lease("scheduler"), lease("controller", holder=""))}, "controller", "warn", "no process holds"),
        ({"leases": (lease("controller"),)}, "scheduler", "fail", "no process has ever led"),
        (
            {"leases": (lease("scheduler"), lease("controller"), lease("scheduler-a", age_s=180))},
            "scheduler-a",
            "fail",
            "renewed 3m ago",
        ),
        ({"agents": (agent(runtime_class="nvidia"),)}, "runtime", "fail", 'RuntimeClass "nvidia" does not exist'),
        ({"refusals": (core.Event(message=NO_CLASS),)}, "runtime", "fail", 'RuntimeClass "fairlead"'),
        (
            {"pods": (pod("waits", gpus="9", status=REFUSED), AGENT_POD)},
            "pods",
            "warn",
            "waits for 9 nvidia.com/gpu: 0/1 nodes",
        ),
        ({"pods": (pod("unseen"), AGENT_POD)}, "pods", "fail", 'no scheduler named "fairlead"'),
        (
            {"pods": (pod("no", where="a", status=ADMISSION), AGENT_POD)},
            "pods",
            "warn",
            "refused by a: GPU-0 is not healthy",
        ),
        (
            {"pods": (pod("cdi", where="a", status=unmade("CreateContainerError", "unresolvable CDI")), AGENT_POD)},
            "pods",
            "fail",
            "team/cdi does not start on a: container main is in CreateContainerError (unresolvable CDI)",
        ),
        (
            {"pods": (pod("cm", where="a", status=unmade("CreateContainerConfigError")), AGENT_POD)},
            "pods",
            "fail",
            "container main is in CreateContainerConfigError",
        ),
        (
            {"gpus": (gpu(0, holders=(holder("keep", RESOURCE), holder("new", "fairlead.dev/gpu"))), gpu(1))},
            "gpus",
            "fail",
            "GPU 0 of node a is in two pods: team/keep (as nvidia.com/gpu) and team/new (as fairlead.dev/gpu)",
        ),
        ({"gpus": (gpu(0), gpu(1, gpudevice.UNHEALTHY, "HeldByOtherResource"))}, "gpus", "warn", "HeldByOtherResource"),
        ({"gpus": (gpu(0), gpu(1), gpu(0, where="b"))}, "agent", "fail", "node b has GPUs and no agent"),
        (
            {"baselines": (PROPOSED,)},
            "baselines",
            "warn",
            "node a: firmware of board 233010de is proposed by ann alone",
        ),
        ({"policies": frozenset({"fairlead-own-node"})}, "policies", "warn", "no admission policy keeps labels"),
        (
            {"no_user_namespaces": frozenset({"a"}), "pods": (alone(pod("shut", where="a")), AGENT_POD)},
            "user namespaces",
            "fail",
            "node a cannot give pods user namespaces, and these ask for them (hostUsers: false): team/shut",
        ),
        ({"is_taint_unread": True}, "device taints", "warn", "kube-scheduler may not read them"),
        (
            {"agent_lacks": {"system:serviceaccount:fairlead:fairlead-agent": rights.AGENT[-1:]}},
            "agent rights",
            "fail",
            "fairlead-agent may not update gpudevices/status",
        ),
    ],
)
def test_each_fault_is_found_and_says_why_and_what_next(
    changes: dict[str, Any], check: str, level: str, says: str
) -> None:
    bad = [item for item in cluster_checks.check(changed(**changes)) if item.level != "ok"]
    mine = [item for item in bad if item.check == check]
    assert [(item.level, says in item.what) for item in mine] == [(level, True)], bad
    assert all(item.why and item.fix for item in bad)


@pytest.mark.parametrize(
    ("pods", "is_overlooked"),
    [
        ((pod("one", status=refused(31)),), True),
        ((pod("one", status=refused(29)),), False),  # its scheduler may be about to try it
        ((pod("one", status=refused(31)), pod("first", status=refused(1, node="a"))), False),  # the room is held
        ((pod("one", gpus="3", status=refused(31)),), False),
    ],
)
def test_a_pod_that_waits_beside_room_was_overlooked_and_the_next_step_is_said(
    pods: tuple[core.Pod, ...], is_overlooked: bool
) -> None:
    roomy = core.NodeStatus(allocatable={RESOURCE: "2", "pods": "110"}, conditions=node().status.conditions)
    seen = changed(nodes=(msgspec.structs.replace(node(), status=roomy),), pods=(*pods, AGENT_POD))
    found = [item for item in cluster_checks.check(seen) if "beside room for it" in item.what]
    assert [item.level for item in found] == ["fail"] * is_overlooked
    assert all("team/one" in item.what and "fairlead scheduler --snapshot" in item.fix for item in found)


def test_gpus_and_pods_are_looked_for_under_the_names_that_gpus_are_offered_by() -> None:
    def said(resource: str, amount: str, *gpus: gpudevice.GPUDeviceSpec) -> dict[str, str]:
        amounts = {RESOURCE: "0", resource: amount}
        there = core.NodeStatus(capacity=amounts, allocatable=amounts, conditions=node().status.conditions)
        named = tuple(msgspec.structs.replace(gpu(at), spec=spec) for at, spec in enumerate(gpus))
        asks = pod("waits", status=REFUSED, resource=resource)
        seen = changed(nodes=(msgspec.structs.replace(node(), status=there),), gpus=named, pods=(asks, AGENT_POD))
        found = [item for item in cluster_checks.check(seen) if item.check in {"nodes", "pods"}]
        return {item.check: f"{item.level} {item.what}" for item in found}

    shared = [gpus.spec("a", at, resource=f"{RESOURCE}.shared", sharing="time-slicing") for at in range(2)]
    found = said(f"{RESOURCE}.shared", "8", *shared)
    assert found["nodes"] == f"ok 1 node with GPUs, 8 {RESOURCE}.shared offered"
    assert found["pods"].startswith(f"warn team/waits waits for 1 {RESOURCE}.shared: 0/1 nodes")
    found = said(f"{RESOURCE}.shared", "0", *shared)
    assert found["nodes"].endswith(f"its kubelet knows no {RESOURCE}.shared")
    assert found["pods"].startswith("fail ")
    half = gpudevice.MIGSlice(uuid="MIG-1", profile="3g.40gb", start=0, size=4, resource="nvidia.com/mig-3g.40gb")
    found = said(half.resource, "1", gpus.spec("a", 0, mig_mode="Enabled", mig_devices=(half,)))
    assert found["nodes"] == "ok 1 node with GPUs, 1 nvidia.com/mig-3g.40gb offered"


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("LeaseQuarantined", "kubectl -n fairlead exec fairlead-agent-a -- fairlead lease release GPU-"),
        ("VerifyBaselineMissing", "`kubectl -n fairlead exec fairlead-agent-a -- fairlead lease baseline list` shows"),
        ("QuarantineAsked", "empty `spec.quarantine` of its GPUDevice"),
    ],
)
def test_a_gpu_that_is_kept_back_needs_no_reset_and_its_fix_runs_from_anywhere(reason: str, fix: str) -> None:
    ill = gpu(1, gpudevice.UNHEALTHY, reason)
    (found,) = [one for one in cluster_checks.check(changed(gpus=(gpu(0), ill))) if one.level == "warn"]
    assert fix in found.fix
    assert "reset" not in found.fix
    (away,) = [one for one in cluster_checks.check(changed(gpus=(ill,), pods=(RUNS,))) if one.level == "warn"]
    assert away.fix.endswith("(on its node)") is (reason != "QuarantineAsked")


@pytest.mark.parametrize(
    ("state", "reason", "fix"),
    [
        (gpudevice.UNHEALTHY, "RowRemapFailed", "on its node: replace the board"),
        (gpudevice.UNHEALTHY, "TemperatureHigh", "on its node: look at fans and airflow; `nvidia-smi -q -d"),
        (gpudevice.UNHEALTHY, "XID95", "on its node: `nvidia-smi -q -i 1`; a reset clears most faults"),
        (gpudevice.LOST, "Lost", "look for its Xid in the node's `dmesg`"),
    ],
)
def test_a_gpu_is_mended_on_a_cluster_as_on_one_machine(state: str, reason: str, fix: str) -> None:
    (found,) = [
        one for one in cluster_checks.check(changed(gpus=(gpu(0), gpu(1, state, reason)))) if one.level == "warn"
    ]
    assert found.fix.startswith(fix)
    assert "{" not in found.fix


def test_a_line_to_paste_holds_what_an_object_says_as_one_word() -> None:
    ill = gpu(1, gpudevice.UNHEALTHY, "LeaseQuarantined")
    lying = msgspec.structs.replace(ill, spec=msgspec.structs.replace(ill.spec, uuid="x; reboot"))
    board = msgspec.structs.replace(PROPOSED, spec=FirmwareBaselineSpec(node_name="a", board="--by=eve; reboot"))
    facts = changed(gpus=(gpu(0), lying), baselines=(board,))
    said = {one.check: one.fix for one in cluster_checks.check(facts) if one.level == "warn"}
    assert "lease release 'x; reboot'`" in said["gpus"]
    assert "approve --by YOU -- '--by=eve; reboot'`" in said["baselines"]


def test_pods_of_the_agent_that_are_not_ready_are_named_with_their_reason() -> None:
    stuck = msgspec.structs.replace(
        pod("fairlead-agent-x", where="a", status=STARTING), metadata=about("fairlead-agent-x", "agent")
    )
    seen = changed(agents=(agent(ready=0),), pods=(stuck,))
    (found,) = (item for item in cluster_checks.check(seen) if item.check == "agent")
    assert "fairlead-agent-x on a is creating (ImagePullBackOff)" in found.what
    assert "describe pod fairlead-agent-x" in found.fix
    assert found.level == "fail"


def test_an_agent_whose_pods_were_just_made_is_no_failure_yet() -> None:
    made = msgspec.structs.replace(about("fairlead-agent-x", "agent"), creation_timestamp=meta.emit_time(NOW - 5))
    new = msgspec.structs.replace(pod("fairlead-agent-x", where="a", status=STARTING), metadata=made)
    seen = changed(agents=(agent(ready=0),), pods=(new,))
    (found,) = (item for item in cluster_checks.check(seen) if item.check == "agent")
    assert (found.level, found.why) == ("warn", "its pods there were just made")
    assert "look again in 30 s" in found.fix


def test_what_may_not_be_read_is_not_judged_and_is_said_check_by_check_with_the_right() -> None:
    seen = changed(**dict.fromkeys(unchecked.WANTING), unanswered="")
    found = list(cluster_checks.check(seen))
    assert [item.check for item in found if item.level != "skip"] == ["api"]
    assert [item.check for item in found if item.level == "skip"] == [row[0] for row in unchecked.CHECKS]
    assert all(item.what.startswith("not checked: ") and item.why.startswith("you may not ") for item in found[1:])


def test_every_right_that_a_check_needs_is_named_where_it_alone_is_missing() -> None:
    for field, right in unchecked.WANTING.items():
        said = [item.why for item in cluster_checks.check(changed(**{field: None})) if item.level == "skip"]
        assert said, field
        assert all(right in why for why in said)


def test_an_asker_who_may_not_ask_for_others_hears_that_agents_rights_were_not_checked() -> None:
    (found,) = (item for item in cluster_checks.check(changed(agent_lacks=None)) if item.level == "skip")
    assert (found.check, found.why) == (
        "agent rights",
        "you may not create subjectaccessreviews.authorization.k8s.io",
    )
    assert found.what == "not checked: whether agents may report their GPUs to the cluster"
    assert "administrator" in found.fix


def test_a_cluster_that_uses_its_own_scheduler_is_well() -> None:
    found = list(cluster_checks.check(changed(deployments=(), leases=())))
    assert {item.level for item in found} == {"ok"}


DEFAULTS: Final = settings.Settings()


class Server:
    address = "https://cluster"

    def __init__(self, *, denied: str = "", silent: bool = False, mute: errors.FairleadError | None = None) -> None:
        self._denied, self._silent, self._mute = denied, silent, mute

    async def version(self) -> str:
        if self._silent:
            raise errors.Unavailable("no answer", reason="APIServerUnreachable", hint="start it")
        return "v1.36.2"

    async def may(
        self, verb: str, resource: str, *, group: str = "", part: str = "", namespace: str = "", user: str = ""
    ) -> bool:
        if self._mute is not None:
            raise self._mute
        if user:
            return user == "system:serviceaccount:fairlead:fairlead-agent" and part != "status"
        return resource != self._denied

    async def list_rules(self, namespace: str = "default") -> tuple[api.Rule, ...]:
        return ()


async def test_everything_is_read_through_the_store() -> None:
    store = memory.MemoryStore()
    crd = yaml.safe_load((Path(fairlead.__file__).parent / "chart/crds/gpudevices.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    shape = version["schema"]["openAPIV3Schema"]["properties"]
    del shape["spec"]["properties"]["nodeIndex"]
    del shape["status"]["properties"]["holders"]["items"]["properties"]["podUID"]
    definition = workload.CustomResourceDefinition(
        metadata=meta.ObjectMeta(name="gpudevices.fairlead.dev"),
        spec=msgspec.convert(crd["spec"], workload.DefinitionSpec),
        status=workload.DefinitionStatus(conditions=(meta.Condition(type="Established", status="True"),)),
    )
    old = lease("scheduler", age_s=0)
    policies: list[workload.ValidatingAdmissionPolicy] = [
        workload.ValidatingAdmissionPolicy(metadata=about(f"fairlead-{name}", "admission", namespace=""))
        for name in ("reserved-names", "visible-devices", "own-node")  # the first alone is bound and denies
    ]
    bindings = [
        workload.ValidatingAdmissionPolicyBinding(
            metadata=about(f"fairlead-{name}", "admission", namespace=""),
            spec=workload.PolicyBindingSpec(policy_name=f"fairlead-{name}", validation_actions=actions),
        )
        for name, actions in (("reserved-names", ("Deny",)), ("visible-devices", ("Warn",)))
    ]
    for policy in policies:
        await store.create(policy)
    for binding in bindings:
        await store.create(binding)
    for item in (agent(), deployment("scheduler"), old, definition, node(), gpu(0), pod("waits")):
        made = await store.create(item)
        if hasattr(item, "status"):
            await store.update_status(msgspec.structs.replace(item, metadata=made.metadata))
    seen = await cluster_facts.read_facts(store, Server(denied="nodes"), settings.Settings())
    assert abs(seen.now - time.time()) < 60
    assert seen.definitions is not None
    assert seen.definitions["GPULease"] == Served(is_served=False)
    whole, older = seen.definitions["GPUDevice"], ("spec.nodeIndex", "status.holders.podUID")
    assert (whole.is_served, whole.lacking) == (True, older)
    assert [need.text for need in seen.lacking or ()] == ["list nodes"]
    assert seen.agent_lacks is not None
    lacks = seen.agent_lacks["system:serviceaccount:fairlead:fairlead-agent"]
    assert [need.text for need in lacks] == ["update nodes/status", "update pods/status", "update gpudevices/status"]
    assert seen.policies == frozenset({"fairlead-reserved-names"})
    assert seen.is_taint_unread  # the agent may write the rules, and of kube-scheduler nothing is granted
    counts = [len(found or ()) for found in (seen.agents, seen.deployments, seen.leases, seen.gpus, seen.pods)]
    assert counts == [1] * 5


async def test_a_server_that_says_of_nobody_what_he_may_is_no_error_and_is_said() -> None:
    store = memory.MemoryStore()
    await store.create(agent())
    seen = await cluster_facts.read_facts(store, Server(mute=errors.Denied("no", reason="Forbidden")), DEFAULTS)
    found = {item.check: item.why for item in cluster_checks.check(seen) if item.level == "skip"}
    assert found["rights"] == "you may not create selfsubjectaccessreviews.authorization.k8s.io"
    assert found["agent rights"] == "you may not create subjectaccessreviews.authorization.k8s.io"


async def test_a_server_that_fails_when_it_is_asked_for_rights_is_quoted() -> None:
    store = memory.MemoryStore()
    await store.create(agent())
    broken = errors.Unavailable("webhook is away", reason="APIServerError")
    seen = await cluster_facts.read_facts(store, Server(mute=broken), DEFAULTS)
    found = {item.check: item.why for item in cluster_checks.check(seen) if item.level == "skip"}
    words = "the API server did not say: webhook is away"
    assert (found["rights"], found["agent rights"]) == (words, words)


async def test_a_silent_server_is_all_that_is_said() -> None:
    seen = await cluster_facts.read_facts(memory.MemoryStore(), Server(silent=True), settings.Settings())
    assert seen.problem == "no answer (start it)"


def test_agents_without_a_ledger_are_named() -> None:
    one = agent()
    for value, said in (("off", ["agents of fairlead/fairlead-agent keep no ledger"]), ("on", [])):
        box = workload.TemplateContainer(name="agent", env=(core.EnvVar(name="FAIRLEAD_LEASE_LEDGER", value=value),))
        spec = msgspec.structs.replace(one.spec.template.spec, containers=(box,))
        template = msgspec.structs.replace(one.spec.template, spec=spec)
        set_so = msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, template=template))
        found = cluster_checks.check(dataclasses.replace(GOOD, agents=(set_so,)))
        assert [item.what for item in found if item.check == "ledger"] == said
