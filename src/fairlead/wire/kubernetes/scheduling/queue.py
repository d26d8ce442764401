"""Declares `Queue`: what a team of a cluster or of one machine is due, what it may borrow, and where its limit is.

Queues form a tree by `parent`. An administrator writes `spec`; the scheduler writes `status`, and reads only the usage
of it back. The structs are also the source of the CustomResourceDefinition (`tools/generate_crds.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from fairlead.settings.control import POLICIES
from fairlead.settings.idling import ACTIONS
from fairlead.wire.kubernetes.gpudevice import API_VERSION as _GROUP
from fairlead.wire.kubernetes.meta import Condition, ObjectMeta, Wire


class IdleSpec(Wire, frozen=True):
    """What becomes of its containers whose GPUs are idle; carried out on one machine, and on no cluster."""

    action: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["", *ACTIONS]})] = ""
    """off, warn, stop or requeue; empty: its parent's, and of the topmost the setting idle.action."""
    below_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0
    """Load in percent below which a GPU is idle; 0: its parent's."""
    after_seconds: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How long all GPUs of a container are idle before its owner is warned; 0: its parent's."""
    warn_seconds: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How long after the warning it is ended; 0: its parent's."""
    cpu_percent: Annotated[float, msgspec.Meta(ge=0)] = 0
    """A container that uses so much of a CPU is not idle; 0: its parent's."""
    io_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """One that reads, writes, sends and receives so many bytes a second is not idle; 0: its parent's."""
    exempt: tuple[str, ...] = ()
    """Namespaces, tenancies, accounts of the machine, or NAMESPACE/CONTAINER, beside those of its parent."""


class QueueSpec(Wire, frozen=True):
    """What the queue's pods may have together: quantities by resource, `nvidia.com/gpu: "8"`."""

    parent: str = ""
    """Name of the queue whose share this one has a part of; empty: of the whole cluster."""
    guarantee: Mapping[str, str] = {}
    """Kept for the queue also while it does not use it: never lent."""
    deserved: Mapping[str, str] = {}
    """The queue's own share: lent while it is idle, and taken back from borrowers when it is asked for."""
    limit: Mapping[str, str] = {}
    """The most it may have, borrowed or not; a resource that is not named has no limit, 0 is none at all."""
    weight: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Its part of what no queue deserves; 0: only what is idle, until others ask for it."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose pods are in it; a pod that names a queue by label must be of one of them, if there are any."""
    min_runtime_seconds: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Its pods are not ended for others before they ran for so long."""
    policy: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["", *POLICIES]})] = ""
    """By which policy its pods are placed; empty: its parent's, and of the topmost control.policy."""
    idle: IdleSpec | None = None
    """What becomes of its containers whose GPUs are idle; None: what its parent says."""


class QueueStatus(Wire, frozen=True):
    """How the queue stands, as of the scheduler's last report."""

    allocated: Mapping[str, str] = {}
    """What its pods have that run or are about to."""
    pending: Mapping[str, str] = {}
    """What its pods wait for."""
    share: Mapping[str, str] = {}
    """What it is due now, of what is asked for in all: deserved, and its part of the rest."""
    running_pods: int = 0
    """Pods with a node."""
    pending_pods: int = 0
    """Pods that wait."""
    usage: Mapping[str, float] = {}
    """Decayed average of what it had, where `control.usage_half_life_s` is set."""
    usage_at: str = ""
    """When `usage` was true, RFC 3339."""
    conditions: Annotated[
        tuple[Condition, ...],
        msgspec.Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = ()
    """Valid: False where the spec cannot be carried out as written."""


class Queue(Wire, frozen=True):
    """One queue."""

    API_VERSION: ClassVar[str] = _GROUP
    KIND: ClassVar[str] = "Queue"
    PLURAL: ClassVar[str] = "queues"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: QueueSpec = QueueSpec()
    status: QueueStatus = QueueStatus()
