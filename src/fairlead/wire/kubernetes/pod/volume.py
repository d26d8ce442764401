"""Declares the volumes whose files are values: Secrets, ConfigMaps, fields of the pod, and several of them in one.

Source: k8s.io/api/core/v1 types.go.
"""

from __future__ import annotations

import msgspec

from fairlead.wire.kubernetes.meta import Wire
from fairlead.wire.kubernetes.pod.source import FieldSelector, KeyToPath, ResourceFieldSelector


class SecretVolume(Wire, frozen=True):
    """A Secret of the pod's namespace, a file for each key."""

    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    """Empty: every key, under its own name."""
    default_mode: int | None = None
    """Permission bits; None: 0644 on a cluster, as `plan.pod.values.secret.File` says on one machine."""
    optional: bool = False
    """Whether the container starts without it."""


class ConfigMapVolume(Wire, frozen=True):
    """A ConfigMap of the pod's namespace, a file for each key."""

    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    """Empty: every key, under its own name."""
    default_mode: int | None = None
    """Permission bits; None: 0644."""
    optional: bool = False
    """Whether the container starts without it."""


class DownwardAPIFile(Wire, frozen=True):
    """One fact of the pod as a file."""

    path: str = ""
    """Relative to the volume."""
    field_ref: FieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    mode: int | None = None
    """Permission bits; None: the volume's."""


class DownwardAPIVolume(Wire, frozen=True):
    """Facts of the pod, a file for each."""

    items: tuple[DownwardAPIFile, ...] = ()
    default_mode: int | None = None
    """Permission bits; None: 0644."""


class SourceProjection(Wire, frozen=True):
    """A Secret or ConfigMap within a projected volume."""

    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    """Empty: every key, under its own name."""
    optional: bool = False
    """Whether the container starts without it."""


class DownwardAPIProjection(Wire, frozen=True):
    """Facts of the pod within a projected volume."""

    items: tuple[DownwardAPIFile, ...] = ()


class VolumeProjection(Wire, frozen=True):
    """One source of a projected volume."""

    secret: SourceProjection | None = None
    config_map: SourceProjection | None = None
    downward_api: DownwardAPIProjection | None = msgspec.field(default=None, name="downwardAPI")


class ProjectedVolume(Wire, frozen=True):
    """Several sources in one folder."""

    sources: tuple[VolumeProjection, ...] = ()
    default_mode: int | None = None
    """Permission bits; None: 0644."""
