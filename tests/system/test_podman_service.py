"""Podman's service as the engine's child: its death, at any moment, costs time and no container."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairlead import settings
from fairlead.engine import port
from fairlead.engine.podman import engine as podman
from fairlead.engine.podman import leftover
from tests.contract.test_engine_contract import NO_PODMAN, busybox_root

pytestmark = [pytest.mark.podman, pytest.mark.skipif(bool(NO_PODMAN), reason=NO_PODMAN)]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("service")
    name, archive = f"localhost/fairlead-test/{secrets.token_hex(4)}:1", folder / "root.tar"
    with tarfile.open(archive, "w") as packed:
        packed.add(busybox_root(folder / "root"), ".")
    subprocess.run(["podman", "import", "-q", archive, name], check=True, capture_output=True)
    yield name
    subprocess.run(["podman", "rmi", name], check=True, capture_output=True)


@pytest.fixture
async def engine() -> AsyncIterator[podman.PodmanEngine]:
    async with podman.PodmanEngine(settings.EngineSettings(network="none")).served() as one:
        yield one


@pytest.fixture
async def tag() -> AsyncIterator[str]:
    label = secrets.token_hex(4)
    yield label
    plain = podman.PodmanEngine(settings.EngineSettings(network="none"))
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


# In the slow ring: where the service dies between the runtime's start and podman's own books, podman refuses to start
# what runs (docs/design/engine.md, known flaws).
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
    pieces = engine.logs(name, follow=True, tail=None, timestamps=False)
    async with contextlib.aclosing(pieces), asyncio.timeout(10):
        assert await anext(pieces) == b"once\n"


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
    pieces = cut_short.engine.logs(cut_short.name, follow=True, tail=None, timestamps=False)
    async with contextlib.aclosing(pieces), asyncio.timeout(10):
        assert await anext(pieces) == b"once\n"


async def test_a_podman_without_the_service_is_used_by_command(tmp_path: Path, image: str, tag: str) -> None:
    program = tmp_path / "podman"
    real = shutil.which("podman")
    lines = ("#!/bin/sh", 'case " $* " in *" system service "*) exit 125 ;; esac', f'exec {real} "$@"')
    program.write_text("\n".join([*lines, ""]))
    program.chmod(0o755)
    async with podman.PodmanEngine(settings.EngineSettings(network="none", podman=str(program))).served() as engine:
        state = await engine.create(spec(image, tag))
        await engine.start(state.name)

        assert service_pid(engine) is None
        (listed,) = await engine.list_containers({"fairlead.test": tag})
        assert listed.phase is port.ContainerPhase.RUNNING


async def test_the_service_ends_with_its_block_and_containers_go_on(image: str, tag: str) -> None:
    plain = podman.PodmanEngine(settings.EngineSettings(network="none"))
    async with podman.PodmanEngine(settings.EngineSettings(network="none")).served() as engine:
        state = await engine.create(spec(image, tag))
        await engine.start(state.name)
        pid = service_pid(engine)
        assert pid is not None

    assert not Path(f"/proc/{pid}").exists()
    (listed,) = await plain.list_containers({"fairlead.test": tag})
    assert listed.phase is port.ContainerPhase.RUNNING
