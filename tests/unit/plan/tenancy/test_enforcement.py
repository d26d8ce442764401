"""Whether a cluster's nodes enforce network policies: what they say, what is not known, what an administrator says."""

from __future__ import annotations

import pytest

from fairlead.plan.tenancy import enforcement
from fairlead.wire.kubernetes import meta
from fairlead.wire.kubernetes.node import nodenetwork
from fairlead.wire.kubernetes.node.nodenetwork import NodeNetwork


def node(name: str, *annotations: str, reason: str = "", status: str = "False", **more: object) -> NodeNetwork:
    up = (meta.Condition(type="NetworkUnavailable", status=status, reason=reason),) if reason else ()
    return NodeNetwork(
        metadata=meta.ObjectMeta(name=name, annotations=dict.fromkeys(annotations, "x")),
        spec=nodenetwork.PodNetworks(pod_cidrs=more.get("pods", ())),  # type: ignore[arg-type]
        status=nodenetwork.NetworkState(
            conditions=up,
            addresses=tuple(
                nodenetwork.NodeAddress(type="InternalIP", address=one)
                for one in more.get("addresses", ())  # type: ignore[attr-defined]
            ),
        ),
    )


@pytest.mark.parametrize(
    ("one", "by"),
    [
        (node("a", reason="CiliumIsUp"), "Cilium"),
        (node("a", "network.cilium.io/ipv4-cilium-host"), "Cilium"),
        (node("a", "projectcalico.org/IPv4Address"), "Calico"),
        (node("a", "node.antrea.io/mac-address"), "Antrea"),
        (node("a", "k8s.ovn.org/node-chassis-id"), "OVN-Kubernetes"),
    ],
)
def test_a_plugin_that_enforces_is_known_by_its_mark(one: NodeNetwork, by: str) -> None:
    assert enforcement.judge([one], "auto", cilium=False) == enforcement.Enforcement(by=by)


@pytest.mark.parametrize(
    "one",
    [
        node("b"),
        node("b", reason="FlannelIsUp"),
        node("b", "flannel.alpha.coreos.com/backend-type"),
        node("b", reason="CalicoIsUp", status="True"),
        node("b", "example.com/projectcalico.org"),
    ],
)
def test_one_node_that_enforces_nothing_is_enough_to_refuse(one: NodeNetwork) -> None:
    found = enforcement.judge([node("a", reason="CalicoIsUp"), one], "auto", cilium=True)
    assert not found.by
    assert found.problem == "the policies are stored, and nothing is known to enforce them on b"
    assert "control.tenancy_enforcer" in found.hint


def test_many_nodes_are_not_all_named_and_none_at_all_is_no_proof() -> None:
    found = enforcement.judge([node(name) for name in "abcde"], "auto", cilium=False)
    assert found.problem.endswith("on a, b, c and 2 nodes more")
    assert enforcement.judge([], "auto", cilium=False).problem


def test_an_administrators_word_counts_but_not_for_kinds_that_are_not_there() -> None:
    assert enforcement.judge([node("a")], "networkpolicy", cilium=False).by == "NetworkPolicy (declared)"
    assert enforcement.judge([node("a")], "cilium", cilium=True).by == "Cilium"
    assert "does not serve" in enforcement.judge([node("a")], "cilium", cilium=False).problem


def test_the_clusters_own_networks_are_its_nodes_its_pods_and_what_is_given() -> None:
    nodes = [
        node("a", pods=("10.88.0.0/24", "fd00:1::/64"), addresses=("192.168.5.1", "2001:db8::5", "a.example")),
        node("b", pods=("10.88.1.0/24",), addresses=("192.168.5.2",)),
    ]
    assert enforcement.networks(nodes, ["10.96.0.0/12"]) == (
        "10.88.0.0/24",
        "10.88.1.0/24",
        "10.96.0.0/12",
        "192.168.5.1/32",
        "192.168.5.2/32",
        "2001:db8::5/128",
        "fd00:1::/64",
    )
