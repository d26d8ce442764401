"""Declares pods, nodes, events and their parts: the fields of core/v1 that are read or written here.

Source: k8s.io/api/core/v1 types.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from fairlead.wire.kubernetes.meta import Condition, LabelSelector, ObjectMeta, Wire
from fairlead.wire.kubernetes.pod.probe import Lifecycle, Probe
from fairlead.wire.kubernetes.pod.restart import ContainerRestartRule, PodReadinessGate
from fairlead.wire.kubernetes.pod.source import FieldSelector, KeySelector, ResourceFieldSelector
from fairlead.wire.kubernetes.pod.volume import ConfigMapVolume, DownwardAPIVolume, ProjectedVolume, SecretVolume

ENDED_PHASES: Final = frozenset({"Succeeded", "Failed"})
"""Phases of a pod that never runs again."""


class EnvVarSource(Wire, frozen=True):
    """Where a variable's value comes from."""

    secret_key_ref: KeySelector | None = None
    config_map_key_ref: KeySelector | None = None
    field_ref: FieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None


class EnvVar(Wire, frozen=True):
    """One variable, given by value or taken from elsewhere."""

    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


class SourceReference(Wire, frozen=True):
    """A whole Secret or ConfigMap of the pod's namespace."""

    name: str = ""
    optional: bool = False
    """Whether the container starts without it."""


class EnvFromSource(Wire, frozen=True):
    """Every key of a Secret or ConfigMap as a variable."""

    prefix: str = ""
    secret_ref: SourceReference | None = None
    config_map_ref: SourceReference | None = None


class ContainerResourceClaim(Wire, frozen=True):
    """A claim of the pod whose devices the container sees."""

    name: str
    """Of an entry of the pod's `resourceClaims`."""
    request: str = ""
    """Only the devices of this request of the claim; empty: all."""


class ResourceRequirements(Wire, frozen=True):
    """Quantities by resource name, as written (`2`, `500m`, `1Gi`); numbers in manifests are read as their text."""

    limits: Mapping[str, str | int | float] = {}
    requests: Mapping[str, str | int | float] = {}
    claims: tuple[ContainerResourceClaim, ...] = ()


class VolumeMount(Wire, frozen=True):
    """Where a container sees a volume."""

    name: str
    mount_path: str
    read_only: bool = False
    sub_path: str = ""
    """File or folder of the volume that is mounted in its place; empty: the volume itself."""
    sub_path_expr: str = ""
    """The same, with `$(NAME)` for the container's variables."""


class HostPathVolume(Wire, frozen=True):
    """A path of the node."""

    path: str
    type: str = ""


class EmptyDirVolume(Wire, frozen=True):
    """A folder that lives as long as the pod."""

    medium: str = ""
    """`Memory`: a file system in memory; empty: a folder on the node's disk."""
    size_limit: str | int | None = None
    """Quantity of bytes it may hold; None: as much as there is."""


class ClaimVolume(Wire, frozen=True):
    """A PersistentVolumeClaim of the pod's namespace."""

    claim_name: str = ""
    read_only: bool = False


class PlacedVolume(Wire, frozen=True):
    """A volume that not every node can have; which ones is not read here."""


class Volume(Wire, frozen=True):
    """One named volume; of sources that are not offered here only those are read that bind a pod to some nodes."""

    name: str
    host_path: HostPathVolume | None = None
    empty_dir: EmptyDirVolume | None = None
    persistent_volume_claim: ClaimVolume | None = None
    secret: SecretVolume | None = None
    config_map: ConfigMapVolume | None = None
    downward_api: DownwardAPIVolume | None = msgspec.field(default=None, name="downwardAPI")
    projected: ProjectedVolume | None = None
    ephemeral: PlacedVolume | None = None
    """A claim made for the pod."""
    gce_persistent_disk: PlacedVolume | None = None
    aws_elastic_block_store: PlacedVolume | None = None
    iscsi: PlacedVolume | None = None
    rbd: PlacedVolume | None = None


class Capabilities(Wire, frozen=True):
    """Capabilities dropped from a container; none is ever added."""

    drop: tuple[str, ...] = ()


class SecurityContext(Wire, frozen=True):
    """The parts of a container's security context that are honoured: all that take rights away."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    supplemental_groups: tuple[int, ...] = ()
    """More groups of the processes; of a pod's context alone."""
    read_only_root_filesystem: bool | None = None
    allow_privilege_escalation: bool | None = None
    capabilities: Capabilities = Capabilities()


class ContainerPort(Wire, frozen=True):
    """One port of a container, and where on its node it is reached."""

    container_port: int
    host_port: int = 0
    """0: not reached on the node."""
    host_ip: str = msgspec.field(default="", name="hostIP")
    """Address of the node that listens; empty: all of them."""
    protocol: str = "TCP"
    """`TCP`, `UDP` or `SCTP`."""
    name: str = ""


class ContainerResizePolicy(Wire, frozen=True):
    """How one container takes other amounts of a resource."""

    resource_name: str = ""
    """`cpu` or `memory`."""
    restart_policy: str = ""
    """`NotRequired` or `RestartContainer`."""


class Container(Wire, frozen=True):
    """One container of a pod."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    working_dir: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    resize_policy: tuple[ContainerResizePolicy, ...] = ()
    """Of a resource that is not named: it is not restarted."""
    volume_mounts: tuple[VolumeMount, ...] = ()
    image_pull_policy: str = ""
    security_context: SecurityContext | None = None
    restart_policy: str = ""
    """In place of its pod's; `Always` on an init container makes it a sidecar."""
    restart_policy_rules: tuple[ContainerRestartRule, ...] = ()
    """By exit code, before the policy."""
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    termination_message_path: str = ""
    """File in the container whose content is its last word; empty: none is kept."""
    termination_message_policy: str = ""
    """`FallbackToLogsOnError`: the end of its output where the file is empty and it failed; empty is `File`."""
    stdin: bool = False
    tty: bool = False


class EphemeralContainer(Container, frozen=True):
    """A container that joins a pod which runs, to look into it; it is never started again.

    Of a container's fields it may not have ports, resources, probes, hooks and a restart policy.
    """

    target_container_name: str = ""
    """Container of the pod whose processes it sees; empty: those of none."""


class Toleration(Wire, frozen=True):
    """Which taints the pod bears."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class NodeSelectorRequirement(Wire, frozen=True):
    """One condition on a node's labels, or on its name."""

    key: str
    operator: str
    """`In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`."""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Wire, frozen=True):
    """Conditions that must all hold; a term without any takes no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()
    """Only `metadata.name`, with `In` or `NotIn`."""


class NodeSelector(Wire, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(Wire, frozen=True):
    """A term that counts for a node, with its weight from 1 to 100."""

    weight: int
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Wire, frozen=True):
    """Which nodes a pod must have, and which it would rather have."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


class PodAffinityTerm(Wire, frozen=True):
    """Pods to be near to or far from, and the node label whose value makes nodes one place."""

    label_selector: LabelSelector | None = None
    """None selects nothing."""
    namespaces: tuple[str, ...] = ()
    """Beside those of `namespace_selector`; where neither is given, the pod's own."""
    topology_key: str = ""
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    """Labels whose value the other pods share."""
    mismatch_label_keys: tuple[str, ...] = ()
    """Labels whose value the other pods do not share."""


class WeightedPodAffinityTerm(Wire, frozen=True):
    """A term that counts for a node, with its weight from 1 to 100."""

    weight: int
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Wire, frozen=True):
    """Affinity or anti-affinity to other pods."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class Affinity(Wire, frozen=True):
    """What a pod must be near to, and what it would rather be near to."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Wire, frozen=True):
    """How evenly pods are spread over the values of a node label."""

    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    max_skew: int = 1
    label_selector: LabelSelector | None = None
    """None selects nothing."""
    min_domains: int | None = None
    """With fewer values than these, every one of them is measured against nothing."""
    node_affinity_policy: str | None = None
    """`Honor`, or `Ignore`: nodes that the pod may not run on count too; None is `Honor`."""
    node_taints_policy: str | None = None
    """`Honor`: nodes with taints that the pod does not bear do not count; None is `Ignore`."""
    match_label_keys: tuple[str, ...] = ()
    """Labels whose value the counted pods share."""


class PodResourceClaim(Wire, frozen=True):
    """A ResourceClaim that the pod uses, or the template that its claim is made from: one of the two is set."""

    name: str
    """By which containers name it."""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class SchedulingGate(Wire, frozen=True):
    """Keeps a pod from being placed until the controller that set it takes it away."""

    name: str


class Limit(Wire, frozen=True):
    """One limit of a process's resources, as setrlimit(2) has them; -1: none."""

    name: str
    """`nofile`, `memlock`, …"""
    soft: int
    hard: int


class SchedulingGroup(Wire, frozen=True):
    """The group of pods that this one is placed with."""

    pod_group_name: str = ""


class HostAlias(Wire, frozen=True):
    """One line of a pod's /etc/hosts."""

    ip: str = ""
    hostnames: tuple[str, ...] = ()


class PodDNSConfigOption(Wire, frozen=True):
    """One option of a pod's resolver."""

    name: str = ""
    value: str | None = None


class PodDNSConfig(Wire, frozen=True):
    """What a pod's /etc/resolv.conf is to have."""

    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[PodDNSConfigOption, ...] = ()


class MachineOptions(Wire, frozen=True):
    """What one machine's engine can do and Kubernetes has no field for; an API server would drop it."""

    user: str = ""
    """`NAME[:GROUP]`, looked up in the image; numbers are `runAsUser` and `runAsGroup`."""
    no_network: bool = False
    """Nothing but a loopback of its own."""
    groups: tuple[str, ...] = ()
    """More groups of its processes, looked up in the image; numbers are `supplementalGroups`."""
    limits: tuple[Limit, ...] = ()
    ttl_seconds_after_finished: int | None = None
    """The pod is removed so long after its end, as a Job is by the field of this name; None: it stays."""
    has_local_claims: bool = False
    """Its claims are folders of this machine, so that no node is too far from them."""
    has_no_sandbox: bool = False
    """Isolation `none` was asked for by its name: the pod is refused where its tenancy demands more."""
    devices: tuple[str, ...] = ()
    """CDI devices by their names, for each of its containers; none of them is a GPU."""
    reservation: str = ""
    """Of its namespace: it starts in a window of that one alone, among its GPUs; empty: it names none."""
    has_listed_mounts: bool = False
    """Its hostPath volumes are held to the setting `api.mounts`: it comes from a user or an account."""


class PodSpec(Wire, frozen=True):
    """Desired state of a pod: its containers, and where they may run."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    ephemeral_containers: tuple[EphemeralContainer, ...] = ()
    """Joined while it ran; a pod is never stored with them."""
    restart_policy: str = "Always"
    node_name: str = ""
    node_selector: Mapping[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    scheduler_name: str = ""
    termination_grace_period_seconds: int = 30
    volumes: tuple[Volume, ...] = ()
    hostname: str = ""
    """Name the pod sees as its own; empty: the pod's."""
    hostname_override: str | None = None
    """What it sees as its name in place of all others, dots included; None: nothing."""
    host_aliases: tuple[HostAlias, ...] = ()
    dns_policy: str = ""
    """`None`: only what `dns_config` says; anything else is the engine's own."""
    dns_config: PodDNSConfig | None = None
    share_process_namespace: bool | None = None
    """Its containers see each other's processes, and the sandbox is process 1."""
    service_account_name: str = ""
    security_context: SecurityContext | None = None
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str = ""
    """`Never`: no other pod is ended for it; empty is `PreemptLowerPriority`."""
    scheduling_group: SchedulingGroup | None = None
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    overhead: Mapping[str, str | int | float] = {}
    """What the runtime takes beside the containers."""
    active_deadline_seconds: int | None = None
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    resources: ResourceRequirements | None = None
    """Of the pod as a whole, beside those of its containers."""
    readiness_gates: tuple[PodReadinessGate, ...] = ()
    host_network: bool = False
    """It shares the node's network."""
    host_ipc: bool = msgspec.field(default=False, name="hostIPC")
    """It shares the node's shared memory and semaphores."""
    host_users: bool | None = None
    """False: it has a user namespace of its own. None: the cluster's default, which is the node's users."""
    runtime_class_name: str = ""
    """RuntimeClass whose handler runs it; empty: the node's default. `model.container.isolation` has the sandboxes."""
    machine: MachineOptions | None = None
    """Ours, on one machine."""


class ContainerStateRunning(Wire, frozen=True):
    """State of a container that runs."""

    started_at: str | None = None


class ContainerStateWaiting(Wire, frozen=True):
    """State of a container that does not run yet, or not again yet."""

    reason: str = ""
    message: str = ""


class ContainerStateTerminated(Wire, frozen=True):
    """State of a container that ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    container_id: str = msgspec.field(default="", name="containerID")


class ContainerStateUnion(Wire, frozen=True):
    """State of a container: exactly one field is set."""

    running: ContainerStateRunning | None = None
    waiting: ContainerStateWaiting | None = None
    terminated: ContainerStateTerminated | None = None


CLAIM: Final = "claim:"
"""What the name of a claim's devices begins with in a container's status: `claim:NAME` or `claim:NAME/REQUEST`."""


class ResourceHealth(Wire, frozen=True):
    """One device of a resource."""

    resource_id: str = msgspec.field(name="resourceID")
    """Id of the device, as its plugin advertises it, or its CDI name."""
    health: str = ""
    """Of a claim's device: `Healthy`, `Unhealthy`, `Unknown`."""
    message: str | None = None
    """The driver's words about its health."""


class ResourceStatus(Wire, frozen=True):
    """The devices of one resource that a container was given."""

    name: str
    """The resource, `nvidia.com/gpu`, or a claim, `claim:gpus`."""
    resources: tuple[ResourceHealth, ...] = ()


class ContainerStatus(Wire, frozen=True):
    """Observed state of one container."""

    name: str
    state: ContainerStateUnion = ContainerStateUnion()
    last_state: ContainerStateUnion = ContainerStateUnion()
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    container_id: str = msgspec.field(default="", name="containerID")
    started: bool | None = None
    allocated_resources_status: tuple[ResourceStatus, ...] = ()
    """What its kubelet gave it; a real one says so with the feature gate ResourceHealthStatus."""
    resources: ResourceRequirements | None = None
    """CPU and memory that it has; of one that does not run, that it gets at its start."""
    allocated_resources: Mapping[str, str | int | float] = {}
    """What its kubelet counts for it."""


class StopRequest(Wire, frozen=True):
    """A request to stop a pod and keep its object."""

    requested_at: str
    """When, RFC 3339."""
    grace_period_seconds: int | None = None
    """Seconds between SIGTERM and SIGKILL; None: the pod's own."""
    reason: str = ""
    """Of the end, `Preempted`; empty: a person asked for it."""
    message: str = ""


IDLE_UNKNOWN: Final = "unknown"
"""The action of a notice that it is not known whether devices are idle."""


class IdleNotice(Wire, frozen=True):
    """A warning that a pod's devices are idle."""

    since: str
    """Since when at the latest, RFC 3339."""
    warned_at: str
    action: str
    """`warn`, `stop` or `requeue`; `unknown`: nothing, since figures are missing."""
    acts_at: str | None = None
    """When it is ended at the earliest; None: never."""
    message: str = ""
    """For a person."""


class PodResourceClaimStatus(Wire, frozen=True):
    """The claim that stands behind an entry of `spec.resourceClaims` with a template."""

    name: str
    resource_claim_name: str | None = None
    """None: the pod needs no claim for the entry."""


class ContainerExtendedResourceRequest(Wire, frozen=True):
    """Which request of the claim answers for an extended resource of a container."""

    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class PodExtendedResourceClaimStatus(Wire, frozen=True):
    """The claim that the scheduler made for the pod's extended resources."""

    request_mappings: tuple[ContainerExtendedResourceRequest, ...] | None = ()
    """None: none, which a server writes as null."""
    resource_claim_name: str = ""


class PodIP(Wire, frozen=True):
    """One address of a pod."""

    ip: str = ""


class PodStatus(Wire, frozen=True):
    """Observed state of a pod."""

    phase: str = ""
    """`Pending`, `Running`, `Succeeded`, `Failed`."""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    nominated_node_name: str = ""
    """Where room is being made for it."""
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    ephemeral_container_statuses: tuple[ContainerStatus, ...] = ()
    start_time: str | None = None
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] = msgspec.field(default=(), name="podIPs")
    """One of each family at most, on a cluster."""
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None
    stop_request: StopRequest | None = None
    """Ours, on one machine: the API writes it, the embedded kubelet heeds it. Kubernetes stops a pod by deleting it, so
    it has no field for this, and an API server drops it."""
    idle_notice: IdleNotice | None = None
    """Ours, on one machine, as `stop_request` is."""


class Pod(Wire, frozen=True):
    """The unit of scheduling: containers that live together on one node."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "Pod"
    PLURAL: ClassVar[str] = "pods"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Taint(Wire, frozen=True):
    """What keeps pods off a node unless they tolerate it."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


class NodeSpec(Wire, frozen=True):
    """Desired state of a node."""

    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeSystemInfo(Wire, frozen=True):
    """Software and boot of a machine, as its kubelet reports them."""

    boot_id: str = msgspec.field(default="", name="bootID")
    kernel_version: str = ""
    os_image: str = ""
    container_runtime_version: str = ""
    kubelet_version: str = ""
    architecture: str = ""


class NodeStatus(Wire, frozen=True):
    """Observed state of a node: resources, conditions, software."""

    capacity: Mapping[str, str] = {}
    allocatable: Mapping[str, str] = {}
    conditions: tuple[Condition, ...] = ()
    node_info: NodeSystemInfo | None = None


class Node(Wire, frozen=True):
    """One machine."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "Node"
    PLURAL: ClassVar[str] = "nodes"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ObjectReference(Wire, frozen=True):
    """Names the object that an event is about."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    field_path: str = ""
    """Part of the object: `spec.containers{main}`."""


class EventSource(Wire, frozen=True):
    """Who reported an event."""

    component: str = ""
    host: str = ""


class Event(Wire, frozen=True):
    """Something that happened to an object; a step of a trace carries its record in an annotation."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "Event"
    PLURAL: ClassVar[str] = "events"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = ""
    """`Normal` or `Warning`; a server supplies no default, so the writer names one."""
    source: EventSource = EventSource()
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    count: int = 0
    event_time: str | None = None
    """When it happened, of events made through events.k8s.io; those have no first and last."""
    reporting_component: str = ""
    """Who reported it, of the same events."""


class ScopedSelector(Wire, frozen=True):
    """One condition on the pods that a quota counts."""

    scope_name: str
    operator: str
    """`In`, `NotIn`, `Exists` or `DoesNotExist`."""
    values: tuple[str, ...] = ()


class ScopeSelector(Wire, frozen=True):
    """Conditions that must all hold."""

    match_expressions: tuple[ScopedSelector, ...] = ()


class ResourceQuotaSpec(Wire, frozen=True):
    """How much the pods of a namespace may ask for together."""

    hard: Mapping[str, str | int | float] = {}
    scopes: tuple[str, ...] = ()
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(Wire, frozen=True):
    """Limits in force, and how much of each is used."""

    hard: Mapping[str, str | int | float] = {}
    used: Mapping[str, str | int | float] = {}


class ResourceQuota(Wire, frozen=True):
    """A limit on what one namespace asks for."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "ResourceQuota"
    PLURAL: ClassVar[str] = "resourcequotas"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class ClaimSpec(Wire, frozen=True):
    """Requested properties of a volume."""

    access_modes: tuple[str, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    storage_class_name: str | None = None
    volume_name: str = ""
    volume_mode: str = "Filesystem"
    selector: LabelSelector | None = None
    """Of volumes that will do; None: all."""


class ClaimStatus(Wire, frozen=True):
    """Actual properties of the volume."""

    phase: str = ""
    """`Pending`, `Bound` or `Lost`."""
    capacity: Mapping[str, str | int | float] = {}


class PersistentVolumeClaim(Wire, frozen=True):
    """A volume that lives on its own, known by its name."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "PersistentVolumeClaim"
    PLURAL: ClassVar[str] = "persistentvolumeclaims"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class LimitRangeItem(Wire, frozen=True):
    """What one container (or pod, or claim) may ask for, and what it gets where it asks for nothing."""

    type: str
    """`Container`, `Pod` or `PersistentVolumeClaim`."""
    max: Mapping[str, str | int | float] = {}
    min: Mapping[str, str | int | float] = {}
    default: Mapping[str, str | int | float] = {}
    """Limits of a container that has none."""
    default_request: Mapping[str, str | int | float] = {}
    """Requests of a container that has none."""


class LimitRangeSpec(Wire, frozen=True):
    """Limits by what they are about."""

    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(Wire, frozen=True):
    """What each container of one namespace may ask for."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "LimitRange"
    PLURAL: ClassVar[str] = "limitranges"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: LimitRangeSpec = LimitRangeSpec()


class LocalObjectReference(Wire, frozen=True):
    """An object of the same namespace."""

    name: str = ""


class ServiceAccount(Wire, frozen=True):
    """Whom a pod is to the API server."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "ServiceAccount"
    PLURAL: ClassVar[str] = "serviceaccounts"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    automount_service_account_token: bool | None = None
    """False: pods get no token unless they ask for one."""
    image_pull_secrets: tuple[LocalObjectReference, ...] = ()
    """Secrets with which the images of its pods are pulled."""


class Secret(Wire, frozen=True):
    """A small amount of data that is read by its name only."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "Secret"
    PLURAL: ClassVar[str] = "secrets"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    type: str = "Opaque"
    data: Mapping[str, str] = {}
    """Values in base64."""
    string_data: Mapping[str, str] = {}
    """Values as they are, of manifests alone: none is stored so."""
    immutable: bool = False


class ConfigMap(Wire, frozen=True):
    """Data that pods are configured by."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "ConfigMap"
    PLURAL: ClassVar[str] = "configmaps"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    data: Mapping[str, str] = {}
    binary_data: Mapping[str, str] = {}
    """Values in base64."""
    immutable: bool = False


class Namespace(Wire, frozen=True):
    """A boundary of names."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "Namespace"
    PLURAL: ClassVar[str] = "namespaces"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
