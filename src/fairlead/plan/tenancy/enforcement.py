"""Decides whether a cluster's nodes enforce network policies, by what they say of themselves. Pure.

An API server stores policies whether or not anything obeys them, and nothing in Kubernetes says which it is. The
network plugins that are known here mark each node that they serve; for any other one an administrator says that it
enforces. What is said is not proved: `fairlead tenancy test` sends packets.
Source: calico node/pkg/lifecycle/startup (CalicoIsUp, projectcalico.org/), cilium pkg/k8s/init (CiliumIsUp,
network.cilium.io/), antrea pkg/agent (node.antrea.io/), ovn-kubernetes pkg/util (k8s.ovn.org/).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.wire.kubernetes.node.nodenetwork import NodeNetwork

AUTO: Final = "auto"
NETWORK_POLICY: Final = "networkpolicy"
CILIUM: Final = "cilium"
CHOICES: Final = (AUTO, NETWORK_POLICY, CILIUM)
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Plugin:
    """A network plugin that enforces policies, and how it marks a node."""

    title: str
    reason: str
    """Of the node's condition NetworkUnavailable, False; empty: it sets none."""
    prefix: str
    """Of annotations."""


PLUGINS: Final = (
    Plugin("Cilium", "CiliumIsUp", "network.cilium.io/"),
    Plugin("Calico", "CalicoIsUp", "projectcalico.org/"),
    Plugin("Antrea", "", "node.antrea.io/"),
    Plugin("OVN-Kubernetes", "", "k8s.ovn.org/"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcement:
    """Who enforces policies."""

    by: str = ""
    """Empty: no plugin that is known."""
    problem: str = ""
    """Why none does; empty: one does."""
    hint: str = ""


def judge(nodes: Sequence[NodeNetwork], declared: str, *, cilium: bool) -> Enforcement:
    """Return who enforces policies on every node.

    Args: declared: one of `CHOICES`, the setting.   cilium: Cilium's kinds are served.
    """
    if declared == CILIUM and not cilium:
        return Enforcement(
            problem="control.tenancy_enforcer says cilium, and the cluster does not serve Cilium's kinds",
            hint="install Cilium, or set it to auto",
        )
    if declared != AUTO:
        return Enforcement(by="Cilium" if declared == CILIUM else "NetworkPolicy (declared)")
    without = [one.metadata.name for one in nodes if not _plugin(one)]
    if without or not nodes:
        return Enforcement(
            problem="the policies are stored, and nothing is known to enforce them on "
            + (_listed(without) if nodes else "any node: there is none"),
            hint="install a network plugin that enforces them (Cilium, Calico), or set control.tenancy_enforcer where "
            "yours does and is not known here",
        )
    return Enforcement(by=", ".join(dict.fromkeys(_plugin(one) for one in nodes)))


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {rest} nodes more" if rest > 0 else shown


def _plugin(node: NodeNetwork) -> str:
    """Return the title of the plugin that a node is marked by; empty: there is none."""
    reasons = {
        one.reason for one in node.status.conditions if one.type == "NetworkUnavailable" and one.status == "False"
    }
    for one in PLUGINS:
        if one.reason in reasons or any(name.startswith(one.prefix) for name in node.metadata.annotations):
            return one.title
    return ""


def networks(nodes: Iterable[NodeNetwork], given: Iterable[str]) -> tuple[str, ...]:
    """Return the cluster's own networks: of its nodes, of their pods, and those that were given. In a steady order."""
    found: dict[str, None] = {}
    for node in nodes:
        for text in (*node.spec.pod_cidrs, *(one.address for one in node.status.addresses)):
            try:
                found[str(ipaddress.ip_network(text, strict=False))] = None
            except ValueError:
                continue  # a host name
    return tuple(sorted({*found, *(str(ipaddress.ip_network(one, strict=False)) for one in given)}))
