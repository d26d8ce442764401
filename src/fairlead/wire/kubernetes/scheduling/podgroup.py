"""Declares PodGroups: how many pods of a group and of its sub-groups must run at once, as five systems write it.

One struct reads them all, since each says the same in a field of its own; a class a dialect names the API group.
Source: k8s.io/api/scheduling/v1alpha2 (1.36) and v1beta1 (1.37) types.go; volcano.sh/apis scheduling/v1beta1 types.go;
kubernetes-sigs/scheduler-plugins apis/scheduling/v1alpha1 types.go; NVIDIA/KAI-Scheduler scheduling/v2alpha2
podgroup_types.go, SubGroup.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from fairlead.wire.kubernetes.meta import LabelSelector, ObjectMeta, Wire


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


class SubGroup(Wire, frozen=True):
    """Pods of a group that are placed all or not at all among themselves too, as KAI writes it."""

    name: str = ""
    min_member: int | None = None
    """Pods of it that must be placed at once."""
    min_sub_group: int | None = None
    """Of the sub-groups whose parent it is, how many must be; None: all."""
    parent: str | None = None
    topology_constraint: TopologyConstraint | None = None


class SubGroupPolicy(Wire, frozen=True):
    """Sub-groups of one kind, as Volcano writes it: pods that have the same values of some labels are one."""

    name: str = ""
    label_selector: LabelSelector | None = None
    """Which pods are of the kind; None: all."""
    match_label_keys: tuple[str, ...] = ()
    """Pods with the same values of these are one sub-group; none: all of them are."""
    sub_group_size: int | None = None
    """Pods of each that must be placed at once."""
    min_sub_groups: int | None = None
    """How many of them must be; None: the size and minimum of the group decide."""
    network_topology: NetworkTopology | None = None
    """Of each."""


class PodGroupSpec(Wire, frozen=True):
    """What is read of a group of any dialect."""

    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    """Of Kubernetes."""
    min_member: int | None = None
    """Of Volcano, coscheduling and KAI."""
    min_sub_group: int | None = None
    """Of KAI: how many of the sub-groups without a parent must be placed at once; None: all."""
    sub_groups: tuple[SubGroup, ...] = ()
    """Of KAI."""
    min_task_member: Mapping[str, int] = {}
    """Of Volcano: by task, how many of its pods must be placed at once."""
    sub_group_policy: tuple[SubGroupPolicy, ...] = ()
    """Of Volcano."""
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
        return max(1, gang.min_count if gang is not None else self.spec.min_member or 0)


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
