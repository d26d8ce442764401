"""Reads the sub-groups of a PodGroup, and which of them a pod belongs to. Pure.

A sub-group is placed all or not at all, as its group is, and may ask for a place in the network of its own. They make
a tree: KAI names each with its parent; Volcano has one for each task of `minTaskMember`, and with `subGroupPolicy` one
for each set of values of some labels, of the policy's kind, which says how many of them must be there.
Source: KAI-Scheduler pkg/apis/scheduling/v2alpha2 podgroup_types.go, SubGroup; pkg/common/constants, SubGroupLabelKey;
volcano.sh/apis scheduling/v1beta1 types.go, SubGroupPolicySpec; batch/v1alpha1 labels.go, TaskSpecKey.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from fairlead.plan.schedule import peers
from fairlead.wire.kubernetes import core, selector
from fairlead.wire.kubernetes.scheduling import podgroup

KAI_NAME: Final = "kai.scheduler/subgroup-name"
"""Label, or annotation, of a pod."""
VOLCANO_TASK: Final = "volcano.sh/task-spec"
"""Annotation, or label, of a pod."""
ANNOTATIONS: Final = frozenset({KAI_NAME, VOLCANO_TASK})

Place = podgroup.TopologyConstraint | podgroup.NetworkTopology | None
"""Where a sub-group is to be in the network, as its system writes it."""
Least = Mapping[str, int]
"""By kind, how many of the sub-groups just below must be placed at once; of kinds that are not named, all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One sub-group."""

    name: str
    kind: str = ""
    minimum: int = 0
    """Pods that must be placed at once."""
    least: Least = field(default_factory=dict)
    place: Place = None
    """In the network."""


Path = tuple[Part, ...]
"""A sub-group after those that it is in, the widest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The sub-groups of a group."""

    declared: tuple[Path, ...] = ()
    """Those that there are whether they have pods or not."""
    least: Least = field(default_factory=dict)
    """Of those that are in no other."""
    tasks: Mapping[str, Path] | None = None
    """By the name that pods have for it; None: pods name none."""
    policies: tuple[podgroup.SubGroupPolicy, ...] = ()

    @property
    def is_any(self) -> bool:
        """Whether there are any."""
        return self.tasks is not None or bool(self.policies)

    def of(self, pod: core.Pod) -> Path:
        """Return the sub-group of a pod; (): it is of the group alone."""
        if self.tasks is not None:
            told = (pod.metadata.labels, pod.metadata.annotations)
            names = (one[key] for key in (KAI_NAME, VOLCANO_TASK) for one in told if one.get(key))
            return next((self.tasks[name] for name in names if name in self.tasks), ())
        found = (_below(one, pod.metadata.labels) for one in self.policies if _selects(one, pod.metadata.labels))
        return next((path for path in found if path), ())


NONE: Final = Layout()


def layout(group: podgroup.PodGroup) -> Layout:
    """Return the sub-groups that a PodGroup declares."""
    spec = group.spec
    if spec.sub_groups:
        named = {one.name: one for one in spec.sub_groups if one.name}
        paths = {name: tuple(_chain(name, named)) for name in named}
        return Layout(declared=tuple(paths.values()), least=_least(spec.min_sub_group), tasks=paths)
    if spec.sub_group_policy:
        least = {one.name: max(0, one.min_sub_groups or 0) for one in spec.sub_group_policy}
        return Layout(least=least, policies=spec.sub_group_policy)
    if spec.min_task_member:
        tasks = {name: (Part(name=name, minimum=max(0, count)),) for name, count in spec.min_task_member.items()}
        return Layout(declared=tuple(tasks.values()), tasks=tasks)
    return NONE


def _chain(name: str, named: Mapping[str, podgroup.SubGroup]) -> Iterator[Part]:
    """Yield a sub-group after its parents; parents in a circle, which KAI refuses, end where they close."""
    chain = list[podgroup.SubGroup]()
    seen = set[str]()
    while name in named and name not in seen:
        seen.add(name)
        chain.append(named[name])
        name = named[name].parent or ""
    for one in reversed(chain):
        minimum = 0 if one.min_sub_group is not None else max(0, one.min_member or 0)
        yield Part(name=one.name, minimum=minimum, least=_least(one.min_sub_group), place=one.topology_constraint)


def _least(count: int | None) -> Least:
    return {} if count is None else {"": max(0, count)}


def _selects(one: podgroup.SubGroupPolicy, labels: Mapping[str, str]) -> bool:
    rules = peers.label_rules(one.label_selector)
    return rules is None or selector.matches(rules, labels)


def _below(one: podgroup.SubGroupPolicy, labels: Mapping[str, str]) -> Path:
    """Return the sub-group of a policy that a pod is of; (): it lacks a label."""
    values = [labels.get(key, "") for key in one.match_label_keys]
    if not all(values):
        return ()
    name, size = "-".join((one.name, *values)), max(0, one.sub_group_size or 0)
    return (Part(name=name, kind=one.name, minimum=size, place=one.network_topology),)
