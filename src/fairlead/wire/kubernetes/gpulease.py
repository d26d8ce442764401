"""Declares `GPULease`: one possession of one GPU as an object, so that `kubectl get gpuleases` shows who had what.

The agent of the GPU's node writes it from its ledger (`node.publish.leases`), where there is one (`lease.ledger=on`). A
spec never changes. An object is a projection: no decision about who may have a GPU is taken from it, and one that is
deleted takes no GPU from a container. The structs are also the source of the CustomResourceDefinition
(`tools/generate_crds.py`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec

from fairlead.wire.kubernetes.gpudevice import API_VERSION as _GROUP
from fairlead.wire.kubernetes.gpudevice import Holder
from fairlead.wire.kubernetes.meta import ObjectMeta, Wire

HELD: Final = "Held"
RELEASING: Final = "Releasing"
RELEASED: Final = "Released"
VERIFIED: Final = "Verified"
QUARANTINED: Final = "Quarantined"
LOST: Final = "Lost"
STATES: Final = (HELD, RELEASING, RELEASED, VERIFIED, QUARANTINED, LOST)
ENDED: Final = frozenset({RELEASED, VERIFIED, QUARANTINED, LOST})
"""States in which no container has the GPU by this lease."""


class GPULeaseSpec(Wire, frozen=True):
    """Which possession it is; it never changes."""

    node_name: str
    """Name of the node that the GPU is in."""
    gpu: str
    """UUID of the GPU as the driver prints it; for AMD and Intel the PCI address."""
    gpu_device: str
    """Name of the GPUDevice."""
    epoch: int
    """The ledger's epoch of the GPU in which the possession began."""
    held_at: str
    """When it began, RFC 3339."""
    adopted: bool = False
    """True: a container had the GPU before the ledger knew of it; `heldAt` is when it was found."""
    verified_by: str = ""
    """Id of the report by which the GPU was found clean before this possession; quick: its readings alone were good.
    Empty: it was not verified, or nothing says by what."""


class GPULeaseStatus(Wire, frozen=True):
    """How far the possession is, and what came after it."""

    state: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(STATES)})] = ""
    """Held: a container has the GPU. Releasing: its pod is gone, and a process may have the GPU open. Released: none
    has it. Verified: and it was found clean for the next tenant. Quarantined: and it is kept back until then.
    Lost: the node's ledger no longer knows of it."""
    holders: tuple[Holder, ...] = ()
    """Containers that have or had it; empty until the kubelet has named the first."""
    held_by: str = ""
    """The holders' pods as NAMESPACE/POD, joined by commas: what `kubectl get` shows."""
    released_at: str = ""
    """When the last pod was found gone, RFC 3339."""
    ended_at: str = ""
    """When no process had the GPU open any more, RFC 3339: until then it is charged to the holder."""
    verified_at: str = ""
    """When it was found clean after this possession, RFC 3339."""
    report: str = ""
    """Id of the verification report, for `fairlead lease report`; quick: its readings alone were good."""
    reason: str = ""
    """Why the GPU is kept back, a stable token: FirmwareMismatch, DeviceStillOpen."""
    message: str = ""
    """Why the GPU is kept back, for a person."""


class GPULease(Wire, frozen=True, kw_only=True):
    """One possession of one GPU, from its allocation to the verification after it."""

    API_VERSION: ClassVar[str] = _GROUP
    KIND: ClassVar[str] = "GPULease"
    PLURAL: ClassVar[str] = "gpuleases"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: GPULeaseSpec
    status: GPULeaseStatus = GPULeaseStatus()
