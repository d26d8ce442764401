"""The machine as the API shows it: GPUs and holders, links, engine, status, images, and what is asked of them.

Values only, without the web framework: the command line's client reads them too.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from fairlead.model.gpu import GPU, Driver, Link, UnreadableGPU
from fairlead.serve.view import NodeView


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a device."""

    device: str
    namespace: str
    container: str


class GPUView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU and who holds it or parts of it."""

    gpu: GPU
    node: str
    holders: tuple[Holder, ...]


class GPUListing(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs of this machine."""

    gpus: tuple[GPUView, ...]
    unreadable: tuple[UnreadableGPU, ...]
    drivers: tuple[Driver, ...]
    is_simulated: bool


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """How the GPUs of this machine reach each other."""

    gpus: tuple[GPU, ...]
    links: tuple[Link, ...]


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


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How the service is."""

    version: str
    node: str
    started_at: float
    socket: str
    state_folder: str
    cdi_folder: str
    scheduler: str
    resource: str
    profile: Annotated[str, msgspec.Meta(description="profile of simulated silicon; empty on real hardware")]
    is_simulated: bool
    engine: EngineView
    gpus: dict[str, int]
    nodes: tuple[NodeView, ...]
    containers: Annotated[dict[str, int], msgspec.Meta(description="number of containers by state")]
    problems: Annotated[tuple[str, ...], msgspec.Meta(description="what of the driver is missing and how to mend it")]


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
