"""Podman's service as the engine's child: its death, at any moment, costs time and no container."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import busyboximage
import doomedstart
import pytest

from fairlead import command, errors, settings
from fairlead.engine import port
from fairlead.engine.podman import cli, leftover
from fairlead.engine.podman import engine as podman
from fairlead.model.container.output import LogQuery
from tests import podmanhere
from tests.contract.test_engine_contract import NO_PODMAN

pytestmark = [pytest.mark.podman, pytest.mark.skipif(bool(NO_PODMAN), reason=NO_PODMAN)]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with busyboximage.imported(tmp_path_factory.mktemp("service"), ("sh", "sleep", "true")) as name:
        yield name


@pytest.fixture
async def engine() -> AsyncIterator[podman.PodmanEngine]:
    async with podmanhere.engine(settings.EngineSettings(network="none")).served() as one:
        yield one


@pytest.fixture
async def tag() -> AsyncIterator[str]:
    label = secrets.token_hex(4)
    yield label
    plain = podmanhere.engine(settings.EngineSettings(network="none"))
    for state in await plain.list_containers({"fairlead.test": label}):
        await plain.remove(state.name)


def spec(image: str, tag: str, name: str = "a", script: str = "echo once; sleep 60") -> port.ContainerSpec:
    return port.ContainerSpec(
        name=f"ft-{tag}-{name}",
        image=image,
        labels={"fairlead.test": tag},
        command=("/bin/sh", "-c"),
        args=(script,),
    )


def service_pid(engine: podman.PodmanEngine) -> int | None:
    return None if engine.service is None else engine.service.pid


async def test_a_service_killed_between_create_and_start_loses_nothing(
    engine: podman.PodmanEngine, image: str, tag: str
) -> None:
    state = await engine.create(spec(image, tag))
    pid = service_pid(engine)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    await engine.start(state.name)

    (listed,) = await engine.list_containers({"fairlead.test": tag})
    assert (listed.phase, listed.pid) == (port.ContainerPhase.RUNNING, state.pid)
    await engine.create(spec(image, tag, "next"))
    assert service_pid(engine) not in {None, pid}


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.04, 0.06, 0.08, 0.1])
async def test_a_service_killed_while_it_works_leaves_a_container_that_runs_once(
    engine: podman.PodmanEngine, image: str, tag: str, after_s: float
) -> None:
    await engine.create(spec(image, tag, "first"))
    pid = service_pid(engine)
    assert pid is not None
    name = spec(image, tag).name

    async def kill() -> None:
        await asyncio.sleep(0.05 + after_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(kill())
        await engine.create(spec(image, tag))
        await engine.start(name)

    found = {state.name: state for state in await engine.list_containers({"fairlead.test": tag})}
    assert found[name].phase is port.ContainerPhase.RUNNING
    pieces = engine.logs(name, LogQuery(follow=True))
    async with contextlib.aclosing(pieces), asyncio.timeout(10):
        assert await anext(pieces) == b"once\n"


async def test_a_service_that_hangs_is_waited_for_once_and_replaced(
    engine: podman.PodmanEngine, image: str, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.create(spec(image, tag, "first"))
    pid = service_pid(engine)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(cli, "SHORT_S", 0.5)

    state = await engine.create(spec(image, tag))

    assert not Path(f"/proc/{pid}").exists()
    monkeypatch.undo()
    await engine.start(state.name)
    assert service_pid(engine) not in {None, pid}
    found = {one.name: one.phase for one in await engine.list_containers({"fairlead.test": tag})}
    assert found[state.name] is port.ContainerPhase.RUNNING


def lost_answers(engine: podman.PodmanEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the service create what it is asked for, and not say so."""
    assert engine.service is not None
    create = engine.service.create

    async def lose(body: bytes) -> None:
        await create(body)

    monkeypatch.setattr(engine.service, "create", lose)


async def test_a_container_that_the_service_created_without_saying_so_is_created_once(
    engine: podman.PodmanEngine, image: str, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_answers(engine, monkeypatch)

    state = await engine.create(spec(image, tag))
    await engine.start(state.name)

    (listed,) = await engine.list_containers({"fairlead.test": tag})
    assert (listed.id, listed.phase) == (state.id, port.ContainerPhase.RUNNING)


async def test_a_container_of_somebody_else_keeps_its_name_whatever_the_service_says(
    engine: podman.PodmanEngine, image: str, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = spec(image, tag).name
    line = ("podman", "create", f"--name={theirs}", "--network=none", image, "true")
    await asyncio.to_thread(subprocess.run, line, check=True, capture_output=True)
    lost_answers(engine, monkeypatch)
    try:
        with pytest.raises(errors.Conflict) as caught:
            await engine.create(spec(image, tag))

        assert caught.value.reason == "ContainerExists"
        found = await asyncio.to_thread(subprocess.run, ("podman", "container", "exists", theirs), check=False)
        assert found.returncode == 0
    finally:
        await asyncio.to_thread(subprocess.run, ("podman", "rm", theirs), check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [number / 1000 for number in range(0, 30, 2)])
async def test_a_service_killed_while_it_creates_leaves_a_name_that_can_be_had(
    engine: podman.PodmanEngine, image: str, tag: str, after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.create(spec(image, tag, "first"))
    pid = service_pid(engine)
    assert engine.service is not None
    assert pid is not None
    create = engine.service.create

    async def doomed(body: bytes) -> command.Result | None:
        asyncio.get_running_loop().call_later(after_s, os.kill, pid, signal.SIGKILL)
        return await create(body)

    monkeypatch.setattr(engine.service, "create", doomed)
    state = await engine.create(spec(image, tag))
    await engine.start(state.name)

    found = {one.name: one for one in await engine.list_containers({"fairlead.test": tag})}
    assert (found[state.name].id, found[state.name].phase) == (state.id, port.ContainerPhase.RUNNING)


@dataclass(frozen=True)
class CutShort:
    """A container whose init ended with podman's service, right after the runtime's create."""

    engine: podman.PodmanEngine
    """One that has just been started, with nothing remembered."""
    name: str

    def conmons(self) -> dict[int, str]:
        info = subprocess.run(
            ["podman", "info", "--format", "{{.Store.GraphRoot}}/{{.Store.GraphDriverName}}-containers"],
            check=True,
            capture_output=True,
            text=True,
        )
        return leftover.find_conmons(Path(info.stdout.strip()), self.name)


def create(wanted: port.ContainerSpec, runtime: Path) -> None:
    """Do the first of the engine's two steps: podman's database."""
    options = ["--name", wanted.name, *(f"--label={key}={value}" for key, value in wanted.labels.items())]
    options += ["--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]
    line = ["podman", f"--runtime={runtime}", "create", *options, wanted.image, *wanted.command, *wanted.args]
    subprocess.run(line, check=True, capture_output=True)


@pytest.fixture
async def cut_short(tmp_path: Path, image: str, tag: str) -> CutShort:
    runtime, victim, real = tmp_path / "runc", tmp_path / "victim", shutil.which("runc")
    lines = (
        "#!/bin/sh",
        f'{real} "$@"; code=$?',
        f'case " $* " in *" create "*) if [ -f {victim} ]; then kill -9 $(cat {victim}); rm {victim}; fi ;; esac',
        "exit $code",
    )
    runtime.write_text("\n".join([*lines, ""]))
    runtime.chmod(0o755)
    group = settings.EngineSettings(network="none", runtime=str(runtime))
    cut = CutShort(podman.PodmanEngine(group), spec(image, tag).name)
    async with podman.PodmanEngine(group).served() as engine:
        await engine.create(spec(image, tag, "first"))
        victim.write_text(str(service_pid(engine)))
        assert engine.service is not None
        create(spec(image, tag), runtime)

        assert await engine.service.ask(cut.name, "init") is None
    assert len(cut.conmons()) == 1
    return cut


async def test_what_an_init_cut_short_left_is_removed_with_its_container(cut_short: CutShort) -> None:
    await cut_short.engine.remove(cut_short.name)

    assert cut_short.conmons() == {}


async def test_what_an_init_cut_short_left_does_not_keep_its_container_from_running(cut_short: CutShort) -> None:
    await cut_short.engine.start(cut_short.name)

    assert len(cut_short.conmons()) == 1
    pieces = cut_short.engine.logs(cut_short.name, LogQuery(follow=True))
    async with contextlib.aclosing(pieces), asyncio.timeout(10):
        assert await anext(pieces) == b"once\n"


MOMENTS = {
    "before the runtime's start": "kill -9 $victims; exit 1",
    "while the runtime starts": 'kill -9 $victims; sleep 0.4; {real} "$@"',
    "after the runtime's start": '{real} "$@"; kill -9 $victims',
    "after the container's end": '{real} "$@"; sleep 1; kill -9 $victims',
}
SHORT = "after the container's end"


def killing_runtime(folder: Path, moment: str) -> tuple[Path, Path]:
    """Write an OCI runtime that once, at a start, kills the processes in a file."""
    runtime, victims, real = folder / "runc", folder / "victims", shutil.which("runc")
    lines = (
        "#!/bin/sh",
        f'case " $* " in *" start "*) if [ -f {victims} ]; then victims=$(cat {victims}); rm {victims}',
        MOMENTS[moment].format(real=real),
        "exit; fi ;; esac",
        f'exec {real} "$@"',
    )
    runtime.write_text("\n".join([*lines, ""]))
    runtime.chmod(0o755)
    return runtime, victims


async def check_ran_once(engine: podman.PodmanEngine, tag: str, name: str, moment: str) -> None:
    (found,) = await engine.list_containers({"fairlead.test": tag})
    if moment == SHORT:  # podman lost its exit code
        assert (found.phase, found.exit_code) == (port.ContainerPhase.EXITED, 137)
    else:
        assert found.phase is port.ContainerPhase.RUNNING
    pieces = engine.logs(name, LogQuery(follow=False))
    assert b"".join([piece async for piece in pieces]) == b"once\n"
    await engine.start(name)
    await engine.remove(name)
    for _ in range(100):  # conmon ends after podman's clean-up
        if not (left := mentions(name)):
            break
        await asyncio.sleep(0.1)
    assert left == []


def mentions(name: str) -> list[bytes]:
    """Return the command lines with a container's name: its conmon's."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return [words for words in found if f"\0{name}\0".encode() in words]


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_start_that_the_service_did_not_outlive_is_in_podmans_database(
    image: str, tag: str, tmp_path: Path, moment: str
) -> None:
    runtime, victims = killing_runtime(tmp_path, moment)
    group = settings.EngineSettings(network="none", runtime=str(runtime))
    wanted = spec(image, tag, script="echo once" if moment == SHORT else "echo once; sleep 60")
    async with podman.PodmanEngine(group).served() as engine:
        await engine.create(wanted)
        victims.write_text(str(service_pid(engine)))

        await engine.start(wanted.name)

        assert not victims.exists()
        await check_ran_once(engine, tag, wanted.name, moment)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_start_that_we_did_not_outlive_is_in_podmans_database(
    image: str, tag: str, tmp_path: Path, moment: str
) -> None:
    runtime, victims = killing_runtime(tmp_path, moment)
    script = "echo once" if moment == SHORT else "echo once; sleep 60"
    words = json.dumps([spec(image, tag).name, image, tag, script])
    line = (sys.executable, doomedstart.__file__, str(runtime), str(victims), words)
    done = await asyncio.to_thread(subprocess.run, line, check=False)
    assert done.returncode == -signal.SIGKILL
    group = settings.EngineSettings(network="none", runtime=str(runtime))

    async with podman.PodmanEngine(group).served() as engine:
        await asyncio.sleep(1)
        for state in await engine.list_containers({"fairlead.test": tag}):
            if state.phase is port.ContainerPhase.CREATED:
                await engine.start(state.name)

        await check_ran_once(engine, tag, spec(image, tag).name, moment)


async def test_a_podman_without_the_service_is_used_by_command(tmp_path: Path, image: str, tag: str) -> None:
    program = tmp_path / "podman"
    real = shutil.which("podman")
    lines = ("#!/bin/sh", 'case " $* " in *" system service "*) exit 125 ;; esac', f'exec {real} "$@"')
    program.write_text("\n".join([*lines, ""]))
    program.chmod(0o755)
    async with podmanhere.engine(settings.EngineSettings(network="none", podman=str(program))).served() as engine:
        state = await engine.create(spec(image, tag))
        await engine.start(state.name)

        assert service_pid(engine) is None
        (listed,) = await engine.list_containers({"fairlead.test": tag})
        assert listed.phase is port.ContainerPhase.RUNNING


async def test_the_service_ends_with_its_block_and_containers_go_on(image: str, tag: str) -> None:
    plain = podmanhere.engine(settings.EngineSettings(network="none"))
    async with podmanhere.engine(settings.EngineSettings(network="none")).served() as engine:
        state = await engine.create(spec(image, tag))
        await engine.start(state.name)
        pid = service_pid(engine)
        assert pid is not None

    assert not Path(f"/proc/{pid}").exists()
    (listed,) = await plain.list_containers({"fairlead.test": tag})
    assert listed.phase is port.ContainerPhase.RUNNING
