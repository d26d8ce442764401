"""Composes the agent's gate: the ledger, what is seen of GPUs, and the CDI specs that show those that are held.

There is one where the setting `lease.ledger` is on. Where it is off, a ledger that an earlier agent kept goes aside:
what it says of GPUs is no longer true once they are given away without it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fairlead import errors, telemetry
from fairlead.model.neighbour import Neighbour
from fairlead.node import storeparts, vfioparts
from fairlead.node.cdi import specfiles
from fairlead.node.deviceplugin import podresources
from fairlead.node.deviceplugin import taken as takens
from fairlead.node.deviceplugin.plugin import Prefer
from fairlead.node.inventory import latest
from fairlead.node.lease import asked, gpuholders, ledgerpath
from fairlead.node.lease.neighbours import counts as neighbourcount
from fairlead.node.vfio import lentgate
from fairlead.plan import supply
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.lease import overlap, verification
from fairlead.plan.lease.change import Change
from fairlead.plan.lease.row import Row, State
from fairlead.plan.vfio import slot
from fairlead.settings import LeaseSettings
from fairlead.silicon import port

if TYPE_CHECKING:
    from fairlead.node.fabric.keeper import PartitionKeeper
    from fairlead.node.lease import gate, memory, passthroughreset, verifier

_SETTLED: Final = frozenset({State.FREE, State.QUARANTINED, State.MAINTENANCE})
"""States in which nothing of a GPU is still to be done for its last tenant."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Names the node and its boot, for reports, and holds the silicon that is verified."""

    node: str
    silicon: object
    boot_id: str
    folder: Path
    """Where the ledger is, and the reports."""
    root: Path
    """Of the machine, whose processes have GPUs open."""
    is_kubelet_foreign: bool = False
    mps_root: Path | None = None
    """Where the pipes of our own MPS daemons are."""
    passthrough: vfioparts.VFIOPart | None = None
    """GPUs that are passed through; None: none is."""


Shield = Callable[[Callable[[Change], None], Change], object]


class LeasePart:
    """Runs the gate beside what wakes it: snapshots, pods and the kubelet's list."""

    def __init__(
        self,
        settings: LeaseSettings,
        specs: specfiles.SpecFiles,
        of_store: storeparts.StoreParts | None,
        holdings: podresources.Holdings,
        facts: NodeFacts,
    ) -> None:
        """Take the parts it stands on."""
        self._holdings = holdings
        self.changed: Callable[[], None] = lambda: None
        """Called whenever other GPUs are kept back than before."""
        self.told: Callable[[Change], None] = lambda _: None
        """Called with every transition, once it is on disk."""
        self.gate: gate.Gate | None = None
        """What Allocate asks; None: there is no ledger."""
        self.shield: Shield = lambda tell, one: tell(one)
        """Calls what publishes possessions, and keeps its failures from the ledger."""
        self.seen: gpuholders.GPUHolders | None = None
        """Who has GPUs, neighbours among them; None: there is no ledger."""
        self._objects = of_store.leases if of_store is not None else None
        self._pods = of_store.pods if of_store is not None else None
        self.taken: Final = (
            takens.Taken(holdings, self._pods, clock=time.monotonic)
            if self._pods is not None and facts.is_kubelet_foreign
            else None
        )
        """What is preferred last, with and without a ledger; None: the kubelet is ours and does not lose count."""
        self._quarantines: latest.Latest[Mapping[str, str]] = (
            of_store.publisher.quarantines if of_store is not None else latest.Latest({})
        )
        if settings.ledger != "on":
            if facts.passthrough is not None:
                telemetry.log.warning("gpus are passed through without a ledger", error=slot.UNKEPT)
            _set_aside(facts.folder / ledgerpath.NAME)
            return
        passed = facts.passthrough
        self.seen = seen = gpuholders.GPUHolders(
            holdings.read,
            known=self._pods,
            find_openers=gpuholders.openers_below(facts.root),
            neighbours=gpuholders.Neighbours(
                policy=settings.neighbours,
                list_programs=facts.silicon.list_programs if isinstance(facts.silicon, port.Programs) else None,
                root=gpuholders.host_root(facts.root),
                mps_root=facts.mps_root,
            ),
            passed=_passed(passed) if passed is not None else None,
            lent=lentgate.LentGate(lentgate.take_hold_below(gpuholders.host_root(facts.root))),
        )
        specs.hide()
        boards, kept = _boards(settings, facts)
        made = _verifier(settings, seen, facts, boards, kept)
        # Loaded only where there is a ledger: SQLite and what verifies GPUs are 2 MB of an agent.
        from fairlead.node.lease import gate, passthroughreset

        self.gate = found = gate.Gate(
            facts.folder,
            seen,
            specs,
            boot_id=facts.boot_id,
            verifier=made,
            told=self._tell,
            is_kubelet_foreign=facts.is_kubelet_foreign,
        )
        if passed is not None and passed.fabric is not None:
            found.keep_partitions(passed.fabric)
        self._passed = passed
        if passed is not None:
            resetter = passthroughreset.PassthroughReset(
                passed.gate.find,
                passed.gpus.reset if passed.fabric is None else passed.fabric.resets.counting(passed.gpus.reset),
                node=facts.node,
                boot_id=facts.boot_id,
                limit_s=settings.verify_s,
                by_machine=_machine(settings, passed, boards, kept),
            )
            found.reset_by(resetter, mark=resetter.mark)
        if self.taken is not None:
            self.taken.of_ledger = found.held
        if self._pods is not None:
            self._pods.listen(lambda *_: found.poke())
        if self._objects is not None:
            self._objects.opened = found.opened

    def listen(self, changed: Callable[[], None], told: Callable[[Change], None], shield: Shield) -> None:
        """Call `changed` whenever other GPUs are kept back than before, `told` with every transition."""
        self.changed, self.told, self.shield = changed, told, shield

    def _tell(self, one: Change) -> None:
        self.told(one)
        if self._objects is not None:
            self.shield(self._objects.told, one)

    def withheld(self) -> Mapping[str, supply.Problem]:
        """Return the GPUs that must not be given away now, each with why.

        A GPU on its way from one tenant to the next stays offered as long as the way takes no time: Allocate waits.
        """
        if self.gate is not None:
            return {**self.gate.problems.value, **self._overlaps(self.gate.rows.value)}
        return {gpu: (asked.REASON, why) for gpu, why in self._quarantines.value.items() if why}

    @property
    def prefer(self) -> Prefer | None:
        """Return what chooses among slots; None: there are none of several GPUs."""
        fabric = self._passed.fabric if self.gate is not None and self._passed is not None else None
        return fabric.prefer if fabric is not None else None

    def _overlaps(self, rows: Mapping[str, Row]) -> Mapping[str, supply.Problem]:
        """Return the slots that cannot be given away because of other slots, or of the fabric, each with why."""
        if self._passed is None or self._passed.fabric is None:
            return {}
        found = self._passed.naming.slots(self._passed.gate.gpus, self._passed.fabric.sets)
        return overlap.plan_overlaps(
            found, rows, unusable=self._passed.fabric.unusable, lost=self._passed.fabric.lost_slots()
        )

    def neighbours(self) -> Mapping[str, tuple[Neighbour, ...]]:
        """Return the programs on each GPU that Fairlead did not start, as they were seen last, by its key."""
        return self.seen.neighbours.value if self.seen is not None else {}

    async def find_neighbours(self) -> Mapping[str, tuple[Neighbour, ...]]:
        """Return them as they are now; none where there is no ledger, or they are not looked for."""
        if self.seen is None:
            return {}
        return await self.seen.find_neighbours([str(gpu) for gpu in self.seen.snapshot.known])

    def states(self) -> dict[str, str] | None:
        """Return the state of each GPU in the ledger, by UUID, as far as it has been looked at; None: no ledger."""
        return {key: row.state.value for key, row in self.gate.rows.value.items()} if self.gate is not None else None

    def unverified(self, namespace: str) -> tuple[str, ...]:
        """Return the GPUs that containers of a namespace have or had, neither clean nor kept back since."""
        rows = self.gate.rows.value if self.gate is not None else {}
        held = (key for key, row in rows.items() if any(one.namespace == namespace for one in row.claims))
        return tuple(key for key in held if rows[key].state not in _SETTLED)

    async def run(self, snapshots: latest.Latest[Snapshot], meter: telemetry.Meter) -> None:
        """Run for ever."""
        async with asyncio.TaskGroup() as tasks:
            if self.seen is not None:
                counts = neighbourcount.NeighbourCounts(meter)
                tasks.create_task(self.seen.neighbours.follow(counts.note), name="lease: neighbours")
            if self.taken is not None:
                tasks.create_task(self._holdings.latest.follow(self.taken.note), name="lease: last known holders")
            if self.gate is None:
                tasks.create_task(asked.keep_unoffered(self._quarantines, self.changed), name="lease: quarantine")
            else:
                tasks.create_task(self._run_gate(self.gate, snapshots), name="ledger")

    async def _keep_partitions(self, gate: gate.Gate, keeper: PartitionKeeper) -> None:
        """Switch partitions by what the ledger says, for ever; before it is open it says nothing."""
        await gate.opened.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keeper.run(), name="fabric: switch")
            # Which slots overlap a held one, and what the Manager says, are no part of a GPU's own problem.
            tasks.create_task(gate.rows.follow(lambda _: self.changed()), name="fabric: rows")
            tasks.create_task(keeper.state.follow(lambda _: self.changed()), name="fabric: state")
            tasks.create_task(keeper.mismatch.follow(lambda _: self.changed()), name="fabric: versions")

    async def _run_gate(self, gate: gate.Gate, snapshots: latest.Latest[Snapshot]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(gate.run(), name="ledger: gate")
            tasks.create_task(snapshots.follow(gate.update), name="ledger: inventory")
            tasks.create_task(asked.carry_out(gate, self._quarantines), name="ledger: quarantine")
            tasks.create_task(self._holdings.latest.follow(lambda _: gate.poke()), name="ledger: kubelet")
            tasks.create_task(gate.problems.follow(lambda _: self.changed()), name="ledger: kept back")
            if self._passed is not None and self._passed.fabric is not None:
                tasks.create_task(self._keep_partitions(gate, self._passed.fabric), name="fabric: partitions")
            if self._pods is not None:
                # A first list without pods calls no listener; a round is due all the same, for what it lets go of.
                await self._pods.listed.wait()
                gate.poke()


def _passed(found: vfioparts.VFIOPart) -> gpuholders.Passed:
    if found.fabric is None:
        return gpuholders.Passed(gate=found.gate, naming=found.naming)
    return gpuholders.Passed(
        gate=found.gate, naming=found.naming, obstacle=found.fabric.obstacle, is_due=found.fabric.resets.is_due
    )


def _boards(settings: LeaseSettings, facts: NodeFacts) -> tuple[memory.KnownBoards | None, memory.ReportFile | None]:
    """Return what is known of boards and where reports are kept; None: nothing is verified here."""
    is_look = verification.Reuse(settings.reuse) is verification.Reuse.LOOK
    if is_look and not (settings.verifier_image and facts.passthrough is not None):
        return None, None
    # Loaded only where something is signed: the library takes tens of milliseconds and some megabytes.
    from fairlead.node.lease import memory, signing

    facts.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    boards = memory.KnownBoards(facts.folder, int(settings.approvals))
    return boards, memory.ReportFile(facts.folder, signing.Signer(facts.folder))


def _machine(
    settings: LeaseSettings,
    passed: vfioparts.VFIOPart,
    boards: memory.KnownBoards | None,
    kept: memory.ReportFile | None,
) -> passthroughreset.ByMachine | None:
    """Return what reads passed-through GPUs in a machine; None: nothing does. Raises: Invalid: the image's name."""
    if not settings.verifier_image or boards is None or kept is None:
        return None
    from fairlead.node.lease import passthroughreset
    from fairlead.node.vm import image
    from fairlead.node.vm import verifier as machines

    image.check_reference(settings.verifier_image)
    options = machines.Options(
        image=settings.verifier_image,
        emulator=settings.verifier_emulator,
        firmware=settings.verifier_firmware,
        memory_mib=settings.verifier_memory_mib,
        processors=settings.verifier_processors,
        limit_s=settings.verify_s,
    )
    machine = machines.MachineVerifier(options, passed.gate.lend)
    return passthroughreset.ByMachine(machine=machine, boards=boards, kept=kept, note_module=passed.gpus.note_module)


def _verifier(
    settings: LeaseSettings,
    seen: gpuholders.GPUHolders,
    facts: NodeFacts,
    boards: memory.KnownBoards | None,
    kept: memory.ReportFile | None,
) -> verifier.Verifier | None:
    """Return what verifies GPUs between two tenants; None: their readings are enough. Raises: Unavailable."""
    reuse = verification.Reuse(settings.reuse)
    if reuse is verification.Reuse.LOOK or boards is None or kept is None:
        return None
    inspector = facts.silicon.inspector() if isinstance(facts.silicon, port.Inspectable) else None
    if inspector is None:
        if settings.verifier_image and facts.passthrough is not None:
            return None  # every GPU here is passed through, and a machine reads it
        message = f"no GPU here can be verified, and lease.reuse is {reuse.value}"
        hint = "set --lease-reuse to look; GPUs that are passed through need lease.verifier_image"
        raise errors.Unavailable(message, reason="InspectorMissing", hint=hint)
    from fairlead.node.lease import verifier

    def may_reset(gpu: str) -> bool:
        found = seen.reading(gpu)
        return found is not None and not found.mig_enabled

    return verifier.Verifier(
        boards,
        inspector,
        kept,
        node=facts.node,
        boot_id=facts.boot_id,
        policy=verifier.Policy(reuse=reuse, limit_s=settings.verify_s),
        may_reset=may_reset,
    )


def _set_aside(path: Path) -> None:
    if path.exists():
        telemetry.log.warning(
            "ledger set aside, as it is switched off", path=str(ledgerpath.set_aside(path, why="off"))
        )
