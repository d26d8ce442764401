"""Declares the messages between kube-scheduler and its extenders, JSON over HTTP.

Only extenders that know the nodes themselves (`nodeCacheCapable`) are spoken of: nodes go by name, victims by uid.
Source: k8s.io/kube-scheduler extender/v1, types.go; its fields have no JSON names, so Go's own stand.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead.wire.kubernetes import core

MOST: int = 10
"""The highest score of a node."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """One message; Go writes null for what is empty."""


class Args(_Message, frozen=True):
    """Request of filter and of prioritize."""

    pod: core.Pod
    node_names: tuple[str, ...] | None = None


class FilterResult(_Message, frozen=True):
    """Nodes that passed the filter, and why the others did not."""

    node_names: tuple[str, ...] = ()
    failed_nodes: Mapping[str, str] = {}
    failed_and_unresolvable_nodes: Mapping[str, str] = {}
    """No eviction would help there."""
    error: str = ""


class HostPriority(_Message, frozen=True):
    """Score of one node."""

    host: str
    score: int


class BindingArgs(_Message, frozen=True):
    """Request to bind a pod to a node."""

    pod_name: str
    pod_namespace: str
    pod_uid: str = msgspec.field(name="PodUID")
    node: str


class BindingResult(_Message, frozen=True):
    """Error of a binding, "" where there is none."""

    error: str = ""


class MetaPod(_Message, frozen=True):
    """A pod by uid."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(_Message, frozen=True):
    """Pods of one node that would be evicted."""

    pods: tuple[MetaPod, ...] | None = None
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(_Message, frozen=True):
    """Request to judge whether evictions would make room."""

    pod: core.Pod
    victims: Mapping[str, MetaVictims] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)


class PreemptionResult(_Message, frozen=True):
    """Nodes where evictions would make room."""

    victims: Mapping[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims", default={})
