"""Declares the workloads that run Fairlead on a cluster, and the kinds it relies on there.

Source: k8s.io/api/apps/v1, node/v1 types.go; apiextensions-apiserver pkg/apis/apiextensions/v1 types.go;
k8s.io/api/admissionregistration/v1 types.go.
"""

from __future__ import annotations

from typing import ClassVar

from fairlead.wire.kubernetes.meta import Condition, LabelSelector, ObjectMeta, Wire


class TemplateSpec(Wire, frozen=True):
    """What is read of a pod template."""

    runtime_class_name: str = ""
    service_account_name: str = ""


class Template(Wire, frozen=True):
    """Pods as a workload makes them."""

    spec: TemplateSpec = TemplateSpec()


class WorkloadSpec(Wire, frozen=True):
    """What should run."""

    replicas: int | None = None
    """Of a Deployment; None is 1."""
    selector: LabelSelector = LabelSelector()
    template: Template = Template()


class DaemonSetStatus(Wire, frozen=True):
    """On how many nodes it should run, and does."""

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
    """How many of it there are."""

    replicas: int = 0
    ready_replicas: int = 0


class Deployment(Wire, frozen=True):
    """Replicas."""

    API_VERSION: ClassVar[str] = "apps/v1"
    KIND: ClassVar[str] = "Deployment"
    PLURAL: ClassVar[str] = "deployments"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: DeploymentStatus = DeploymentStatus()


class DefinitionStatus(Wire, frozen=True):
    """Whether the kind is served."""

    conditions: tuple[Condition, ...] = ()


class CustomResourceDefinition(Wire, frozen=True):
    """A kind that the cluster was taught."""

    API_VERSION: ClassVar[str] = "apiextensions.k8s.io/v1"
    KIND: ClassVar[str] = "CustomResourceDefinition"
    PLURAL: ClassVar[str] = "customresourcedefinitions"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
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
    """Which policy, and what follows from it."""

    policy_name: str = ""
    validation_actions: tuple[str, ...] = ()


class ValidatingAdmissionPolicyBinding(Wire, frozen=True):
    """What puts a policy in force."""

    API_VERSION: ClassVar[str] = "admissionregistration.k8s.io/v1"
    KIND: ClassVar[str] = "ValidatingAdmissionPolicyBinding"
    PLURAL: ClassVar[str] = "validatingadmissionpolicybindings"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: PolicyBindingSpec = PolicyBindingSpec()
