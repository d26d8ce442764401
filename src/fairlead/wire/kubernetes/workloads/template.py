"""Declares the template that workloads make pods of.

Source: k8s.io/api/core/v1 types.go, PodTemplateSpec.
"""

from __future__ import annotations

from fairlead.wire.kubernetes.core import PodSpec
from fairlead.wire.kubernetes.meta import ObjectMeta, Wire


class PodTemplateSpec(Wire, frozen=True):
    """A pod that is to be made as often as it is needed."""

    metadata: ObjectMeta = ObjectMeta()
    """Labels and annotations of the pods."""
    spec: PodSpec = PodSpec()
