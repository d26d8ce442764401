"""GPUs that are passed through and read in a machine before the next tenant: the shipped ledger, gates and baselines.

The machine is played by a reading that a test sets; the real one is in tests/unit/node/vm and tests/system.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from fairlead import errors
from fairlead.model.driver import DeviceNode, DriverFiles, PassthroughGPU
from fairlead.model.gpu import Inventory, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.node.cdi import specfiles
from fairlead.node.lease import baselines, gpuholders, memory, passthroughreset, reports, signing
from fairlead.node.lease import gate as gates
from fairlead.node.vfio import thirdgate
from fairlead.node.vm import emulator, verifier
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.lease import baseline
from fairlead.plan.lease.row import Row, State
from fairlead.plan.vfio import slot
from fairlead.wire.fairlead.guestreport import GPUReport

KEY = "pcie-1"
NODE = "/dev/vfio/1"
GPU = PassthroughGPU(
    key=GPUUUID(KEY),
    vendor=Vendor.NVIDIA,
    address="0000:01:00.0",
    module=1,
    group_nodes=(DeviceNode(path=NODE, host_path=NODE, major=240, minor=1, mode=0o600),),
)
SNAPSHOT = Snapshot(drivers=(DriverFiles(vendor=Vendor.NVIDIA, version=None, passthrough=(GPU,)),), is_scanned=True)
GOOD = GPUReport(
    pci="0000:01:00.0",
    serial="1650",
    device="233010de",
    vbios="96.00",
    inforom="G520",
    module=1,
    link_width=16,
    ecc_mode=True,
    ecc_mode_pending=True,
    mig_mode=False,
)
BOARD = "233010de"


@dataclass
class Hold:
    openers: dict[str, str]

    def close(self) -> None:
        self.openers.pop(NODE, None)


@dataclass
class Node:
    """One machine with one GPU."""

    folder: Path
    reported: GPUReport = GOOD
    failure: errors.FairleadError | None = None
    openers: dict[str, str] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    modules: list[tuple[str, int | None]] = field(default_factory=list)
    """What was noted of GPUs that are as they should be."""
    stays: bool = False
    """Whether the machine's emulator keeps the GPU open after its end."""
    gate: gates.Gate = field(init=False)
    third: thirdgate.ThirdGate = field(init=False)

    @property
    def lease(self) -> Path:
        return self.folder / "lease"

    def take(self, _: PassthroughGPU) -> Hold:
        if NODE in self.openers:
            raise errors.Conflict(f"{NODE} is in use", reason="VFIONodeInUse")
        self.openers[NODE] = "agent"
        return Hold(self.openers)

    async def reset(self, _: PassthroughGPU) -> None:
        assert self.openers[NODE] == "agent"
        self.steps.append("reset")

    async def read(self, gpu: PassthroughGPU) -> verifier.Reading:
        async with self.third.lend([str(gpu.key)]):
            assert NODE not in self.openers, "the emulator must be able to open it"
            self.openers[NODE] = "qemu"
            self.steps.append("read")
            await asyncio.sleep(0.02)
            if not self.stays:
                del self.openers[NODE]
            if self.failure is not None:
                raise self.failure
        return verifier.Reading(reported=self.reported, driver="580", image="sha256:0", seconds=0.02)

    async def note_module(self, gpu: PassthroughGPU, module: int | None) -> None:
        self.modules.append((str(gpu.key), module))

    def expecting(self, _: str) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    async def list_holdings(self) -> tuple[()]:
        return ()

    @contextlib.asynccontextmanager
    async def agent(self, *, with_machine: bool = True) -> AsyncIterator[gates.Gate]:
        self.third = thirdgate.ThirdGate(self.take, patience_s=0.2)
        naming = slot.Naming()
        seen = gpuholders.GPUHolders(
            self.list_holdings,
            known=None,
            find_openers=lambda *_: (),
            patience_s=0.0,
            passed=gpuholders.Passed(gate=self.third, naming=naming),
        )
        specs = specfiles.SpecFiles(self.folder / "cdi", boot_id="b", naming=naming)
        specs.hide()
        await specs.ensure(Inventory(), SNAPSHOT.drivers)
        self.gate = gates.Gate(self.lease, seen, specs, boot_id="b")
        boards, kept = (
            memory.KnownBoards(self.lease, 1),
            memory.ReportFile(self.lease, signing.Signer(self.lease)),
        )
        by = passthroughreset.ByMachine(
            machine=self,  # type: ignore[arg-type]  # it reads as one does
            boards=boards,
            kept=kept,
            note_module=self.note_module,
        )
        resetter = passthroughreset.PassthroughReset(
            self.third.find,
            self.reset,
            node="n",
            boot_id="b",
            limit_s=5,
            by_machine=by if with_machine else None,
        )
        self.gate.reset_by(resetter, mark=resetter.mark)
        self.gate.update(SNAPSHOT)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.gate.run())
            await self.gate.opened.wait()
            yield self.gate
            task.cancel()

    @property
    def row(self) -> Row | None:
        return self.gate.rows.value.get(KEY)

    async def until(self, state: State, reason: str = "") -> Row:
        async with asyncio.timeout(20):
            while self.row is None or self.row.state is not state or reason not in self.row.reason:
                self.gate.poke()
                await asyncio.sleep(0.005)
        return self.row

    def approve(self) -> None:
        baselines.decide(self.lease, lambda known, decided: baseline.approve(decided, known, BOARD, by="ada", at=1.0))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "lease").mkdir(mode=0o700)
    return Node(folder=tmp_path)


async def test_a_gpu_waits_for_an_approved_baseline_and_is_free_after_a_second_reset(node: Node) -> None:
    async with node.agent():
        await node.until(State.DIRTY, "BaselineMissing")
        assert node.steps[:2] == ["reset", "read"]
        node.approve()
        node.steps.clear()
        assert node.modules == []
        row = await node.until(State.FREE)
        assert node.steps[-3:] == ["reset", "read", "reset"]
        assert node.modules == [(KEY, GOOD.module)]
        assert node.openers == {NODE: "agent"}
    (report,) = [one for one in reports.read(node.lease) if one.id == row.verdict]
    assert (report.verdict, report.reuse) == ("pass", passthroughreset.VERIFIED)
    assert [one.check for one in report.findings][:3] == ["reset", "image", "board"]
    assert report.after is not None
    assert report.after.vbios == "96.00"
    key = signing.Verifier(node.lease / signing.PUBLIC)
    assert reports.verify(node.lease, key, known={KEY: row.verdict})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vbios": "96.01"}, "FirmwareMismatch"),
        ({"serial": "1651"}, "BoardSwapped"),
        ({"module": 2}, "ModuleMoved"),
        ({"mig_mode": True}, "MIGModeChanged"),
        ({"ecc_mode_pending": False}, "ECCModeChanged"),
        ({"ecc_uncorrected": 3}, "ECCErrors"),
        ({"link_width": 8}, "LinkDegraded"),
        ({"remap_failed": True}, "RowRemapFailed"),
    ],
    ids=["vbios", "serial", "module", "mig", "ecc", "errors", "link", "rows"],
)
async def test_a_gpu_that_was_tampered_with_or_is_broken_goes_into_quarantine(
    node: Node, changes: dict[str, object], reason: str
) -> None:
    async with node.agent():
        await node.until(State.DIRTY, "BaselineMissing")
        node.approve()
        await node.until(State.FREE)
    node.reported = msgspec.structs.replace(GOOD, **changes)
    (node.lease / "ledger.db").rename(node.lease / "ledger.old")
    async with node.agent():
        row = await node.until(State.QUARANTINED)
        assert row.reason == reason
        assert node.openers == {NODE: "agent"}


async def test_a_machine_that_cannot_be_ended_keeps_its_gpu_from_everybody(node: Node) -> None:
    node.failure, node.stays = errors.DeviceFault("the emulator 7 was killed", reason=emulator.STUCK), True
    async with node.agent():
        row = await node.until(State.QUARANTINED)
        assert row.reason == emulator.STUCK
        assert node.openers == {NODE: "qemu"}


async def test_a_gpu_that_no_machine_reads_three_times_goes_into_quarantine(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.node.lease.cleaning.AGAIN_S", 0.01)
    node.failure = errors.Unavailable("the virtual machine did not start", reason=emulator.NOT_STARTED)
    async with node.agent():
        row = await node.until(State.QUARANTINED)
        assert row.reason == emulator.NOT_STARTED
        assert node.steps == ["reset", "read"] * 3


async def test_a_gpu_that_was_free_by_a_reset_alone_is_read_once_there_is_a_machine(node: Node) -> None:
    async with node.agent(with_machine=False):
        row = await node.until(State.FREE)
        assert row.verdict.startswith(f"{passthroughreset.PASSED_ON}-")
    assert node.steps == ["reset"]
    async with node.agent():
        await node.until(State.DIRTY, "BaselineMissing")
    assert "read" in node.steps
