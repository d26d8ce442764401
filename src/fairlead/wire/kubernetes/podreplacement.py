"""Declares `PodReplacement`: a pod that is to take the place of another one of its name, written before that one goes.

The API of one machine creates it, carries it out and removes it. It has the pod's name, so a pod has one at a time. It
has no owner, because it must outlive the pod that goes: a service that ends between the removal of the old pod and the
storing of the new one leaves it to the next service. A cluster has no such CustomResourceDefinition.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from fairlead.wire.kubernetes.core import Pod
from fairlead.wire.kubernetes.meta import ObjectMeta, Wire


class PodReplacementSpec(Wire, frozen=True):
    """Which pod goes, and which one comes."""

    pod_uid: str = msgspec.field(name="podUID")
    """Of the pod that goes."""
    pod: Pod
    """As it is submitted."""
    grace_period_seconds: int | None = None
    """Between SIGTERM and SIGKILL; None: the old pod's own."""
    is_tenants: bool = False
    """The new pod is a tenant's, in whatever namespace."""
    most_devices: int = 0
    """Of each resource in the namespace, where no quota there counts it; 0: no limit."""


class PodReplacement(Wire, frozen=True, kw_only=True):
    """One replacement that is under way."""

    API_VERSION: ClassVar[str] = "fairlead.dev/v1alpha1"
    KIND: ClassVar[str] = "PodReplacement"
    PLURAL: ClassVar[str] = "podreplacements"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: PodReplacementSpec
