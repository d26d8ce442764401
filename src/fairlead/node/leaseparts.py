"""Composes the agent's gate: the ledger, what is seen of GPUs, and the CDI specs that show those that are held.

There is one where the setting `lease.ledger` is on. Where it is off, a ledger that an earlier agent kept goes aside:
what it says of GPUs is no longer true once they are given away without it.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from pathlib import Path

from fairlead import errors, files, telemetry
from fairlead.model.device import Device
from fairlead.node import storeparts
from fairlead.node.cdi import specfiles
from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import latest, monitor
from fairlead.node.lease import gate, ledgerfile, sight, verifier
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.lease import verification
from fairlead.plan.lease.change import Change
from fairlead.settings import Settings
from fairlead.silicon import port


class LeasePart:
    """Runs the gate beside what wakes it: snapshots, pods and the kubelet's list."""

    def __init__(  # noqa: PLR0913 (what it stands on, by name)
        self,
        settings: Settings,
        specs: specfiles.SpecFiles,
        of_store: storeparts.StoreParts | None,
        holdings: podresources.Holdings,
        *,
        node: str,
        silicon: object,
        boot_id: str,
        changed: Callable[[], None],
        told: Callable[[Change], None] = lambda _: None,
    ) -> None:
        """Take the parts it stands on.

        Args: changed: called whenever other GPUs are kept back than before.   told: called with every transition.
        """
        self._socket, self._holdings, self._changed = settings.pod_resources, holdings, changed
        self.gate: gate.Gate | None = None
        """What Allocate asks; None: there is no ledger."""
        if settings.lease.ledger != "on":
            _set_aside(settings.lease_folder / ledgerfile.NAME)
            return
        seen = sight.Sight(
            self._list,
            known=of_store.pods if of_store is not None else None,
            find_openers=sight.openers_below(settings.silicon.root),
        )
        specs.hide()
        made = _verifier(settings, silicon, seen, node=node, boot_id=boot_id)
        self.gate = found = gate.Gate(settings.lease_folder, seen, specs, boot_id=boot_id, verifier=made, told=told)
        if of_store is not None:
            of_store.pods.listen(lambda *_: found.poke())

    async def _list(self) -> tuple[Holding, ...]:
        return await podresources.list_holdings(self._socket)

    def problem(self, device: Device) -> tuple[str, str] | None:
        """Return reason and message why a device must not be given away now, None where it may."""
        return self.gate.problem(device) if self.gate is not None else None

    def states(self) -> dict[str, str]:
        """Return the state of each GPU in the ledger, by UUID; empty: there is none."""
        rows = self.gate.rows.value if self.gate is not None else {}
        return {key: row.state.value for key, row in rows.items()}

    async def run(self, snapshots: latest.Latest[monitor.Snapshot]) -> None:
        """Run for ever; return at once where there is no ledger."""
        if self.gate is None:
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.gate.run(), name="ledger")
            tasks.create_task(snapshots.follow(self.gate.update), name="ledger: inventory")
            poke = self.gate.poke
            tasks.create_task(self._holdings.latest.follow(lambda _: poke()), name="ledger: kubelet")
            tasks.create_task(self.gate.problems.follow(lambda _: self._changed()), name="ledger: kept back")


def _verifier(
    settings: Settings, silicon: object, seen: sight.Sight, *, node: str, boot_id: str
) -> verifier.Verifier | None:
    """Return what verifies GPUs between two tenants; None: their readings are enough. Raises: Unavailable."""
    reuse = verification.Reuse(settings.lease.reuse)
    if reuse is verification.Reuse.LOOK:
        return None
    inspector = silicon.inspector() if isinstance(silicon, port.Inspectable) else None
    if inspector is None:
        message = f"no GPU here can be verified, and lease.reuse is {reuse.value}"
        raise errors.Unavailable(message, reason="InspectorMissing", hint="set --lease-reuse to look")
    # Loaded only where something is signed: the library takes tens of milliseconds and some megabytes.
    signing = importlib.import_module("fairlead.node.lease.signing")
    settings.lease_folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def may_reset(gpu: str) -> bool:
        found = seen.reading(gpu)
        return found is not None and not found.mig_enabled

    return verifier.Verifier(
        settings.lease_folder,
        inspector,
        signing.Signer(settings.lease_folder),
        node=node,
        boot_id=boot_id,
        reuse=reuse,
        limit_s=settings.lease.verify_s,
        may_reset=may_reset,
    )


def _set_aside(path: Path) -> None:
    if path.exists():
        telemetry.log.warning("ledger set aside, as it is switched off", path=str(files.set_aside(path, why="off")))
