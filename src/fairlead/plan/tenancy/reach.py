"""Evaluates network policies: whether one end may open a connection to another. Pure.

Two readings. As Kubernetes describes NetworkPolicy, most implementations match a rule of addresses against pods too,
and traffic between a pod and its own node always passes. Cilium knows pods and nodes by identity, so that a rule of
addresses is about the outside alone; it takes both kinds together, and what is denied is denied whatever allows it.
Source: networking.k8s.io/v1 types.go and "Network Policies" (isolation of pods, own node); Cilium "Policy Enforcement"
(default deny by direction, `--policy-cidr-match-mode` empty) and "Deny Policies".
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from fairlead.plan.tenancy import policy
from fairlead.wire.kubernetes import meta, networking, selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod at one end."""

    namespace: str
    address: str
    node: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node at one end, or the API server's machine."""

    name: str
    address: str
    entity: str = "remote-node"
    """As Cilium calls it where it is not the other end's own node: `remote-node`, `kube-apiserver`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """An address that is neither a pod's nor a node's."""

    address: str


End = Pod | Machine | Outside


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One connection that is tried."""

    source: End
    target: End
    protocol: str = "TCP"
    port: int = 443


def is_allowed(policies: Sequence[policy.NetworkObject], tried: Connection, *, cilium: bool = False) -> bool:
    """Return whether the connection is made: neither end's policies stand against it.

    Args: cilium: as Cilium reads them; otherwise as an implementation of NetworkPolicy alone, for which Cilium's
          kinds do not count.
    """
    if not cilium and _is_own_node(tried):
        return True
    sides = (
        _Side(tried, pod=tried.source, peer=tried.target, is_egress=True),
        _Side(tried, pod=tried.target, peer=tried.source, is_egress=False),
    )
    judge = _cilium_allows if cilium else _allows
    return all(judge(policies, side) for side in sides)


@dataclass(frozen=True, slots=True)
class _Side:
    """One end's view of a connection."""

    tried: Connection
    pod: End
    peer: End
    is_egress: bool


def _is_own_node(tried: Connection) -> bool:
    ends = (tried.source, tried.target)
    pods = [one for one in ends if isinstance(one, Pod)]
    machines = [one for one in ends if isinstance(one, Machine)]
    return bool(pods and machines) and pods[0].node == machines[0].name


# NetworkPolicy


def _allows(policies: Sequence[policy.NetworkObject], side: _Side) -> bool:
    found = list(_plain(policies, side))
    return not found or any(_rules_allow(one.spec, side, by_identity=False) for one in found)


def _plain(policies: Iterable[policy.NetworkObject], side: _Side) -> Iterable[networking.NetworkPolicy]:
    """Yield the NetworkPolicies that isolate this end in this direction."""
    direction = "Egress" if side.is_egress else "Ingress"
    for one in policies:
        if (
            isinstance(one, networking.NetworkPolicy)
            and isinstance(side.pod, Pod)
            and one.metadata.namespace == side.pod.namespace
            and direction in one.spec.policy_types
            and _selects(one.spec.pod_selector, side.pod.labels)
        ):
            yield one


def _rules_allow(spec: networking.NetworkPolicySpec, side: _Side, *, by_identity: bool) -> bool:
    rules = [(one.to, one.ports) for one in spec.egress] if side.is_egress else [
        (one.from_, one.ports) for one in spec.ingress
    ]  # fmt: skip
    own = side.pod.namespace if isinstance(side.pod, Pod) else ""
    return any(
        (not peers or any(_is_peer(one, own, side.peer, by_identity=by_identity) for one in peers))
        and (not ports or any((p.protocol, p.port) == (side.tried.protocol, side.tried.port) for p in ports))
        for peers, ports in rules
    )


def _is_peer(wanted: networking.NetworkPolicyPeer, own: str, peer: End, *, by_identity: bool) -> bool:
    if wanted.ip_block is not None:
        return (not by_identity or isinstance(peer, Outside)) and is_in(wanted.ip_block, peer.address)
    if not isinstance(peer, Pod):
        return False
    if wanted.namespace_selector is None:
        is_there = peer.namespace == own
    else:
        labels = {"kubernetes.io/metadata.name": peer.namespace, **peer.namespace_labels}
        is_there = _selects(wanted.namespace_selector, labels)
    return is_there and (wanted.pod_selector is None or _selects(wanted.pod_selector, peer.labels))


def is_in(block: networking.IPBlock, address: str) -> bool:
    """Return whether a block has an address."""
    found = ipaddress.ip_address(address)
    return found in ipaddress.ip_network(block.cidr) and not any(
        found in ipaddress.ip_network(one) for one in block.except_
    )


def _selects(wanted: meta.LabelSelector, labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in wanted.match_labels.items()) and selector.matches(
        (selector.Requirement(one.key, one.operator, one.values) for one in wanted.match_expressions), labels
    )


# Cilium


def _cilium_allows(policies: Sequence[policy.NetworkObject], side: _Side) -> bool:
    plain = list(_plain(policies, side))
    own = list(_cilium_rules(policies, side))
    if any(_denies(spec, side, namespace) for namespace, spec in own):
        return False
    isolated = bool(plain) or any(_direction(spec, side) for _, spec in own)
    return (
        not isolated
        or any(_rules_allow(one.spec, side, by_identity=True) for one in plain)
        or any(_grants(spec, side, namespace) for namespace, spec in own)
        # A node reaches its own pods: the agent allows localhost, without which no probe of a kubelet is answered.
        or (not side.is_egress and _is_own_node(side.tried))
    )


def _cilium_rules(policies: Iterable[policy.NetworkObject], side: _Side) -> Iterable[tuple[str, networking.CiliumRule]]:
    """Yield the rules of Cilium's kinds that are about this end, each with its policy's namespace."""
    if not isinstance(side.pod, Pod):
        return
    for one in policies:
        if isinstance(one, networking.NetworkPolicy):
            continue
        is_here = one.metadata.namespace in {"", side.pod.namespace}
        if is_here and _selects(one.spec.endpoint_selector, _cilium_labels(side.pod)):
            yield one.metadata.namespace, one.spec


def _cilium_labels(pod: Pod) -> dict[str, str]:
    spaces = {"kubernetes.io/metadata.name": pod.namespace, **pod.namespace_labels}
    return {
        **{f"k8s:{key}": value for key, value in pod.labels.items()},
        policy.CILIUM_NAMESPACE: pod.namespace,
        **{policy.CILIUM_LABELS + key: value for key, value in spaces.items()},
    }


def _direction(spec: networking.CiliumRule, side: _Side) -> bool:
    """Return whether a rule has anything to say in this direction, which isolates the endpoint there."""
    return bool(spec.egress or spec.egress_deny) if side.is_egress else bool(spec.ingress or spec.ingress_deny)


def _denies(spec: networking.CiliumRule, side: _Side, namespace: str) -> bool:
    rules = spec.egress_deny if side.is_egress else spec.ingress_deny
    return any(_meets(one, side, namespace) for one in rules)


def _grants(spec: networking.CiliumRule, side: _Side, namespace: str) -> bool:
    rules = spec.egress if side.is_egress else spec.ingress
    return any(_meets(one, side, namespace) for one in rules)


def _meets(rule: networking.CiliumEgressRule | networking.CiliumIngressRule, side: _Side, namespace: str) -> bool:
    if isinstance(rule, networking.CiliumEgressRule):
        endpoints, networks, entities = rule.to_endpoints, rule.to_cidr_set, rule.to_entities
        ports = [port for one in rule.to_ports for port in one.ports]
    else:
        endpoints, networks, entities, ports = rule.from_endpoints, rule.from_cidr_set, (), []
    if ports and not any(_is_port(one, side.tried) for one in ports):
        return False
    match side.peer:
        case Pod():
            return any(_selects(_narrowed(one, namespace), _cilium_labels(side.peer)) for one in endpoints)
        case Machine():
            return ("host" if _is_own_node(side.tried) else side.peer.entity) in entities
        case Outside():
            return any(is_in(one, side.peer.address) for one in networks)
        case _:
            assert_never(side.peer)


def _narrowed(wanted: meta.LabelSelector, namespace: str) -> meta.LabelSelector:
    """Return a selector of endpoints as Cilium takes it: of the policy's namespace where it names none."""
    keys = (*wanted.match_labels, *(one.key for one in wanted.match_expressions))
    if not namespace or any(key == policy.CILIUM_NAMESPACE or key.startswith(policy.CILIUM_LABELS) for key in keys):
        return wanted
    return meta.LabelSelector(
        match_labels={**wanted.match_labels, policy.CILIUM_NAMESPACE: namespace},
        match_expressions=wanted.match_expressions,
    )


def _is_port(wanted: networking.CiliumPort, tried: Connection) -> bool:
    return wanted.protocol in {"ANY", tried.protocol} and wanted.port == str(tried.port)
