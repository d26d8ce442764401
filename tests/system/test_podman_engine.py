"""What only a real podman can show: adoption, a network that fails, children that are reaped, kills we did not make."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import busyboximage
import pytest

from fairlead import command, errors, settings
from fairlead.engine import port
from fairlead.engine.podman import args
from fairlead.engine.podman import engine as podman
from fairlead.engine.podman import exec as podman_exec
from fairlead.model.container.output import LogQuery
from fairlead.model.process import ProcessOptions
from tests import podmanhere

pytestmark = [
    pytest.mark.podman,
    pytest.mark.skipif(
        os.geteuid() != 0 or command.find_program("podman") is None or not Path("/usr/bin/busybox").exists(),
        reason="needs root, podman and a static busybox",
    ),
]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with busyboximage.imported(tmp_path_factory.mktemp("podman-engine"), ("sh", "sleep", "cat", "ip")) as name:
        yield name


@pytest.fixture
async def tag() -> AsyncIterator[str]:
    label = secrets.token_hex(4)
    yield label
    engine = podmanhere.engine(settings.EngineSettings())
    for state in await engine.list_containers({"fairlead.test": label}):
        await engine.remove(state.name)


def spec(image: str, tag: str, script: str) -> port.ContainerSpec:
    return port.ContainerSpec(
        name=f"ft-{tag}", image=image, command=("/bin/sh", "-c"), args=(script,), labels={"fairlead.test": tag}
    )


def engine(network: str = "none", program: str = "podman") -> podman.PodmanEngine:
    return podmanhere.engine(settings.EngineSettings(network=network, podman=program))


async def test_an_engine_that_knows_nothing_adopts_what_another_started(image: str, tag: str) -> None:
    first, second = engine(), engine()
    created = await first.create(spec(image, tag, "sleep 60"))
    await first.start(created.name)

    (found,) = await second.list_containers({"fairlead.test": tag})

    assert (found.id, found.pid, found.phase) == (created.id, created.pid, port.ContainerPhase.RUNNING)
    await second.start(found.name)
    await second.stop(found.name, grace_s=0)
    (ended,) = await first.list_containers({"fairlead.test": tag})
    assert (ended.phase, ended.exit_code) == (port.ContainerPhase.EXITED, 137)


async def test_a_death_between_podmans_database_and_the_sandbox_is_finished_by_start(image: str, tag: str) -> None:
    made = engine()
    host = await made._podman.host()  # what a killed create leaves: `podman create` without `podman init`
    arguments = args.create(spec(image, tag, "echo late; exit 0"), host, network="none", log_max_mib=0)
    await made._podman.checked("x", "create", *arguments)
    (left,) = await made.list_containers({"fairlead.test": tag})
    assert (left.phase, left.pid) == (port.ContainerPhase.CREATED, None)

    await made.start(left.name)

    output = [chunk async for chunk in made.logs(left.name, LogQuery(follow=True))]
    assert b"".join(output) == b"late\n"


async def test_what_a_container_gets_for_its_environment_is_told_without_asking(image: str, tag: str) -> None:
    state = await engine().create(dataclasses.replace(spec(image, tag, "true"), env={"OWN": "a=b"}))
    assert state.env is not None
    assert (state.env["OWN"], "PATH" in state.env) == ("a=b", True)


async def test_a_container_removed_behind_our_back_is_told(image: str, tag: str) -> None:
    made = engine()
    state = await made.create(spec(image, tag, "sleep 60"))
    await made.start(state.name)
    changes = made.watch_changes()

    async with contextlib.aclosing(changes), asyncio.timeout(20):
        await command.run(["podman", "rm", "-f", "-t", "0", state.name], env=command.base_env(), timeout_s=20)
        while await anext(changes) != state.name or await made.list_containers({"fairlead.test": tag}):
            pass
    assert await made.list_containers({"fairlead.test": tag}) == ()


def wrapped(folder: Path, *, hides: str) -> str:
    """Write a program that is podman without one of the tools its network needs."""
    tools = folder / "tools"
    tools.mkdir()
    for place in command.PATH.split(":"):
        for tool in Path(place).iterdir() if Path(place).is_dir() else ():
            if not tool.name.startswith(hides) and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    program = folder / "podman"
    program.write_text(f'#!/bin/sh\nPATH={tools} exec {command.find_program("podman")} "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture
async def needs_bridge() -> None:
    if (await engine("auto")._podman.host()).network != "bridge":
        pytest.skip("podman's default network is not installed here")


@pytest.mark.usefixtures("needs_bridge")
async def test_a_network_that_is_installed_and_broken_does_not_fail_a_container(
    image: str, tag: str, tmp_path: Path
) -> None:
    made = engine("auto", program=wrapped(tmp_path, hides="ip"))

    state = await made.create(spec(image, tag, "ip addr show"))

    await made.start(state.name)
    output = b"".join([chunk async for chunk in made.logs(state.name, LogQuery(follow=True))])
    assert b"127.0.0.1/8" in output
    assert b"eth0" not in output
    assert any("no network" in note for note in (await made.info()).notes)


@pytest.mark.usefixtures("needs_bridge")
async def test_a_bridge_that_was_asked_for_and_is_broken_fails_the_container(
    image: str, tag: str, tmp_path: Path
) -> None:
    made = engine("bridge", program=wrapped(tmp_path, hides="ip"))

    with pytest.raises(errors.Unavailable) as caught:
        await made.create(spec(image, tag, "true"))

    assert caught.value.reason == "NetworkUnusable"
    assert await made.list_containers({"fairlead.test": tag}) == ()


def marked(mark: str) -> list[str]:
    wanted = f"{podman_exec.MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "comm").read_text().strip())
    return found


@pytest.mark.parametrize("tty", [False, True])
async def test_a_closed_exec_session_leaves_no_process_in_the_container(image: str, tag: str, tty: bool) -> None:
    made = engine()
    state = await made.create(spec(image, tag, "sleep 60"))
    await made.start(state.name)
    # its child is a shell, too, until it has become what it is told to be
    script = "sleep 61 & until grep -q sleep /proc/$!/comm; do :; done; echo ready; wait"
    session = await made.exec(state.name, ("/bin/sh", "-c", script), tty=tty, stdin=False)
    assert (await session.read()).startswith(b"ready")
    assert "sleep" in marked(session._mark)

    await session.close()

    assert marked(session._mark) == []
    (left,) = await made.list_containers({"fairlead.test": tag})
    assert left.phase is port.ContainerPhase.RUNNING


async def test_a_variable_of_an_exec_stands_on_no_command_line(image: str, tag: str) -> None:
    made = engine()
    state = await made.create(spec(image, tag, "sleep 60"))
    await made.start(state.name)
    given = {"TOKEN": f"word-{tag} of 'two' #3", "LINES": "one\ntwo", "PATH": "/bin"}
    session = await made.exec(
        state.name,
        ("/bin/sh", "-c", 'echo "$TOKEN|$LINES|$PATH"; sleep 60'),
        tty=False,
        stdin=False,
        options=ProcessOptions(env=given),
    )
    assert (await session.read()).decode() == f"word-{tag} of 'two' #3|one\ntwo|/bin\n"
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(file.read_bytes())
    assert any(state.name.encode() in line for line in lines)  # podman is still there
    assert not [line for line in lines if f"word-{tag}".encode() in line]

    await session.close()


async def test_closed_iterators_leave_no_child(image: str, tag: str) -> None:
    made = engine()
    before = inotify_files()
    state = await made.create(spec(image, tag, "echo hi; sleep 60"))
    # Before the start: a watch owes nothing that happened before it was asked for.
    changes = made.watch_changes()
    await made.start(state.name)
    lines = made.logs(state.name, LogQuery(follow=True))
    async with asyncio.timeout(20):
        assert await anext(lines) == b"hi\n"
        assert await anext(changes)
        assert children()
        assert inotify_files() > before

        await lines.aclose()
        await changes.aclose()

    assert children() == []
    assert inotify_files() == before


def inotify_files() -> int:
    return sum(file.is_symlink() and "inotify" in str(file.readlink()) for file in Path("/proc/self/fd").iterdir())


def children() -> list[str]:
    names = []
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            with contextlib.suppress(OSError):
                names.append(Path("/proc", pid, "cmdline").read_text().replace("\0", " "))
    return [name for name in names if "podman" in name]


async def test_changes_go_on_when_the_stream_of_events_breaks(image: str, tag: str) -> None:
    made = engine()
    changes = made.watch_changes()
    state = await made.create(spec(image, tag, "sleep 60"))
    async with contextlib.aclosing(changes), asyncio.timeout(30):
        await made.start(state.name)
        while await anext(changes) != state.name:
            pass
        (child,) = [pid for pid in own_children() if "events" in Path("/proc", pid, "cmdline").read_text()]
        os.kill(int(child), 9)

        await made.stop(state.name, grace_s=0)

        while await anext(changes) != state.name:
            pass


def own_children() -> list[str]:
    return [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


async def test_a_registry_that_does_not_answer_is_unavailable() -> None:
    with pytest.raises(errors.Unavailable) as caught:
        await engine().pull("127.0.0.1:1/nothing:1")
    assert caught.value.reason == "RegistryUnreachable"


async def test_limits_are_in_force_in_the_kernel(image: str, tag: str) -> None:
    made = engine()
    wanted = spec(image, tag, "sleep 60")
    limited = port.ContainerSpec(
        name=wanted.name,
        image=image,
        command=wanted.command,
        args=wanted.args,
        labels=wanted.labels,
        cpu_limit=0.5,
        memory_limit_bytes=64 << 20,
    )
    state = await made.create(limited)
    lines = dict(line.split(":", 2)[1:] for line in Path(f"/proc/{state.pid}/cgroup").read_text().splitlines())
    v2 = Path(f"/sys/fs/cgroup{lines['']}")
    if (v2 / "memory.max").exists():
        assert int((v2 / "memory.max").read_text()) == 64 << 20
        quota, period = (v2 / "cpu.max").read_text().split()
    else:
        memory = Path(f"/sys/fs/cgroup/memory{lines['memory']}/memory.limit_in_bytes")
        assert int(memory.read_text()) == 64 << 20
        cpu = next(path for name, path in lines.items() if "cpu" in name.split(","))
        quota, period = (Path(f"/sys/fs/cgroup/cpu{cpu}/cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    assert int(quota) / int(period) == 0.5


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_container_that_died_with_its_monitor_has_ended(image: str, tag: str, *, is_stopped: bool) -> None:
    made = engine()
    state = await made.create(spec(image, tag, "sleep 60"))
    await made.start(state.name)
    result = await made._podman.checked("x", "ask", "container", "inspect", "--format={{.State.ConmonPid}}", state.name)
    os.kill(int(result.stdout), signal.SIGKILL)
    if is_stopped:
        await made.stop(state.name, grace_s=0)
    else:
        assert state.pid is not None
        os.kill(state.pid, signal.SIGKILL)

    (found,) = await made.list_containers({"fairlead.test": tag})

    assert (found.phase, found.exit_code, found.pid) == (port.ContainerPhase.EXITED, 137, None)
    await made.remove(state.name)
    assert await made.list_containers({"fairlead.test": tag}) == ()
