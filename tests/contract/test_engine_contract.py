"""The contract of `engine.port`, held by the fake and by podman alike."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import io
import os
import re
import secrets
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from fairlead import command, errors, settings
from fairlead.engine import machine, port
from fairlead.engine.fake import engine as fake
from fairlead.model.container.output import ErrorOutput, LogQuery
from fairlead.model.process import ProcessOptions
from tests import podmanhere

BUSYBOX = Path("/usr/bin/busybox")
APPLETS = ("sh", "sleep", "cat", "true", "false", "echo", "env", "hostname", "id", "pwd", "stty", "dd", "nc")
MEBIBYTE = 1 << 20


@dataclass
class World:
    """An engine with one image, and names that are nobody else's."""

    engine: machine.MachineEngine
    image: str
    tag: str
    is_served: bool = False
    """Whether a block of `served` is open."""

    def spec(self, name: str = "a", **more: Any) -> port.ContainerSpec:
        values = {"image": self.image, "labels": {"fairlead.test": self.tag}, **more}
        return port.ContainerSpec(name=self.name(name), **values)

    def name(self, name: str = "a") -> str:
        return f"ft-{self.tag}-{name}"

    async def started(self, script: str, name: str = "a", **more: Any) -> str:
        spec = self.spec(name, command=("/bin/sh", "-c"), args=(script,), **more)
        await self.engine.create(spec)
        await self.engine.start(spec.name)
        return spec.name

    async def state(self, name: str) -> port.ContainerState | None:
        states = await self.engine.list_containers({"fairlead.test": self.tag})
        return next((state for state in states if state.name == name), None)

    async def ended(self, name: str) -> port.ContainerState:
        async with asyncio.timeout(20):
            changes = self.engine.watch_changes()
            async with contextlib.aclosing(changes):
                while True:
                    state = await self.state(name)
                    if state is not None and state.phase is port.ContainerPhase.EXITED:
                        return state
                    await anext(changes)

    async def output(
        self, name: str, *, follow: bool = False, tail: int | None = None, timestamps: bool = False
    ) -> bytes:
        lines = self.engine.logs(name, LogQuery(follow=follow, tail=tail, timestamps=timestamps))
        return b"".join([chunk async for chunk in lines])


def busybox_root(folder: Path) -> Path:
    """Make a root file system of one static busybox."""
    for name in ("bin", "dev", "proc", "sys", "tmp", "etc"):
        (folder / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, folder / "bin/busybox")
    for applet in APPLETS:
        (folder / "bin" / applet).symlink_to("busybox")
    return folder


@pytest.fixture(scope="session")
def root_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return busybox_root(tmp_path_factory.mktemp("engine") / "root")


@pytest.fixture(scope="session")
def podman_image(root_folder: Path) -> Iterator[str]:
    # Made by podman itself, not by the code under test (which also could not run here: a loop is running already).
    name, archive = f"localhost/fairlead-test/{secrets.token_hex(4)}:1", root_folder.parent / "root.tar"
    with tarfile.open(archive, "w") as packed:
        packed.add(root_folder, ".")
    subprocess.run(["podman", "import", "-q", "-c", 'CMD ["/bin/sh"]', archive, name], check=True, capture_output=True)
    yield name
    subprocess.run(["podman", "rmi", name], check=True, capture_output=True)


def why_no_podman() -> str:
    if os.geteuid() != 0:
        return "podman is tested as root"
    missing = [name for name in ("podman", "busybox") if command.find_program(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


NO_PODMAN = why_no_podman()
needs_podman = [pytest.mark.podman, pytest.mark.skipif(bool(NO_PODMAN), reason=NO_PODMAN)]


@pytest.fixture(params=["fake", *(pytest.param(name, marks=needs_podman) for name in ("podman", "podman service"))])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    tag = secrets.token_hex(4)
    if request.param == "fake":
        async with fake.FakeEngine() as pretended:
            pretended.add_image("localhost/bb:1", command=("/bin/sh",))
            yield World(pretended, "localhost/bb:1", tag)
        return
    image: str = request.getfixturevalue("podman_image")
    real = podmanhere.engine(settings.EngineSettings(network="none"))
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "podman service":
            await stack.enter_async_context(real.served())
        yield World(real, image, tag, is_served=request.param == "podman service")
        for state in reversed(await real.list_containers({"fairlead.test": tag})):
            await real.remove(state.name)


# One way to start containers for the length of a block, and a listing that everything is in


async def test_containers_of_a_block_run_on_after_it(world: World) -> None:
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(world.engine.served()) if not world.is_served else world.engine
        spec = world.spec(args=("/bin/sleep", "1000"))
        await engine.create(spec)
        await engine.start(spec.name)

    state = await world.state(spec.name)
    assert state is not None
    assert state.phase is port.ContainerPhase.RUNNING


async def test_no_sound_container_is_called_broken(world: World) -> None:
    name = await world.started("sleep 1000")

    assert name not in await world.engine.find_broken()


# Two-step start


async def test_create_holds_the_process_before_its_first_instruction(world: World) -> None:
    state = await world.engine.create(world.spec(args=("/bin/echo", "hi")))

    assert state.phase is port.ContainerPhase.CREATED
    assert state.pid
    assert await world.output(state.name) == b""
    listed = await world.state(state.name)
    assert listed is not None
    assert (listed.id, listed.pid, listed.phase) == (state.id, state.pid, port.ContainerPhase.CREATED)
    engine = (await world.engine.info()).name
    assert (state.container_id, listed.container_id) == (f"{engine}://{state.name}",) * 2


async def test_a_started_container_runs_to_its_exit_code(world: World) -> None:
    before = int(time.time())

    name = await world.started("echo hi; exit 7")

    state = await world.ended(name)
    assert (state.exit_code, state.pid, state.oom_killed) == (7, None, False)
    assert state.started_at is not None
    assert state.finished_at is not None
    assert before <= state.started_at <= state.finished_at <= time.time()
    assert await world.output(name) == b"hi\n"


async def test_a_running_container_has_a_pid_and_no_exit_code(world: World) -> None:
    name = await world.started("sleep 60")

    state = await world.state(name)

    assert state is not None
    assert state.phase is port.ContainerPhase.RUNNING
    assert state.pid
    assert state.exit_code is None


async def test_start_never_runs_a_container_twice(world: World) -> None:
    name = await world.started("echo once; exit 0")
    await world.engine.start(name)
    await world.ended(name)

    await world.engine.start(name)

    assert await world.output(name) == b"once\n"
    assert (await world.ended(name)).exit_code == 0


async def test_start_of_an_unknown_container_is_refused(world: World) -> None:
    with pytest.raises(errors.NotFound) as caught:
        await world.engine.start(world.name("nobody"))
    assert caught.value.reason == "ContainerNotFound"


async def test_a_name_is_given_once(world: World) -> None:
    await world.engine.create(world.spec(args=("sleep", "60")))

    with pytest.raises(errors.Conflict) as caught:
        await world.engine.create(world.spec(args=("sleep", "60")))

    assert caught.value.reason == "ContainerExists"
    assert await world.state(world.name()) is not None


@pytest.mark.parametrize(
    ("more", "kind", "reason"),
    [
        ({"image": "localhost/fairlead-test/nothing:1"}, errors.NotFound, "ImageNotFound"),
        ({"cdi_devices": ("fairlead-test.dev/gpu=0",), "args": ("true",)}, errors.Invalid, "CDIUnresolvable"),
        ({"command": ("/no/such/program",)}, errors.Invalid, "StartFailed"),
    ],
)
async def test_what_cannot_be_created_is_refused_and_leaves_nothing(
    world: World, more: dict[str, Any], kind: type[errors.FairleadError], reason: str
) -> None:
    with pytest.raises(kind) as caught:
        await world.engine.create(world.spec(**more))

    assert caught.value.reason == reason
    assert caught.value.hint
    assert await world.state(world.name()) is None


async def test_a_missing_program_says_127(world: World) -> None:
    with pytest.raises(errors.Invalid) as caught:
        await world.engine.create(world.spec(args=("no-such-program",)))
    assert caught.value.context["exit_code"] == 127


@pytest.mark.parametrize("name", ["", "-rf", "a b", "a/b", "ä"])
async def test_names_that_would_be_options_or_paths_are_refused(world: World, name: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        await world.engine.create(port.ContainerSpec(name=name, image=world.image))
    assert caught.value.reason == "ContainerNameInvalid"


# What runs


async def test_args_alone_replace_the_images_command(world: World) -> None:
    spec = world.spec(args=("/bin/echo", "from args"))
    await world.engine.create(spec)
    await world.engine.start(spec.name)
    await world.ended(spec.name)
    assert await world.output(spec.name) == b"from args\n"


async def test_the_environment_is_what_was_asked_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_TEST_LEAK", "host")
    monkeypatch.setenv("HTTP_PROXY", "http://leak")
    name = await world.started("env", env={"GREETING": "a b=c", "EMPTY": ""}, hostname="pod-7")
    await world.ended(name)

    lines = (await world.output(name)).splitlines()

    assert b"GREETING=a b=c" in lines
    assert b"EMPTY=" in lines
    assert not [line for line in lines if b"leak" in line.lower()]


async def test_the_hostname_is_the_one_given(world: World) -> None:
    name = await world.started("hostname", hostname="pod-7")
    await world.ended(name)
    assert await world.output(name) == b"pod-7\n"


async def test_breaking_the_memory_limit_is_seen_as_an_oom_kill(world: World) -> None:
    hungry = ("/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1")
    spec = world.spec(args=hungry, memory_limit_bytes=32 * MEBIBYTE)
    await world.engine.create(spec)
    await world.engine.start(spec.name)

    state = await world.ended(spec.name)

    assert state.oom_killed
    assert state.exit_code == 137


# Ends


async def test_stop_lets_a_container_that_listens_end_itself(world: World) -> None:
    name = await world.started('trap "exit 3" TERM; echo ready; sleep 60 & wait')
    async with contextlib.aclosing(world.engine.logs(name, LogQuery(follow=True))) as lines:
        assert await anext(lines) == b"ready\n"

    await world.engine.stop(name, grace_s=30)

    state = await world.state(name)
    assert state is not None
    assert (state.phase, state.exit_code) == (port.ContainerPhase.EXITED, 3)


async def test_stop_kills_after_the_grace(world: World) -> None:
    name = await world.started("sleep 60; exit 0")

    await world.engine.stop(name, grace_s=0.05)

    state = await world.state(name)
    assert state is not None
    assert (state.phase, state.exit_code) == (port.ContainerPhase.EXITED, 137)


async def test_stop_ends_a_held_container(world: World) -> None:
    state = await world.engine.create(world.spec(args=("sleep", "60")))

    await world.engine.stop(state.name, grace_s=1)

    found = await world.state(state.name)
    assert found is not None
    assert (found.phase, found.pid) == (port.ContainerPhase.EXITED, None)


async def test_stop_and_remove_accept_what_is_gone(world: World) -> None:
    name = await world.started("exit 4")
    await world.ended(name)

    await world.engine.stop(name, grace_s=1)
    assert (await world.ended(name)).exit_code == 4
    await world.engine.remove(name)
    await world.engine.stop(name, grace_s=1)
    await world.engine.remove(name)

    assert await world.state(name) is None


async def test_remove_kills_what_runs(world: World) -> None:
    name = await world.started("sleep 60")
    await world.engine.remove(name)
    assert await world.state(name) is None


async def test_the_owner_of_a_shared_network_goes_last(world: World) -> None:
    first = await world.started("sleep 60", "first")
    second = await world.started("sleep 60", "second", network_of=first)

    with pytest.raises(errors.Conflict) as caught:
        await world.engine.remove(first)

    assert caught.value.reason == "ContainerInUse"
    await world.engine.remove(second)
    await world.engine.remove(first)
    assert await world.state(first) is None


# Listing and watching


async def test_labels_select_by_value_or_by_presence(world: World) -> None:
    await world.engine.create(world.spec("x", args=("true",), labels={"fairlead.test": world.tag, "colour": "red"}))
    await world.engine.create(world.spec("y", args=("true",), labels={"fairlead.test": world.tag, "colour": "blue"}))
    await world.engine.create(world.spec("z", args=("true",)))

    async def names(labels: dict[str, str]) -> set[str]:
        found = await world.engine.list_containers({"fairlead.test": world.tag, **labels})
        return {state.name.rpartition("-")[2] for state in found}

    assert await names({"colour": "red"}) == {"x"}
    assert await names({"colour": ""}) == {"x", "y"}
    assert await names({}) == {"x", "y", "z"}


async def test_labels_come_back_as_given(world: World) -> None:
    labels = {"fairlead.test": world.tag, "fairlead.dev/pod": 'a "b" = c, d'}
    await world.engine.create(world.spec(args=("true",), labels=labels))
    state = await world.state(world.name())
    assert state is not None
    assert {key: state.labels[key] for key in labels} == labels


async def test_start_end_and_removal_are_told(world: World) -> None:
    changes = world.engine.watch_changes()
    async with asyncio.timeout(20), contextlib.aclosing(changes):
        name = await world.started("exit 0")
        await world.ended(name)
        await world.engine.remove(name)
        told = 0
        while told < 3:
            told += await anext(changes) == name
    assert told == 3


# Logs


async def test_followed_logs_come_while_it_runs_and_end_with_it(world: World) -> None:
    name = await world.started("echo one; sleep 0.3; echo two >&2; exit 0")

    async with asyncio.timeout(20):
        assert await world.output(name, follow=True) == b"one\ntwo\n"


async def test_logs_of_the_last_lines_with_their_times(world: World) -> None:
    name = await world.started("echo one; echo two; echo three")
    await world.ended(name)

    text = (await world.output(name, tail=2, timestamps=True)).decode().splitlines()

    assert [line.partition(" ")[2] for line in text] == ["two", "three"]
    assert all(line.startswith(time.strftime("%Y-", time.gmtime())) for line in text)


async def test_standard_error_is_told_apart_from_output(world: World) -> None:
    name = await world.started("echo out; echo err >&2")
    await world.ended(name)

    pieces = [piece async for piece in world.engine.logs(name, LogQuery())]

    assert b"".join(piece for piece in pieces if not isinstance(piece, ErrorOutput)) == b"out\n"
    assert b"".join(piece for piece in pieces if isinstance(piece, ErrorOutput)) == b"err\n"


async def test_logs_begin_and_end_at_times(world: World) -> None:
    name = await world.started("echo one; sleep 1; echo two; sleep 1; echo three")
    state = await world.ended(name)
    assert state.started_at is not None
    stamped = (await world.output(name, timestamps=True)).split()
    moment = datetime.datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", stamped[2].decode())).timestamp()

    query = LogQuery(since=moment - 0.5, until=moment + 0.5)

    assert b"".join([piece async for piece in world.engine.logs(name, query)]) == b"two\n"


async def test_logs_of_nobody_are_not_found(world: World) -> None:
    with pytest.raises(errors.NotFound):
        await world.output(world.name("nobody"))


# Access


async def heard(world: World, name: str, wanted: bytes) -> None:
    """Return once the container has written that."""
    found = b""
    async with asyncio.timeout(20), contextlib.aclosing(world.engine.logs(name, LogQuery(follow=True))) as pieces:
        async for piece in pieces:
            found += piece
            if wanted in found:
                return
    raise AssertionError(found)


async def test_a_first_process_reads_what_it_is_fed_to_the_end(world: World) -> None:
    await world.engine.create(world.spec(args=("/bin/cat",), stdin=True))
    await world.engine.start(world.name())

    feed = await world.engine.open_input(world.name())
    await feed.write(b"some\x00bytes\nwithout an end")
    await feed.write(b"")

    assert (await world.ended(world.name())).exit_code == 0
    assert await world.output(world.name()) == b"some\x00bytes\nwithout an end"
    await feed.close()


@pytest.mark.parametrize("lets_go", [False, True])
async def test_an_input_ends_after_the_process_has_answered_it(world: World, lets_go: bool) -> None:
    await world.engine.create(world.spec(args=("/bin/cat",), stdin=True))
    await world.engine.start(world.name())

    feed = await world.engine.open_input(world.name())
    await feed.write(b"asked\n")
    await heard(world, world.name(), b"asked\n")
    await (feed.close() if lets_go else feed.write(b""))

    assert (await world.ended(world.name())).exit_code == 0
    await feed.close()


async def test_letting_go_of_an_input_ends_it(world: World) -> None:
    await world.engine.create(world.spec(args=("/bin/cat",), stdin=True))
    await world.engine.start(world.name())

    await (await world.engine.open_input(world.name())).close()

    assert (await world.ended(world.name())).exit_code == 0


async def test_a_terminal_of_a_first_process_has_the_size_it_is_told(world: World) -> None:
    await world.engine.create(world.spec(args=("/bin/sh",), stdin=True, tty=True))
    await world.engine.start(world.name())

    feed = await world.engine.open_input(world.name())
    await feed.resize(40, 120)
    await asyncio.sleep(0.1)  # conmon reads its control pipe and its input in no order
    await feed.write(b"stty size\n")

    await heard(world, world.name(), b"40 120")
    await feed.write(b"exit 3\n")
    assert (await world.ended(world.name())).exit_code == 3
    await feed.close()


async def test_a_terminal_has_a_size_before_anybody_looks_at_it(world: World) -> None:
    await world.engine.create(world.spec(args=("/bin/sh", "-c", "stty size"), stdin=True, tty=True))
    await world.engine.start(world.name())

    await heard(world, world.name(), b"24 80")
    assert (await world.ended(world.name())).exit_code == 0


async def test_an_input_that_was_not_asked_for_is_closed(world: World) -> None:
    name = await world.started("sleep 60")

    with pytest.raises(errors.Conflict) as caught:
        await world.engine.open_input(name)

    assert caught.value.reason == "StdinClosed"


async def test_a_signal_reaches_the_first_process(world: World) -> None:
    name = await world.started('trap "exit 3" TERM; echo ready; sleep 60 & wait')
    await heard(world, name, b"ready")

    await world.engine.signal(name, signal.SIGTERM)

    assert (await world.ended(name)).exit_code == 3


async def test_what_has_ended_takes_no_signal_and_uses_nothing(world: World) -> None:
    name = await world.started("true")
    await world.ended(name)

    for asked in (world.engine.signal(name, signal.SIGTERM), world.engine.usage(name), world.engine.open_input(name)):
        with pytest.raises(errors.Conflict):
            await asked


async def test_processes_are_a_table(world: World) -> None:
    name = await world.started("sleep 60")

    titles, *rows = await world.engine.list_processes(name)

    assert titles[-1] == "COMMAND"
    assert any("sleep 60" in row[-1] for row in rows)


async def test_usage_counts_time_and_memory(world: World) -> None:
    name = await world.started("sleep 60", memory_limit_bytes=64 * MEBIBYTE)

    used = await world.engine.usage(name)

    assert used.cpu_ns is not None
    assert used.cpu_ns >= 0
    assert used.memory_bytes is not None
    assert 0 < used.memory_bytes <= 64 * MEBIBYTE
    assert used.memory_limit_bytes == 64 * MEBIBYTE
    assert used.processes


async def test_files_go_in_and_come_back(world: World) -> None:
    name = await world.started("sleep 60")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        about = tarfile.TarInfo("hello.txt")
        about.size = 5
        archive.addfile(about, io.BytesIO(b"hello"))

    going = await world.engine.unpack(name, "/tmp")
    await going.write(packed.getvalue())
    await going.write(b"")
    assert await drained(going) == b""
    assert await going.wait() == 0
    await going.close()

    coming = await world.engine.pack(name, "/tmp")
    data = await drained(coming)
    assert await coming.wait() == 0
    await coming.close()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = next(member for member in archive if member.name.endswith("hello.txt"))
        inside = archive.extractfile(found)
        assert inside is not None
        assert inside.read() == b"hello"


async def test_a_path_that_is_not_there_is_said(world: World) -> None:
    name = await world.started("sleep 60")

    coming = await world.engine.pack(name, "/nosuch")

    assert b"/nosuch" in await drained(coming)
    assert await coming.wait() != 0
    await coming.close()


# Exec


async def drained(session: port.ExecSession) -> bytes:
    found = b""
    async with asyncio.timeout(20):
        while data := await session.read():
            found += data
    return found


async def test_exec_returns_output_and_exit_code(world: World) -> None:
    name = await world.started("sleep 60")

    session = await world.engine.exec(name, ("/bin/sh", "-c", "echo out; exit 5"), tty=False, stdin=False)

    assert await drained(session) == b"out\n"
    assert await session.wait() == 5
    await session.close()


async def test_exec_feeds_standard_input_to_its_end(world: World) -> None:
    name = await world.started("sleep 60")
    session = await world.engine.exec(name, ("cat",), tty=False, stdin=True)

    await session.write(b"line\n")
    await session.write(b"")

    assert await drained(session) == b"line\n"
    assert await session.wait() == 0
    await session.close()


async def test_exec_has_a_terminal_of_the_size_told(world: World) -> None:
    name = await world.started("sleep 60")
    session = await world.engine.exec(name, ("/bin/sh", "-c", "cat; stty size"), tty=True, stdin=True)

    await session.resize(33, 101)
    await session.write(b"x\n")
    async with asyncio.timeout(20):
        seen = b""
        while b"x\r\n" not in seen:
            seen += await session.read()
    await session.write(b"")

    assert b"33 101\r\n" in await drained(session)
    assert await session.wait() == 0
    await session.close()


async def test_closing_an_exec_session_ends_it(world: World) -> None:
    name = await world.started("sleep 60")
    session = await world.engine.exec(name, ("sleep", "60"), tty=False, stdin=False)

    await session.close()
    await session.close()

    async with asyncio.timeout(20):
        assert await session.wait() != 0


@pytest.mark.parametrize("tty", [False, True])
async def test_exec_of_a_missing_program_says_127(world: World, tty: bool) -> None:
    name = await world.started("sleep 60")
    session = await world.engine.exec(name, ("no-such-program",), tty=tty, stdin=False)
    await drained(session)
    assert await session.wait() == 127
    await session.close()


async def test_exec_has_variables_a_user_and_a_folder_of_its_own(world: World) -> None:
    name = await world.started("sleep 60", env={"A": "container", "B": "kept"}, working_dir="/tmp")
    asked = ProcessOptions(env={"A": "own = -x"}, user="65534", workdir="/etc")

    session = await world.engine.exec(name, ("sh", "-c", "id -u; pwd; env"), tty=False, stdin=False, options=asked)

    lines = (await drained(session)).decode().splitlines()
    assert lines[:2] == ["65534", "/etc"]
    assert {"A=own = -x", "B=kept"} <= set(lines)
    await session.close()
    beside = await world.engine.exec(name, ("sh", "-c", "id -u; pwd; env"), tty=False, stdin=False)
    lines = (await drained(beside)).decode().splitlines()
    assert lines[:2] == ["0", "/tmp"]
    assert "A=container" in lines
    await beside.close()


@pytest.mark.parametrize("tty", [False, True])
async def test_exec_as_a_user_that_the_image_does_not_know_says_so(world: World, tty: bool) -> None:
    name = await world.started("sleep 60")
    asked = ProcessOptions(user="nosuch")
    session = await world.engine.exec(name, ("true",), tty=tty, stdin=False, options=asked)
    assert b"unable to find user nosuch" in await drained(session)
    assert await session.wait() not in {0, 1, 127}
    await session.close()


async def test_exec_needs_a_running_container(world: World) -> None:
    held = await world.engine.create(world.spec(args=("sleep", "60")))
    with pytest.raises(errors.Conflict) as caught:
        await world.engine.exec(held.name, ("true",), tty=False, stdin=False)
    assert caught.value.reason == "ContainerNotRunning"
    with pytest.raises(errors.NotFound):
        await world.engine.exec(world.name("nobody"), ("true",), tty=False, stdin=False)


# Images


@pytest.fixture
async def image_name(world: World) -> AsyncIterator[str]:
    name = f"localhost/fairlead-test/{world.tag}:1"
    yield name
    for state in await world.engine.list_containers({"fairlead.test": world.tag}):
        await world.engine.remove(state.name)
    await world.engine.remove_image(name)


async def test_the_engine_says_what_it_is(world: World) -> None:
    info = await world.engine.info()
    assert info.name in type(world.engine).__name__.lower()
    assert info.cdi_ceiling >= "0.5.0"


@functools.cache
def packed_root(root_folder: Path, packing: Literal["w", "w:gz", "w:xz"]) -> Path:
    """Pack a root, once for all engines: a second of a processor."""
    made = root_folder.parent / f"root.{packing.replace(':', '.')}"
    with tarfile.open(made, packing) as archive:
        archive.add(root_folder, ".")
    return made


@pytest.mark.parametrize("packing", [None, "w", "w:gz", "w:xz"])
async def test_an_imported_root_runs_its_command(
    world: World, image_name: str, root_folder: Path, packing: Literal["w", "w:gz", "w:xz"] | None
) -> None:
    source = root_folder if packing is None else packed_root(root_folder, packing)

    image = await world.engine.import_root(source, image_name, command=("/bin/echo", 'it "runs"'))

    assert image.names == (image_name,)
    assert image.size_bytes > 0
    assert image.id in {listed.id for listed in await world.engine.list_images()}
    spec = world.spec(image=image_name)
    await world.engine.create(spec)
    await world.engine.start(spec.name)
    await world.ended(spec.name)
    assert await world.output(spec.name) == b'it "runs"\n'


async def test_what_is_no_root_is_refused(world: World, image_name: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not an image\n" * 100)
    for source in (tmp_path / "notes.txt", tmp_path / "nothing"):
        with pytest.raises(errors.Invalid) as caught:
            await world.engine.import_root(source, image_name)
        assert caught.value.reason == "ImageSourceInvalid"
    assert not await world.engine.exists(image_name)


async def test_what_is_no_file_is_neither_waited_for_nor_read_without_end(
    world: World, image_name: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe.tar")
    os.mkfifo(tmp_path / "Containerfile")
    for source in (tmp_path / "pipe.tar", Path("/dev/zero"), Path("/etc/a\0b")):
        with pytest.raises(errors.Invalid) as caught:
            await world.engine.import_root(source, image_name)
        assert caught.value.reason == "ImageSourceInvalid"
    for file in (None, Path("/dev/zero"), Path("/etc/a\0b")):
        with pytest.raises(errors.Invalid) as caught:
            _ = [line async for line in world.engine.build(tmp_path, image_name, port.Recipe(containerfile=file))]
        assert caught.value.reason == "ImageSourceInvalid"


@pytest.mark.parametrize("name", ["dir:{0}", "docker-archive:{0}:x", "oci:made", "--volume=/:/host", "a b", ""])
async def test_what_is_made_gets_a_name_and_is_written_nowhere_else(world: World, tmp_path: Path, name: str) -> None:
    (tmp_path / "Containerfile").write_text(f"FROM {world.image}\n")
    given, before = name.format(tmp_path / "made"), await world.engine.list_images()
    with pytest.raises(errors.Invalid) as caught:
        _ = [line async for line in world.engine.build(tmp_path, given)]
    assert caught.value.reason == "ImageNameInvalid"
    with pytest.raises(errors.Invalid) as caught:
        await world.engine.import_root(tmp_path, given)
    assert caught.value.reason == "ImageNameInvalid"
    assert {one.name for one in tmp_path.iterdir()} == {"Containerfile"}
    assert await world.engine.list_images() == before


async def test_short_names_find_local_images(world: World, image_name: str, root_folder: Path) -> None:
    await world.engine.import_root(root_folder, image_name)
    assert await world.engine.exists(image_name)
    assert await world.engine.exists(f"fairlead-test/{world.tag}:1")
    assert not await world.engine.exists(f"fairlead-test/{world.tag}:2")


async def test_an_image_in_use_stays(world: World, image_name: str, root_folder: Path) -> None:
    await world.engine.import_root(root_folder, image_name, command=("/bin/sh",))
    state = await world.engine.create(world.spec(image=image_name))

    with pytest.raises(errors.Conflict) as caught:
        await world.engine.remove_image(image_name)

    assert caught.value.reason == "ImageInUse"
    await world.engine.remove(state.name)
    await world.engine.remove_image(image_name)
    assert not await world.engine.exists(image_name)
    await world.engine.remove_image(image_name)


async def test_a_build_prints_and_makes_an_image(world: World, image_name: str, tmp_path: Path) -> None:
    (tmp_path / "Containerfile").write_text(f'FROM {world.image}\nCMD ["/bin/echo", "built"]\n')

    output = b"".join([chunk async for chunk in world.engine.build(tmp_path, image_name)])

    assert b"FROM" in output
    spec = world.spec(image=image_name)
    await world.engine.create(spec)
    await world.engine.start(spec.name)
    await world.ended(spec.name)
    assert await world.output(spec.name) == b"built\n"


async def test_an_image_says_what_it_sets_and_its_containers_have_it(
    world: World, image_name: str, tmp_path: Path
) -> None:
    lines = (f"FROM {world.image}", 'ENV NVIDIA_REQUIRE_CUDA="cuda>=12.4 brand=tesla,driver>=535"', "ENV EMPTY=")
    (tmp_path / "Containerfile").write_text("\n".join(lines))
    assert [line async for line in world.engine.build(tmp_path, image_name)]
    found = await world.engine.environment(image_name)
    assert found["NVIDIA_REQUIRE_CUDA"] == "cuda>=12.4 brand=tesla,driver>=535"
    assert found["EMPTY"] == ""
    name = await world.started("env", image=image_name)
    await world.ended(name)
    held = await world.engine.create(world.spec("held", image=image_name, env={"EMPTY": "no", "OWN": "a=b"}))
    assert held.env is None or {**found, "EMPTY": "no", "OWN": "a=b"}.items() <= held.env.items()
    assert b"NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=535\n" in await world.output(name)


async def test_a_build_takes_values_and_one_of_its_stages(world: World, image_name: str, tmp_path: Path) -> None:
    lines = (
        f"FROM {world.image} AS base",
        "ARG VERSION=1",
        "ENV VERSION=${VERSION}",
        f"FROM {world.image} AS last",
        "ENV VERSION=none",
    )
    (tmp_path / "Containerfile").write_text("\n".join(lines))
    for args, version in (({}, "1"), ({"VERSION": "two words; --x"}, "two words; --x")):
        recipe = port.Recipe(args=args, target="base")
        assert [line async for line in world.engine.build(tmp_path, image_name, recipe)]
        assert (await world.engine.environment(image_name))["VERSION"] == version
    assert [line async for line in world.engine.build(tmp_path, image_name)]
    assert (await world.engine.environment(image_name))["VERSION"] == "none"


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        (port.Recipe(target="nothing"), "BuildFailed"),
        (port.Recipe(target="--privileged"), "BuildArgInvalid"),
        (port.Recipe(target="a\0"), "BuildArgInvalid"),
        (port.Recipe(args={"--privileged": ""}), "BuildArgInvalid"),
        (port.Recipe(args={"A=B": "1"}), "BuildArgInvalid"),
        (port.Recipe(args={"A": "\0"}), "BuildArgInvalid"),
        (port.Recipe(args={"A": "x" * 5000}), "BuildArgInvalid"),
        (port.Recipe(args={f"A{number}": "" for number in range(300)}), "BuildArgInvalid"),
    ],
)
async def test_what_no_containerfile_has_is_refused_before_a_build(
    world: World, image_name: str, tmp_path: Path, recipe: port.Recipe, reason: str
) -> None:
    (tmp_path / "Containerfile").write_text(f"FROM {world.image}\n")
    with pytest.raises(errors.Invalid) as caught:
        _ = [line async for line in world.engine.build(tmp_path, image_name, recipe)]
    assert caught.value.reason == reason


async def test_of_an_image_that_is_not_here_nothing_is_said(world: World) -> None:
    with pytest.raises(errors.NotFound) as caught:
        await world.engine.environment(f"localhost/fairlead-test/{world.tag}/none:1")
    assert caught.value.reason == "ImageNotFound"


async def test_a_build_that_fails_says_so(world: World, image_name: str, tmp_path: Path) -> None:
    file = tmp_path / "Other"
    file.write_text("FROM localhost/fairlead-test/nothing:1\n")
    with pytest.raises(errors.Invalid) as caught:
        async for _ in world.engine.build(tmp_path, image_name, port.Recipe(containerfile=file)):
            pass
    assert caught.value.reason == "BuildFailed"
    assert "fairlead-test/nothing" in caught.value.message
