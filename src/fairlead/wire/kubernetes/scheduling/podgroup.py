"""Declares PodGroups: how many pods of a group must run at once, as Kubernetes and four schedulers write it.

One struct reads them all, since each says the same in a field of its own; a class a dialect names the API group.
Source: k8s.io/api/scheduling/v1alpha2 (1.36) and v1beta1 (1.37) types.go; volcano.sh/apis scheduling/v1beta1 types.go;
kubernetes-sigs/scheduler-plugins apis/scheduling/v1alpha1 types.go; NVIDIA/KAI-Scheduler scheduling/v2alpha2 podgroup.
"""

from __future__ import annotations

from typing import ClassVar, Final

from fairlead.wire.kubernetes.meta import ObjectMeta, Wire


class GangPolicy(Wire, frozen=True):
    """Policy of a gang: all of its pods are placed, or none."""

    min_count: int = 0
    """Pods that must be placed at once."""


class SchedulingPolicy(Wire, frozen=True):
    """How the group is scheduled; without `gang` each pod goes by itself."""

    gang: GangPolicy | None = None


class TopologyKey(Wire, frozen=True):
    """A level in whose domains a group is placed, by the label of nodes."""

    key: str = ""


class GroupConstraints(Wire, frozen=True):
    """Where a group is placed, as Kubernetes writes it."""

    topology: tuple[TopologyKey, ...] = ()


class TopologyConstraint(Wire, frozen=True):
    """Where a group is placed, as KAI writes it."""

    required_topology_level: str = ""
    preferred_topology_level: str = ""


class NetworkTopology(Wire, frozen=True):
    """Where a group is placed, as Volcano writes it: within a tier, of which 1 is the narrowest."""

    mode: str = "hard"
    highest_tier_allowed: int | None = None


class PodGroupSpec(Wire, frozen=True):
    """What is read of a group of any dialect."""

    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    """Of Kubernetes."""
    min_member: int = 0
    """Of Volcano, coscheduling and KAI."""
    queue: str = ""
    """Of Volcano and KAI."""
    scheduling_constraints: GroupConstraints | None = None
    topology_constraint: TopologyConstraint | None = None
    network_topology: NetworkTopology | None = None


class PodGroup(Wire, frozen=True):
    """Pods that run together, as Kubernetes 1.37 serves it."""

    API_VERSION: ClassVar[str] = "scheduling.k8s.io/v1beta1"
    KIND: ClassVar[str] = "PodGroup"
    PLURAL: ClassVar[str] = "podgroups"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: PodGroupSpec = PodGroupSpec()

    @property
    def minimum(self) -> int:
        """Return how many pods must be placed at once."""
        gang = self.spec.scheduling_policy.gang
        return max(1, gang.min_count if gang is not None else self.spec.min_member)


class AlphaPodGroup(PodGroup, frozen=True):
    """PodGroup as Kubernetes 1.36 serves it behind a feature gate."""

    API_VERSION: ClassVar[str] = "scheduling.k8s.io/v1alpha2"


class VolcanoPodGroup(PodGroup, frozen=True):
    """PodGroup of Volcano."""

    API_VERSION: ClassVar[str] = "scheduling.volcano.sh/v1beta1"


class CoschedulingPodGroup(PodGroup, frozen=True):
    """PodGroup of scheduler-plugins."""

    API_VERSION: ClassVar[str] = "scheduling.x-k8s.io/v1alpha1"


class KAIPodGroup(PodGroup, frozen=True):
    """PodGroup of KAI."""

    API_VERSION: ClassVar[str] = "scheduling.run.ai/v2alpha2"


KINDS: Final[tuple[type[PodGroup], ...]] = (
    PodGroup,
    AlphaPodGroup,
    VolcanoPodGroup,
    CoschedulingPodGroup,
    KAIPodGroup,
)
