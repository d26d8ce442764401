"""Declares the images that nodes report: a subset of Node, so that listing nodes does not decode them.

Source: k8s.io/api/core/v1 types.go, NodeStatus.images.
"""

from __future__ import annotations

from typing import ClassVar

from fairlead.wire.kubernetes.meta import ObjectMeta, Wire


class ContainerImage(Wire, frozen=True):
    """One image on a node."""

    names: tuple[str, ...] = ()
    """By tag and by digest, `docker.io/library/busybox:1` and `docker.io/library/busybox@sha256:…`."""
    size_bytes: int = 0


class ImageStatus(Wire, frozen=True):
    """Images that a kubelet reports."""

    images: tuple[ContainerImage, ...] = ()


class NodeImages(Wire, frozen=True):
    """One machine; read only."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "Node"
    PLURAL: ClassVar[str] = "nodes"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    status: ImageStatus = ImageStatus()
