"""Declares `GPUDevice`: one physical GPU as an object, so that `kubectl get gpu` shows a cluster's GPUs.

Each part has one writer. The node's agent writes `spec`, but for `spec.quarantine`, which is an administrator's, the
health in `status` (`node.publish.objects`) and the holders (`node.publish.podcondition`); a writer of a part of it
reads the object, changes its own fields and writes it back at the version it read. An object is a projection: no
decision about who may have a GPU is taken from it.

The structs are also the source of the CustomResourceDefinition: `tools/generate_crds.py` makes its schema from the
types here and its descriptions from their docstrings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, ClassVar, Final

import msgspec

from fairlead.wire.kubernetes.meta import Condition, ObjectMeta, Wire

API_VERSION: Final = "fairlead.dev/v1alpha1"
HEALTHY: Final = "Healthy"
"""Value of `status.health`, and type of the condition that says the same."""
UNHEALTHY: Final = "Unhealthy"
LOST: Final = "Lost"
"""The GPU is part of the machine and does not answer."""
UNKNOWN: Final = "Unknown"
"""Nobody can say: its node is not ready or gone, or has no agent. Of `control.node`; the agent overwrites it."""

_LONGEST_NODE: Final = 200
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9.-]+")


class GPULink(Wire, frozen=True):
    """The closest way from a GPU to others of its node."""

    kind: str
    """As nvidia-smi topo names it: NV for NVLinks between the two, NVS through an NVSwitch, XGMI, PSB, PIX, PXB, PHB,
    NODE or SYS."""
    gpus: tuple[str, ...]
    """PCI addresses of the others."""
    lanes: int = 0
    """NVLinks or XGMI links of each pair; 0: there are none."""


class MIGSlice(Wire, frozen=True, kw_only=True):
    """One MIG device and where it stands."""

    uuid: str
    """UUID as the driver prints it."""
    profile: str
    """Profile of its GPU instance, 1g.10gb."""
    start: int
    """First memory slice that it stands on."""
    size: int
    """Memory slices that it stands on."""
    resource: str = ""
    """Extended resource under which it is offered; empty: it is not, or its replicas are."""
    index: int = 0
    """Position below its GPU, the j of the driver's i:j."""
    gpu_instance: int = 0
    """Number of its GPU instance."""
    compute_instance: int = 0
    """Number of its compute instance in the GPU instance."""
    memory: str = ""
    """What it has, a quantity of bytes; empty: the driver does not say."""


class GPUDeviceSpec(Wire, frozen=True):
    """What the GPU is: facts of the hardware and its driver, written by the agent of its node."""

    node_name: str
    """Name of the node that the GPU is in."""
    index: int
    """Position in the driver's enumeration; may change at a reboot."""
    minor: int
    """N of /dev/nvidiaN; for AMD and Intel the minor of the render node."""
    uuid: str
    """UUID as the driver prints it; for AMD and Intel the PCI address."""
    vendor: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["nvidia", "amd", "intel"]})]
    """Who made it."""
    product: str
    """Product name, NVIDIA H100 80GB HBM3."""
    memory: str
    """Memory as a quantity, 81559Mi."""
    simulated: bool
    """True: there is no such hardware, it is simulated."""
    pci_bus_id: str = msgspec.field(default="", name="pciBusID")
    """PCI address, domain:bus:device.function in lower case."""
    numa_node: int | None = None
    """NUMA node; absent where the machine has none or does not report it."""
    nics: tuple[str, ...] = ()
    """RDMA devices on its PCIe switch, mlx5_0."""
    compute_capability: str = ""
    """CUDA compute capability, 9.0."""
    brand: str = ""
    """NVML's brand in the word that NVIDIA_REQUIRE_CUDA uses, nvidia or tesla."""
    driver_version: str = ""
    """Version of the kernel driver."""
    cuda_version: str = ""
    """Newest CUDA that the driver supports, 12.4."""
    mig_mode: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["Enabled", "Disabled", "Unsupported"]})] = ""
    """Whether the GPU can be and is partitioned into MIG devices."""
    clique: str = ""
    """NVLink fabric and clique as CLUSTER-UUID.CLIQUE, whose GPUs reach each other across nodes; empty: in none."""
    pci_class: str = ""
    """PCI class, 0x030200 for a 3D controller, 0x030000 for one with a display."""
    virtual: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["", "true", "false"]})] = ""
    """Whether it is a vGPU of a hypervisor; empty: the node does not know."""
    host_driver_version: str = ""
    """Driver version of the hypervisor, of a vGPU."""
    host_driver_branch: str = ""
    """Driver branch of the hypervisor, of a vGPU, r535_00."""
    serial: str = ""
    """Serial number of the board."""
    resource: str = ""
    """Extended resource under which the whole GPU, or its replicas, are offered; empty: neither is."""
    sharing: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["", "time-slicing", "mps"]})] = ""
    """By which means its replicas share it; empty: it is not shared."""
    replicas: int = 0
    """How many replicas of it are offered; 0: it is not shared."""
    links: tuple[GPULink, ...] = ()
    """The closest ways to the other GPUs of its node."""
    mig_devices: tuple[MIGSlice, ...] = ()
    """MIG devices on it, in order of their places, where the driver reports these."""
    node_index: str = ""
    """Node and index, gpu-1/3: by this alone `kubectl get gpudevices --sort-by .spec.nodeIndex` orders a cluster."""
    quarantine: Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": 256})] = ""
    """Why an administrator wants it out of service: the one field that is theirs, carried out by the agent of the node.
    Emptied, it releases nothing that the node's ledger keeps: `fairlead lease release` on the node does."""


class Holder(Wire, frozen=True):
    """A container that has the GPU, or a part of it, now."""

    namespace: str
    """Namespace of the pod."""
    pod: str
    """Name of the pod."""
    container: str = ""
    """Name of the container in the pod."""
    pod_uid: str = msgspec.field(default="", name="podUID")
    """UID of the pod; empty while it is not known."""
    resource: str = ""
    """Extended resource, or DRA driver, by which it has it: nvidia.com/gpu."""
    devices: tuple[str, ...] = ()
    """Ids of its devices of that resource that are this GPU, or parts of it."""
    mig_devices: tuple[str, ...] = ()
    """UUIDs of the MIG devices on this GPU that it has; none: it has the whole GPU."""


_CONDITIONS = msgspec.Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})


class GPUDeviceStatus(Wire, frozen=True):
    """Health of the GPU, and the containers that hold it."""

    health: Annotated[str, msgspec.Meta(extra_json_schema={"enum": [HEALTHY, UNHEALTHY, LOST, UNKNOWN]})] = ""
    """Healthy: it is offered to pods. Unhealthy: it is not. Lost: it does not even answer.
    Unknown: its node is not ready, or has no agent that could say."""
    reason: str = ""
    """Why it is not healthy, a stable token: XID79, Lost, TemperatureHigh."""
    message: str = ""
    """Why it is not healthy, for a person."""
    conditions: Annotated[tuple[Condition, ...], _CONDITIONS] = ()
    """Healthy, with the time of its last change."""
    holders: tuple[Holder, ...] = ()
    """Containers that have it now, in order of namespace, pod and container."""
    held_by: str = ""
    """The holders' pods as NAMESPACE/POD, joined by commas: what `kubectl get` shows."""


class GPUDevice(Wire, frozen=True, kw_only=True):
    """One physical GPU of one node."""

    API_VERSION: ClassVar[str] = API_VERSION
    KIND: ClassVar[str] = "GPUDevice"
    PLURAL: ClassVar[str] = "gpudevices"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: GPUDeviceSpec
    status: GPUDeviceStatus = GPUDeviceStatus()


def name_pods(holders: Iterable[Holder]) -> str:
    """Return the pods of some holders for `heldBy`, each once."""
    return ",".join(dict.fromkeys(f"{one.namespace}/{one.pod}" for one in holders))


def object_name(uuid: str, node: str, *, simulated: bool) -> str:
    """Return the name of a GPU's object: its UUID, after its node's name where the id is not unique in the world.

    A UUID that NVML prints is; a PCI address is not, nor is the UUID of a simulated GPU, which comes from its profile.
    """
    own = _NOT_IN_NAMES.sub("-", uuid.lower()).strip("-.")
    if uuid.startswith("GPU-") and not simulated:
        return own
    return f"{node[:_LONGEST_NODE].strip('-.')}.{own}"
