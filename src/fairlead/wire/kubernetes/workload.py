"""Declares the workloads that run Fairlead on a cluster, and the kinds it relies on there.

Source: k8s.io/api/apps/v1, node/v1 types.go; apiextensions-apiserver pkg/apis/apiextensions/v1 types.go;
k8s.io/api/admissionregistration/v1 types.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from fairlead.wire.kubernetes.core import EnvVar
from fairlead.wire.kubernetes.meta import Condition, LabelSelector, ObjectMeta, Wire


class TemplateContainer(Wire, frozen=True):
    """A container's environment, as far as it is given in words."""

    name: str = ""
    env: tuple[EnvVar, ...] = ()


class TemplateSpec(Wire, frozen=True):
    """Fields of a pod template that are read here."""

    runtime_class_name: str = ""
    service_account_name: str = ""
    containers: tuple[TemplateContainer, ...] = ()


class Template(Wire, frozen=True):
    """Template of the pods that a workload makes."""

    spec: TemplateSpec = TemplateSpec()


class WorkloadSpec(Wire, frozen=True):
    """Desired state of a workload."""

    replicas: int | None = None
    """Of a Deployment; None is 1."""
    selector: LabelSelector = LabelSelector()
    template: Template = Template()


class DaemonSetStatus(Wire, frozen=True):
    """Number of nodes that should run the pod, and of those that do."""

    desired_number_scheduled: int = 0
    number_ready: int = 0
    number_unavailable: int = 0
    updated_number_scheduled: int = 0


class DaemonSet(Wire, frozen=True):
    """One pod a node."""

    API_VERSION: ClassVar[str] = "apps/v1"
    KIND: ClassVar[str] = "DaemonSet"
    PLURAL: ClassVar[str] = "daemonsets"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class DeploymentStatus(Wire, frozen=True):
    """Number of replicas, and of those that are ready."""

    replicas: int = 0
    ready_replicas: int = 0


class Deployment(Wire, frozen=True):
    """A number of equal pods."""

    API_VERSION: ClassVar[str] = "apps/v1"
    KIND: ClassVar[str] = "Deployment"
    PLURAL: ClassVar[str] = "deployments"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: DeploymentStatus = DeploymentStatus()


class Schema(Wire, frozen=True):
    """Which fields a value has, as OpenAPI v3 describes it."""

    properties: Mapping[str, Schema] = {}
    items: Schema | None = None
    """Of each item of a list."""


class DefinitionSchema(Wire, frozen=True):
    """What an object of the kind looks like."""

    document: Schema | None = msgspec.field(default=None, name="openAPIV3Schema")


class DefinitionVersion(Wire, frozen=True):
    """One version of the kind."""

    name: str = ""
    served: bool = False
    schema: DefinitionSchema = DefinitionSchema()


class DefinitionSpec(Wire, frozen=True):
    """The kind's versions."""

    versions: tuple[DefinitionVersion, ...] = ()


class DefinitionStatus(Wire, frozen=True):
    """Whether the kind is served."""

    conditions: tuple[Condition, ...] = ()


class CustomResourceDefinition(Wire, frozen=True):
    """A kind that was added to the cluster."""

    API_VERSION: ClassVar[str] = "apiextensions.k8s.io/v1"
    KIND: ClassVar[str] = "CustomResourceDefinition"
    PLURAL: ClassVar[str] = "customresourcedefinitions"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: DefinitionSpec = DefinitionSpec()
    status: DefinitionStatus = DefinitionStatus()


class RuntimeClass(Wire, frozen=True):
    """A handler of the nodes' engines, by name."""

    API_VERSION: ClassVar[str] = "node.k8s.io/v1"
    KIND: ClassVar[str] = "RuntimeClass"
    PLURAL: ClassVar[str] = "runtimeclasses"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    handler: str = ""


class ValidatingAdmissionPolicy(Wire, frozen=True):
    """A rule about objects, by name; it does nothing before it is bound."""

    API_VERSION: ClassVar[str] = "admissionregistration.k8s.io/v1"
    KIND: ClassVar[str] = "ValidatingAdmissionPolicy"
    PLURAL: ClassVar[str] = "validatingadmissionpolicies"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()


class PolicyBindingSpec(Wire, frozen=True):
    """Policy to enforce, and the actions on a violation."""

    policy_name: str = ""
    validation_actions: tuple[str, ...] = ()


class ValidatingAdmissionPolicyBinding(Wire, frozen=True):
    """Binding that puts a policy in force."""

    API_VERSION: ClassVar[str] = "admissionregistration.k8s.io/v1"
    KIND: ClassVar[str] = "ValidatingAdmissionPolicyBinding"
    PLURAL: ClassVar[str] = "validatingadmissionpolicybindings"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: PolicyBindingSpec = PolicyBindingSpec()
