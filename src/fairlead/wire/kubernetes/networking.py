"""Declares network policies: Kubernetes' own, and Cilium's two kinds, in the fields that are written here.

A field that means something by being there and empty (`podSelector: {}` selects every pod) has no default, because
defaults are left out on the wire.
Source: k8s.io/api/networking/v1 types.go; cilium pkg/policy/api (Rule, IngressRule, EgressRule, CIDRRule).
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from fairlead.wire.kubernetes.meta import LabelSelector, ObjectMeta, Wire


class IPBlock(Wire, frozen=True):
    """A network without some parts of it."""

    cidr: str
    except_: tuple[str, ...] = msgspec.field(default=(), name="except")
    """Networks within `cidr`."""


class NetworkPolicyPort(Wire, frozen=True):
    """One port of a protocol."""

    protocol: str = ""
    port: int = 0


class NetworkPolicyPeer(Wire, frozen=True):
    """Who may be at the other end: pods by their labels and their namespaces', or addresses."""

    pod_selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    """None beside a pod selector: the policy's own namespace."""
    ip_block: IPBlock | None = None


class NetworkPolicyIngressRule(Wire, frozen=True):
    """What may come in; without peers from anywhere, without ports to any."""

    from_: tuple[NetworkPolicyPeer, ...] = msgspec.field(default=(), name="from")
    ports: tuple[NetworkPolicyPort, ...] = ()


class NetworkPolicyEgressRule(Wire, frozen=True):
    """What may go out; without peers to anywhere, without ports to any."""

    to: tuple[NetworkPolicyPeer, ...] = ()
    ports: tuple[NetworkPolicyPort, ...] = ()


class NetworkPolicySpec(Wire, frozen=True):
    """Which pods, and all that they may do in the directions that are named."""

    pod_selector: LabelSelector
    policy_types: tuple[str, ...]
    """`Ingress`, `Egress`."""
    ingress: tuple[NetworkPolicyIngressRule, ...] = ()
    egress: tuple[NetworkPolicyEgressRule, ...] = ()


class NetworkPolicy(Wire, frozen=True):
    """What pods of one namespace may reach, and who reaches them."""

    API_VERSION: ClassVar[str] = "networking.k8s.io/v1"
    KIND: ClassVar[str] = "NetworkPolicy"
    PLURAL: ClassVar[str] = "networkpolicies"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta
    spec: NetworkPolicySpec


class CiliumPort(Wire, frozen=True):
    """One port; `ANY` is every protocol."""

    port: str
    protocol: str = ""


class CiliumPortRule(Wire, frozen=True):
    """Ports of which one must be met."""

    ports: tuple[CiliumPort, ...] = ()


class CiliumIngressRule(Wire, frozen=True):
    """What may come in, or (below `ingressDeny`) may not."""

    from_endpoints: tuple[LabelSelector, ...] = ()
    from_cidr_set: tuple[IPBlock, ...] = msgspec.field(default=(), name="fromCIDRSet")


class CiliumEgressRule(Wire, frozen=True):
    """What may go out, or (below `egressDeny`) may not."""

    to_endpoints: tuple[LabelSelector, ...] = ()
    to_cidr_set: tuple[IPBlock, ...] = msgspec.field(default=(), name="toCIDRSet")
    to_entities: tuple[str, ...] = ()
    """`host`, `remote-node`, `kube-apiserver`."""
    to_ports: tuple[CiliumPortRule, ...] = ()


class CiliumRule(Wire, frozen=True):
    """Which endpoints, and what they may do; what is denied is denied whatever allows it."""

    endpoint_selector: LabelSelector
    ingress: tuple[CiliumIngressRule, ...] = ()
    egress: tuple[CiliumEgressRule, ...] = ()
    ingress_deny: tuple[CiliumIngressRule, ...] = ()
    egress_deny: tuple[CiliumEgressRule, ...] = ()


class CiliumNetworkPolicy(Wire, frozen=True):
    """Cilium's policy of one namespace."""

    API_VERSION: ClassVar[str] = "cilium.io/v2"
    KIND: ClassVar[str] = "CiliumNetworkPolicy"
    PLURAL: ClassVar[str] = "ciliumnetworkpolicies"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta
    spec: CiliumRule


class CiliumClusterwideNetworkPolicy(Wire, frozen=True):
    """Cilium's policy of the whole cluster."""

    API_VERSION: ClassVar[str] = "cilium.io/v2"
    KIND: ClassVar[str] = "CiliumClusterwideNetworkPolicy"
    PLURAL: ClassVar[str] = "ciliumclusterwidenetworkpolicies"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta
    spec: CiliumRule
