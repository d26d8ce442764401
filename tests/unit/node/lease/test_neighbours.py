"""A GPU on which a program works that no pod has is kept back, says whose it is, and comes back by itself."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.node.lease import gate as gates
from fairlead.node.lease import gpuholders, neighbours, openers
from fairlead.plan.lease import settle
from fairlead.plan.lease.row import Row, State
from tests.unit.node.lease import test_gate

GPU = str(test_gate.device(0).gpu)
RENAME = "import ctypes, time; ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0); print(1, flush=True); time.sleep(60)"


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(("sleep", "60"))
    yield child
    child.kill()
    child.wait()


@contextlib.contextmanager
def named(name: bytes) -> Iterator[subprocess.Popen[bytes]]:
    """A program that calls itself so."""
    with subprocess.Popen((sys.executable, "-c", RENAME.format(name=name)), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


async def noticed(gate: gates.Gate) -> None:
    async with asyncio.timeout(20):
        while test_gate.problem(gate) is None:
            gate.poke()
            await asyncio.sleep(0.005)


async def test_a_free_gpu_is_not_given_away_beside_a_program_that_no_pod_has(
    tmp_path: Path, program: subprocess.Popen[bytes]
) -> None:
    node = test_gate.Node(tmp_path)
    async with node.agent() as gate:
        await node.give(1, pod="other")
        await node.until(0, State.FREE)
        node.programs = {0: program.pid}  # between two looks of the agent
        with pytest.raises(errors.Unavailable) as refused:
            await node.give(0)
        assert refused.value.reason == "GPUNotVerified"
        assert gate.rows.value[GPU].state is State.UNKNOWN
        reason, message = test_gate.problem(gate) or ("", "")
        assert (reason, message) == (gates.USED, f"used by sleep (pid {program.pid}, of uid 0), which no pod has")
        node.programs = {}
        gate.poke()
        await node.until(0, State.FREE)
        assert test_gate.problem(gate) is None
        await node.give(0)


async def test_a_program_is_noticed_without_being_asked(tmp_path: Path, program: subprocess.Popen[bytes]) -> None:
    node = test_gate.Node(tmp_path, programs={0: program.pid})
    async with node.agent() as gate:
        await noticed(gate)
        assert (test_gate.problem(gate) or ("",))[0] == gates.USED
        assert gate.rows.value[str(test_gate.device(1).gpu)].state is State.FREE


async def test_what_a_pod_has_is_not_asked_about(tmp_path: Path, program: subprocess.Popen[bytes]) -> None:
    node = test_gate.Node(tmp_path)
    async with node.agent() as gate:
        await node.give(0)
        node.programs = {0: program.pid}  # the pod's own
        gate.poke()
        await node.until_named(0)
        assert gate.rows.value[GPU].state is State.HELD
        assert test_gate.problem(gate) is None


async def test_servers_of_mps_and_programs_that_ended_count_for_nobody(tmp_path: Path) -> None:
    with named(b"nvidia-cuda-mps-server") as child:
        node = test_gate.Node(tmp_path, programs={0: child.pid})
        async with node.agent():
            await node.give(0)
    assert neighbours.read(Path("/"), child.pid) is None
    holders = gpuholders.GPUHolders(node.list_holdings, known=None, find_openers=node.find_openers)
    assert await holders.find_neighbours([Row(key=GPU, state=State.FREE)]) == {}


def test_a_programs_name_obeys_no_terminal() -> None:
    with named(b"a\x1b[2Jb\xff") as child:
        found = neighbours.read(Path("/"), child.pid)
    assert found is not None
    assert found.words == f"a?[2Jb? (pid {child.pid}, of uid 0)"


def test_allocate_waits_for_no_neighbour_as_for_a_pods_last_process() -> None:
    row, seen = Row(key=GPU, state=State.DIRTY), openers.Openers()
    seen.saw(row, (), neighbours=("python3 (pid 7, of uid 1000)",))
    assert seen.neighbours(row) == ("python3 (pid 7, of uid 1000)",)
    assert not seen.is_ending(row)
    seen.saw(row, ("sleep (pid 8)",), neighbours=("python3 (pid 7, of uid 1000)",))
    assert seen.is_ending(row)


@pytest.mark.parametrize("state", [State.UNKNOWN, State.DIRTY])
def test_neighbours_keep_a_gpu_and_never_condemn_it(state: State) -> None:
    row = Row(key=GPU, state=state, boot_id="b", since=0.0)
    seen = settle.Seen(neighbours=("python3 (pid 7, of uid 1000)",))
    assert settle.plan_steps(row, seen, at=settle.STUCK_S * 100, boot_id="b") == ()
    assert settle.plan_steps(row, settle.Seen(), at=1.0, boot_id="b")[-1].after.state is State.FREE
