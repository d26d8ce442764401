"""Declares where a pod's values come from: keys of Secrets and ConfigMaps, and fields of the pod itself.

Source: k8s.io/api/core/v1 types.go.
"""

from __future__ import annotations

from fairlead.wire.kubernetes.meta import Wire


class KeySelector(Wire, frozen=True):
    """One key of a Secret or ConfigMap of the pod's namespace."""

    name: str = ""
    key: str = ""
    optional: bool = False
    """Whether the container starts without it."""


class KeyToPath(Wire, frozen=True):
    """One key of a Secret or ConfigMap as a file."""

    key: str = ""
    path: str = ""
    """Relative to the volume."""
    mode: int | None = None
    """Permission bits; None: the volume's."""


class FieldSelector(Wire, frozen=True):
    """A field of the pod."""

    field_path: str = ""
    """`metadata.name`, `metadata.labels['app']`, `status.podIP`, …"""
    api_version: str = ""
    """Only `v1`; empty is `v1`."""


class ResourceFieldSelector(Wire, frozen=True):
    """A container's limit or request."""

    resource: str = ""
    """`limits.cpu`, `requests.memory`, …"""
    container_name: str = ""
    """Needed in volumes; empty: the container that has the variable."""
    divisor: str | int | float = ""
    """Quantity that the amount is counted in, rounded up; empty: 1."""
