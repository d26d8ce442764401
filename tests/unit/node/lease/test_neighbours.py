"""A GPU on which a program works that no pod has is kept back, says whose it is, and comes back by itself."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.kernel import deviceusers
from fairlead.model.driver import DeviceNode
from fairlead.model.neighbour import Neighbour
from fairlead.node.lease import gate as gates
from fairlead.node.lease import openers
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.lease import neighbour, settle
from fairlead.plan.lease.row import Row, State
from tests import outsider
from tests.unit.node.lease import test_gate

GPU = str(test_gate.device(0).gpu)
NUMBERS = {"/dev/nvidiactl": ("c", 195, 255), "/dev/nvidia-uvm": ("c", 511, 0)}
RENAME = "import ctypes, time; ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0); time.sleep(60)"


def snapshot_with_shared() -> Snapshot:
    found = test_gate.snapshot()
    (driver,) = found.drivers
    more = (
        DeviceNode(path=path, host_path=path, major=major, minor=minor, mode=0o666)
        for path, (_, major, minor) in NUMBERS.items()
    )
    return dataclasses.replace(found, drivers=(dataclasses.replace(driver, nodes=(*driver.nodes, *more)),))


@pytest.fixture
def program() -> Iterator[outsider.Outsider]:
    with outsider.running("sleep", "60") as one:
        yield one


@contextlib.contextmanager
def named(name: bytes, env: dict[str, str] | None = None) -> Iterator[outsider.Outsider]:
    """A program that calls itself so."""
    with outsider.running(sys.executable, "-c", RENAME.format(name=name), env=env) as one:
        outsider.until(lambda: Path(f"/proc/{one.pid}/comm").read_bytes().startswith(name[:4]))
        yield one


async def noticed(gate: gates.Gate) -> None:
    async with asyncio.timeout(20):
        while test_gate.problem(gate) is None:
            gate.poke()
            await asyncio.sleep(0.005)


async def test_a_free_gpu_is_not_given_away_beside_a_program_that_no_pod_has(
    tmp_path: Path, program: outsider.Outsider
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
        assert (reason, message) == (neighbour.REASON, message)
        node.programs = {}
        assert re.fullmatch(
            rf"used by sleep \(pid {program.pid}, user root, .*since \d\d:\d\d\), not started by Fairlead", message
        )
        gate.poke()
        await node.until(0, State.FREE)
        async with asyncio.timeout(20):
            while test_gate.problem(gate) is not None:  # noqa: ASYNC110 - told at the end of the round
                await asyncio.sleep(0.005)
        await node.give(0)


async def test_a_program_is_noticed_without_being_asked(tmp_path: Path, program: outsider.Outsider) -> None:
    node = test_gate.Node(tmp_path, programs={0: program.pid})
    async with node.agent() as gate:
        await noticed(gate)
        assert (test_gate.problem(gate) or ("",))[0] == neighbour.REASON
        assert gate.rows.value[str(test_gate.device(1).gpu)].state is State.FREE


async def test_what_a_pod_has_is_not_asked_about(tmp_path: Path, program: outsider.Outsider) -> None:
    node = test_gate.Node(tmp_path)
    async with node.agent() as gate:
        await node.give(0)
        node.programs = {0: program.pid}  # the pod's own
        gate.poke()
        await node.until_named(0)
        assert gate.rows.value[GPU].state is State.HELD
        assert test_gate.problem(gate) is None


async def test_our_own_mps_servers_and_programs_that_ended_count_for_nobody(tmp_path: Path) -> None:
    pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "mps/GPU-1/pipes")}
    with named(b"nvidia-cuda-mps-server", env=pipes) as child:
        node = test_gate.Node(tmp_path, programs={0: child.pid})
        async with node.agent():
            await node.give(0)


async def test_a_left_over_mps_server_keeps_its_gpu(tmp_path: Path) -> None:
    with named(b"nvidia-cuda-mps-server", env={"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}) as child:
        node = test_gate.Node(tmp_path, programs={0: child.pid})
        async with node.agent() as gate:
            await noticed(gate)
            assert (test_gate.problem(gate) or ("",))[0] == neighbour.REASON


async def test_a_program_that_proc_does_not_show_counts_as_one(tmp_path: Path) -> None:
    node = test_gate.Node(tmp_path, programs={0: 1 << 22})
    async with node.agent() as gate:
        await noticed(gate)
        assert test_gate.problem(gate) == (
            neighbour.REASON,
            f"used by a program that cannot be read (pid {1 << 22}), not started by Fairlead",
        )


@pytest.mark.parametrize(
    ("policy", "shared", "is_given"),
    [
        ("refuse", (), False),
        ("refuse", ("/dev/nvidiactl",), True),
        ("refuse-all", ("/dev/nvidiactl",), False),
        ("refuse", ("/dev/nvidiactl", "/dev/nvidia-uvm"), False),
        ("share", (), True),
        ("ignore", (), True),
    ],
)
async def test_who_has_the_node_open_keeps_the_gpu_by_policy(
    tmp_path: Path, program: outsider.Outsider, policy: str, shared: tuple[str, ...], is_given: bool
) -> None:
    numbers = [("c", 195, 0), *(NUMBERS[path] for path in shared)]
    user = deviceusers.read(program.pid, devices=tuple(numbers))  # type: ignore[arg-type]  # ("c", int, int)
    assert user is not None
    node = test_gate.Node(tmp_path, users=[user], policy=policy)
    async with node.agent(snapshot_with_shared()):
        if is_given:
            await node.give(0)
            shown = node.seen.neighbours.value.get(GPU, ())
            assert [one.pid for one in shown] == ([] if policy == "ignore" else [program.pid])
        else:
            with pytest.raises(errors.Unavailable):
                await node.give(0)


async def test_a_gpu_is_free_within_a_second_of_its_neighbours_end(tmp_path: Path, program: outsider.Outsider) -> None:
    node = test_gate.Node(tmp_path, programs={0: program.pid})
    async with node.agent() as gate:
        await noticed(gate)
        begun = time.monotonic()
        node.programs = {}
        program.kill()
        async with asyncio.timeout(20):
            async for rows in gate.rows.changes():  # nobody pokes the gate
                if GPU in rows and rows[GPU].state is State.FREE:
                    break
        assert time.monotonic() - begun < 2.0


def test_allocate_waits_for_no_neighbour_as_for_a_pods_last_process() -> None:
    row, seen = Row(key=GPU, state=State.DIRTY), openers.Openers()
    person = (Neighbour(pid=7, name="python3"),)
    seen.saw(row, (), neighbours=person)
    assert seen.neighbours(row) == person
    assert not seen.is_ending(row)
    seen.saw(row, ("sleep (pid 8)",), neighbours=person)
    assert seen.is_ending(row)


@pytest.mark.parametrize("state", [State.UNKNOWN, State.DIRTY])
def test_neighbours_keep_a_gpu_and_never_condemn_it(state: State) -> None:
    row = Row(key=GPU, state=state, boot_id="b", since=0.0)
    seen = settle.Seen(neighbours=("python3 (pid 7, user ann)",))
    assert settle.plan_steps(row, seen, at=settle.STUCK_S * 100, boot_id="b") == ()
    assert settle.plan_steps(row, settle.Seen(), at=1.0, boot_id="b")[-1].after.state is State.FREE
