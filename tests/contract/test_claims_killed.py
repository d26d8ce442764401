"""The agent killed at every step of Prepare and Unprepare: the next one loses, doubles and leaves nothing."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.model.driver import PassthroughGPU
from fairlead.model.mig import Slot
from fairlead.node.dra import hardware, preparer
from fairlead.plan.lease.row import State
from tests.unit.node.dra.claimnode import ClaimNode, claim, config, passed, result

SLICES = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
MADE = claim(
    "part",
    result("gpu-0-mig-1g10gb-19-2", request="small"),
    result("gpu-1", request="big"),
    configs=[config("GpuConfig", ["big"], sharing=SLICES)],
)
PREPARE = (
    "dra.before-hold",
    "ledger.before-commit",
    "dra.after-hold",
    "dra.before-partition",
    "mig.before-create-instance",
    "mig.before-create-compute",
    "dra.after-partition",
    "dra.after-hardware",
    "dra.after-file",
    "dra.after-note",
)
UNPREPARE = ("dra.after-file-removed", "mig.before-destroy-compute", "mig.before-destroy-instance", "dra.after-undo")
BOARDS = (passed(1), passed(2))
PASSED = claim("vm", result("gpu-vfio-1"), configs=[config("VfioDeviceConfig", iommu={"backendPolicy": "LegacyOnly"})])
PREPARE_PASSED = (
    "dra.before-hold",
    "ledger.before-commit",
    "ledger.after-commit",
    "vfio.before-let-go",
    "vfio.after-let-go",
    "dra.after-hold",
    "dra.after-hardware",
    "dra.after-file",
    "dra.after-note",
)
UNPREPARE_PASSED = ("dra.after-file-removed", "dra.after-undo", "vfio.after-take")
QUICK = ("mig.before-create-compute", "dra.after-file-removed")
DYING = """
import asyncio, sys
from pathlib import Path
from fairlead import telemetry
from tests.contract import test_claims_killed as here
from tests.unit.node.dra.claimnode import ClaimNode

async def main(folder, point, which):
    made = getattr(here, which)
    node = ClaimNode(Path(folder), passed=here.BOARDS if made is here.PASSED else ())
    async with node.running() as preparer:
        for gpu in node.passed:
            await node.until_passed(gpu, here.State.FREE)
        telemetry.arm_crash_point(point)
        await node.prepare(made)
        await node.unprepare(made)
        for gpu in node.passed:
            await node.until_passed(gpu, here.State.FREE)

asyncio.run(main(*sys.argv[1:]))
"""


def crash(folder: Path, point: str, which: str = "MADE") -> None:
    argv = [sys.executable, "-c", DYING, str(folder), point, which]
    done = subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]


def opened(folder: Path, *passed: PassthroughGPU) -> ClaimNode:
    try:
        return ClaimNode(folder, passed=passed)
    except errors.Unavailable as error:
        pytest.skip(errors.sentence(error))


async def assert_nothing_is_left(node: ClaimNode) -> None:
    assert node.journal.uids() == frozenset()
    assert node.spec(MADE) is None
    assert (await node.partition(0)).instances == ()
    assert node.silicon.machine.gpus[1].time_slice == 0
    async with asyncio.timeout(20):
        while {node.row(0).state, node.row(1).state} != {State.FREE}:
            node.gate.poke()
            await asyncio.sleep(0.01)


async def check_again(folder: Path, point: str) -> None:
    """Be the kubelet, which asks again for what it has no answer to, and ends the pod later."""
    await asyncio.to_thread(crash, folder, point)
    node = opened(folder)
    async with node.running():
        assert len(await node.prepare(MADE)) == 2
        assert [one.slot for one in (await node.partition(0)).instances] == [Slot(profile="1g.10gb", start=2)]
        assert node.silicon.machine.gpus[1].time_slice == 3
        assert len(node.nodes(MADE)) == 4
        assert [one.holder for one in node.row(1).claims] == [MADE.metadata.uid]
        await node.unprepare(MADE)
        await assert_nothing_is_left(node)
    await node.close()


async def check_gone(folder: Path, point: str) -> None:
    """Have the claim deleted while the agent is away: nobody asks again."""
    await asyncio.to_thread(crash, folder, point)
    node = opened(folder)
    async with node.running() as found:
        await found.reap()
        await assert_nothing_is_left(node)
    await node.close()


async def check_passed(folder: Path, point: str, *, is_gone: bool) -> None:
    """Be the kubelet of a claim for a machine; at no time has a machine a GPU that the ledger did not give it."""
    await asyncio.to_thread(crash, folder, point, "PASSED")
    node = opened(folder, *BOARDS)
    one, other = BOARDS
    async with node.running() as found:
        if is_gone:
            await found.reap()
        else:
            assert len(await node.prepare(PASSED)) == 1
            assert node.nodes(PASSED) == {"/dev/vfio/vfio", "/dev/vfio/41"}
            assert [claimed.holder for claimed in node.passed_row(one).claims] == [PASSED.metadata.uid]
            machine, before = node.take(one), len(node.resets)
            await node.until_passed(other, State.FREE)
            with pytest.raises(errors.Conflict):
                node.take(other)  # the third gate has it again
            await node.unprepare(PASSED)
            assert node.passed_row(one).state is State.RELEASING
            machine.close()
            await node.until_passed(one, State.FREE)
            assert node.resets[before:].count(str(one.key)) == 1
        assert node.journal.uids() == frozenset()
        assert node.spec(PASSED) is None
        for gpu in BOARDS:
            await node.until_passed(gpu, State.FREE)
            assert node.passed_row(gpu).claims == ()
            with pytest.raises(errors.Conflict):
                node.take(gpu)
    await node.close()


@pytest.mark.parametrize("point", ["vfio.after-let-go", "dra.after-undo"])
async def test_after_a_kill_the_kubelet_gets_its_machines_gpu(tmp_path: Path, point: str) -> None:
    await check_passed(tmp_path, point, is_gone=False)


async def test_after_a_kill_a_machines_claim_that_is_gone_leaves_nothing(tmp_path: Path) -> None:
    await check_passed(tmp_path, "dra.after-file", is_gone=True)


@pytest.mark.slow
@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("point", [*PREPARE_PASSED, *UNPREPARE_PASSED])
async def test_after_a_kill_at_any_step_a_machines_gpu_is_given_or_free(
    tmp_path: Path, point: str, *, is_gone: bool
) -> None:
    await check_passed(tmp_path, point, is_gone=is_gone)


@pytest.mark.parametrize("point", QUICK)
async def test_after_a_kill_the_kubelet_gets_its_claim(tmp_path: Path, point: str) -> None:
    await check_again(tmp_path, point)


async def test_after_a_kill_a_claim_that_is_gone_leaves_nothing(tmp_path: Path) -> None:
    await check_gone(tmp_path, "dra.after-partition")


@pytest.mark.slow  # each begins an interpreter
@pytest.mark.parametrize("point", [*PREPARE, *UNPREPARE])
async def test_after_a_kill_at_any_step_the_kubelet_gets_its_claim(tmp_path: Path, point: str) -> None:
    await check_again(tmp_path, point)


@pytest.mark.slow
@pytest.mark.parametrize("point", [*PREPARE, *UNPREPARE])
async def test_after_a_kill_at_any_step_a_claim_that_is_gone_leaves_nothing(tmp_path: Path, point: str) -> None:
    await check_gone(tmp_path, point)


def test_every_point_of_claims_is_killed_at() -> None:
    source = Path(preparer.__file__).read_text() + Path(hardware.__file__).read_text()
    named = {part.partition('"')[0] for part in source.split('crash_point("')[1:]}
    assert named == {point for point in (*PREPARE, *UNPREPARE) if point.startswith("dra.")}
