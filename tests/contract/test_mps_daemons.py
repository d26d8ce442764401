"""The node's MPS daemons over simulated silicon and the stand-in program: readiness, death, a crash at each step."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fairlead import command, errors
from fairlead.model.gpu import ComputeMode
from fairlead.model.ids import GPUUUID
from fairlead.node.sharing import mps as daemons
from fairlead.node.sharing import mpsdaemon, mpsrecord
from fairlead.plan.sharing import mps
from fairlead.silicon import port
from fairlead.silicon.sim import silicon as simulation

UP = ("mps.before-record", "mps.before-mode", "mps.before-start", "mps.before-limits", "mps.after-limits")
DOWN = ("mps.before-quit", "mps.before-restore", "mps.before-forget")
QUICK = tuple(
    name if name == "mps.before-limits" else pytest.param(name, marks=pytest.mark.slow) for name in (*UP, *DOWN)
)
DYING = """
import asyncio, sys
from pathlib import Path
from fairlead import telemetry
from tests.contract import test_mps_daemons as here

async def main(folder, point):
    telemetry.arm_crash_point(point)
    async with here.running(Path(folder)) as node:
        node.want(4)
        await node.reached("")
        node.want()
        await node.gone()

asyncio.run(main(*sys.argv[1:]))
"""


class Node:
    """One run of the daemons of a machine, whose first GPU is to be shared."""

    def __init__(self, folder: Path) -> None:
        try:
            self.silicon = simulation.SimulatedSilicon(folder / "sim", "t4x4")
        except errors.Unavailable as error:
            pytest.skip(errors.sentence(error))
        self.folder = folder
        self.modes = self.silicon.compute_modes()
        self.gpu = GPUUUID(self.silicon.machine.gpus[0].board.uuid)
        self.held: frozenset[GPUUUID] | None = frozenset()
        self.is_standing_by = False
        self.program: port.MPSProgram | None = self.silicon.mps_program()
        self.told: list[str] = []
        self.daemons = daemons.Daemons(
            daemons.Machine(
                state=folder,
                root=folder / "mps",
                boot_id="this boot",
                modes=self.modes,
                program=lambda: self.program,
                held=lambda: self.held,
                is_standing_by=lambda: self.is_standing_by,
            ),
            told=lambda _gpu, reason, _text: self.told.append(reason),
        )

    @property
    def folders(self) -> mpsdaemon.Folders:
        return mpsdaemon.folders_of(self.folder / "mps", self.gpu)

    @property
    def records(self) -> dict[GPUUUID, mpsrecord.Record]:
        return mpsrecord.read_all(self.folder)

    def want(self, replicas: int = 0) -> None:
        memory = 15360 // (replicas or 1)
        one = mps.Daemon(gpu=self.gpu, memory_mib=memory, percent=100 // (replicas or 1))
        self.daemons.want({self.gpu: one} if replicas else {})

    async def reached(self, *reasons: str) -> str:
        """Return the first of these reasons that the GPU is kept back for; empty: it is ready."""
        async with asyncio.timeout(30):
            async for states in self.daemons.states.changes():
                if self.gpu in states and states[self.gpu].reason in reasons:
                    return states[self.gpu].message
        raise AssertionError(reasons)

    async def gone(self) -> None:
        """Return once the GPU needs no daemon and has none."""
        async with asyncio.timeout(30):
            while self.gpu in self.daemons.states.value or self.records:  # noqa: ASYNC110 (files)
                await asyncio.sleep(0.02)

    async def mode(self) -> ComputeMode:
        return await self.modes.read_mode(self.gpu)

    async def ask(self, line: str) -> str:
        assert self.program is not None
        return await mpsdaemon.Control(self.gpu, self.folders, self.program).ask(line)


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Node]:
    node = Node(folder)
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(node.daemons.run())
            yield node
            task.cancel()
    finally:
        await node.silicon.close()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path, as sockets need; no daemon outlives the test."""
    monkeypatch.setattr(daemons, "CHECK_S", 0.05)
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        yield Path(name)
        for base in Path(name).glob("mps/*"):
            if (pid := mpsdaemon.find_daemon(mpsdaemon.Folders(base))) is not None:
                mpsdaemon.kill(pid)


async def test_a_daemon_answers_with_its_limits_before_its_gpu_is_ready(folder: Path) -> None:
    async with running(folder) as node:
        node.want(4)
        await node.reached("")
        assert node.told == [mps.STARTING, ""]
        assert await node.mode() is ComputeMode.EXCLUSIVE_PROCESS
        assert float(await node.ask("get_default_active_thread_percentage")) == 25
        assert await node.ask("get_default_device_pinned_mem_limit 0") == "3840M"
        assert node.folders.shm.stat().st_mode & 0o7777 == 0o1777


async def test_other_limits_reach_servers_that_run(folder: Path) -> None:
    async with running(folder) as node:
        node.want(4)
        await node.reached("")
        pid = mpsdaemon.find_daemon(node.folders)
        await node.ask("start_server -uid 1000")
        [server] = (await node.ask("get_server_list")).split()
        node.want(2)
        async with asyncio.timeout(20):
            while await node.ask(f"get_active_thread_percentage {server}") != "50.0":  # noqa: ASYNC110 (a program)
                await asyncio.sleep(0.02)
        assert await node.ask(f"get_device_pinned_mem_limit {server} 0") in {"3840M", "7680M"}
        assert mpsdaemon.find_daemon(node.folders) == pid


async def test_a_daemon_that_dies_is_said_and_started_again(folder: Path) -> None:
    async with running(folder) as node:
        node.want(4)
        await node.reached("")
        first = mpsdaemon.find_daemon(node.folders)
        assert first is not None
        kept = node.folders.pipe.stat().st_ino
        os.kill(first, signal.SIGKILL)
        assert "has ended" in await node.reached(daemons.DIED)
        await node.reached("")
        assert mpsdaemon.find_daemon(node.folders) not in {None, first}
        assert node.folders.pipe.stat().st_ino == kept  # containers have this very folder mounted


async def test_a_daemon_that_hangs_is_ended_and_started_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpsdaemon, "_ANSWER_S", 0.5)
    async with running(folder) as node:
        node.want(4)
        await node.reached("")
        first = mpsdaemon.find_daemon(node.folders)
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        await node.reached("MPSDaemonSilent", "ProgramTimeout")
        await node.reached("")
        assert mpsdaemon.find_daemon(node.folders) not in {None, first}


async def test_what_is_wanted_no_more_goes_once_its_clients_have_and_the_mode_is_as_before(folder: Path) -> None:
    async with running(folder) as node:
        await node.modes.set_mode(node.gpu, ComputeMode.PROHIBITED)
        node.want(4)
        await node.reached("")
        node.held = frozenset({node.gpu})
        node.want()
        await node.reached(mps.DRAINING)
        assert mpsdaemon.find_daemon(node.folders) is not None
        node.held = frozenset()
        node.daemons.poke()
        await node.gone()
        assert await node.mode() is ComputeMode.PROHIBITED
        assert mpsdaemon.find_daemon(node.folders) is None
        assert not node.folders.base.exists()


async def test_a_gpu_that_pods_have_without_mps_waits_for_them(folder: Path) -> None:
    async with running(folder) as node:
        node.held = frozenset({node.gpu})
        node.want(4)
        await node.reached(daemons.HELD)
        assert await node.mode() is ComputeMode.DEFAULT
        node.held = frozenset()
        node.daemons.poke()
        await node.reached("")


async def test_without_the_program_the_reason_says_so_until_it_comes(folder: Path) -> None:
    async with running(folder) as node:
        program, node.program = node.program, None
        node.want(4)
        assert "nvidia-cuda-mps-control is not installed" in await node.reached(daemons.MISSING)
        node.program = program
        await node.reached("")


async def test_a_folder_that_is_not_ours_is_not_used(folder: Path) -> None:
    (folder / "mps").mkdir()
    (folder / "elsewhere").mkdir()
    async with running(folder) as node:
        node.folders.base.symlink_to(folder / "elsewhere")
        node.want(4)
        assert "is not a folder" in await node.reached(mpsdaemon.FOREIGN)
        assert await node.mode() is ComputeMode.DEFAULT


async def test_what_a_client_leaves_in_the_pipe_folder_holds_nobody_up(folder: Path) -> None:
    async with running(folder) as node:
        node.want(4)
        await node.reached("")
        number = node.folders.pipe / "nvidia-cuda-mps-control.pid"
        daemon = mpsdaemon.find_daemon(node.folders)
        assert daemon is not None
        mpsdaemon.kill(daemon)
        number.unlink()
        os.mkfifo(number)  # a reader of it would wait for ever
        (node.folders.pipe / "full/of").mkdir(parents=True)
        await node.reached(daemons.DIED)
        await node.reached("")
        assert mpsdaemon.find_daemon(node.folders) not in {None, daemon}
        assert not (node.folders.pipe / "full").exists()
        assert (await node.ask("get_default_active_thread_percentage")) == "25.0"


@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace needs root")
def test_a_process_of_a_container_is_not_taken_for_the_daemon(folder: Path) -> None:
    folders = mpsdaemon.folders_of(folder, GPUUUID("GPU-1"))
    folders.pipe.mkdir(parents=True)
    environment = {**command.base_env(), mps.PIPE_VARIABLE: str(folders.pipe)}
    apart = ("unshare", "--pid", "--fork", "--kill-child")
    for words, is_daemon in (((), True), (apart, False)):
        command_line = (*words, "sh", "-c", "echo ready; read wait")  # which becomes no other program under our eyes
        pipe = subprocess.PIPE
        with subprocess.Popen(command_line, env=environment, stdin=pipe, stdout=pipe) as process:
            assert process.stdout is not None
            process.stdout.readline()
            pid = process.pid
            if words:
                pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
            (folders.pipe / "nvidia-cuda-mps-control.pid").write_text(f"{pid}\n")
            found = mpsdaemon.find_daemon(folders)
            process.kill()
        assert (found == pid) is is_daemon


async def test_a_gpu_that_is_wanted_again_while_its_daemon_ends_gets_one(folder: Path) -> None:
    async with running(folder) as node:
        node.want(4)
        await node.reached("")
        node.want()
        async with asyncio.timeout(30):
            while mpsdaemon.find_daemon(node.folders) is not None:  # noqa: ASYNC110 (a process)
                await asyncio.sleep(0)
        node.want(2)
        async with asyncio.timeout(30):
            while not node.records or mpsdaemon.find_daemon(node.folders) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await node.reached("")
        assert (await node.ask("get_default_active_thread_percentage")) == "50.0"


async def test_an_agent_that_stands_by_leaves_the_daemon_alone(folder: Path) -> None:
    async with running(folder) as node:
        node.want(4)
        await node.reached("")
        node.is_standing_by = True
        node.want()
        await asyncio.sleep(0.2)  # four looks
        assert mpsdaemon.find_daemon(node.folders) is not None


async def test_all_daemons_end_with_the_agent(folder: Path) -> None:
    async with running(folder) as node:
        node.want(4)
        await node.reached("")
    last = Node(folder)
    await last.daemons.end_all()
    assert (await last.mode(), last.records) == (ComputeMode.DEFAULT, {})
    assert mpsdaemon.find_daemon(last.folders) is None
    await last.silicon.close()


async def test_an_agent_that_starts_takes_a_living_daemon_up(folder: Path) -> None:
    async with running(folder) as node:
        node.want(4)
        await node.reached("")
        pid = mpsdaemon.find_daemon(node.folders)
    async with running(folder) as node:
        node.held = frozenset({node.gpu})
        node.want(4)
        await node.reached("")
        assert mpsdaemon.find_daemon(node.folders) == pid


def crash(folder: Path, point: str) -> None:
    done = subprocess.run(
        (sys.executable, "-c", DYING, str(folder), point),
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("point", QUICK)
async def test_after_a_kill_at_any_step_the_next_agent_shares_the_gpu(folder: Path, point: str) -> None:
    await asyncio.to_thread(crash, folder, point)
    async with running(folder) as node:
        node.want(4)
        await node.reached("")
        assert await node.mode() is ComputeMode.EXCLUSIVE_PROCESS
        assert float(await node.ask("get_default_active_thread_percentage")) == 25
        node.want()
        await node.gone()
        assert await node.mode() is ComputeMode.DEFAULT


@pytest.mark.slow  # each begins two interpreters
@pytest.mark.parametrize("point", [*UP, *DOWN])
async def test_after_a_kill_at_any_step_an_agent_that_shares_nothing_restores_the_mode(
    folder: Path, point: str
) -> None:
    await asyncio.to_thread(crash, folder, point)
    async with running(folder) as node:
        node.want()
        await node.gone()
        assert await node.mode() is ComputeMode.DEFAULT
        assert mpsdaemon.find_daemon(node.folders) is None


async def test_after_a_boot_the_mode_is_not_that_of_before_it(folder: Path) -> None:
    node = Node(folder)
    stale = mpsrecord.Record(gpu=node.gpu, mode=ComputeMode.PROHIBITED, boot_id="earlier", root=folder / "mps")
    mpsrecord.write(folder, stale)
    await node.silicon.close()
    async with running(folder) as again:
        again.held = frozenset({again.gpu})  # pods that had it by MPS before the boot
        again.want(4)
        await again.reached("")
        again.held = frozenset()
        again.want()
        await again.gone()
        assert await again.mode() is ComputeMode.DEFAULT


async def test_a_record_that_cannot_be_read_is_set_aside(folder: Path) -> None:
    async with running(folder) as node:
        place = mpsrecord.folder_of(folder)
        place.mkdir(parents=True)
        (place / f"{node.gpu}.json").write_text("{")
        await node.modes.set_mode(node.gpu, ComputeMode.EXCLUSIVE_PROCESS)
        node.want()
        async with asyncio.timeout(20):
            while await node.mode() is not ComputeMode.DEFAULT:  # noqa: ASYNC110 (the driver)
                await asyncio.sleep(0.02)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
async def test_the_daemons_shared_memory_is_its_own_folder(folder: Path) -> None:
    async with running(folder) as node:
        assert node.program is not None
        node.program = port.MPSProgram(argv=node.program.argv)
        node.want(4)
        await node.reached("")
        pid = mpsdaemon.find_daemon(node.folders)
        (node.folders.shm / "of-this-gpu").touch()
        assert Path(f"/proc/{pid}/root/dev/shm/of-this-gpu").exists()
        assert not Path("/dev/shm/of-this-gpu").exists()


def test_every_point_is_a_place_in_the_code() -> None:
    source = Path(daemons.__file__).read_text()
    assert {point for point in (*UP, *DOWN) if f'crash_point("{point}")' in source} == {*UP, *DOWN}
