"""Machines as the API shows them: GPUs and holders, links, engine, status, images, and what is asked of them.

Values only, without the web framework: the command line's client reads them too.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from fairlead.model.gpu import GPU, Driver, Link, UnreadableGPU
from fairlead.serve.v1.view import NodeView


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a device."""

    device: Annotated[str, msgspec.Meta(description="id of the device; on a cluster the GPU it is, or is part of")]
    namespace: str
    container: str
    part: Annotated[str, msgspec.Meta(description="which container of a group; empty where nobody says")] = ""


class GPUView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, how it is, and who holds it or parts of it."""

    gpu: GPU
    node: str
    holders: tuple[Holder, ...]
    health: Annotated[str, msgspec.Meta(description="Healthy, Unhealthy, Lost or Unknown; empty: not judged yet")] = ""
    reason: Annotated[str, msgspec.Meta(description="why it is not healthy, a stable token, XID79")] = ""
    message: Annotated[str, msgspec.Meta(description="why it is not healthy, for a person")] = ""


class GPUListing(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs, node by node, each node's in index order."""

    gpus: tuple[GPUView, ...]
    unreadable: tuple[UnreadableGPU, ...]
    drivers: tuple[Driver, ...]
    is_simulated: bool


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """How the GPUs of one node reach each other."""

    node: str
    gpus: tuple[GPU, ...]
    links: Annotated[
        tuple[Link, ...] | None, msgspec.Meta(description="null: nobody publishes them, as on a cluster so far")
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


class HomeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one home is: a machine has an engine, a cluster an API server."""

    is_simulated: bool
    gpus: Annotated[
        dict[str, int], msgspec.Meta(description="number found and unreadable; on a cluster by health as well")
    ]
    problems: Annotated[tuple[str, ...], msgspec.Meta(description="what is missing and how to mend it")]
    engine: Annotated[EngineView | None, msgspec.Meta(description="null on a cluster")] = None
    cluster: Annotated[ClusterView | None, msgspec.Meta(description="null on one machine")] = None


class Status(HomeStatus, frozen=True, kw_only=True):
    """How the service is."""

    version: str
    node: Annotated[str, msgspec.Meta(description="the machine's own; empty on a cluster")]
    started_at: float
    socket: str
    state_folder: str
    cdi_folder: str
    scheduler: str
    resource: str
    profile: Annotated[str, msgspec.Meta(description="profile of simulated silicon; empty on real hardware")]
    nodes: tuple[NodeView, ...]
    containers: Annotated[dict[str, int], msgspec.Meta(description="number of containers by state")]


class ImageView(msgspec.Struct, frozen=True, kw_only=True):
    """One image on this machine."""

    id: str
    names: tuple[str, ...]
    size_bytes: int
    created_at: float


class ImageList(msgspec.Struct, frozen=True, kw_only=True):
    """Images."""

    items: tuple[ImageView, ...]


class ImportRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A root file system to make an image of."""

    path: Annotated[str, msgspec.Meta(description="folder or tar on the service's machine, absolute")]
    name: str
    command: tuple[str, ...] = ()


class BuildRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder with a Containerfile."""

    context: Annotated[str, msgspec.Meta(description="folder on the service's machine, absolute")]
    name: str
    containerfile: Annotated[str, msgspec.Meta(description="absolute; empty: the one in the folder")] = ""


class FaultRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault for simulated silicon."""

    fault: str
    gpu: Annotated[int | None, msgspec.Meta(description="index; empty: the machine")] = None
    value: str | None = None


class FaultDone(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    message: str
