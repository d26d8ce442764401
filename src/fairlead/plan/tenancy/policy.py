"""Renders a tenancy's isolation on a cluster: NetworkPolicies, and Cilium's two kinds where they are served. Pure.

Three objects in each namespace, all of them about every pod there. `tenancy-closed` denies both directions and allows
nothing, so that the namespace stays closed while another one is missing. `tenancy` allows what the spec says. The
CiliumNetworkPolicy `tenancy` says the same in Cilium's words. Policies of Kubernetes can only allow, so a policy that
another client adds opens the namespace; Cilium's can deny, and a clusterwide one denies other tenancies, the nodes, the
API server and metadata services whatever else allows them.

A rule of addresses leaves out what is not the Internet and what is the cluster's own, because most implementations
match pods by their addresses too. Namespaces are selected by labels that the controller alone writes, never pods by
labels that a tenant may set.
Source: networking.k8s.io/v1 NetworkPolicySpec; Cilium "Deny Policies", "Namespace-based labels" (a selector with a
label of namespaces is not narrowed to the policy's own namespace).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.plan.tenancy import baseline, firewall
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import meta, networking

CLOSED: Final = "tenancy-closed"
OPEN: Final = "tenancy"
NAMES: Final = frozenset({CLOSED, OPEN})
"""The policies of a tenancy's namespace; one of any other name is not ours."""
GATEWAY: Final = "fairlead.dev/gateway"
"""Label of namespaces whose pods lead requests from outside to published ports."""
DNS_NAMESPACE: Final = {"kubernetes.io/metadata.name": "kube-system"}
DNS_PODS: Final = {"k8s-app": "kube-dns"}
DNS_PORT: Final = 53
CILIUM_LABELS: Final = "k8s:io.cilium.k8s.namespace.labels."
"""Begins the keys by which Cilium selects pods after their namespace's labels."""
CILIUM_NAMESPACE: Final = "k8s:io.kubernetes.pod.namespace"
ENTITIES: Final = ("host", "remote-node", "kube-apiserver")
METADATA: Final = ("169.254.0.0/16", "fd00:ec2::254/128", "fe80::/10")
"""Where clouds answer machines with their credentials."""
_EVERYWHERE: Final = {4: "0.0.0.0/0", 6: "::/0"}
_UNWRITABLE: Final = frozenset({"::ffff:0.0.0.0/96"})
"""IPv4 in IPv6's spelling: an API server reads it as IPv4, and no packet carries it."""

NetworkObject = networking.NetworkPolicy | networking.CiliumNetworkPolicy | networking.CiliumClusterwideNetworkPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What policies must leave out, and which kinds there are."""

    own: tuple[str, ...] = ()
    """Networks of the cluster itself: of its pods, its nodes, its services."""
    cilium: bool = False
    """Cilium's kinds are served."""


def render(item: Tenancy, around: Surroundings) -> tuple[NetworkObject, ...]:
    """Return every policy of a tenancy, in the order in which they are applied: what denies comes first.

    Raises: Invalid (`EgressDenied`): the spec allows a network that is the cluster's own.
    """
    namespace = baseline.namespace_name(item)
    everyone = meta.LabelSelector()
    closed = networking.NetworkPolicySpec(pod_selector=everyone, policy_types=("Ingress", "Egress"))
    opened = networking.NetworkPolicySpec(
        pod_selector=everyone,
        policy_types=("Ingress", "Egress"),
        ingress=_ingress(item, around),
        egress=_egress(item, around),
    )
    plain = tuple(
        networking.NetworkPolicy(metadata=_about(item, name, namespace), spec=spec)
        for name, spec in ((CLOSED, closed), (OPEN, opened))
    )
    if not around.cilium:
        return plain
    clusterwide = networking.CiliumClusterwideNetworkPolicy(metadata=_about(item, namespace), spec=_denied(item))
    own = networking.CiliumNetworkPolicy(metadata=_about(item, OPEN, namespace), spec=_cilium(item, around))
    return (plain[0], clusterwide, plain[1], own)


def _about(item: Tenancy, name: str, namespace: str = "") -> meta.ObjectMeta:
    return meta.ObjectMeta(name=name, namespace=namespace, labels={baseline.UID: item.metadata.uid})


# what the spec allows, as networks


def _is_open(item: Tenancy) -> bool:
    return item.spec.network.mode != kind.NONE


def internet(around: Surroundings) -> tuple[networking.IPBlock, ...]:
    """Return every public address of both families that is not the cluster's own."""
    return tuple(
        networking.IPBlock(
            cidr=everything,
            except_=_merged((*(set(firewall.PRIVATE[family]) - _UNWRITABLE), *firewall.of_family(around.own, family))),
        )
        for family, everything in _EVERYWHERE.items()
    )


def _merged(networks: Iterable[str]) -> tuple[str, ...]:
    """Return the fewest networks that cover the same addresses, in a steady order."""
    found = [ipaddress.ip_network(one) for one in networks]
    ones = [one for one in found if isinstance(one, ipaddress.IPv4Network)]
    sixes = [one for one in found if isinstance(one, ipaddress.IPv6Network)]
    return tuple(str(one) for one in (*ipaddress.collapse_addresses(ones), *ipaddress.collapse_addresses(sixes)))


def allowed(item: Tenancy, around: Surroundings) -> tuple[networking.IPBlock, ...]:
    """Return the networks that the spec names, without what of them is the cluster's own. Raises: Invalid."""
    found = []
    own = [ipaddress.ip_network(one) for one in (*around.own, *METADATA)]
    for text in item.spec.network.egress:
        network = ipaddress.ip_network(text)
        near = [one for one in own if one.version == network.version and one.overlaps(network)]
        if whole := next((one for one in near if one.prefixlen <= network.prefixlen), None):
            message = f'spec.network.egress "{text}" is inside {whole}, a network of the cluster itself'
            hint = "tenancies are apart from the cluster's pods, services and nodes; leave it out"
            raise errors.Invalid(message, reason="EgressDenied", hint=hint)
        found.append(networking.IPBlock(cidr=str(network), except_=_merged(str(one) for one in near)))
    return tuple(found)


# as Kubernetes says it


def _ingress(item: Tenancy, around: Surroundings) -> tuple[networking.NetworkPolicyIngressRule, ...]:
    if not _is_open(item):
        return ()
    near = networking.NetworkPolicyPeer(pod_selector=meta.LabelSelector())
    outside: tuple[networking.NetworkPolicyPeer, ...] = ()
    if item.spec.network.publish:
        gateways = networking.NetworkPolicyPeer(namespace_selector=_gateways(""))
        outside = (gateways, *(networking.NetworkPolicyPeer(ip_block=one) for one in internet(around)))
    return (networking.NetworkPolicyIngressRule(from_=(near, *outside)),)


def _egress(item: Tenancy, around: Surroundings) -> tuple[networking.NetworkPolicyEgressRule, ...]:
    wanted = item.spec.network
    if not _is_open(item):
        return ()
    networks = (*(internet(around) if wanted.internet == kind.ALLOW else ()), *allowed(item, around))
    peers = (
        networking.NetworkPolicyPeer(pod_selector=meta.LabelSelector()),
        *(networking.NetworkPolicyPeer(ip_block=one) for one in networks),
    )
    rules = [networking.NetworkPolicyEgressRule(to=peers)]
    if wanted.dns:
        server = networking.NetworkPolicyPeer(
            namespace_selector=meta.LabelSelector(match_labels=DNS_NAMESPACE),
            pod_selector=meta.LabelSelector(match_labels=DNS_PODS),
        )
        ports = tuple(networking.NetworkPolicyPort(protocol=one, port=DNS_PORT) for one in ("UDP", "TCP"))
        rules.append(networking.NetworkPolicyEgressRule(to=(server,), ports=ports))
    return tuple(rules)


def _gateways(prefix: str) -> meta.LabelSelector:
    """Return the selector of gateways' namespaces: never a tenancy's, whatever it is labelled."""
    return meta.LabelSelector(
        match_expressions=(
            meta.LabelSelectorRequirement(key=prefix + GATEWAY, operator="Exists"),
            meta.LabelSelectorRequirement(key=prefix + baseline.UID, operator="DoesNotExist"),
        )
    )


# as Cilium says it


def _cilium(item: Tenancy, around: Surroundings) -> networking.CiliumRule:
    wanted = item.spec.network
    if not _is_open(item):
        # An empty rule selects nothing and switches the direction to deny.
        return networking.CiliumRule(
            endpoint_selector=meta.LabelSelector(),
            ingress=(networking.CiliumIngressRule(),),
            egress=(networking.CiliumEgressRule(),),
        )
    near = meta.LabelSelector()
    ingress = [networking.CiliumIngressRule(from_endpoints=(near,))]
    if wanted.publish:
        ingress.append(networking.CiliumIngressRule(from_endpoints=(_gateways(CILIUM_LABELS),)))
        ingress.append(networking.CiliumIngressRule(from_cidr_set=internet(around)))
    egress = [networking.CiliumEgressRule(to_endpoints=(near,))]
    if wanted.dns:
        labels = {CILIUM_NAMESPACE: DNS_NAMESPACE["kubernetes.io/metadata.name"]}
        labels |= {f"k8s:{key}": value for key, value in DNS_PODS.items()}
        ports = networking.CiliumPortRule(ports=(networking.CiliumPort(port=str(DNS_PORT), protocol="ANY"),))
        server = meta.LabelSelector(match_labels=labels)
        egress.append(networking.CiliumEgressRule(to_endpoints=(server,), to_ports=(ports,)))
    if networks := (*(internet(around) if wanted.internet == kind.ALLOW else ()), *allowed(item, around)):
        egress.append(networking.CiliumEgressRule(to_cidr_set=networks))
    return networking.CiliumRule(endpoint_selector=near, ingress=tuple(ingress), egress=tuple(egress))


def _denied(item: Tenancy) -> networking.CiliumRule:
    """Return what is denied clusterwide: other tenancies in both directions, nodes, the API server, metadata."""
    key = CILIUM_LABELS + baseline.UID
    uid = item.metadata.uid
    own = meta.LabelSelector(match_labels={key: uid})
    others = meta.LabelSelector(
        match_expressions=(
            meta.LabelSelectorRequirement(key=key, operator="Exists"),
            meta.LabelSelectorRequirement(key=key, operator="NotIn", values=(uid,)),
        )
    )
    metadata = tuple(networking.IPBlock(cidr=one) for one in METADATA)
    return networking.CiliumRule(
        endpoint_selector=own,
        ingress_deny=(networking.CiliumIngressRule(from_endpoints=(others,)),),
        egress_deny=(
            networking.CiliumEgressRule(to_endpoints=(others,)),
            networking.CiliumEgressRule(to_entities=ENTITIES),
            networking.CiliumEgressRule(to_cidr_set=metadata),
        ),
    )
