"""Verification between tenants: the whole agent over simulated silicon that a tenant tampered with, broke or swapped.

The driver's library is simulated from the C functions up; what reads, resets, judges, signs and refuses is shipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from fairlead import errors, settings
from fairlead.node.lease import baselines, ledgerfile, reports, requestsocket, signing
from fairlead.plan.lease import baseline
from fairlead.plan.lease.row import Row, State
from fairlead.silicon.sim import silicon
from tests.contract.test_agent_contract import PATIENCE_S, Home


@pytest.fixture(autouse=True)
def ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Home, "ledger", "on")


@pytest.fixture
def home_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        yield Path(name)


_PROFILE = """
title = "2 x H100"
driver = "550.163.01"
cuda = [12, 4]
[[groups]]
part = "h100-80"
pci = ["0000:1b:00.0", "0000:43:00.0"]
numa = 0
nvlink = "none"
pcie = "NODE"
"""


class Bench(Home):
    """One machine of simulated H100s whose agent verifies GPUs."""

    def __init__(self, root: Path, reuse: str, *, verify_s: float = 30.0) -> None:
        super().__init__(root, 0)
        profile = root / "pair.toml"
        profile.write_text(_PROFILE)
        self.hardware = silicon.SimulatedSilicon(root / "sim", str(profile))
        self.silicon = self.hardware  # type: ignore[assignment]  # the same port
        self.settings = dataclasses.replace(
            self.settings, lease=settings.LeaseSettings(ledger="on", reuse=reuse, verify_s=verify_s)
        )
        self.folder = self.settings.lease_folder
        self.keys = [gpu.board.uuid for gpu in self.hardware.machine.gpus]

    def row(self, number: int) -> Row:
        path = self.folder / ledgerfile.NAME
        rows = ledgerfile.read(path)[0] if path.exists() else {}
        return rows.get(self.keys[number], Row(key=self.keys[number]))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(3 * PATIENCE_S):  # three attempts, and the waits between them
            while not condition():  # noqa: ASYNC110  (a file of another process, in effect)
                await asyncio.sleep(0.05)

    async def until_state(self, number: int, state: State, reason: str = "") -> Row:
        await self.until(lambda: self.row(number).state is state and self.row(number).reason.startswith(reason))
        return self.row(number)

    def approve(self) -> None:
        learned = baselines.read_learned(self.folder)
        decided = baselines.read_decided(self.folder)
        for board in learned.boards:
            decided = baseline.approve(decided, learned, board, by="ann", at=1.0)
            decided = baseline.approve(decided, learned, board, by="bob", at=2.0)
        baselines.write_decided(self.folder, decided)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Run with a baseline that is approved, until both GPUs are free."""
        async with self.kubelet(), self.agent():
            await self.until_state(0, State.DIRTY, "BaselineMissing")
            self.approve()
            for number in range(2):
                await self.until_state(number, State.FREE)
            await self.until_capacity(2, 2)
            yield
        await self.hardware.close()

    async def one_tenant(self, fault: str, value: str | None) -> int:
        """Let one tenant have a GPU, do something to it, and go; returns which GPU it had."""
        (key,) = await self.start("tenant", 1)
        number = self.keys.index(key)
        await self.until(lambda: all(claim.is_seen for claim in self.row(number).claims))
        await self.until(lambda: bool(self.hardware.machine.holders.get(key)))  # a reset is refused until it is gone
        self.hardware.inject(fault, gpu=number, value=value)
        await self.end("tenant")
        return number


async def test_no_gpu_is_offered_before_a_person_approved_its_firmware(home_folder: Path) -> None:
    bench = Bench(home_folder, "verify")
    async with bench.kubelet(), bench.agent():
        row = await bench.until_state(0, State.DIRTY, "BaselineMissing")
        assert "fairlead lease baseline approve 233010de" in row.message
        await bench.until_capacity(2, 0)
        with pytest.raises(errors.Insufficient):
            await bench.start("early", 1)
        bench.approve()
        await bench.until_capacity(2, 2)
        assert await bench.start("pod", 1)
    await bench.hardware.close()


@pytest.mark.parametrize(
    ("reuse", "fault", "value", "reason"),
    [
        ("verify", "vbios", "96.00.66.66.66", "FirmwareMismatch"),
        ("reset", "ecc", "8", "ECCBurst"),
        pytest.param("verify", "inforom", "G520.6666.00.05", "FirmwareMismatch", marks=pytest.mark.slow),
        pytest.param("verify", "serial", "1650000000666", "BoardSwapped", marks=pytest.mark.slow),
        pytest.param("verify", "link-width", "4", "LinkDegraded", marks=pytest.mark.slow),
        pytest.param("verify", "remap", "failed", "RowRemapFailed", marks=pytest.mark.slow),
    ],
)
async def test_a_gpu_that_a_tenant_left_changed_is_quarantined_until_a_person_releases_it(
    home_folder: Path, reuse: str, fault: str, value: str, reason: str
) -> None:
    bench = Bench(home_folder, reuse)
    async with bench.serving():
        number = await bench.one_tenant(fault, value)
        await bench.until_state(number, State.QUARANTINED, reason)
        await bench.until_capacity(2, 1)
        assert await bench.start("next", 1) == (bench.keys[1 - number],)
    again = Again(bench)
    async with again.kubelet(), again.agent():  # sticky: an agent that begins again changes nothing
        await asyncio.sleep(0.2)
        assert bench.row(number).state is State.QUARANTINED
    await again.hardware.close()


class Again(Bench):
    """The same machine, switched on again."""

    def __init__(self, before: Bench) -> None:
        super().__init__(before.settings.state.folder, before.settings.lease.reuse)
        self.devices = before.devices


@pytest.mark.slow
async def test_a_released_gpu_must_pass_before_a_tenant_gets_it(home_folder: Path) -> None:
    bench = Bench(home_folder, "verify")
    async with bench.serving():
        number = await bench.one_tenant("vbios", "96.00.66.66.66")
        await bench.until_state(number, State.QUARANTINED)
        request = requestsocket.Request(verb="release", gpu=bench.keys[number], by="root")
        await asyncio.to_thread(requestsocket.ask, bench.folder, request)
        await bench.until(lambda: len([one for one in reports.read(bench.folder) if one.verdict == "fail"]) == 2)
        await bench.until_state(number, State.QUARANTINED)
        bench.hardware.inject("vbios", gpu=number, value="")
        await asyncio.to_thread(requestsocket.ask, bench.folder, request)
        await bench.until_state(number, State.FREE)


async def test_errors_that_a_reset_ends_do_not_quarantine(home_folder: Path) -> None:
    bench = Bench(home_folder, "scrub")
    async with bench.serving():
        number = await bench.one_tenant("ecc", "1")
        await bench.until_state(number, State.FREE)
        newest = [one for one in reports.read(bench.folder) if one.gpu == bench.keys[number]][-1]
        assert (newest.verdict, set(newest.seconds)) == ("pass", {"read", "reset", "scrub", "read again"})
        assert newest.before is not None
        assert newest.after is not None
        assert (newest.before.ecc_uncorrected, newest.after.ecc_uncorrected) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "verify_s", "reason"), [("failed", 30.0, "ScrubFailed"), ("hang", 4.0, "VerifyTimeout")]
)
async def test_a_scrub_that_fails_or_hangs_is_tried_three_times_and_then_quarantined(
    home_folder: Path, value: str, verify_s: float, reason: str
) -> None:
    bench = Bench(home_folder, "scrub", verify_s=verify_s)
    async with bench.serving():
        await bench.until_capacity(2, 2)  # before it, on a busy machine, a verification may be late as well
        known = {one.id for one in reports.read(bench.folder)}
        number = await bench.one_tenant("scrub", value)
        row = await bench.until_state(number, State.QUARANTINED, reason)
        assert row.attempts == 2
        new = [one for one in reports.read(bench.folder) if one.id not in known]
        made = [one for one in new if one.gpu == bench.keys[number] and one.reason == reason]
        assert len(made) == 3
        await bench.until_capacity(2, 1)


async def test_a_stricter_policy_verifies_again_what_a_laxer_one_left_free(home_folder: Path) -> None:
    bench = Bench(home_folder, "look")
    async with bench.kubelet(), bench.agent():
        await bench.until_state(0, State.FREE)
        assert bench.row(0).verdict == "quick"
    strict = Again(bench)
    strict.settings = dataclasses.replace(
        strict.settings, lease=settings.LeaseSettings(ledger="on", reuse="verify", verify_s=30)
    )
    async with strict.kubelet(), strict.agent():
        await strict.until_state(0, State.DIRTY, "BaselineMissing")
    await bench.hardware.close()
    await strict.hardware.close()


async def test_reports_are_chained_and_signed_and_whatever_is_changed_shows(home_folder: Path) -> None:
    bench = Bench(home_folder, "verify")
    async with bench.serving():
        await bench.one_tenant("temperature", "60")
    rows = ledgerfile.read(bench.folder / ledgerfile.NAME)[0]
    known = {key: row.verdict for key, row in rows.items() if "-" in row.verdict}
    public = signing.Verifier(bench.folder / signing.PUBLIC)
    found = reports.verify(bench.folder, public, known=known)
    assert {one.verdict for one in found} == {"wait", "pass"}
    path = bench.folder / reports.NAME
    lines = path.read_text().splitlines()
    forged = json.loads(lines[0])
    forged["body"] = forged["body"].replace("node-1", "node-2")
    cases = {
        "ReportForged": [json.dumps(forged), *lines[1:]],
        "ChainBroken": [lines[0], *lines[2:]],
        "ReportMissing": lines[:1],
    }
    for reason, text in cases.items():
        path.write_text("\n".join(text) + "\n")
        with pytest.raises(errors.ProtocolError) as caught:
            reports.verify(bench.folder, public, known=known)
        assert caught.value.reason == reason
