"""Declares the workloads whose pods run for ever: Deployments with their ReplicaSets, and StatefulSets.

Source: k8s.io/api/apps/v1 types.go.
"""

from __future__ import annotations

from typing import ClassVar

from fairlead.wire.kubernetes.core import PersistentVolumeClaim
from fairlead.wire.kubernetes.meta import Condition, LabelSelector, ObjectMeta, Wire
from fairlead.wire.kubernetes.workloads.template import PodTemplateSpec


class RollingUpdateDeployment(Wire, frozen=True):
    """How many pods a rolling update may have too many, and too few."""

    max_unavailable: int | str | None = None
    """Number, or percent of the replicas, rounded down; None is 25 %."""
    max_surge: int | str | None = None
    """Number, or percent of the replicas, rounded up; None is 25 %."""


class DeploymentStrategy(Wire, frozen=True):
    """How old pods are replaced by new ones."""

    type: str = ""
    """`RollingUpdate` or `Recreate`; empty is `RollingUpdate`."""
    rolling_update: RollingUpdateDeployment | None = None


class DeploymentSpec(Wire, frozen=True):
    """Desired state of a Deployment."""

    replicas: int | None = None
    """None is 1."""
    selector: LabelSelector = LabelSelector()
    template: PodTemplateSpec = PodTemplateSpec()
    strategy: DeploymentStrategy = DeploymentStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    paused: bool = False
    progress_deadline_seconds: int | None = None
    """None is 600."""


class DeploymentStatus(Wire, frozen=True):
    """Observed state of a Deployment."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class Deployment(Wire, frozen=True):
    """A number of equal pods, replaced a few at a time when their template changes."""

    API_VERSION: ClassVar[str] = "apps/v1"
    KIND: ClassVar[str] = "Deployment"
    PLURAL: ClassVar[str] = "deployments"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class ReplicaSetSpec(Wire, frozen=True):
    """Desired state of a ReplicaSet."""

    replicas: int | None = None
    """None is 1."""
    selector: LabelSelector = LabelSelector()
    template: PodTemplateSpec = PodTemplateSpec()
    min_ready_seconds: int = 0


class ReplicaSetStatus(Wire, frozen=True):
    """Observed state of a ReplicaSet."""

    replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class ReplicaSet(Wire, frozen=True):
    """A number of equal pods of one template."""

    API_VERSION: ClassVar[str] = "apps/v1"
    KIND: ClassVar[str] = "ReplicaSet"
    PLURAL: ClassVar[str] = "replicasets"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class RollingUpdateStatefulSet(Wire, frozen=True):
    """Which pods a rolling update leaves alone."""

    partition: int = 0
    """Pods below this ordinal stay as they are."""


class StatefulSetUpdateStrategy(Wire, frozen=True):
    """How old pods are replaced by new ones."""

    type: str = ""
    """`RollingUpdate` or `OnDelete`; empty is `RollingUpdate`."""
    rolling_update: RollingUpdateStatefulSet | None = None


class StatefulSetOrdinals(Wire, frozen=True):
    """Numbers of the pods."""

    start: int = 0


class StatefulSetSpec(Wire, frozen=True):
    """Desired state of a StatefulSet."""

    replicas: int | None = None
    """None is 1."""
    selector: LabelSelector = LabelSelector()
    template: PodTemplateSpec = PodTemplateSpec()
    volume_claim_templates: tuple[PersistentVolumeClaim, ...] = ()
    """Volumes of each pod, which stay when it goes."""
    service_name: str = ""
    pod_management_policy: str = ""
    """`OrderedReady` or `Parallel`; empty is `OrderedReady`."""
    update_strategy: StatefulSetUpdateStrategy = StatefulSetUpdateStrategy()
    revision_history_limit: int | None = None
    min_ready_seconds: int = 0
    ordinals: StatefulSetOrdinals | None = None


class StatefulSetStatus(Wire, frozen=True):
    """Observed state of a StatefulSet."""

    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    current_replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0
    update_revision: str = ""


class StatefulSet(Wire, frozen=True):
    """Numbered pods, each with volumes of its own."""

    API_VERSION: ClassVar[str] = "apps/v1"
    KIND: ClassVar[str] = "StatefulSet"
    PLURAL: ClassVar[str] = "statefulsets"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()
