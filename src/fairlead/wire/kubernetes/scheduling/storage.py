"""Declares persistent volumes and storage classes: what says on which nodes a volume is, or may be made.

Source: k8s.io/api/core/v1 and storage/v1 types.go; kubernetes pkg/controller/volume/persistentvolume/util.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from fairlead.wire.kubernetes.core import NodeSelector, ObjectReference
from fairlead.wire.kubernetes.meta import ObjectMeta, Wire

BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
"""Annotation of a claim whose binding is whole."""
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
"""Annotation of a claim: the node near which its volume is to be made."""
BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
"""Annotation of a volume that was given to a claim by a component, and is free again when that claim goes."""
FIRST_CONSUMER: Final = "WaitForFirstConsumer"
NO_PROVISIONER: Final = frozenset({"", "kubernetes.io/no-provisioner"})


class VolumeNodeAffinity(Wire, frozen=True):
    """Nodes that reach a volume."""

    required: NodeSelector | None = None


class CSIVolume(Wire, frozen=True):
    """The driver that attaches a volume, and its name for it."""

    driver: str = ""
    volume_handle: str = ""


class NFSVolume(Wire, frozen=True):
    """What an NFS server exports."""

    server: str = ""
    path: str = ""


class VolumeSpec(Wire, frozen=True):
    """What decides who may have a volume, and how it is mounted."""

    capacity: Mapping[str, str | int | float] = {}
    access_modes: tuple[str, ...] = ()
    storage_class_name: str = ""
    volume_mode: str = "Filesystem"
    claim_ref: ObjectReference | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIVolume | None = None
    nfs: NFSVolume | None = None
    mount_options: tuple[str, ...] = ()
    persistent_volume_reclaim_policy: str = ""
    """`Retain`: files stay when the claim goes."""


class VolumeStatus(Wire, frozen=True):
    """Whether a claim has it."""

    phase: str = ""
    """`Pending`, `Available`, `Bound`, `Released` or `Failed`."""


class PersistentVolume(Wire, frozen=True):
    """A volume of the cluster."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "PersistentVolume"
    PLURAL: ClassVar[str] = "persistentvolumes"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: VolumeSpec = VolumeSpec()
    status: VolumeStatus = VolumeStatus()


class TopologyLabels(Wire, frozen=True):
    """One label that a node must have."""

    key: str
    values: tuple[str, ...] = ()


class TopologyTerm(Wire, frozen=True):
    """Labels that a node must have all of."""

    match_label_expressions: tuple[TopologyLabels, ...] = ()


class StorageClass(Wire, frozen=True):
    """How volumes of one kind are made, and when."""

    API_VERSION: ClassVar[str] = "storage.k8s.io/v1"
    KIND: ClassVar[str] = "StorageClass"
    PLURAL: ClassVar[str] = "storageclasses"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[TopologyTerm, ...] = ()


class DriverLimit(Wire, frozen=True):
    """How many volumes of a driver a node can attach."""

    count: int | None = None


class NodeDriver(Wire, frozen=True):
    """A driver on a node."""

    name: str = ""
    allocatable: DriverLimit | None = None


class CSINodeSpec(Wire, frozen=True):
    """The drivers of a node."""

    drivers: tuple[NodeDriver, ...] | None = None
    """None: it has none, which kubelets write as null."""


class CSINode(Wire, frozen=True):
    """What a node's drivers of volumes say of it; it has the node's name."""

    API_VERSION: ClassVar[str] = "storage.k8s.io/v1"
    KIND: ClassVar[str] = "CSINode"
    PLURAL: ClassVar[str] = "csinodes"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: CSINodeSpec = CSINodeSpec()
