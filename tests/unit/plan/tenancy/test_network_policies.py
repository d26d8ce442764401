"""What a tenancy's policies let through, connection by connection, as two kinds of implementations read them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.plan.tenancy import baseline, policy, reach
from fairlead.plan.tenancy.reach import Connection, Machine, Outside, Pod
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy, TenancyNetwork
from fairlead.wire.kubernetes import meta, networking

PODS = ("10.88.0.0/16", "2600:1f00:1::/56")
"""Of the cluster's pods; those of IPv6 are public addresses, as clouds give them."""
NODES = ("192.168.5.1/32", "203.0.114.9/32", "2600:1f00:2::1/128")
AROUND = policy.Surroundings(own=(*PODS, *NODES), cilium=True)
PLAIN = policy.Surroundings(own=(*PODS, *NODES))
DNS = Pod(
    namespace="kube-system",
    address="10.88.0.10",
    node="n2",
    labels={"k8s-app": "kube-dns"},
)
GATEWAY = Pod(namespace="edge", address="10.88.0.20", node="n2", namespace_labels={policy.GATEWAY: ""})
STRANGER = Pod(namespace="default", address="10.88.0.30", node="n2")
PUBLIC = (Outside(address="8.8.8.8"), Outside(address="2606:4700::1111"))
PRIVATE = tuple(
    Outside(address=one)
    for one in ("10.1.2.3", "172.16.0.1", "192.168.7.7", "169.254.169.254", "100.64.0.1", "fd12::1", "64:ff9b::a00:1")
)


def tenancy(name: str = "red", **network: object) -> Tenancy:
    about = meta.ObjectMeta(name=name, uid=f"{name.encode().hex():0>12}-0000-4000-8000-000000000000")
    return Tenancy(metadata=about, spec=kind.TenancySpec(network=TenancyNetwork(**network)))  # type: ignore[arg-type]


def pod(item: Tenancy, address: str = "10.88.1.1", *, node: str = "n1", **labels: str) -> Pod:
    space = baseline.namespace(item).metadata
    return Pod(namespace=space.name, address=address, node=node, labels=labels, namespace_labels=space.labels)


RED, BLUE = tenancy("red"), tenancy("blue")


def policies(*items: Tenancy, around: policy.Surroundings = AROUND) -> tuple[policy.NetworkObject, ...]:
    return tuple(one for item in items for one in policy.render(item, around))


_EGRESS = st.sampled_from(
    ("10.0.0.0/8", "192.168.7.0/24", "10.1.0.0/16", "2600:1f00::/32", "203.0.113.0/24", "fd12::/16", "8.8.8.0/24")
)
_NETWORKS = st.builds(
    TenancyNetwork,
    mode=st.sampled_from((kind.BRIDGE, kind.NONE)),
    internet=st.sampled_from((kind.ALLOW, kind.DENY)),
    dns=st.booleans(),
    publish=st.booleans(),
    egress=st.lists(_EGRESS, max_size=3).map(tuple),
)
_ADDRESSES = st.one_of(
    st.ip_addresses(network=PODS[0]).map(str),
    st.ip_addresses(network=PODS[1]).map(str),
)
_LABELS = st.dictionaries(st.sampled_from(("k8s-app", "app")), st.sampled_from(("kube-dns", "x")), max_size=2)


@given(
    first=_NETWORKS,
    second=_NETWORKS,
    ends=st.tuples(_ADDRESSES, _ADDRESSES),
    labels=_LABELS,
    nodes=st.tuples(st.sampled_from("ab"), st.sampled_from("ab")),
    protocol=st.sampled_from(("TCP", "UDP", "SCTP")),
    port=st.integers(min_value=1, max_value=65535) | st.just(53),
)
def test_no_pod_of_a_tenancy_reaches_another_ones(
    first: TenancyNetwork,
    second: TenancyNetwork,
    ends: tuple[str, str],
    labels: dict[str, str],
    nodes: tuple[str, str],
    protocol: str,
    port: int,
) -> None:
    one = msgspec.structs.replace(RED, spec=kind.TenancySpec(network=first))
    other = msgspec.structs.replace(BLUE, spec=kind.TenancySpec(network=second))
    source = pod(one, ends[0], node=nodes[0], **labels)
    target = pod(other, ends[1], node=nodes[1], **labels)
    tried = Connection(source=source, target=target, protocol=protocol, port=port)
    assert not reach.is_allowed(policies(one, other, around=PLAIN), tried)
    assert not reach.is_allowed(policies(one, other), tried, cilium=True)


def expected(spec: TenancyNetwork, tried: Connection, home: str) -> bool:
    """Say what the spec means, without any policy: which of the connections of `matrix` are made."""
    if spec.mode == kind.NONE:
        return False
    source, target = tried.source, tried.target
    if isinstance(source, Pod) and source.namespace == home:
        is_near = isinstance(target, Pod) and target.namespace == home
        is_public = spec.internet == kind.ALLOW and target in PUBLIC
        is_named = isinstance(target, Outside) and any(
            reach.is_in(networking.IPBlock(cidr=one), target.address) and target.address != "169.254.169.254"
            for one in spec.egress
        )
        return is_near or is_public or is_named or (spec.dns and target == DNS and tried.port == 53)
    return spec.publish and (source == GATEWAY or source in PUBLIC)


def matrix(item: Tenancy) -> Iterator[Connection]:
    """Yield connections of one tenancy with everything that there is around it; none with its pods' own node."""
    mine, beside = pod(item), pod(item, "10.88.2.2", node="n2")
    far = pod(BLUE, "2600:1f00:1::7", node="n2", **{"k8s-app": "kube-dns"})
    # Of a tenancy that somebody labelled a gateway, and whose own policies are not there.
    forged = Pod(
        namespace="t-green",
        address="10.88.9.9",
        node="n2",
        namespace_labels={baseline.UID: "green", policy.GATEWAY: ""},
    )
    nodes = (
        Machine(name="n2", address="192.168.5.1"),
        Machine(name="n2", address="203.0.114.9"),
        Machine(name="api", address="2600:1f00:2::1", entity="kube-apiserver"),
    )
    others: tuple[reach.End, ...] = (beside, far, forged, DNS, GATEWAY, STRANGER, *PUBLIC, *PRIVATE)
    for other, port in itertools.product(others, (53, 443)):
        yield Connection(source=mine, target=other, port=port)
        yield Connection(source=other, target=mine, port=port)
    for node in nodes:
        yield Connection(source=mine, target=node)
    yield Connection(source=mine, target=DNS, protocol="UDP", port=53)


SPECS = tuple(
    TenancyNetwork(mode=mode, internet=internet, dns=dns, publish=publish, egress=egress)
    for mode, internet, dns, publish, egress in itertools.product(
        (kind.BRIDGE, kind.NONE),
        (kind.ALLOW, kind.DENY),
        (True, False),
        (True, False),
        ((), ("10.0.0.0/8", "fd12::/16"), ("0.0.0.0/1",)),
    )
)


def disagreements(
    change: Callable[[policy.NetworkObject], policy.NetworkObject | None], *, cilium: bool
) -> list[tuple[TenancyNetwork, Connection]]:
    """Return where changed policies do not do what the spec says."""
    found = []
    for spec in SPECS:
        item = msgspec.structs.replace(RED, spec=kind.TenancySpec(network=spec))
        rendered = policies(item, BLUE, around=AROUND if cilium else PLAIN)
        changed = [new for one in rendered if (new := change(one)) is not None]
        home = baseline.namespace_name(item)
        found += [
            (spec, tried)
            for tried in matrix(item)
            if reach.is_allowed(changed, tried, cilium=cilium) != expected(spec, tried, home)
        ]
    return found


@pytest.mark.parametrize("cilium", [False, True])
def test_what_the_spec_allows_is_reached_and_nothing_else(cilium: bool) -> None:
    assert disagreements(lambda one: one, cilium=cilium) == []


# Each of these leaves out one rule, or one part of one: the matrix must notice every one of them.


def _of(name: str, change: Callable[..., object], *types: type) -> Callable[[policy.NetworkObject], object]:
    def changed(one: policy.NetworkObject) -> object:
        is_it = isinstance(one, types or networking.NetworkPolicy) and one.metadata.name == name
        return msgspec.structs.replace(one, spec=change(one.spec)) if is_it else one

    return changed


def _without_exceptions(spec: networking.NetworkPolicySpec) -> networking.NetworkPolicySpec:
    def opened(peer: networking.NetworkPolicyPeer) -> networking.NetworkPolicyPeer:
        return peer if peer.ip_block is None else networking.NetworkPolicyPeer(ip_block=_bare(peer.ip_block))

    egress = tuple(msgspec.structs.replace(one, to=tuple(map(opened, one.to))) for one in spec.egress)
    return msgspec.structs.replace(spec, egress=egress)


def _bare(block: networking.IPBlock) -> networking.IPBlock:
    return networking.IPBlock(cidr=block.cidr)


def _any_gateway(spec: networking.NetworkPolicySpec) -> networking.NetworkPolicySpec:
    def opened(peer: networking.NetworkPolicyPeer) -> networking.NetworkPolicyPeer:
        if peer.namespace_selector is None:
            return peer
        kept = peer.namespace_selector.match_expressions[:1]
        return networking.NetworkPolicyPeer(namespace_selector=meta.LabelSelector(match_expressions=kept))

    ingress = tuple(msgspec.structs.replace(one, from_=tuple(map(opened, one.from_))) for one in spec.ingress)
    return msgspec.structs.replace(spec, ingress=ingress)


def _any_port(spec: networking.NetworkPolicySpec) -> networking.NetworkPolicySpec:
    egress = tuple(msgspec.structs.replace(one, ports=()) for one in spec.egress)
    return msgspec.structs.replace(spec, egress=egress)


def _any_namespace(spec: networking.NetworkPolicySpec) -> networking.NetworkPolicySpec:
    def opened(peer: networking.NetworkPolicyPeer) -> networking.NetworkPolicyPeer:
        if peer.pod_selector is None or peer.namespace_selector is not None:
            return peer
        return msgspec.structs.replace(peer, namespace_selector=meta.LabelSelector())

    ingress = tuple(msgspec.structs.replace(one, from_=tuple(map(opened, one.from_))) for one in spec.ingress)
    return msgspec.structs.replace(spec, ingress=ingress)


_PLAIN_MUTANTS = {
    "no policy of egress": _of(policy.OPEN, lambda spec: msgspec.structs.replace(spec, egress=())),
    "no policy of ingress": _of(policy.OPEN, lambda spec: msgspec.structs.replace(spec, ingress=())),
    "no isolation in both": lambda one: None if one.metadata.namespace == baseline.namespace_name(RED) else one,
    "no exceptions": _of(policy.OPEN, _without_exceptions),
    "gateways of tenancies": _of(policy.OPEN, _any_gateway),
    "every port of the name server": _of(policy.OPEN, _any_port),
    "every namespace": _of(policy.OPEN, _any_namespace),
}


@pytest.mark.parametrize("name", _PLAIN_MUTANTS)
def test_a_rule_that_is_missing_is_noticed(name: str) -> None:
    assert disagreements(_PLAIN_MUTANTS[name], cilium=False)  # type: ignore[arg-type]


_CILIUM = (networking.CiliumNetworkPolicy,)
_CLUSTER = (networking.CiliumClusterwideNetworkPolicy,)


def _opened_to_everyone() -> networking.NetworkPolicy:
    """A policy that somebody adds: everything is allowed to everyone."""
    spec = networking.NetworkPolicySpec(
        pod_selector=meta.LabelSelector(),
        policy_types=("Ingress", "Egress"),
        ingress=(networking.NetworkPolicyIngressRule(),),
        egress=(networking.NetworkPolicyEgressRule(),),
    )
    about = meta.ObjectMeta(name="open", namespace=baseline.namespace_name(RED))
    return networking.NetworkPolicy(metadata=about, spec=spec)


def _guarded() -> list[Connection]:
    """Return what is denied clusterwide, whatever a namespace's own policies say."""
    mine, far = pod(RED), pod(BLUE, "10.88.9.9", node="n2")
    return [
        Connection(source=mine, target=far),
        Connection(source=far, target=mine),
        Connection(source=mine, target=Machine(name="n1", address="192.168.5.1")),
        Connection(source=mine, target=Machine(name="n2", address="192.168.5.2")),
        Connection(source=mine, target=Machine(name="api", address="8.8.4.4", entity="kube-apiserver")),
        Connection(source=mine, target=Outside(address="169.254.169.254")),
    ]


def _let_through(found: Sequence[policy.NetworkObject]) -> list[Connection]:
    return [one for one in _guarded() if reach.is_allowed(found, one, cilium=True)]


def test_the_clusterwide_policy_denies_also_where_somebody_opened_the_namespace() -> None:
    far = _opened_to_everyone()
    other = msgspec.structs.replace(
        far, metadata=msgspec.structs.replace(far.metadata, namespace=baseline.namespace_name(BLUE))
    )
    found = (*policies(RED, BLUE), far, other)
    assert _let_through(found) == []
    assert reach.is_allowed(found, Connection(source=pod(RED), target=PUBLIC[0]), cilium=True)


@pytest.mark.parametrize("number", range(4))
def test_each_denial_of_the_clusterwide_policy_is_needed(number: int) -> None:
    opened = _opened_to_everyone()
    other = msgspec.structs.replace(
        opened, metadata=msgspec.structs.replace(opened.metadata, namespace=baseline.namespace_name(BLUE))
    )

    def lacking(spec: networking.CiliumRule) -> networking.CiliumRule:
        if number == 3:
            return msgspec.structs.replace(spec, ingress_deny=())
        left = (*spec.egress_deny[:number], *spec.egress_deny[number + 1 :])
        return msgspec.structs.replace(spec, egress_deny=left)

    changed = [
        msgspec.structs.replace(one, spec=lacking(one.spec))
        if isinstance(one, networking.CiliumClusterwideNetworkPolicy)
        and (one.metadata.name == baseline.namespace_name(RED) or number in {0, 3})
        else one
        for one in policies(RED, BLUE)
    ]
    if number == 0:  # of the two sides that deny another tenancy, the other one is left out as well
        changed = [
            msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, ingress_deny=()))
            if isinstance(one, networking.CiliumClusterwideNetworkPolicy)
            else one
            for one in changed
        ]
    if number == 3:
        changed = [
            msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, egress_deny=one.spec.egress_deny[1:]))
            if isinstance(one, networking.CiliumClusterwideNetworkPolicy)
            else one
            for one in changed
        ]
    assert _let_through([*changed, opened, other])


def test_a_network_policy_cannot_deny_a_pods_own_node_and_cilium_can() -> None:
    tried = Connection(source=pod(RED), target=Machine(name="n1", address="192.168.5.1"), port=10250)
    assert reach.is_allowed(policies(RED, around=PLAIN), tried)
    assert not reach.is_allowed(policies(RED), tried, cilium=True)
    probe = Connection(source=tried.target, target=tried.source, port=80)
    assert reach.is_allowed(policies(RED), probe, cilium=True)  # a kubelet's probe


def test_the_policy_that_denies_is_applied_first() -> None:
    names = [(type(one).__name__, one.metadata.name) for one in policies(RED)]
    assert names[0] == ("NetworkPolicy", policy.CLOSED)
    assert names[1][0] == "CiliumClusterwideNetworkPolicy"
    assert {type(one) for one in policies(RED, around=PLAIN)} == {networking.NetworkPolicy}


@pytest.mark.parametrize("text", ["10.88.0.0/16", "10.88.3.0/24", "192.168.5.1/32", "2600:1f00:1::/64"])
def test_a_network_of_the_cluster_itself_cannot_be_allowed(text: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        policies(tenancy(egress=(text,)))
    assert caught.value.reason == "EgressDenied"
    assert text in caught.value.message


def test_policies_are_written_with_what_means_something_empty() -> None:
    closed, clusterwide, opened, own = (msgspec.json.decode(meta.encode(one)) for one in policies(RED))
    assert closed["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert opened["spec"]["egress"][0]["to"][0] == {"podSelector": {}}
    assert own["spec"]["ingress"][0] == {"fromEndpoints": [{}]}
    assert "0.0.0.0/0" in {one["cidr"] for one in own["spec"]["egress"][-1]["toCIDRSet"]}
    assert clusterwide["spec"]["egressDeny"][1] == {"toEntities": ["host", "remote-node", "kube-apiserver"]}
    shut = msgspec.json.decode(meta.encode(policies(tenancy(mode=kind.NONE))[3]))
    assert shut["spec"] == {"endpointSelector": {}, "ingress": [{}], "egress": [{}]}
