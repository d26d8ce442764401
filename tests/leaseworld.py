"""A world around the ledger's shipped rules, small enough to look at every state of it.

Two tenants, two GPUs, pods that want one GPU or both; a kubelet that forgets pods by force, an engine whose processes
outlive their pod and that starts containers anew without asking, a verifier whose reports come late, twice or never, an
agent that crashes and may lose its ledger. With `Fabric` the two GPUs have an NVLink partition, switched by a Manager
that answers late or never, is lost and found. Some pods have their GPUs by a ResourceClaim, alone or two by one: these
the kubelet's list may miss at any time, and Unprepare comes late, or too early. With `ThirdGate` each GPU is passed
through: its node has one opener, which is a tenant's machine, the agent, or a stranger. What each step does to the
ledger is `plan.lease.change`, nothing else; what is switched plans `plan.fabric.reconcile`.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fairlead import errors
from fairlead.model.fabric import FabricGPU, Partition
from fairlead.plan.fabric import reconcile
from fairlead.plan.fabric.lattice import Lattice
from fairlead.plan.fabric.reconcile import Verb
from fairlead.plan.lease import change, table
from fairlead.plan.lease.row import Claim, Facts, Row, State
from fairlead.plan.lease.table import Event

BOOT = "boot"
NAMES = ("g0", "g1")
SLOT = "both"
"""The device of a slot of both GPUs, where they have NVLink."""
MAIL: int = 2
"""Most reports on their way at once where old ones are kept: one that is late and one that is right."""


@dataclass(frozen=True, slots=True)
class PodPlan:
    """One pod that may come."""

    tenant: str
    gpus: tuple[int, ...]
    claim: str = ""
    """Its ResourceClaim, which other pods may have too; empty: the device plugin gives it its GPUs."""


@dataclass(frozen=True, slots=True)
class World:
    """Everything that is true at one moment."""

    rows: tuple[Row, ...]
    kubelet: tuple[int | None, ...]
    """Which pod the kubelet believes has each GPU."""
    pods: tuple[str, ...]
    """new, asking, held, running, stopped, lingering, gone."""
    soil: tuple[str, ...]
    """Of each GPU: the tenant that touched it last, `scrubbed`, or `verified`."""
    mail: frozenset[tuple[object, ...]]
    """Reports on their way."""
    notes: frozenset[str] = frozenset()
    """Claims that are prepared."""
    is_linked: bool = False
    """Whether the switches let the two GPUs talk to each other: their partition is active."""
    nodes: tuple[str, ...] = ("", "")
    """Who has each GPU's node open beside the pods: agent, stranger; empty: none of both."""
    fabric: str = "unlinked"
    """What the agent believes of the partition: unlinked, linked, doubtful (being switched), or unknown."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """The rules of NVLink partitions; each can be left out."""

    waits_for_partition: bool = True
    """Whether a slot's CDI entry is shown only once its partition is active."""
    waits_for_end: bool = True
    """Whether a partition is switched off only when the agent has every node of its GPUs."""
    holds_back: bool = True
    """Whether a GPU is cleaned only when its partition is known to be off."""
    asks_if_known: bool = True
    """Whether a slot of both is given away only while it is known what is active."""


@dataclass(frozen=True, slots=True)
class ThirdGate:
    """The rules of GPUs that are passed through; each can be left out.

    What a stranger leaves on a GPU that it opened and closed while no agent ran is not in the model: no look sees that,
    and VFIO resets a function at both.
    """

    takes_before_allocate: bool = True
    """Whether Allocate asks for the node of each GPU in the agent's hands."""
    lets_go_after_held: bool = True
    """Whether the agent closes a node only after the ledger says Held."""
    takes_before_dirty: bool = True
    """Whether a look at a GPU that is not held takes its node, and reports who keeps the agent from it."""
    has_strangers: bool = True
    """Whether a program that is no tenant's opens nodes; no rule, so that machines can be tried alone."""


class Violated(Exception):
    """An invariant does not hold."""


Hold = Callable[[World, tuple[change.Ask, ...], table.Rules], tuple[Row, ...]]


def hold_all(world: World, asks: tuple[change.Ask, ...], rules: table.Rules) -> tuple[Row, ...]:
    """Give as the node does: one plan for all members."""
    rows = dict(zip(NAMES, world.rows, strict=True))
    listed = {NAMES[at] for at, pod in enumerate(world.kubelet) if pod is not None}
    for one in change.plan_hold(rows, asks, facts=Facts(boot_id=BOOT), listed=listed, rules=rules):
        rows[one.after.key] = one.after
    return tuple(rows[name] for name in NAMES)


def hold_each(world: World, asks: tuple[change.Ask, ...], rules: table.Rules) -> tuple[Row, ...]:
    """Give member by member and keep what was got: the mistake that slots must not allow."""
    got = world
    for ask in asks:
        try:
            got = dataclasses.replace(got, rows=hold_all(got, (ask,), rules))
        except errors.FairleadError:
            continue
    if got.rows == world.rows:
        raise errors.Conflict("none", reason=change.HELD)
    return got.rows


@dataclass(frozen=True, slots=True)
class Model:
    """The rules under test and the pods that come."""

    pods: tuple[PodPlan, ...]
    rules: table.Rules = table.SHIPPED
    hold: Hold = hold_all
    sees: Callable[[tuple[str, ...]], tuple[str, ...]] = lambda openers: openers
    """What a look at the processes that have a GPU open tells of them, if there are any."""
    counts_notes: bool = True
    """Whether a prepared claim counts as a holder, listed or not."""
    waits_for_all: bool = True
    """Whether Unprepare is refused while another pod of the claim runs."""
    loses_ledger: bool = True
    fabric: Fabric | None = None
    """None: the GPUs have no NVLink."""
    gate: ThirdGate | None = None
    """None: the GPUs have a driver, whose nodes any number of processes may open."""
    keeps_stale: bool = False
    """Whether reports of earlier epochs stay on their way. The shipped guards refuse each of them (a test in
    test_lease_model.py says so), so that they cannot matter; where a guard is taken out they must be tried."""

    def start(self) -> World:
        """Begin with GPUs that nobody has looked at."""
        return World(
            rows=tuple(Row(key=name, boot_id=BOOT) for name in NAMES),
            kubelet=(None, None),
            pods=("new",) * len(self.pods),
            soil=("older tenant",) * 2,
            mail=frozenset(),
        )

    def explore(self, limit: int = 2_000_000) -> int:
        """Look at every state; returns how many there are. Raises: Violated, with the way that led there."""
        first = self.start()
        came: dict[World, tuple[World, str] | None] = {first: None}
        todo = deque([first])
        while todo:
            world = todo.popleft()
            try:
                for step, found in self.steps(world):
                    then = found if self.keeps_stale else _normal(found)
                    if then not in came:
                        came[then] = (world, step)
                        todo.append(then)
                    try:
                        self.check(world, found)
                    except Violated as error:
                        raise Violated(f"{error}, by {step}") from None
            except Violated as error:
                raise Violated(f"{error}: {' > '.join(_way(world, came))}") from None
            assert len(came) <= limit, "the model has grown beyond its bound"
        return len(came)

    # what may happen

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield everything that may happen next."""
        for at, phase in enumerate(world.pods):
            yield from self._pod_steps(world, at, phase)
        for gpu in sorted({gpu for plan in self.pods for gpu in plan.gpus}):
            yield from self._gpu_steps(world, gpu)
        for message in world.mail:
            yield from self._deliver(world, message)
        if self.fabric is not None:
            yield from self._fabric_steps(world, self.fabric)
        if self.gate is not None and self.gate.has_strangers:
            yield from self._stranger_steps(world)
        yield from self._crash(world)

    def _stranger_steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield what a program does that is no tenant's: it opens a node that is free, and closes it some time."""
        for gpu in sorted({gpu for plan in self.pods for gpu in plan.gpus}):
            if world.nodes[gpu] == "stranger":
                yield f"stranger closed {NAMES[gpu]}", _opened(world, gpu, "")
            elif not world.nodes[gpu] and not self._open(world, gpu):
                yield f"stranger opened {NAMES[gpu]}", _opened(world, gpu, "stranger")

    def _others(self, world: World, gpu: int) -> tuple[str, ...]:
        """Return who keeps the agent from a GPU's node."""
        stranger = ("stranger",) if world.nodes[gpu] == "stranger" else ()
        return (*stranger, *(f"pod{at}" for at in self._open(world, gpu)))

    def _taken(self, world: World, gpus: tuple[int, ...]) -> World:
        """Return the world after the agent has opened the nodes that it could."""
        for gpu in gpus:
            if not self._others(world, gpu):
                world = _opened(world, gpu, "agent")
        return world

    def _fabric_steps(self, world: World, rules: Fabric) -> Iterator[tuple[str, World]]:
        """Yield what agent and Manager may do; calls are planned by `plan.fabric.reconcile`."""
        linked = world.fabric in {"linked", "doubtful"}
        lattice = Lattice([Partition(id=0, gpus=(FabricGPU(module=1), FabricGPU(module=2)), is_active=linked)])
        is_pair = [row.state is State.HELD and self._is_pairs(world, at) for at, row in enumerate(world.rows)]
        used = {at + 1 for at in range(2) if world.rows[at].state is State.HELD or self._open(world, at)}
        is_waiting = all(is_pair) and world.fabric != "linked"
        plan = reconcile.plan(
            lattice, {0} if all(is_pair) else (), () if is_waiting or not rules.waits_for_end else used
        )
        if world.fabric == "doubtful":
            yield "partition switched off, as it is doubtful", self._switched(world, is_on=False)
        for step in plan.steps if world.fabric in {"linked", "unlinked"} else ():
            is_on = step.verb is Verb.ACTIVATE
            yield f"partition {step.verb.value}d", self._switched(world, is_on=is_on)
            # The answer is lost: the Manager has done it, or not.
            yield f"{step.verb.value} done, answer lost", dataclasses.replace(world, is_linked=is_on, fabric="doubtful")
            yield f"{step.verb.value} not done, answer lost", dataclasses.replace(world, fabric="doubtful")
        if world.fabric in {"linked", "unlinked"}:
            yield "manager lost", dataclasses.replace(world, fabric=f"unknown, was {world.fabric}")
        elif world.fabric.startswith("unknown"):
            # It lists what is active; one that began anew believes the list that it is given, which is what was known.
            yield "manager found", self._switched(world, is_on=world.is_linked)

    def _switched(self, world: World, *, is_on: bool) -> World:
        for at in self._users(world):
            if world.is_linked and not is_on and self.pods[at].gpus == (0, 1):
                raise Violated(f"I3 the partition of pod{at} is switched off under its machine")
        return dataclasses.replace(world, is_linked=is_on, fabric="linked" if is_on else "unlinked")

    def _users(self, world: World) -> list[int]:
        return [at for at, phase in enumerate(world.pods) if phase in {"running", "lingering"}]

    def _is_pairs(self, world: World, gpu: int) -> bool:
        """Whether a held GPU was given away by the slot of both."""
        return any(claim.device == SLOT for claim in world.rows[gpu].claims)

    def _device(self, at: int, gpu: int) -> str:
        return SLOT if self.fabric is not None and self.pods[at].gpus == (0, 1) else NAMES[gpu]

    def _is_shown(self, world: World, at: int) -> bool:
        """Whether engines find the CDI entry of what a pod has, and the kernel lets its machine open the nodes."""
        plan = self.pods[at]
        if self.gate is not None and any(world.nodes[gpu] or self._open(world, gpu) for gpu in plan.gpus):
            return False
        shown = all(change.is_published(world.rows[gpu], self.rules) for gpu in plan.gpus)
        if self.fabric is None or plan.gpus != (0, 1) or not self.fabric.waits_for_partition:
            return shown
        return shown and world.fabric in {"linked", "unknown, was linked"}

    def _partition(self, world: World) -> tuple[str, ...]:
        """Return the partition as what still has a GPU: it is active, or may be."""
        if self.fabric is None or not self.fabric.holds_back or world.fabric in {"unlinked", "unknown, was unlinked"}:
            return ()
        return ("NVLink partition",)

    def _pod_steps(self, world: World, at: int, phase: str) -> Iterator[tuple[str, World]]:
        plan = self.pods[at]
        name = f"pod{at}"
        if plan.claim:
            yield from self._claim_steps(world, at, phase)
        elif phase == "new" and all(world.kubelet[gpu] is None for gpu in plan.gpus) and "asking" not in world.pods:
            yield from self._allocated(world, at) if self.gate is None else self._passed(world, at, self.gate)
        elif phase == "let go":  # the node before the ledger: only where that rule is left out
            yield from self._allocated(world, at)
        elif phase == "asking":
            kubelet = tuple(at if gpu in plan.gpus else pod for gpu, pod in enumerate(world.kubelet))
            yield f"{name} recorded", _with(world, at, "held", kubelet=kubelet)
            yield f"{name} answer lost", _with(world, at, "gone")
        elif phase in {"held", "stopped"}:
            if self._is_shown(world, at):
                yield f"{name} started", self._started(world, at)
            yield f"{name} forgotten", _with(world, at, "gone", kubelet=_without(world.kubelet, at))
        elif phase == "running":
            yield f"{name} stopped", _with(world, at, "stopped")
            yield f"{name} forgotten by force", _with(world, at, "lingering", kubelet=_without(world.kubelet, at))
        elif phase == "lingering":
            yield f"{name} closed", _with(world, at, "gone")

    def _passed(self, world: World, at: int, gate: ThirdGate) -> Iterator[tuple[str, World]]:
        """Yield an Allocate of GPUs that are passed through: node, ledger, then the node is let go."""
        plan = self.pods[at]
        if gate.takes_before_allocate:
            world = self._taken(world, tuple(gpu for gpu in plan.gpus if world.rows[gpu].state is State.FREE))
            if any(world.nodes[gpu] != "agent" for gpu in plan.gpus):
                yield f"pod{at} refused", world
                return
        if gate.lets_go_after_held:
            for step, then in self._allocated(world, at):
                yield step, _let_go(then)
        elif all(world.rows[gpu].state is State.FREE for gpu in plan.gpus):
            early = world
            for gpu in plan.gpus:
                early = _opened(early, gpu, "") if early.nodes[gpu] == "agent" else early
            yield f"pod{at} let in before the ledger says so", _with(early, at, "let go")

    def _allocated(self, world: World, at: int) -> Iterator[tuple[str, World]]:
        plan = self.pods[at]
        is_unknown = len(plan.gpus) > 1 and world.fabric.startswith("unknown")
        if self.fabric is not None and self.fabric.asks_if_known and is_unknown:
            return
        asks = tuple(change.Ask(key=NAMES[gpu], claims=(Claim(device=self._device(at, gpu)),)) for gpu in plan.gpus)
        try:
            rows = self.hold(world, asks, self.rules)
        except errors.FairleadError:
            return
        yield f"pod{at} allocated", _with(world, at, "asking", rows=rows)

    def _claim_steps(self, world: World, at: int, phase: str) -> Iterator[tuple[str, World]]:
        plan, name = self.pods[at], f"pod{at}"
        is_noted = plan.claim in world.notes
        if phase == "new" and is_noted:  # a kubelet prepares a claim once for all its pods
            yield f"{name} joined", _with(world, at, "held")
        elif phase == "new":
            asks = tuple(change.Ask(key=NAMES[gpu], claims=(_prepared(gpu, plan.claim),)) for gpu in plan.gpus)
            try:
                rows = self.hold(world, asks, self.rules)
            except errors.FairleadError:
                return
            yield f"{name} prepared", _with(world, at, "held", rows=rows, notes=world.notes | {plan.claim})
        elif phase in {"held", "stopped"}:
            if is_noted and all(change.is_published(world.rows[gpu], self.rules) for gpu in plan.gpus):
                yield f"{name} started", self._started(world, at)
            yield f"{name} ended", _with(world, at, "gone")
        elif phase == "running":
            yield f"{name} stopped", _with(world, at, "stopped")
            yield f"{name} deleted by force", _with(world, at, "lingering")
        elif phase == "lingering":
            yield f"{name} closed", _with(world, at, "gone")
        if is_noted and phase in {"gone", "lingering"}:
            own = [world.pods[one] for one, two in enumerate(self.pods) if two.claim == plan.claim]
            if not self.waits_for_all or not {"held", "running", "stopped"} & set(own):
                yield f"{plan.claim} unprepared", dataclasses.replace(world, notes=world.notes - {plan.claim})

    def _is_listed(self, world: World, gpu: int) -> bool:
        noted = any(plan.claim in world.notes and gpu in plan.gpus for plan in self.pods if plan.claim)
        return world.kubelet[gpu] is not None or (noted and self.counts_notes)

    def _started(self, world: World, at: int) -> World:
        plan = self.pods[at]
        for gpu in plan.gpus:
            others = {self.pods[pod].tenant for pod in self._open(world, gpu)} - {plan.tenant}
            if others:
                raise Violated(f"I1 {NAMES[gpu]} is open by {others} and started by {plan.tenant}")
            if self.fabric is not None and world.is_linked is not (plan.gpus == (0, 1)):
                raise Violated(
                    f"I3 pod{at} starts with {NAMES[gpu]} {'in' if world.is_linked else 'without'} a partition"
                )
            if world.soil[gpu] not in {"verified", plan.tenant}:
                raise Violated(f"I2 {NAMES[gpu]} with soil {world.soil[gpu]} started by {plan.tenant}")
        soil = tuple(plan.tenant if gpu in plan.gpus else one for gpu, one in enumerate(world.soil))
        return _with(world, at, "running", soil=soil)

    def _open(self, world: World, gpu: int) -> list[int]:
        return [
            at for at, phase in enumerate(world.pods) if phase in {"running", "lingering"} and gpu in self.pods[at].gpus
        ]

    def _gpu_steps(self, world: World, gpu: int) -> Iterator[tuple[str, World]]:
        row = world.rows[gpu]
        if row.state in {State.UNKNOWN, State.DIRTY, State.FREE, State.HELD, State.RELEASING}:
            openers = tuple(f"pod{at}" for at in self._open(world, gpu))
            openers = self.sees(openers) if openers else ()
            if self.gate is not None:  # no walk through processes: the node could be taken, or who has it is an opener
                is_taken = self.gate.takes_before_dirty and row.state is not State.HELD
                world, openers = (self._taken(world, (gpu,)), self._others(world, gpu)) if is_taken else (world, ())
            openers += self._partition(world) if row.state is not State.HELD else ()
            is_asked = any(phase == "asking" and gpu in self.pods[at].gpus for at, phase in enumerate(world.pods))
            seen = ("seen", gpu, row.epoch, self._is_listed(world, gpu), openers, not is_asked)
            if self._has_room(world):
                yield f"{NAMES[gpu]} looked at", _mailed(world, seen)
        elif row.state is State.SCRUBBING and self._has_room(world):
            self._check_reset(world, gpu)
            soil = tuple(
                "scrubbed" if at == gpu and not self._open(world, gpu) else one for at, one in enumerate(world.soil)
            )
            yield f"{NAMES[gpu]} scrubbed", _mailed(dataclasses.replace(world, soil=soil), ("scrubbed", gpu, row.epoch))
        elif row.state is State.VERIFYING:
            self._check_reset(world, gpu)
            is_clean = world.soil[gpu] in {"scrubbed", "verified"} and not self._open(world, gpu)
            soil = tuple("verified" if at == gpu and is_clean else one for at, one in enumerate(world.soil))
            if self._has_room(world):
                yield (
                    f"{NAMES[gpu]} verified",
                    _mailed(dataclasses.replace(world, soil=soil), ("verdict", gpu, row.epoch, is_clean)),
                )
            late = self._event(world, gpu, Event.TIMED_OUT, Facts(epoch=row.epoch))
            if late is not None:
                yield f"{NAMES[gpu]} timed out", late

    def _deliver(self, world: World, message: tuple[object, ...]) -> Iterator[tuple[str, World]]:
        if self.keeps_stale:
            yield f"{message} lost", dataclasses.replace(world, mail=world.mail - {message})
        what, gpu, epoch = message[0], message[1], message[2]
        assert isinstance(gpu, int)
        assert isinstance(epoch, int)
        if what == "seen":
            is_listed, openers, is_orphan = message[3:]
            facts = Facts(
                epoch=epoch,
                is_listed=bool(is_listed),
                openers=openers,  # type: ignore[arg-type]  # a message is a tuple of anything
                is_orphan=bool(is_orphan),
                claims=(Claim(device=self._said(world, gpu), pod="pod", namespace="ns"),),
                boot_id=BOOT,
            )
            events: tuple[Event, ...] = (
                Event.SEEN if is_listed else Event.RELEASED,
                Event.DOUBTED,
                Event.IDENTIFIED,
                Event.ADOPTED,
                Event.CLOSED,
                Event.SCRUB_BEGUN,
            )
        elif what == "scrubbed":
            facts, events = Facts(epoch=epoch), (Event.SCRUBBED,)
        else:
            facts = Facts(epoch=epoch, boot_id=BOOT)
            events = (Event.PASSED if message[3] else Event.FAILED,)
        for event in events:
            then = self._event(world, gpu, event, facts)
            if then is not None:
                # It stays in the mail: what was said once may be said again.
                yield f"{message} heard as {event.value}", then

    def _said(self, world: World, gpu: int) -> str:
        """Return the device by which the kubelet lists a GPU."""
        at = world.kubelet[gpu]
        return self._device(at, gpu) if at is not None else next((c.device for c in world.rows[gpu].claims), NAMES[gpu])

    def _has_room(self, world: World) -> bool:
        return not self.keeps_stale or len(world.mail) < MAIL

    def _event(self, world: World, gpu: int, event: Event, facts: Facts) -> World | None:
        row = world.rows[gpu]
        if change.find_refusal(row, event, facts, self.rules):
            return None
        after = change.transition(row, event, facts, self.rules).after
        rows = tuple(after if at == gpu else one for at, one in enumerate(world.rows))
        return _let_go(dataclasses.replace(world, rows=rows))

    def _crash(self, world: World) -> Iterator[tuple[str, World]]:
        rows = list(world.rows)
        for gpu, row in enumerate(rows):
            for event in change.restart_events(row, BOOT):
                rows[gpu] = change.transition(row, event, Facts(boot_id=BOOT), self.rules).after
        pods = tuple("gone" if phase in {"asking", "let go"} else phase for phase in world.pods)
        if self.gate is not None:  # the kernel closes what the agent had open; its own looks and resets end with it
            nodes = tuple("" if opener == "agent" else opener for opener in world.nodes)
            world = dataclasses.replace(world, nodes=nodes, mail=frozenset())
        yield "crash", dataclasses.replace(world, rows=tuple(rows), pods=pods)
        if self.loses_ledger:
            lost = tuple(Row(key=name, boot_id=BOOT, epoch=world.rows[at].epoch) for at, name in enumerate(NAMES))
            yield (
                "crash, ledger lost",
                dataclasses.replace(world, rows=lost, pods=pods, mail=frozenset(), notes=frozenset()),
            )

    # what must always hold

    def _check_partition(self, before: World, world: World) -> None:
        """Raise where the partition is active for another than its slot, or a slot is given in the dark."""
        if self.fabric is None:
            return
        for gpu, row in enumerate(world.rows):
            is_given = row.state is State.HELD is not before.rows[gpu].state
            if world.is_linked and is_given and not self._is_pairs(world, gpu):
                raise Violated(f"I3 {row.key} is given away alone in an active partition")
        for at, phase in enumerate(world.pods):
            is_given = len(self.pods[at].gpus) > 1 and phase == "asking" != before.pods[at]
            if is_given and before.fabric.startswith("unknown"):
                raise Violated(f"I12 pod{at} is given a slot while it is not known what is active")

    def _check_reset(self, world: World, gpu: int) -> None:
        """Raise where somebody has a GPU open while it is scrubbed or verified: either may reset it."""
        if self.gate is not None and (others := self._others(world, gpu)):
            raise Violated(f"I14 {NAMES[gpu]} is reset while {others[0]} has it open")

    def _check_nodes(self, before: World, world: World) -> None:
        """Raise where a GPU is given away whose node somebody has open."""
        for at, phase in enumerate(world.pods):
            for gpu in self.pods[at].gpus if phase == "asking" != before.pods[at] else ():
                if self.gate is not None and (others := self._others(before, gpu)):
                    raise Violated(f"I13 {NAMES[gpu]} is given to pod{at} while {others[0]} has it open")

    def check(self, before: World, world: World) -> None:
        """Raise where an invariant does not hold."""
        for gpu, row in enumerate(world.rows):
            old = before.rows[gpu]
            if row.epoch < old.epoch or (row.epoch == old.epoch and row.state is State.HELD is not old.state):
                raise Violated(f"I6 epoch {old.epoch} to {row.epoch}")
            if old.state is State.QUARANTINED is not row.state:
                raise Violated("I8 quarantine ended by itself")
            if row.state is State.FREE and not (
                row.boot_id == BOOT and row.verdict_epoch == row.epoch and world.soil[gpu] == "verified"
            ):
                raise Violated(f"I5 {row.key} is Free with soil {world.soil[gpu]}, verdict of {row.verdict_epoch}")
            if len({self.pods[at].tenant for at in self._open(world, gpu)}) > 1:
                raise Violated(f"I1 {row.key} is open by two tenants")
        self._check_partition(before, world)
        self._check_nodes(before, world)
        for at, phase in enumerate(world.pods):
            is_taken = self.pods[at].claim in before.notes - world.notes and before.rows == world.rows
            if is_taken and phase in {"held", "running", "stopped"}:
                raise Violated(f"I12 claim {self.pods[at].claim} is taken from under pod{at}, which is {phase}")
            # A claim whose note was lost with the ledger starts no container again, as its CDI file is swept; what runs
            # keeps its GPU from others by having it open.
            is_starting = phase in {"asking", "held", "running", "stopped"}
            if is_starting and self.pods[at].claim in {"", *world.notes}:
                states = [world.rows[gpu].state for gpu in self.pods[at].gpus]
                if any(state not in {State.HELD, State.UNKNOWN} for state in states):
                    raise Violated(f"I9, I11 pod{at} is {phase}, its GPUs are {[state.value for state in states]}")


def _prepared(gpu: int, claim: str) -> Claim:
    return Claim(device=f"{NAMES[gpu]} of {claim}", pod="pod", holder=claim)


def _way(world: World, came: dict[World, tuple[World, str] | None]) -> list[str]:
    steps: list[str] = []
    at: World | None = world
    while at is not None and (origin := came[at]) is not None:
        at, step = origin
        steps.append(step)
    return steps[::-1]


def _with(world: World, at: int, phase: str, **fields: object) -> World:
    pods = tuple(phase if one == at else old for one, old in enumerate(world.pods))
    return dataclasses.replace(world, pods=pods, **fields)  # type: ignore[arg-type]  # fields of World


def _opened(world: World, gpu: int, opener: str) -> World:
    nodes = tuple(opener if at == gpu else one for at, one in enumerate(world.nodes))
    return dataclasses.replace(world, nodes=nodes)


def _let_go(world: World) -> World:
    """Return the world after the agent has closed the nodes of what the ledger says is held."""
    nodes = tuple(
        "" if opener == "agent" and row.state is State.HELD else opener
        for opener, row in zip(world.nodes, world.rows, strict=True)
    )
    return dataclasses.replace(world, nodes=nodes)


def _without(kubelet: tuple[int | None, ...], at: int) -> tuple[int | None, ...]:
    return tuple(None if pod == at else pod for pod in kubelet)


def _mailed(world: World, message: tuple[object, ...]) -> World:
    return dataclasses.replace(world, mail=world.mail | {message})


def _normal(world: World) -> World:
    """Return the world as all that differ from it only by how often something happened.

    Reports of earlier epochs go, and epochs are counted from the present one: states become finite, and crashes, delays
    and new verifications need no bound.
    """
    epochs = [row.epoch for row in world.rows]
    rows = tuple(
        dataclasses.replace(row, epoch=0, lease=0, attempts=0, verdict_epoch=row.verdict_epoch - row.epoch)
        if row.state is State.FREE
        else dataclasses.replace(row, epoch=0, lease=0, attempts=0, verdict_epoch=0)
        for row in world.rows
    )
    mail = frozenset((one[0], one[1], 0, *one[3:]) for one in world.mail if one[2] == epochs[one[1]])  # type: ignore[call-overload]  # a GPU
    return dataclasses.replace(world, rows=rows, mail=mail)
