"""Declares `Tenancy`: one tenant of a machine or a cluster, with its namespace, its limits and its network.

An administrator writes `spec`; the tenancy controller alone writes `status`. A tenancy is a name for people: what
belongs to it lies in the namespace of `status.namespace`, which no other tenancy has had or will have. The structs are
also the source of the CustomResourceDefinition (`tools/generate_crds.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

import msgspec

from fairlead.model.container import isolation
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.gpudevice import API_VERSION as _GROUP
from fairlead.wire.kubernetes.meta import Condition, ObjectMeta, Wire

FINALIZER: Final = "fairlead.dev/tenancy"
"""Keeps a deleted tenancy until its containers, its GPUs and its network are gone."""

UID: Final = "fairlead.dev/tenancy-uid"
"""Label of a tenancy's namespace, and of its engine network: the uid of the tenancy."""
HOST_USERS: Final = "fairlead.dev/host-users"
"""Annotation of a tenancy's namespace, `false`: each of its pods has a user namespace."""
ISOLATION: Final = "fairlead.dev/isolation"
"""Annotation of a tenancy's namespace: what each of its pods must have, in the words of `model.container.isolation`."""
STATE: Final = "fairlead.dev/tenancy-state"
"""Annotation of a tenancy's namespace: the phase. No pod is accepted or placed there unless it is Ready."""

ALLOW: Final = "allow"
DENY: Final = "deny"
NONE: Final = "none"
BRIDGE: Final = "bridge"

PENDING: Final = "Pending"
READY: Final = "Ready"
SUSPENDED: Final = "Suspended"
TERMINATING: Final = "Terminating"

NAMESPACE_READY: Final = "NamespaceReady"
QUOTA_APPLIED: Final = "QuotaApplied"
NETWORK_ISOLATED: Final = "NetworkIsolated"
VOLUMES_MOUNTED: Final = "VolumesMounted"


class TenancyNetwork(Wire, frozen=True):
    """What the tenancy's containers reach beside each other."""

    mode: Annotated[str, msgspec.Meta(extra_json_schema={"enum": [BRIDGE, NONE]})] = BRIDGE
    """bridge: a network of the tenancy's own. none: each container has nothing but a loopback."""
    internet: Annotated[str, msgspec.Meta(extra_json_schema={"enum": [ALLOW, DENY]})] = ALLOW
    """Whether containers may connect to public addresses. Private ranges and the host are denied either way."""
    dns: bool = True
    """Whether names are resolved, those of its own containers and those of the Internet."""
    publish: bool = True
    """Whether published ports (`run -p`) lead into its containers from outside."""
    egress: tuple[str, ...] = ()
    """Networks as CIDRs that are allowed although they are private, or although the Internet is denied."""


class ContainerLimits(Wire, frozen=True):
    """What each container may ask for of a resource, and what it gets where it asks for nothing."""

    default: Mapping[str, str] = {}
    """Limits of a container that has none: `cpu: "2"`, `memory: 4Gi`."""
    default_request: Mapping[str, str] = {}
    """Requests of a container that has none."""
    max: Mapping[str, str] = {}
    """Most that one container may be limited to."""
    min: Mapping[str, str] = {}
    """Least that one container may request."""


class NFSExport(Wire, frozen=True):
    """What an NFS server exports for one tenancy; the server should let no other client mount it."""

    server: str
    """Host name or address of the server."""
    path: str
    """What it exports, /exports/red."""
    options: tuple[str, ...] = ()
    """Mount options, vers=4.2; nosuid and nodev are always there."""


class TenancyStorage(Wire, frozen=True):
    """Where the tenancy's named volumes are."""

    nfs: NFSExport | None = None
    """On this export: on one machine each in a folder of its own, on a cluster the whole of it as the volume `export`.
    Absent: on the machine's disk, on a cluster by storage class."""


class TenancySpec(Wire, frozen=True):
    """What the tenancy may have and reach."""

    display_name: str = ""
    """Its name for people."""
    quota: Mapping[str, str] = {}
    """Most that its containers ask for together, as a ResourceQuota has it: `requests.nvidia.com/gpu: "8"`."""
    containers: ContainerLimits = ContainerLimits()
    """Limits of each container, as a LimitRange has them."""
    network: TenancyNetwork = TenancyNetwork()
    """What its containers reach."""
    images: tuple[str, ...] = ()
    """Images that its containers may have, `registry/team/` for all below; none: any."""
    registries: tuple[str, ...] = ()
    """Registries that it has credentials for; `fairlead tenancy login` gives them, they themselves are not here."""
    storage: TenancyStorage = TenancyStorage()
    """Where its named volumes are; chosen when it is made."""
    host_users: bool = True
    """False: on a cluster each of its pods has a user namespace (`hostUsers: false`), and no other pod is accepted. On
    one machine `engine.user_namespaces` says it."""
    isolation: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["", *isolation.WORDS]})] = ""
    """What stands between each of its containers and the node: none, gvisor or vm. Empty: each pod chooses."""
    suspended: bool = False
    """Its containers are stopped and no new ones are accepted; everything else stays."""


class NetworkStatus(Wire, frozen=True):
    """The network as the engine made it; on a cluster, who enforces its policies."""

    enforced_by: str = ""
    """On a cluster: the network plugin that enforces the policies on every node, as nodes say."""

    name: str = ""
    """Of the engine's network; empty: there is none."""
    interface: str = ""
    """Bridge on the host."""
    subnets: tuple[str, ...] = ()
    """One of IPv4, one of IPv6 where the host has it."""
    gateways: tuple[str, ...] = ()
    """The host's address in each subnet, where names are resolved."""


class TenancyStatus(Wire, frozen=True):
    """How the tenancy stands."""

    phase: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["", PENDING, READY, SUSPENDED, TERMINATING]})] = ""
    """Pending: no container is accepted yet. Terminating: it is being emptied."""
    namespace: str = ""
    """Namespace of its containers, volumes and quota."""
    observed_generation: int = 0
    """Generation of the spec that the conditions are about."""
    network: NetworkStatus = NetworkStatus()
    """The network as the engine made it."""
    first_user_id: int = 0
    """On one machine: the user and the group of the host that its containers' 0 stands for; 0: not chosen."""
    conditions: Annotated[
        tuple[Condition, ...],
        msgspec.Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = ()
    """NamespaceReady, QuotaApplied, NetworkIsolated, VolumesMounted where there is an export, and Ready where all of
    them hold."""


class Tenancy(Wire, frozen=True):
    """One tenant."""

    API_VERSION: ClassVar[str] = _GROUP
    KIND: ClassVar[str] = "Tenancy"
    PLURAL: ClassVar[str] = "tenancies"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: TenancySpec = TenancySpec()
    status: TenancyStatus = TenancyStatus()


def closed_phase(item: core.Namespace) -> str | None:
    """Return the phase of the tenancy whose namespace this is, where it is not Ready; None: pods may be placed."""
    phase = item.metadata.annotations.get(STATE, "") if UID in item.metadata.labels else READY
    return None if phase == READY else phase or PENDING
