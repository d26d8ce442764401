"""Describes hardware as backends know it: GPUs and holders, links, the engine or the cluster, images.

Values only, without the web framework: the command line's client reads them too.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from fairlead.model.gpu import GPU, Driver, Link, UnreadableGPU
from fairlead.wire.fairlead import listing
from fairlead.wire.kubernetes import gpudevice, meta

ANOTHER: Final = "another tenancy"
"""How people read a holder that they may not know."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a device."""

    device: Annotated[
        str,
        msgspec.Meta(description="id of the device; on a cluster a replica or a MIG device, else the GPU"),
    ]
    namespace: str
    container: str
    resource: Annotated[str, msgspec.Meta(description="extended resource by which it has the device")] = ""
    part: Annotated[str, msgspec.Meta(description="which container of a group; empty where it is not known")] = ""
    since: Annotated[
        str | None, msgspec.Meta(description="since when its container has started; null where that is not known")
    ] = None
    claim: Annotated[str, msgspec.Meta(description="ResourceClaim by which it has the device; empty: none")] = ""
    enforced_by: Annotated[
        str, msgspec.Meta(description="what holds its programs to their share of the device; empty: not shared")
    ] = ""


class NeighbourView(msgspec.Struct, frozen=True, kw_only=True):
    """One program on a GPU that Fairlead did not start; who it is, only for those who may know."""

    use: Annotated[
        str, msgspec.Meta(description="what it does: compute, open, graphics, monitor, service (the driver's), unread")
    ]
    keeps: Annotated[bool, msgspec.Meta(description="the GPU is given to nobody while it is there")] = False
    id: Annotated[str, msgspec.Meta(description="names this process, and none that gets its pid; empty: hidden")] = ""
    pid: Annotated[int | None, msgspec.Meta(description="on the host; null: hidden")] = None
    name: Annotated[str, msgspec.Meta(description="as the program calls itself")] = ""
    user: Annotated[str, msgspec.Meta(description="its account, or `uid 1000`")] = ""
    unit: Annotated[str, msgspec.Meta(description="its systemd unit")] = ""
    container: Annotated[str, msgspec.Meta(description="another engine's, `docker container trainer`")] = ""
    memory_bytes: Annotated[int | None, msgspec.Meta(description="of the GPU's memory; null: not known")] = None
    since: Annotated[str | None, msgspec.Meta(description="when it was started; null: not known")] = None
    doubt: Annotated[str, msgspec.Meta(description="what of it cannot be read; empty: nothing")] = ""


class EndedNeighbour(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one program."""

    pid: int
    name: str
    user: str
    container: str
    gpus: Annotated[tuple[int, ...], msgspec.Meta(description="indices of the GPUs that it was on")]
    done: Annotated[
        str,
        msgspec.Meta(
            description="ended (by SIGTERM), killed, gone (before), left (still there), refused (`why` says by what)"
        ),
    ]
    why: str = ""


class EndedNeighbours(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    items: tuple[EndedNeighbour, ...]


class GPUView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, how it is, and who holds it or parts of it."""

    gpu: GPU
    node: str
    holders: tuple[Holder, ...]
    health: Annotated[str, msgspec.Meta(description="Healthy, Unhealthy, Lost or Unknown; empty: not judged yet")] = ""
    reason: Annotated[str, msgspec.Meta(description="why it is not healthy, a stable token, XID79")] = ""
    message: Annotated[str, msgspec.Meta(description="why it is not healthy, for a person")] = ""
    since: Annotated[str | None, msgspec.Meta(description="since when it is so; null: not known")] = None
    resource: Annotated[str, msgspec.Meta(description="extended resource of it or of its replicas")] = ""
    sharing: Annotated[str, msgspec.Meta(description="by which means replicas share it; empty: it is not shared")] = ""
    replicas: Annotated[int, msgspec.Meta(description="how many are offered; 0: it is not shared")] = 0
    lease: Annotated[str, msgspec.Meta(description="state in the node's ledger, Free, Held, …; empty: no ledger")] = ""
    neighbours: Annotated[
        tuple[NeighbourView, ...], msgspec.Meta(description="programs that Fairlead did not start, of one machine")
    ] = ()


class VGPUView(msgspec.Struct, frozen=True, kw_only=True):
    """One vGPU that a machine lends to guests, and who holds it."""

    id: Annotated[str, msgspec.Meta(description="UUID of a mediated device, or PCI address of a virtual function")]
    node: str
    parent: Annotated[str, msgspec.Meta(description="PCI address of its GPU")]
    type: Annotated[str, msgspec.Meta(description="its type, NVIDIA L40S-12Q; empty: not known")]
    resource: Annotated[str, msgspec.Meta(description="extended resource of its type; empty: it is not offered")] = ""
    health: Annotated[str, msgspec.Meta(description="Healthy or Unhealthy; empty: it is not offered")] = ""
    reason: Annotated[str, msgspec.Meta(description="why it is not healthy, a stable token")] = ""
    message: Annotated[str, msgspec.Meta(description="what keeps it from being used, for a person")] = ""
    holders: tuple[Holder, ...] = ()


class VGPULenderView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU that can lend vGPUs."""

    address: Annotated[str, msgspec.Meta(description="its PCI address")]
    functions: Annotated[int | None, msgspec.Meta(description="SR-IOV virtual functions; null: it has no SR-IOV")]
    most_functions: int | None
    creatable: Annotated[tuple[str, ...], msgspec.Meta(description="types that can still be created")]


class PassthroughView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU that is bound to VFIO and given to virtual machines whole; containers get none of it."""

    key: Annotated[str, msgspec.Meta(description="who it is, by serial number or place: no UUID of a driver")]
    node: str
    address: Annotated[str, msgspec.Meta(description="PCI address now")]
    vendor: Annotated[str, msgspec.Meta(description="nvidia, amd or intel")]
    model: Annotated[str, msgspec.Meta(description="its name in the list of PCI ids; empty: not in it")] = ""
    module: Annotated[int | None, msgspec.Meta(description="place on the baseboard; null: none, or not known")] = None
    group: Annotated[str, msgspec.Meta(description="number of its IOMMU group")] = ""
    driver: Annotated[str, msgspec.Meta(description="vfio-pci, or a variant of it")] = ""
    numa_node: Annotated[int | None, msgspec.Meta(description="one with processors; null: none is named")] = None
    nodes: Annotated[tuple[str, ...], msgspec.Meta(description="device nodes that a machine needs")] = ()
    message: Annotated[str, msgspec.Meta(description="what keeps it from being used; empty: nothing")] = ""
    device: Annotated[str, msgspec.Meta(description="its name among claims' devices; empty: it has none")] = ""
    holders: Annotated[tuple[Holder, ...], msgspec.Meta(description="who has it, by a slot or by a claim")] = ()
    lease: Annotated[str, msgspec.Meta(description="state in the node's ledger; empty: there is none")] = ""


class GPUListing(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs, node by node, each node's in index order."""

    gpus: tuple[GPUView, ...]
    unreadable: tuple[UnreadableGPU, ...]
    drivers: tuple[Driver, ...]
    is_simulated: bool
    vgpus: Annotated[tuple[VGPUView, ...], msgspec.Meta(description="of one machine; a cluster publishes none")] = ()
    lenders: Annotated[tuple[VGPULenderView, ...], msgspec.Meta(description="of one machine")] = ()
    passthrough: Annotated[
        tuple[PassthroughView, ...], msgspec.Meta(description="GPUs bound to VFIO, of one machine")
    ] = ()


def judged_since(device: gpudevice.GPUDevice) -> str | None:
    """Return since when a GPU is as its object says; None: not recorded."""
    found = meta.find_condition(device.status.conditions, gpudevice.HEALTHY)
    return found.last_transition_time if found else None


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """How the GPUs of one node reach each other."""

    node: str
    gpus: tuple[GPU, ...]
    links: Annotated[
        tuple[Link, ...] | None, msgspec.Meta(description="null: they are not published, as on a cluster so far")
    ]


class TopologyList(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes with GPUs."""

    items: tuple[Topology, ...]


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """The container engine; `problem` says why it cannot be used."""

    name: str = ""
    version: str = ""
    runtime: str = ""
    cdi_ceiling: str = ""
    cgroup_version: int | None = None
    notes: tuple[str, ...] = ()
    problem: str | None = None
    hint: str | None = None


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """The Kubernetes cluster that is looked at."""

    server: Annotated[str, msgspec.Meta(description="address of its API server")]
    version: Annotated[str, msgspec.Meta(description="of Kubernetes, v1.36.2; empty: it did not say")] = ""


class BackendStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one backend is: a machine has an engine, a cluster an API server."""

    is_simulated: bool
    gpus: Annotated[
        dict[str, int], msgspec.Meta(description="number found and unreadable; on a cluster by health as well")
    ]
    problems: Annotated[tuple[str, ...], msgspec.Meta(description="what is missing and how to mend it")]
    engine: Annotated[EngineView | None, msgspec.Meta(description="null on a cluster")] = None
    cluster: Annotated[ClusterView | None, msgspec.Meta(description="null on one machine")] = None


class ImageView(msgspec.Struct, frozen=True, kw_only=True):
    """One image."""

    id: str
    names: tuple[str, ...]
    size_bytes: int
    created_at: Annotated[str | None, msgspec.Meta(description="null on a cluster, which does not say")]
    nodes: Annotated[
        tuple[str, ...], msgspec.Meta(description="which nodes have it; empty on one machine: the machine itself")
    ] = ()


class ImageList(msgspec.Struct, frozen=True, kw_only=True):
    """Images."""

    items: tuple[ImageView, ...]
    next: listing.Next = ""
