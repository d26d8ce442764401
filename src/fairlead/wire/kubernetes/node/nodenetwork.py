"""Declares what nodes say of their network: a subset of Node, so that listing nodes decodes nothing else.

Source: k8s.io/api/core/v1 types.go, NodeSpec.podCIDRs, NodeStatus.addresses.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from fairlead.wire.kubernetes.meta import Condition, ObjectMeta, Wire


class NodeAddress(Wire, frozen=True):
    """One address of a machine."""

    type: str = ""
    """`InternalIP`, `ExternalIP`, or a name's kind."""
    address: str = ""


class PodNetworks(Wire, frozen=True):
    """Networks of a node's pods, where the cluster hands them out by node."""

    pod_cidrs: tuple[str, ...] = msgspec.field(default=(), name="podCIDRs")


class NetworkState(Wire, frozen=True):
    """Addresses and conditions that a node reports."""

    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[Condition, ...] = ()


class NodeNetwork(Wire, frozen=True):
    """One machine; read only."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "Node"
    PLURAL: ClassVar[str] = "nodes"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: PodNetworks = PodNetworks()
    status: NetworkState = NetworkState()
