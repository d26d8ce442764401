"""Collects what `fairlead doctor` checks on a cluster: through the API server, nothing on any node.

Each kind is read by itself. What may not be read is None, so that the judgement can say "not seen" instead of "not
there"; what the asker's role lacks is asked of the server (SelfSubjectAccessReview) and reported with the role that has
it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from fairlead import errors, settings, telemetry
from fairlead.cli.core import cluster
from fairlead.cli.doctor.cluster import kinds as cluster_kinds
from fairlead.plan.schedule.fabric import guestdriver
from fairlead.store import port
from fairlead.store.kubernetes import client, credentials, rights, server, store
from fairlead.store.kubernetes.rights import Right
from fairlead.wire.fairlead.firmwarebaseline import FirmwareBaseline
from fairlead.wire.kubernetes import api, coordination, core, gpudevice, meta, workload
from fairlead.wire.kubernetes.node.noderuntimes import NodeRuntimes

T = TypeVar("T")
O = TypeVar("O", bound=meta.Object)  # noqa: E741 beside T

LEADERS: Final = ("fairlead-scheduler", "fairlead-controller")
POOLS: Final = "fairlead-scheduler-"
"""Prefix of the lease names of schedulers that have a pool each."""
_OURS: Final = {"app.kubernetes.io/part-of": "fairlead"}
_KUBE_SCHEDULER: Final = "system:kube-scheduler"


NEEDS: Final = (
    Right(verb="list", resource="pods"),
    Right(verb="watch", resource="pods"),
    Right(verb="get", resource="pods", part="log"),
    Right(verb="list", resource="nodes"),
    Right(verb="list", resource="events"),
    Right(verb="list", resource="gpudevices", group="fairlead.dev"),
    Right(verb="list", resource="firmwarebaselines", group="fairlead.dev"),
    Right(verb="list", resource="daemonsets", group="apps"),
    Right(verb="list", resource="deployments", group="apps"),
    Right(verb="list", resource="leases", group="coordination.k8s.io"),
    Right(verb="list", resource="runtimeclasses", group="node.k8s.io"),
    Right(verb="get", resource="customresourcedefinitions", group="apiextensions.k8s.io"),
    Right(verb="list", resource="validatingadmissionpolicies", group="admissionregistration.k8s.io"),
    Right(verb="list", resource="validatingadmissionpolicybindings", group="admissionregistration.k8s.io"),
)


class Asked(Protocol):
    """An API server beside its objects."""

    @property
    def address(self) -> str:
        """Where it is."""
        ...

    async def version(self) -> str:
        """Return its version. Raises: Unavailable, Denied."""
        ...

    async def list_rules(self, namespace: str = "default") -> tuple[api.Rule, ...]:
        """Return what the caller may do in a namespace. Raises: Denied, Unavailable."""
        ...

    async def may(
        self, verb: str, resource: str, *, group: str = "", part: str = "", namespace: str = "", user: str = ""
    ) -> bool:
        """Return whether the caller, or a user, may do this. Raises: Denied, Unavailable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was looked at; None: it may not be read."""

    now: float
    """Unix seconds."""
    address: str
    resource: str
    """Extended resource of whole GPUs."""
    scheduler: str = "fairlead"
    """The scheduler's name that is ours."""
    version: str = ""
    problem: str = ""
    """Why the API server did not answer; then nothing else was looked at."""
    lacking: tuple[Right, ...] | None = ()
    """Rights of `NEEDS` that the asker does not have; None: the server does not say."""
    definitions: Mapping[str, cluster_kinds.Served] | None = None
    """How the cluster serves our kinds, by kind."""
    agents: tuple[workload.DaemonSet, ...] | None = None
    deployments: tuple[workload.Deployment, ...] | None = None
    nodes: tuple[core.Node, ...] | None = None
    no_user_namespaces: frozenset[str] = frozenset()
    """Nodes on which pods cannot have user namespaces, as they say."""
    gpus: tuple[gpudevice.GPUDevice, ...] | None = None
    baselines: tuple[FirmwareBaseline, ...] | None = None
    pods: tuple[core.Pod, ...] | None = None
    leases: tuple[coordination.Lease, ...] | None = None
    runtime_classes: frozenset[str] | None = None
    guest_drivers: Mapping[str, str] = field(default_factory=dict)
    """By RuntimeClass: the driver that its machines boot, of those that say it."""
    policies: frozenset[str] | None = None
    """Admission policies of Fairlead that are bound and deny."""
    agent_lacks: dict[str, tuple[Right, ...]] | None = None
    """Rights that accounts of agents do not have, by account; None: only an administrator may ask."""
    is_taint_unread: bool = False
    """Whether agents may write DeviceTaintRules that kube-scheduler may not read."""
    unanswered: str = ""
    """Why rights of accounts could not be asked for, other than for a missing right; empty: they could."""
    refusals: tuple[core.Event, ...] | None = None
    """Events of pods that could not be made."""


async def collect(config: settings.Settings, access: credentials.Access) -> Facts:
    """Return what the doctor sees of a cluster. Raises: Unavailable: the kubeconfig's credentials cannot be used."""
    telemetry.configure("error", "console")
    async with store.KubernetesStore(access, limits=client.Limits(patience_s=cluster.PATIENCE_S)) as objects:
        return await read_facts(objects, server.Server(objects.client, address=access.cluster.server), config)


async def read_facts(store: port.Store, server: Asked, config: settings.Settings) -> Facts:
    """Read what there is. Raises nothing of the cluster's: what is wrong with it is in the answer."""
    try:
        version = await server.version()
    except errors.FairleadError as error:
        problem = errors.sentence(error)
        return Facts(now=time.time(), address=server.address, resource=config.node.resource, problem=problem)
    agents, deployments = await asyncio.gather(
        _items(store, workload.DaemonSet, labels=_OURS), _items(store, workload.Deployment, labels=_OURS)
    )
    homes = {config.cluster.namespace}
    homes |= {item.metadata.namespace for item in agents or ()}
    homes |= {item.metadata.namespace for item in deployments or ()}
    classes = await _items(store, workload.RuntimeClass)
    lacking, silence = await _lacking(server)
    accounts = _accounts(agents or ())
    agent_lacks, unanswered = await _agent_lacks(server, None if agents is None else accounts)
    return Facts(
        now=time.time(),
        address=server.address,
        resource=config.node.resource,
        scheduler=config.control.scheduler_name,
        version=version,
        lacking=lacking,
        definitions=await cluster_kinds.read(store),
        agents=agents,
        deployments=deployments,
        nodes=await _items(store, core.Node),
        no_user_namespaces=frozenset(
            one.metadata.name for one in await _items(store, NodeRuntimes) or () if one.lacks_user_namespaces
        ),
        gpus=await _items(store, gpudevice.GPUDevice),
        baselines=await _items(store, FirmwareBaseline),
        pods=await _items(store, core.Pod),
        leases=await _leases(store, homes),
        runtime_classes=None if classes is None else frozenset(item.metadata.name for item in classes),
        guest_drivers={one.metadata.name: driver for one in classes or () if (driver := guestdriver.driver_of(one))},
        policies=await _policies(store),
        agent_lacks=agent_lacks,
        is_taint_unread=agent_lacks is not None and await _is_taint_unread(server, accounts),
        unanswered=silence or unanswered,
        refusals=await _items(store, core.Event, fields={"reason": "FailedCreate"}),
    )


async def _items(
    store: port.Store, kind: type[O], *, labels: dict[str, str] | None = None, fields: dict[str, str] | None = None
) -> tuple[O, ...] | None:
    try:
        return (await store.list(kind, port.Selector(labels=labels or {}, fields=fields or {}))).items
    except errors.Denied:
        return None
    except errors.NotFound:  # the kind is not served; for ours that is a finding of its own
        return ()


async def _readable(answer: Awaitable[T]) -> T | None:
    try:
        return await answer
    except errors.Denied:
        return None


async def _leases(store: port.Store, namespaces: set[str]) -> tuple[coordination.Lease, ...] | None:
    found = [
        await _readable(store.list(coordination.Lease, port.Selector(namespace=one))) for one in sorted(namespaces)
    ]
    if all(one is None for one in found):
        return None
    items = (item for one in found if one is not None for item in one.items)
    return tuple(item for item in items if item.metadata.name in LEADERS or item.metadata.name.startswith(POOLS))


async def _policies(store: port.Store) -> frozenset[str] | None:
    policies = await _items(store, workload.ValidatingAdmissionPolicy, labels=_OURS)
    bindings = await _items(store, workload.ValidatingAdmissionPolicyBinding)
    if policies is None or bindings is None:
        return None
    bound = {one.spec.policy_name for one in bindings if "Deny" in one.spec.validation_actions}
    return frozenset(one.metadata.name for one in policies) & bound


def _accounts(agents: tuple[workload.DaemonSet, ...]) -> tuple[str, ...]:
    """Return the accounts that agents run as."""
    return tuple(
        f"system:serviceaccount:{one.metadata.namespace}:{account}"
        for one in agents
        if (account := one.spec.template.spec.service_account_name)
        and one.metadata.labels.get("app.kubernetes.io/component", "agent") == "agent"
    )


async def _agent_lacks(
    server: Asked, accounts: tuple[str, ...] | None
) -> tuple[dict[str, tuple[Right, ...]] | None, str]:
    """Return what accounts of agents may not do, or None and, where no right is missing, why that is not known."""
    found: dict[str, tuple[Right, ...]] = {}
    for user in accounts or ():
        try:
            found[user] = await rights.find_lacking(server, rights.AGENT, user=user)
        except errors.Denied:
            return None, ""
        except errors.FairleadError as error:
            return None, errors.sentence(error)
    return (None if accounts is None else found), ""


async def _is_taint_unread(server: Asked, accounts: tuple[str, ...]) -> bool:
    """Return whether some agent taints devices and kube-scheduler may not read that; False where it is not known.

    The chart gives an agent those rights with `health.deviceTaint` alone, and the API server gives kube-scheduler its
    own with the feature gate alone.
    """
    try:
        for user in accounts:
            if not await rights.find_lacking(server, rights.TAINTING_DEVICES, user=user):
                [rule, *_] = rights.TAINTING_DEVICES
                return not await server.may("list", rule.resource, group=rule.group, user=_KUBE_SCHEDULER)
    except errors.FairleadError:
        return False
    return False


async def _lacking(server: Asked) -> tuple[tuple[Right, ...] | None, str]:
    """Return what the asker may not do, or None and, where no right is missing, why that is not known."""
    try:
        answers = await asyncio.gather(
            *(server.may(need.verb, need.resource, group=need.group, part=need.part) for need in NEEDS)
        )
    except errors.Denied:
        return None, ""
    except errors.FairleadError as error:
        return None, errors.sentence(error)
    return tuple(need for need, may in zip(NEEDS, answers, strict=True) if not may), ""
