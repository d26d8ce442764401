"""Declares the types of what the API answers.

Made by tools/generate_client.py from the API's description; edit what it describes, then run that program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.client.lifeanswers import CostView, PhaseView, ProofView, Waiting
from fairlead.client.record import Record


class AllocatedDevice(Record, frozen=True, kw_only=True):
    """`AllocatedDevice` of the API."""

    id: str
    """`DRIVER/POOL/DEVICE`."""
    request: str
    """Request that it was allocated for."""
    node: str
    """Node of its slice; empty: not one node's, or no longer published."""
    gpu: str
    """UUID of the GPU that it is, or is a part of; empty: not known."""
    model: str
    profile: str
    """Of a MIG device; empty: it is none."""
    consumed: Mapping[str, str]
    """Of a shared device: what this claim takes of its capacity."""
    is_admin: bool
    """It is looked at, whether or not another claim has it."""
    sharing: str
    """How programs share it, by the claim's or its class's configuration."""
    enforced_by: str
    """What holds programs to their share of its memory: MPS, nothing; empty: not shared."""
    conditions: tuple[DeviceConditionView, ...]
    """As its driver reports them."""


class CapacityList(Record, frozen=True, kw_only=True):
    """`CapacityList` of the API."""

    items: tuple[CapacityView, ...]


class CapacityView(Record, frozen=True, kw_only=True):
    """`CapacityView` of the API."""

    resource: str
    model: str
    """Label nvidia.com/gpu.product; empty: the nodes have none."""
    offered: int
    free: int
    """On nodes that take pods now."""
    largest: int
    """Devices of the largest pod that fits on a node now."""
    fits: Mapping[str, int]
    """By size of pod in devices: how many such pods fit now, alone."""
    fragmented: float | None
    """Free GPUs of no use to what is asked for, on average; null: no pod asks for GPUs."""


class ClaimList(Record, frozen=True, kw_only=True):
    """`ClaimList` of the API."""

    items: tuple[ClaimView, ...]
    next: str = ""
    """`after` of the next page; empty: there is none."""


class ClaimView(Record, frozen=True, kw_only=True):
    """`ClaimView` of the API."""

    name: str
    namespace: str
    state: str
    """Waiting, allocated or removing."""
    requests: tuple[RequestedDevices, ...]
    devices: tuple[str, ...]
    """What it holds: `DRIVER/POOL/DEVICE`."""
    used_by: tuple[str, ...]
    """Containers that it is reserved for."""
    owner: str
    """Container that it was made for, and goes with; empty: none."""
    message: str
    """Why it holds no devices; empty: it does."""
    labels: Mapping[str, str]
    created_at: str | None
    prepared: tuple[ClaimedDevice, ...] = ()
    """How far each device is prepared on its node."""
    allocated: tuple[AllocatedDevice, ...] = ()
    """Its devices, where one claim is shown; not in lists."""
    allocated_at: str | None = None
    """When it got them; null: nothing says."""


class ClaimedDevice(Record, frozen=True, kw_only=True):
    """`ClaimedDevice` of the API."""

    device: str
    """`DRIVER/POOL/NAME`, and `/SHARE` of a shared one."""
    state: str
    """Prepared, preparing, failed, or unreported: its driver says nothing, or was not asked yet."""
    step: str = ""
    """How far it is, or why it failed: one word."""
    message: str = ""
    """The same for a person, with the next step."""
    since: str | None = None
    """When it came there; null: not known."""
    gpu: str = ""
    """UUID of its GPU; empty: not known."""
    mig_device: str = ""
    """UUID of the MIG device that it is; empty: none."""
    enforced_by: str = ""
    """What holds programs to their share of it; empty: it is not shared."""


class ClusterView(Record, frozen=True, kw_only=True):
    """`ClusterView` of the API."""

    server: str
    """Address of its API server."""
    version: str = ""
    """Of Kubernetes, v1.36.2; empty: it did not say."""


class ConditionView(Record, frozen=True, kw_only=True):
    """`ConditionView` of the API."""

    type: str
    """NamespaceReady, NetworkIsolated, QuotaApplied, VolumesMounted or Ready."""
    status: str
    """True, False or Unknown."""
    reason: str
    message: str
    since: str | None
    """Since when it is so; null: nothing says."""


class ContainerClaim(Record, frozen=True, kw_only=True):
    """`ContainerClaim` of the API."""

    name: str
    """By which the container has it."""
    claim: str
    """Its ResourceClaim; empty: it is not made yet."""
    template: str
    """What it is made from; empty: it was there."""
    devices: tuple[str, ...] = ()
    """Names of those that it was given here."""
    resources: tuple[str, ...] = ()
    """Extended resources that it meets, made for them; empty: none."""


class ContainerList(Record, frozen=True, kw_only=True):
    """`ContainerList` of the API."""

    items: tuple[ContainerView, ...]
    next: str = ""
    """`after` of the next page; empty: there is none."""
    warnings: tuple[str, ...] = ()
    """Parts of the request that are ignored."""


class ContainerPart(Record, frozen=True, kw_only=True):
    """`ContainerPart` of the API."""

    name: str
    image: str
    state: str
    """Waiting, running or terminated."""
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    last_exit_code: int | None = None
    """Of the run before this one."""
    restarts: int = 0
    started_at: str | None = None
    finished_at: str | None = None
    is_init: bool = False
    tty: bool = False
    """Its first process has a terminal."""
    stdin: bool = False
    """Its first process has an input."""
    is_ephemeral: bool = False
    """It joined the container while that ran."""
    ready: bool = False
    """It runs, and its readiness probe says so where it has one."""
    health: str = ""
    """Starting, healthy or unhealthy, by its readiness probe; empty: it has none."""


class ContainerView(Record, frozen=True, kw_only=True):
    """`ContainerView` of the API."""

    name: str
    namespace: str
    uid: str
    image: str
    """Image of the first container."""
    state: str
    """Pending, creating, running, crashed, stopping, succeeded, failed, stopped; gone once deleted."""
    reason: str
    """Stable token saying why it is in this state; may be empty."""
    message: str
    exit_code: int | None
    """First exit code that is not 0, once all ended."""
    gpus: int
    """Sum of `resources` and of devices by claims: GPUs where those are of one kind."""
    resources: Mapping[str, int]
    """Devices asked for, by resource."""
    devices: Mapping[str, tuple[str, ...]]
    """Ids granted, by resource."""
    ports: tuple[str, ...]
    """`ADDRESS:HOST->CONTAINER/tcp`, all of the group."""
    priority: int
    """Higher goes first in the queue."""
    priority_class: str
    """Name of that priority; empty: it has none."""
    grace_s: int
    """Seconds between SIGTERM and SIGKILL at a stop."""
    node: str
    restarts: int
    labels: Mapping[str, str]
    created_at: str | None
    started_at: str | None
    finished_at: str | None
    containers: tuple[ContainerPart, ...]
    waiting: Waiting | None = None
    """Why it has no node yet; null: it has, or was not looked at."""
    claims: tuple[ContainerClaim, ...] = ()
    """Claims whose devices it sees."""
    time_limit_s: int | None = None
    """Stopped so long after its start; null: never."""
    resize: str = ""
    """What of a change of its CPU and memory is not carried out, and why; empty: nothing."""
    reservation: str = ""
    """In whose windows it starts, of its namespace; empty: it names none."""
    addresses: tuple[str, ...] = ()
    """IP addresses; none while it does not run."""
    isolation: str = "none"
    """None, gvisor or vm; of another RuntimeClass its name."""
    user: str = ""
    """Account whose namespace it is; empty: no user's, or not known."""
    tty: bool = False
    """Its first process has a terminal."""
    stdin: bool = False
    """Its first process has an input, which attach writes to."""
    phases: tuple[PhaseView, ...] = ()
    """In order; left out of lists."""
    start: tuple[StartPhaseView, ...] = ()
    """Phases of its first start; left out of lists."""
    cost: CostView | None = None
    """Null: in a list, or no possession of GPUs is written down here."""
    gpu_leases: tuple[ProofView, ...] = ()
    """Its GPUs and what they were verified by; lists leave them out."""
    idle: IdleView | None = None
    """Its owner was warned that its GPUs are idle; null: they are not."""
    definition: Definition | None = None
    """What it was asked to be; left out of lists."""


class Definition(Record, frozen=True, kw_only=True):
    """`Definition` of the API."""

    command: tuple[str, ...] = ()
    """In place of the image's entrypoint."""
    args: tuple[str, ...] = ()
    """In place of the image's command."""
    workdir: str = ""
    env: tuple[VariableView, ...] = ()
    mounts: tuple[MountView, ...] = ()
    limits: Mapping[str, str] = msgspec.field(default_factory=dict)
    """CPU, memory and devices, as quantities."""
    restart: str = ""


class DeviceConditionView(Record, frozen=True, kw_only=True):
    """`DeviceConditionView` of the API."""

    type: str
    status: str
    """True, False or Unknown."""
    reason: str = ""
    message: str = ""
    since: str | None = None
    """Since when it is so; null: nothing says."""


class Driver(Record, frozen=True, kw_only=True):
    """`Driver` of the API."""

    vendor: str
    version: str
    cuda_version: tuple[int, int] | None = None


class EngineView(Record, frozen=True, kw_only=True):
    """`EngineView` of the API."""

    name: str = ""
    version: str = ""
    runtime: str = ""
    cdi_ceiling: str = ""
    cgroup_version: int | None = None
    notes: tuple[str, ...] = ()
    problem: str | None = None
    hint: str | None = None


class EntryView(Record, frozen=True, kw_only=True):
    """`EntryView` of the API."""

    stage: str
    """Empty for a step of no known stage."""
    layer: str
    title: str
    record: str
    """Whether the layer recorded its step."""
    step: StepView | None
    offset_s: float | None
    """After the first step; negative for what the node did before it."""
    count: int
    """How often it was recorded in a row."""


class EventList(Record, frozen=True, kw_only=True):
    """`EventList` of the API."""

    items: tuple[EventView, ...]
    next: str = ""
    """`after` of the next page; empty: there is none."""


class EventView(Record, frozen=True, kw_only=True):
    """`EventView` of the API."""

    at: str | None
    object: str
    """Kind/name in lower case, `pod/train-x7k2p`."""
    namespace: str
    type: str
    """Normal or Warning."""
    reason: str
    message: str
    source: str
    count: int


class Explanation(Record, frozen=True, kw_only=True):
    """`Explanation` of the API."""

    name: str
    state: str
    summary: str
    """One line for a person."""
    reason: str
    facts: Mapping[str, Any]
    """What the deciding layer read, such as nodes and whys."""
    at: str | None
    """Time of the deciding step."""
    diagnosis: str = ""
    """Why it waits, judged now from the nodes and pods; empty where it does not wait."""
    waiting: Waiting | None = None
    """The same in numbers; null: it does not wait."""
    priority: int = 0
    """Higher goes first in the queue."""
    priority_class: str = ""
    """Name of that priority; empty: it has none."""
    time_limit_s: int | None = None
    """Stopped so long after its start; null: never."""
    resize: str = ""
    """What of a change of its CPU and memory is not carried out, and why; empty: nothing."""
    started_at: str | None = None
    isolation: str = "none"
    """None, gvisor or vm; of another RuntimeClass its name."""
    phases: tuple[PhaseView, ...] = ()
    """In order."""
    start: tuple[StartPhaseView, ...] = ()
    """Phases of its first start."""
    cost: CostView | None = None
    """Null: no possession of GPUs is written down here."""
    gpu_leases: tuple[ProofView, ...] = ()
    """Its GPUs, and what they were verified by."""
    idle: IdleView | None = None
    """Its GPUs are idle; null: they are not."""
    claims: tuple[ClaimView, ...] = ()
    """Its claims, and how far their devices are prepared."""


class GPU(Record, frozen=True, kw_only=True):
    """`GPU` of the API."""

    uuid: str
    vendor: str = ""
    index: int
    minor: int
    pci_bus_id: str
    name: str
    memory_bytes: int
    serial: str | None = None
    compute_capability: tuple[int, int] | None = None
    brand: str | None = None
    numa_node: int | None = None
    pcie_root: str = ""
    addressing_mode: str | None = None
    nics: tuple[str, ...] = ()
    kernel_driver: str = ""
    mig_enabled: bool = False
    mig_capable: bool = False
    mig_devices: tuple[MIGDevice, ...] = ()
    device_nodes: tuple[str, ...] = ()
    nvswitch_links: int = 0
    clique: str = ""
    compute_mode: str | None = None
    pci_class: int | None = None
    is_virtual: bool | None = None
    host_driver: HostDriver | None = None
    licences: tuple[Licence, ...] | None = None
    vgpu_types: tuple[tuple[int, str], ...] = ()
    health: GPUHealth | None = None


class GPUHealth(Record, frozen=True, kw_only=True):
    """`GPUHealth` of the API."""

    temperature_c: int | None = None
    limit_c: int | None = None
    power_mw: int | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: int | None = None
    utilization_percent: int | None = None
    memory_used_bytes: int | None = None


class GPULine(Record, frozen=True, kw_only=True):
    """`GPULine` of the API."""

    gpu: str
    loads: tuple[float | None, ...]
    """Mean of each minute, the oldest first; null: not known."""


class GPUListing(Record, frozen=True, kw_only=True):
    """`GPUListing` of the API."""

    gpus: tuple[GPUView, ...]
    unreadable: tuple[UnreadableGPU, ...]
    drivers: tuple[Driver, ...]
    is_simulated: bool
    vgpus: tuple[VGPUView, ...] = ()
    """Of one machine; a cluster publishes none."""
    lenders: tuple[VGPULenderView, ...] = ()
    """Of one machine."""
    passthrough: tuple[PassthroughView, ...] = ()
    """GPUs bound to VFIO, of one machine."""


class GPUMetricsList(Record, frozen=True, kw_only=True):
    """`GPUMetricsList` of the API."""

    items: tuple[GPULine, ...]
    periods: tuple[UsePeriod, ...] = ()
    """Of all GPUs; empty for who has a part of the machine."""


class GPUView(Record, frozen=True, kw_only=True):
    """`GPUView` of the API."""

    gpu: GPU
    node: str
    holders: tuple[Holder, ...]
    health: str = ""
    """Healthy, Unhealthy, Lost or Unknown; empty: not judged yet."""
    reason: str = ""
    """Why it is not healthy, a stable token, XID79."""
    message: str = ""
    """Why it is not healthy, for a person."""
    since: str | None = None
    """Since when it is so; null: not known."""
    resource: str = ""
    """Extended resource of it or of its replicas."""
    sharing: str = ""
    """By which means replicas share it; empty: it is not shared."""
    replicas: int = 0
    """How many are offered; 0: it is not shared."""
    lease: str = ""
    """State in the node's ledger, Free, Held, …; empty: no ledger."""
    neighbours: tuple[NeighbourView, ...] = ()
    """Programs that Fairlead did not start, of one machine."""


class HistoryView(Record, frozen=True, kw_only=True):
    """`HistoryView` of the API."""

    days: float
    """How long; 0: not at all."""
    rows: int = 0
    size_bytes: int = 0
    most_bytes: int = 0
    since: str | None = None
    """Of the oldest; null: nothing is kept yet."""
    prometheus: str = ""
    """Which Prometheus is asked; empty: none."""
    problem: str = ""
    """Why nothing was kept at the last sample; empty: it was."""
    set_aside: str = ""
    """Where a damaged file was put; empty: there was none."""


class Holder(Record, frozen=True, kw_only=True):
    """`Holder` of the API."""

    device: str
    """Id of the device; on a cluster a replica or a MIG device, else the GPU."""
    namespace: str
    container: str
    resource: str = ""
    """Extended resource by which it has the device."""
    part: str = ""
    """Which container of a group; empty where it is not known."""
    since: str | None = None
    """Since when its container has started; null where that is not known."""
    claim: str = ""
    """ResourceClaim by which it has the device; empty: none."""
    enforced_by: str = ""
    """What holds its programs to their share of the device; empty: not shared."""


class HostDriver(Record, frozen=True, kw_only=True):
    """`HostDriver` of the API."""

    version: str
    branch: str


class IdleView(Record, frozen=True, kw_only=True):
    """`IdleView` of the API."""

    since: str
    action: str
    """Warn, stop or requeue; unknown: nothing, for lack of figures."""
    acts_at: str | None
    """When it is ended at the earliest; null: it is not."""
    message: str


class ImageList(Record, frozen=True, kw_only=True):
    """`ImageList` of the API."""

    items: tuple[ImageView, ...]
    next: str = ""
    """`after` of the next page; empty: there is none."""


class ImageView(Record, frozen=True, kw_only=True):
    """`ImageView` of the API."""

    id: str
    names: tuple[str, ...]
    size_bytes: int
    created_at: str | None
    """Null on a cluster, which does not say."""
    nodes: tuple[str, ...] = ()
    """Which nodes have it; empty on one machine: the machine itself."""


class Licence(Record, frozen=True, kw_only=True):
    """`Licence` of the API."""

    product: str
    is_licensed: bool
    expires: str = ""


class MIGDevice(Record, frozen=True, kw_only=True):
    """`MIGDevice` of the API."""

    uuid: str
    index: int
    profile: str
    gpu_instance: int
    compute_instance: int
    placement_start: int | None
    placement_size: int | None
    memory_bytes: int
    engines: MIGEngines | None = None


class MIGEngines(Record, frozen=True, kw_only=True):
    """`MIGEngines` of the API."""

    multiprocessors: int = 0
    instance_slices: int = 0
    slices: int = 0
    copy: int = 0
    decoder: int = 0
    encoder: int = 0
    jpeg: int = 0
    ofa: int = 0


class MemberView(Record, frozen=True, kw_only=True):
    """`MemberView` of the API."""

    account: str
    tenancy: str
    uid: str
    """Of the tenancy: a later one of its name is another."""
    role: str


class MetricsView(Record, frozen=True, kw_only=True):
    """`MetricsView` of the API."""

    of: str
    """Name of the container, or UUID of the GPU or MIG device."""
    namespace: str = ""
    """Of the container; empty: it is a GPU."""
    since: str
    """Begin of the first step."""
    until: str
    """End of the last step."""
    step_s: int
    times: tuple[int, ...]
    """Begin of each step, Unix seconds."""
    series: tuple[SeriesView, ...]
    source: str = "machine"
    """Machine: this service's own samples; prometheus."""
    notes: tuple[str, ...] = ()
    """What is missing, and why."""


class MountView(Record, frozen=True, kw_only=True):
    """`MountView` of the API."""

    path: str
    volume: str
    """Named volume; of another kind, its name in the container's group."""
    read_only: bool = False


class NeighbourView(Record, frozen=True, kw_only=True):
    """`NeighbourView` of the API."""

    use: str
    """What it does: compute, open, graphics, monitor, service (the driver's), unread."""
    keeps: bool = False
    """The GPU is given to nobody while it is there."""
    id: str = ""
    """Names this process, and none that gets its pid; empty: hidden."""
    pid: int | None = None
    """On the host; null: hidden."""
    name: str = ""
    """As the program calls itself."""
    user: str = ""
    """Its account, or `uid 1000`."""
    unit: str = ""
    """Its systemd unit."""
    container: str = ""
    """Another engine's, `docker container trainer`."""
    memory_bytes: int | None = None
    """Of the GPU's memory; null: not known."""
    since: str | None = None
    """When it was started; null: not known."""
    doubt: str = ""
    """What of it cannot be read; empty: nothing."""


class NetworkView(Record, frozen=True, kw_only=True):
    """`NetworkView` of the API."""

    name: str
    """Of the engine's network; empty: there is none."""
    interface: str
    """Bridge on the host."""
    subnets: tuple[str, ...]
    """One of IPv4, one of IPv6 where the host has it."""
    gateways: tuple[str, ...]
    """The host's address in each, where names are asked."""


class NewWebhook(Record, frozen=True, kw_only=True):
    """`NewWebhook` of the API."""

    secret: str
    webhook: WebhookView


class NodeList(Record, frozen=True, kw_only=True):
    """`NodeList` of the API."""

    items: tuple[NodeView, ...]
    next: str = ""
    """`after` of the next page; empty: there is none."""


class NodeView(Record, frozen=True, kw_only=True):
    """`NodeView` of the API."""

    name: str
    state: str
    """Ready, notready or unknown."""
    reason: str
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    used: Mapping[str, str]
    """Requests of the pods bound to it."""
    taints: tuple[str, ...]
    kernel: str
    engine: str


class PassthroughView(Record, frozen=True, kw_only=True):
    """`PassthroughView` of the API."""

    key: str
    """Who it is, by serial number or place: no UUID of a driver."""
    node: str
    address: str
    """PCI address now."""
    vendor: str
    """Nvidia, amd or intel."""
    model: str = ""
    """Its name in the list of PCI ids; empty: not in it."""
    module: int | None = None
    """Place on the baseboard; null: none, or not known."""
    group: str = ""
    """Number of its IOMMU group."""
    driver: str = ""
    """Vfio-pci, or a variant of it."""
    numa_node: int | None = None
    """One with processors; null: none is named."""
    nodes: tuple[str, ...] = ()
    """Device nodes that a machine needs."""
    message: str = ""
    """What keeps it from being used; empty: nothing."""
    device: str = ""
    """Its name among claims' devices; empty: it has none."""
    holders: tuple[Holder, ...] = ()
    """Who has it, by a slot or by a claim."""
    lease: str = ""
    """State in the node's ledger; empty: there is none."""


class ProcessTable(Record, frozen=True, kw_only=True):
    """`ProcessTable` of the API."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class QuotaList(Record, frozen=True, kw_only=True):
    """`QuotaList` of the API."""

    items: tuple[QuotaView, ...]
    next: str = ""
    """`after` of the next page; empty: there is none."""


class QuotaView(Record, frozen=True, kw_only=True):
    """`QuotaView` of the API."""

    name: str
    namespace: str
    hard: Mapping[str, str]
    used: Mapping[str, str]
    scopes: tuple[str, ...] = ()
    """Which containers it counts, as a ResourceQuota says; empty: all."""


class RequestedDevices(Record, frozen=True, kw_only=True):
    """`RequestedDevices` of the API."""

    name: str
    device_class: str
    """Of the devices; of alternatives: the first one's."""
    count: int
    """0: all that there are."""
    selectors: tuple[str, ...]
    """CEL expressions that each device must meet."""


class ReservationList(Record, frozen=True, kw_only=True):
    """`ReservationList` of the API."""

    items: tuple[ReservationView, ...]
    taken: tuple[TakenView, ...] = ()
    """By others, the first thousand times."""
    capacity: int = 0
    """GPUs that can be reserved."""
    next: str = ""
    """`after` of the next page; empty: there is none."""


class ReservationView(Record, frozen=True, kw_only=True):
    """`ReservationView` of the API."""

    name: str
    namespace: str
    gpus: int
    state: str
    """Active, upcoming, released (nobody used this window) or over."""
    start: str
    """Of the window that is open, or next; empty: it is over."""
    end: str
    first: str
    """First begin, on the clock of its zone."""
    zone: str
    duration_seconds: int
    repeat: str
    until: str
    gpu_hours: float
    """In windows that are not over."""
    windows: tuple[WindowView, ...]
    """The next ten."""
    released: tuple[str, ...]
    """Begins of windows that were given back unused."""


class SecretList(Record, frozen=True, kw_only=True):
    """`SecretList` of the API."""

    items: tuple[SecretView, ...]
    next: str = ""
    """`after` of the next page; empty: there is none."""


class SecretView(Record, frozen=True, kw_only=True):
    """`SecretView` of the API."""

    name: str
    namespace: str
    digests: Mapping[str, str]
    """Of each value, by key; of use only to see that one has changed."""
    sizes: Mapping[str, int]
    """Bytes of each value, by key; empty: not known."""
    used_by: tuple[str, ...]
    """Containers that name it, ended ones too."""
    created_at: str | None
    updated_at: str | None


class Self(Record, frozen=True, kw_only=True):
    """`Self` of the API."""

    account: str
    """Empty: root, by the unix socket."""
    is_administrator: bool
    key: str
    scopes: tuple[str, ...]
    memberships: tuple[MemberView, ...]


class SeriesView(Record, frozen=True, kw_only=True):
    """`SeriesView` of the API."""

    metric: str
    """Of a container: cpu, memory, received, sent, read, written; of a GPU: load, memory, power, temperature,
    clock, held."""
    unit: str
    """%, bytes, bytes/s, W, C or MHz; 100 % of cpu is one CPU."""
    title: str
    """For a person: GPU load."""
    device: str = ""
    """UUID of the GPU or MIG device; empty: the container's own."""
    index: int | None = None
    """Of the GPU on its node; null: not known."""
    is_shared: bool = False
    """Others held the GPU meanwhile: the figures include theirs."""
    means: tuple[float | None, ...]
    """Mean of each step; null: not known."""
    peaks: tuple[float | None, ...]
    """Largest value of each step; null: not known."""


class StartPartView(Record, frozen=True, kw_only=True):
    """`StartPartView` of the API."""

    name: str
    """Of a virtual machine: engine, QEMU, firmware, kernel and init, driver; pod, pull, container."""
    started_at: str
    duration_s: float


class StartPhaseView(Record, frozen=True, kw_only=True):
    """`StartPhaseView` of the API."""

    name: str
    """Admission, slot, activation, pull, sandbox or first output."""
    started_at: str
    duration_s: float
    parts: tuple[StartPartView, ...] = ()
    """What the phase is made of, where more is known: a machine's boot, a pull."""


class Status(Record, frozen=True, kw_only=True):
    """`Status` of the API."""

    is_simulated: bool
    gpus: Mapping[str, int]
    """Number found and unreadable; on a cluster by health as well."""
    problems: tuple[str, ...]
    """What is missing and how to mend it."""
    engine: EngineView | None = None
    """Null on a cluster."""
    cluster: ClusterView | None = None
    """Null on one machine."""
    version: str
    node: str
    """The machine's own; empty on a cluster."""
    started_at: str
    """When the service started."""
    socket: str
    address: str = ""
    """Of the API on TLS; empty: it is off."""
    fingerprint: str = ""
    """Of its public key, as curl's --pinnedpubkey takes it; empty: it is off."""
    state_folder: str
    cdi_folder: str
    scheduler: str
    resource: str
    profile: str
    """Profile of simulated silicon; empty on real hardware."""
    nodes: tuple[NodeView, ...]
    history: HistoryView | None = None
    """How figures over time are kept; null: they are not."""
    containers: Mapping[str, int]
    """Number of containers by state."""


class StepView(Record, frozen=True, kw_only=True):
    """`StepView` of the API."""

    layer: str
    reason: str
    """Stable token, DevicesAllocated."""
    message: str
    at: str
    """When it ended."""
    duration_s: float | None
    facts: Mapping[str, Any]
    """What was read or decided."""
    is_warning: bool
    teller: str
    """Component that wrote the event; empty: recorded by Fairlead."""


class TakenView(Record, frozen=True, kw_only=True):
    """`TakenView` of the API."""

    start: str
    end: str
    gpus: int


class TenancyList(Record, frozen=True, kw_only=True):
    """`TenancyList` of the API."""

    items: tuple[TenancyView, ...]
    next: str = ""
    """`after` of the next page; empty: there is none."""


class TenancyView(Record, frozen=True, kw_only=True):
    """`TenancyView` of the API."""

    name: str
    uid: str
    phase: str
    """Pending, Ready, Suspended or Terminating."""
    problem: str
    """What keeps it from its next phase; empty: nothing."""
    namespace: str
    """Of its containers, volumes and quota."""
    display_name: str
    quota: Mapping[str, str]
    mode: str
    internet: str
    dns: bool
    publish: bool
    egress: tuple[str, ...]
    images: tuple[str, ...]
    host_users: bool
    isolation: str
    """Of each of its containers; empty: each chooses."""
    nfs: str
    """Export that its volumes are on; empty: on disk."""
    registries: tuple[str, ...]
    """Registries that it has credentials for."""
    suspended: bool
    network: NetworkView
    conditions: tuple[ConditionView, ...]
    used: Mapping[str, str]
    """Of its quota."""
    containers: int
    """Number of containers that have not ended."""
    created_at: str | None


class TraceView(Record, frozen=True, kw_only=True):
    """`TraceView` of the API."""

    entries: tuple[EntryView, ...]
    started_at: str | None
    """When the first step was taken."""
    is_final: bool
    """It has ended: nothing more is to come."""


class UnreadableGPU(Record, frozen=True, kw_only=True):
    """`UnreadableGPU` of the API."""

    index: int
    pci_bus_id: str | None
    uuid: str | None
    reason: str
    message: str


class UsageReport(Record, frozen=True, kw_only=True):
    """`UsageReport` of the API."""

    since: str
    """Begin of the period."""
    until: str
    """End of the period, exclusive."""
    currency: str
    items: tuple[UsageRow, ...]
    """The largest first."""
    total: UsageRow
    unattributed_seconds: float
    """Held by no known container; not charged."""
    notes: tuple[str, ...]
    """What could not be counted as it stands."""


class UsageRow(Record, frozen=True, kw_only=True):
    """`UsageRow` of the API."""

    group: Mapping[str, str]
    """Value of each key of `group_by`; empty: not known."""
    gpu_seconds: float
    """A GPU shared by several counts in parts."""
    cost: str
    """Decimal, in the report's currency."""
    unpriced_seconds: float
    """Part of gpu_seconds on GPUs without a price."""


class UsageView(Record, frozen=True, kw_only=True):
    """`UsageView` of the API."""

    name: str
    namespace: str
    container: str
    at: str
    """Time of the reading."""
    cpu_ns: int | None
    """Nanoseconds of all CPUs since the start."""
    memory_bytes: int | None
    """Without the page cache that goes first."""
    memory_limit_bytes: int | None
    processes: int | None
    received_bytes: int | None
    sent_bytes: int | None
    devices: Mapping[str, tuple[str, ...]]
    """Ids granted to the group, by resource."""
    is_pods: bool = False
    """CPU, memory and processes are the whole group's, which runs in one sandbox of gVisor."""


class UsePeriod(Record, frozen=True, kw_only=True):
    """`UsePeriod` of the API."""

    name: str
    """Today or week: since midnight UTC, the last seven days."""
    since: str
    held_percent: float | None
    """Share of the GPUs' time in which they were held."""
    used_percent: float | None
    """Mean load of the GPUs that say it, whether they were held or not."""


class VGPULenderView(Record, frozen=True, kw_only=True):
    """`VGPULenderView` of the API."""

    address: str
    """Its PCI address."""
    functions: int | None
    """SR-IOV virtual functions; null: it has no SR-IOV."""
    most_functions: int | None
    creatable: tuple[str, ...]
    """Types that can still be created."""


class VGPUView(Record, frozen=True, kw_only=True):
    """`VGPUView` of the API."""

    id: str
    """UUID of a mediated device, or PCI address of a virtual function."""
    node: str
    parent: str
    """PCI address of its GPU."""
    type: str
    """Its type, NVIDIA L40S-12Q; empty: not known."""
    resource: str = ""
    """Extended resource of its type; empty: it is not offered."""
    health: str = ""
    """Healthy or Unhealthy; empty: it is not offered."""
    reason: str = ""
    """Why it is not healthy, a stable token."""
    message: str = ""
    """What keeps it from being used, for a person."""
    holders: tuple[Holder, ...] = ()


class VariableView(Record, frozen=True, kw_only=True):
    """`VariableView` of the API."""

    name: str
    value: str | None = None
    """Null: it is not shown."""
    source: str = ""
    """`secret NAME`, `config map NAME`, `field PATH`, `looks like a secret`; empty: it is shown."""


class VolumeList(Record, frozen=True, kw_only=True):
    """`VolumeList` of the API."""

    items: tuple[VolumeView, ...]
    next: str = ""
    """`after` of the next page; empty: there is none."""


class VolumeView(Record, frozen=True, kw_only=True):
    """`VolumeView` of the API."""

    name: str
    namespace: str
    state: str
    """Ready, pending (a cluster has not made it yet) or removing."""
    used_by: tuple[str, ...]
    """Containers that mount it, ended ones too."""
    path: str
    """Folder of this machine, for its administrators; empty on a cluster."""
    size: str
    """Capacity on a cluster; empty on one machine: the disk is the limit."""
    storage_class: str
    labels: Mapping[str, str]
    created_at: str | None


class WebhookList(Record, frozen=True, kw_only=True):
    """`WebhookList` of the API."""

    items: tuple[WebhookView, ...]
    next: str = ""
    """`after` of the next page; empty: there is none."""


class WebhookView(Record, frozen=True, kw_only=True):
    """`WebhookView` of the API."""

    id: str
    tenancy: str
    """Whose events; empty: everything on the machine."""
    url: str
    """Address; of a chat's and of a query only the part without secrets."""
    events: tuple[str, ...]
    """Kinds of events; empty: all."""
    account: str
    """Who made it; empty: root."""
    created_at: str
    pending: int
    """Events that are still to be delivered."""
    format: str = "fairlead"
    """Fairlead, slack, matrix or email."""
    person: str = ""
    """Account whose own notice it is; empty: nobody's."""
    reach: str = ""
    """What that person is told of: own, tenancy or machine."""
    is_confirmed: bool = True
    """False: the code sent to the address is awaited."""


class WindowView(Record, frozen=True, kw_only=True):
    """`WindowView` of the API."""

    start: str
    end: str
