"""Declares what passes between the agent and its process: what is around it, and what it reports once it is ready."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from fairlead.model.neighbour import Neighbour
from fairlead.node.inventory import latest
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.supply import Supply
from fairlead.store.subresource import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an agent cannot find out by itself."""

    is_kubelet_foreign: bool = False
    """The kubelet records no steps of containers; the agent observes and records them."""
    engine: str = ""
    """Which engine serves the kubelet, `podman://4.3.1`; empty: the settings may say, or it is found out."""
    placement: Placement | None = None
    """Evicts pods that a MIG configuration ends; None: none are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    """What the agent knows, live: every `Latest` goes on changing while the agent runs."""

    node: str
    snapshots: latest.Latest[Snapshot]
    supply: latest.Latest[Supply]
    registered: latest.Latest[frozenset[str]]
    """Resources that a kubelet has taken in since the agent began."""
    cdi_names: frozenset[str]
    """Qualified names in the specs on disk when the agent became ready."""
    leases: Callable[[], Mapping[str, str] | None]
    """Gives the state of each GPU in the node's ledger, by UUID; None: there is no ledger."""
    neighbours: Callable[[], Mapping[str, tuple[Neighbour, ...]]]
    """Gives the programs on each GPU that Fairlead did not start, as they were seen last."""
    find_neighbours: Callable[[], Awaitable[Mapping[str, tuple[Neighbour, ...]]]]
    """Looks for them now."""
    unverified: Callable[[str], tuple[str, ...]]
    """Gives the GPUs that containers of a namespace have or had, and that the ledger is not done with."""
    holders_problem: Callable[[], str]
    """Says why it is not known who holds what, "" where it is; then nothing, or not everything, is offered."""
    expose_gpus: Callable[[], Awaitable[bytes]]
    """Gives the GPUs' metrics under DCGM's names."""
    config_problem: Callable[[], str]
    """Says why the configuration that was asked for is not in force, "" where it is."""
    is_unconfigured: Callable[[], bool]
    """Says whether no configuration is in force at all, so that nothing is offered."""
