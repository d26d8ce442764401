"""Declares the kinds that select pods by labels, of which nothing but the selector is read.

Source: k8s.io/api/core/v1 types.go, Service, ReplicationController; apps/v1 types.go, ReplicaSet, StatefulSet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from fairlead.wire.kubernetes.meta import LabelSelector, ObjectMeta, Wire


class LabelsSpec(Wire, frozen=True):
    """Pods with all of these labels; None: no pods."""

    selector: Mapping[str, str] | None = None


class SelectorSpec(Wire, frozen=True):
    """Pods that a label selector selects."""

    selector: LabelSelector = LabelSelector()


class Service(Wire, frozen=True):
    """Pods that answer at one address."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "Service"
    PLURAL: ClassVar[str] = "services"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: LabelsSpec = LabelsSpec()


class ReplicationController(Wire, frozen=True):
    """Replicas of a pod, as Kubernetes first had them."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "ReplicationController"
    PLURAL: ClassVar[str] = "replicationcontrollers"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: LabelsSpec = LabelsSpec()


class ReplicaSet(Wire, frozen=True):
    """Replicas of a pod."""

    API_VERSION: ClassVar[str] = "apps/v1"
    KIND: ClassVar[str] = "ReplicaSet"
    PLURAL: ClassVar[str] = "replicasets"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: SelectorSpec = SelectorSpec()


class StatefulSet(Wire, frozen=True):
    """Replicas of a pod, each with a name of its own."""

    API_VERSION: ClassVar[str] = "apps/v1"
    KIND: ClassVar[str] = "StatefulSet"
    PLURAL: ClassVar[str] = "statefulsets"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: SelectorSpec = SelectorSpec()


KINDS: Final = (Service, ReplicationController, ReplicaSet, StatefulSet)
