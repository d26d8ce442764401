"""Declares `NodeFeature`, by which a program hands node feature discovery the labels of a node.

Source: node-feature-discovery, api/nfd/v1alpha1/types.go (NodeFeature, NodeFeatureObjNodeNameLabel).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from fairlead.wire.kubernetes.meta import ObjectMeta, Wire

NODE_LABEL: Final = "nfd.node.kubernetes.io/node-name"
"""Label of the object: which node it is about."""


class NodeFeatureSpec(Wire, frozen=True):
    """Labels that the node should get."""

    labels: Mapping[str, str] = {}


class NodeFeature(Wire, frozen=True):
    """Labels that one program wants on one node."""

    API_VERSION: ClassVar[str] = "nfd.k8s-sigs.io/v1alpha1"
    KIND: ClassVar[str] = "NodeFeature"
    PLURAL: ClassVar[str] = "nodefeatures"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeFeatureSpec = NodeFeatureSpec()


def object_name(node: str) -> str:
    """Return the name of our object about a node."""
    return f"fairlead-features-for-{node}"
