"""Knows which pods belong together and which queue they are of, and says who must wait for what. Pure.

This is the one thing that a scheduler's loop asks beside nodes: it puts in every pod that it sees, and asks before it
judges nodes (`refusal`), whose turn it is (`choose`), and which pods go together (`gang`). Without groups and queues
every answer is "go on", at the cost of a look into an empty table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fairlead import errors
from fairlead.plan.schedule import reference
from fairlead.plan.schedule.fairshare import tree
from fairlead.plan.schedule.fairshare.ledger import Ledger
from fairlead.plan.schedule.group.gang import Gang, Gangs
from fairlead.plan.schedule.policy import podclass
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.scheduling import podgroup, queue

GROUP_INCOMPLETE: Final = "GroupIncomplete"
QUEUE_HOLDS: Final = "QueueHolds"
TENANCY_NOT_READY: Final = "TenancyNotReady"
"""Reasons of the condition PodScheduled beside Unschedulable: more nodes would not help."""


def is_leaving(pod: core.Pod) -> bool:
    """Return whether a pod is being ended."""
    return pod.metadata.deletion_timestamp is not None or pod.status.stop_request is not None


class Workloads:
    """Groups and queues over the pods that there are."""

    def __init__(self, *, half_life_s: float = 0.0, pod_policies: str = "") -> None:
        """Begin without any.

        Args:   half_life_s: as in `Ledger`.   pod_policies: as the setting `control.pod_policies`.
        Raises: Invalid: these cannot be carried out.
        """
        self._classes = podclass.classes_of(pod_policies)
        self.more: Callable[[core.Pod], Mapping[str, int]] = lambda _pod: {}
        """Returns what a pod has beside its requests; the scheduler's cache says."""
        self.gangs = Gangs()
        self.ledger = Ledger(half_life_s=half_life_s)
        self._pods: dict[str, core.Pod] = {}
        self._priorities = Counter[int]()
        """Of pods that have a node."""
        self._limits = 0
        """How many of those have a time limit."""
        self._queues: dict[str, queue.Queue] = {}
        self._ending: set[str] = set()
        """Uids of pods that are about to be ended for others."""
        self.invalid: dict[str, str] = {}
        """By queue: why its spec is not carried out."""

    # what there is

    def put(self, pod: core.Pod, *, is_assumed: bool = False) -> None:
        """Take in a pod that waits for this scheduler, or any that has a node, assumed or bound, and has not ended."""
        self.drop(pod.metadata.uid)
        self._pods[pod.metadata.uid] = pod
        self.gangs.put(pod, is_assumed=is_assumed)
        if pod.spec.node_name:
            self._priorities[pod.spec.priority or 0] += 1
            self._limits += pod.spec.active_deadline_seconds is not None
        self._count(pod)

    def put_elsewhere(self, pod: core.Pod) -> None:
        """Take in a pod that waits for another scheduler: its queue asks for it, and it is of no group here."""
        self.drop(pod.metadata.uid)
        self._pods[pod.metadata.uid] = pod
        self._count(pod)

    def drop(self, uid: str) -> None:
        """Forget a pod."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            if pod.spec.node_name:
                self._priorities[pod.spec.priority or 0] -= 1
                self._limits -= pod.spec.active_deadline_seconds is not None
            self.gangs.drop(uid)
            self.ledger.drop(uid)

    def clear(self) -> None:
        """Forget all pods."""
        self._pods.clear()
        self._priorities.clear()
        self._limits = 0
        self.gangs.clear()
        self.ledger.clear()

    def _count(self, pod: core.Pod) -> None:
        if not self.has_queues or (pod.spec.scheduling_gates and not pod.spec.node_name):
            return
        try:
            requests = reference.pod_info(pod).requests
        except errors.Invalid:
            return  # said where it is judged
        uid = pod.metadata.uid
        more = self.more(pod)
        requests = (
            {name: requests.get(name, 0) + more.get(name, 0) for name in {**requests, **more}} if more else requests
        )
        self.ledger.put(pod, requests, named=self.gangs.queue_of(uid))
        if uid in self._ending or is_leaving(pod):
            self.ledger.leave(uid)

    def recount(self, uid: str) -> None:
        """Count a pod again: what it has beside its requests is known now."""
        if (pod := self._pods.get(uid)) is not None:
            self._count(pod)

    def reserve(self, uid: str, *, is_held: bool) -> None:
        """Count room that is held for a pod that waits as its queue's, or not any more."""
        self.ledger.place(uid, is_placed=is_held)

    def end(self, uid: str) -> None:
        """Note that a pod is about to be ended for others: it is not chosen again."""
        self._ending.add(uid)
        self.ledger.leave(uid)

    def spare(self, uid: str) -> None:
        """Note that it could not be ended."""
        self._ending.discard(uid)
        if uid in self._pods:
            self._count(self._pods[uid])

    def is_ending(self, pod: core.Pod) -> bool:
        """Return whether a pod is being ended, or is about to be."""
        return pod.metadata.uid in self._ending or is_leaving(pod)

    @property
    def has_queues(self) -> bool:
        """Whether there are queues."""
        return len(self.ledger.tree) > 0

    def note_group(self, group: podgroup.PodGroup, *, is_gone: bool = False) -> tuple[core.Pod, ...]:
        """Take in a PodGroup; returns the waiting pods that it is about."""
        gang = self.gangs.note(group, is_gone=is_gone)
        if gang is None:
            return ()
        for pod in (*gang.waiting.values(), *gang.placed.values()):
            self._count(pod)
        return tuple(gang.waiting.values())

    def note_queue(self, item: queue.Queue, *, is_gone: bool = False) -> bool:
        """Take in a Queue; returns whether anything but its status changed."""
        name = item.metadata.name
        known = self._queues.pop(name, None)
        if not is_gone:
            self._queues[name] = item
        if known is not None and not is_gone and known.spec == item.spec:
            return False
        self._rebuild()
        return True

    def queues(self) -> Mapping[str, queue.Queue]:
        """Return the queues by name, as their objects are."""
        return self._queues

    def _rebuild(self) -> None:
        specs, self.invalid = [], {}
        for name, item in self._queues.items():
            try:
                specs.append(tree.spec_of(item))
            except errors.Invalid as error:
                self.invalid[name] = error.message
        made = tree.Tree(specs)
        self.invalid |= made.problems
        self.ledger.reset(made)
        for pod in self._pods.values():
            self._count(pod)

    def set_nodes(self, nodes: Iterable[reference.NodeInfo]) -> None:
        """Take what the cluster has: what its ready nodes offer."""
        if self.has_queues:
            total: dict[str, int] = {}
            for node in nodes:
                if node.is_ready:
                    for name, value in node.allocatable.items():
                        total[name] = total.get(name, 0) + value
            self.ledger.set_total(total)

    # decisions

    def gang(self, uid: str) -> Gang | None:
        """Return the gang, or the sub-group of one, that a pod is placed with; None: it goes by itself."""
        found = self.gangs.of(uid)
        if found is None:
            return None
        return next((one for one in found.chain(uid) if one.lacking or one.refusal()), None)

    def together(self, uid: str) -> tuple[str, ...]:
        """Return the uids of the pods that are placed at once with a pod, itself among them."""
        gang = self.gang(uid)
        if gang is None or gang.refusal():
            return (uid,)
        chosen = tuple(pod.metadata.uid for pod in gang.chosen())
        return chosen if uid in chosen else (*chosen[:-1], uid)

    def refusal(self, uid: str) -> tuple[str, str]:
        """Return why a pod may not be placed whatever nodes there are, token and words; "" where only nodes matter."""
        gang = self.gang(uid)
        if gang is not None and (why := gang.refusal()):
            return GROUP_INCOMPLETE, why
        why = self.ledger.refusal(self.together(uid)) if self.has_queues else ""
        return (QUEUE_HOLDS, why) if why else ("", "")

    def alike(self, uid: str) -> tuple[object, ...]:
        """Return what pods have in common that are held back alike."""
        gang = self.gang(uid)
        if gang is not None:
            return gang.key
        return (self.queue_of(uid), frozenset(self.ledger.needs(uid).items()))

    def standing(self, pod: core.Pod) -> tuple[str, ...]:
        """Return what decides, beside its need, which room a pod gets: one that differs in it is not refused alike."""
        spec = pod.spec
        limit = "" if spec.active_deadline_seconds is None else str(spec.active_deadline_seconds)
        return limit, str(spec.priority or 0), spec.preemption_policy, self.queue_of(pod.metadata.uid)

    def may_take(self, pods: Iterable[core.Pod]) -> bool:
        """Tell, without a look at each, whether any pod could end for some that wait."""
        if self.has_queues:
            return True
        least = min((priority for priority, count in self._priorities.items() if count > 0), default=0)
        return all(pod.spec.preemption_policy != "Never" and (pod.spec.priority or 0) > least for pod in pods)

    @property
    def has_limits(self) -> bool:
        """Whether any pod that has a node ends by itself at a known time."""
        return self._limits > 0

    def queue_of(self, uid: str) -> str:
        """Return the queue of a pod, "" for the default one."""
        return self.ledger.queue_of(uid) if self.has_queues else tree.DEFAULT

    def policy_of(self, pod: core.Pod) -> str:
        """Return by which policy a pod is placed: its class's, else its queue's; "": the scheduler's."""
        own = podclass.policy_of(pod, self._classes)
        return own or (self.ledger.tree.policy(self.queue_of(pod.metadata.uid)) if self.has_queues else "")

    def is_grouped(self, pod: core.Pod) -> bool:
        """Return whether a pod is placed with others, which may be on other nodes."""
        return self.gangs.of(pod.metadata.uid) is not None

    def choose(self, names: Iterable[str]) -> str:
        """Return which of some queues with waiting pods has its turn."""
        return self.ledger.choose(names)
