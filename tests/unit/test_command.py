"""The door to programs: surroundings, time limits, ends; and descriptors on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead import command, errors, pipe
from fairlead.kernel.programs import pidnamespace

ENV = command.base_env()


async def test_a_program_gets_the_given_environment_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_TEST_LEAK", "1")
    result = await command.run(["env"], env={"PATH": command.PATH, "ONLY": "this"}, timeout_s=10)
    assert sorted(result.stdout.decode().split()) == ["ONLY=this", f"PATH={command.PATH}"]


def test_a_user_whom_the_system_does_not_know_is_at_home_in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 2**32 - 2)
    assert command.base_env()["HOME"] == "/"


async def test_code_and_last_line_come_back(tmp_path: Path) -> None:
    script = "echo out; echo first >&2; echo 'Error: last' >&2; echo >&2; pwd; exit 3"
    result = await command.run(["sh", "-c", script], env=ENV, timeout_s=10, folder=tmp_path)
    assert (result.code, result.stdout.decode().split(), result.last_line) == (3, ["out", str(tmp_path)], "Error: last")


async def test_a_missing_program_is_named() -> None:
    with pytest.raises(errors.Unavailable) as caught:
        await command.run(["fairlead-no-such-program"], env=ENV, timeout_s=10)
    assert caught.value.reason == "ProgramMissing"
    assert "fairlead-no-such-program" in caught.value.message


async def test_a_program_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with pytest.raises(errors.Unavailable) as caught:
        await command.run(["sh", "-c", f"echo $$ > {file}; exec sleep 60"], env=ENV, timeout_s=0.3)
    assert caught.value.reason == "ProgramTimeout"
    assert not Path("/proc", file.read_text().strip()).exists()


STUBBORN = "trap '' TERM; : > {file}; {how} sh -c 'while :; do sleep 1; done' {file} & "
"""Leaves a child that is known by its last word: in a namespace of pids, its number says nothing here."""
HOW = [
    "",
    pytest.param(
        "setsid",
        marks=pytest.mark.skipif(
            subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False).returncode != 0,
            reason="makes no namespaces",
        ),
    ),
]


def is_gone(file: Path) -> bool:
    """Return whether no process has the file as its last word any more; a zombie has no command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{file}\0".encode() in path.read_bytes():
                return False
    return True


async def until(holds: Callable[[], bool]) -> bool:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 (a process of another)
            await asyncio.sleep(0.01)
    return True


@pytest.mark.parametrize("how", HOW)
async def test_a_child_that_ignores_sigterm_ends_with_its_program_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(command, "_TERM_S", 0.1)
    file = tmp_path / "mark"
    line = ["sh", "-c", STUBBORN.format(file=file, how=how) + " wait"]
    with pytest.raises(errors.Unavailable) as caught:
        await command.run(line, env=ENV, timeout_s=1, wholly=True)
    assert caught.value.reason == "ProgramTimeout"
    assert await until(lambda: is_gone(file))


@pytest.mark.parametrize("how", HOW)
async def test_a_child_ends_when_its_program_is_given_up(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_TERM_S", 0.3)  # none of them heeds it
    file = tmp_path / "mark"
    line = ["sh", "-c", STUBBORN.format(file=file, how=how) + " exec sleep 60"]
    async with asyncio.TaskGroup() as group:
        task = group.create_task(command.run(line, env=ENV, timeout_s=60, wholly=True))
        assert await until(lambda: not is_gone(file))
        task.cancel()
    assert await until(lambda: is_gone(file))


@pytest.mark.parametrize("how", HOW)
async def test_a_child_that_is_left_behind_ends_with_its_program_and_its_output_is_read(
    tmp_path: Path, how: str
) -> None:
    file = tmp_path / "mark"
    line = ["sh", "-c", STUBBORN.format(file=file, how=how) + " echo done; exit 3"]
    async with asyncio.timeout(10):
        result = await command.run(line, env=ENV, timeout_s=20, wholly=True)
    assert (result.code, result.stdout) == (3, b"done\n")
    assert await until(lambda: is_gone(file))


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)])
async def test_a_program_with_a_namespace_ends_with_its_own_code(script: str, code: int) -> None:
    result = await command.run(["sh", "-c", script], env=ENV, timeout_s=20, wholly=True)
    assert result.code == code


async def test_who_may_make_no_namespace_runs_the_program_all_the_same() -> None:
    limited = ["setpriv", "--bounding-set=-sys_admin", "--"]
    line = [*limited, sys.executable, "-I", "-S", pidnamespace.__file__, "sh", "-c", "echo $PPID; exit 3"]
    result = await command.run(line, env=ENV, timeout_s=20)
    assert (result.code, result.stdout) == (3, f"{os.getpid()}\n".encode())


async def test_what_leaves_nothing_behind_ends_with_us_too(tmp_path: Path) -> None:
    """An agent that is started anew scrubs a GPU again: the scrub of the one before it must not go on beside it."""
    file = tmp_path / "mark"
    line = ["sh", "-c", STUBBORN.format(file=file, how="setsid") + " wait"]
    call = f"command.run({line!r}, env={ENV!r}, timeout_s=60, wholly=True)"
    program = f"import asyncio; from fairlead import command; asyncio.run({call})"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    try:
        assert await until(lambda: not is_gone(file))
    finally:
        process.kill()
        await process.wait()
    assert await until(lambda: is_gone(file))


async def test_a_child_that_keeps_the_output_open_holds_up_nobody_once_its_program_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_TERM_S", 0.1)
    file = tmp_path / "pid"
    line = ["sh", "-c", f"trap '' TERM; sleep 60 & echo $! > {file}; wait; wait"]
    try:
        async with asyncio.timeout(10):
            with pytest.raises(errors.Unavailable):
                await command.run(line, env=ENV, timeout_s=0.3)
    finally:
        os.kill(int(file.read_text()), signal.SIGKILL)


async def test_a_long_program_is_killed_and_reaped_with_its_block() -> None:
    async with command.opened(["sh", "-c", "echo $$; exec sleep 60"], env=ENV) as running:
        pid = int(await running.output.read())
        assert Path(f"/proc/{pid}").exists()
    assert running.process.returncode == -9
    assert not Path(f"/proc/{pid}").exists()


def children() -> set[str]:
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that ended meanwhile
            found |= set((task / "children").read_text().split())
    return found


async def held() -> None:
    async with command.opened(["/bin/sleep", "100"], env={}):
        await asyncio.Event().wait()


@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.05])
async def test_a_program_is_reaped_however_often_its_block_is_cancelled(after_s: float) -> None:
    before = children()
    async with asyncio.TaskGroup() as tasks:
        block = tasks.create_task(held())
        await asyncio.sleep(after_s)
        for _ in range(5):
            block.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([block])
        assert block.cancelled()
        assert children() <= before


async def test_a_long_program_dies_with_us() -> None:
    code = (
        "import asyncio, os, sys\n"
        "from fairlead import command\n"
        "async def main():\n"
        "    async with command.opened(['sh', '-c', 'echo $$; exec sleep 60'], env=command.base_env()) as running:\n"
        "        os.write(1, await running.output.read())\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    async with command.opened([sys.executable, "-c", code], env=ENV) as running:
        pid = int(await running.output.read())
        watched = os.pidfd_open(pid)
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(watched, gone.set)  # a pidfd is readable once the process has ended
    async with asyncio.timeout(50):
        await gone.wait()
    asyncio.get_running_loop().remove_reader(watched)
    os.close(watched)
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


async def test_a_pipe_waits_for_data_and_sees_the_end() -> None:
    ours, theirs = (pipe.Pipe(number) for number in os.pipe())
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(ours.read())
        await asyncio.sleep(0)
        await theirs.write(b"x")
    theirs.close()
    assert reading.result() == b"x"
    assert await ours.read() == b""
    ours.close()
    assert await ours.read() == b""


async def test_a_writer_waits_for_room_and_loses_nothing() -> None:
    ours, theirs = (pipe.Pipe(number) for number in os.pipe())
    data = os.urandom(1 << 20)

    async def feed() -> None:
        await theirs.write(data)
        theirs.close()

    found = b""
    async with asyncio.TaskGroup() as group:
        group.create_task(feed())
        while chunk := await ours.read():
            found += chunk
    ours.close()
    assert found == data


async def test_closing_ends_a_read_under_way() -> None:
    ours, theirs = (pipe.Pipe(number) for number in os.pipe())
    async with asyncio.timeout(50), asyncio.TaskGroup() as group:
        reading = group.create_task(ours.read())
        await asyncio.sleep(0)
        ours.close()
    theirs.close()
    assert reading.result() == b""


async def test_what_is_taken_without_waiting_is_data_nothing_yet_or_the_end() -> None:
    ours, theirs = (pipe.Pipe(number) for number in os.pipe())
    assert ours.take() is None
    await theirs.write(b"x")
    assert ours.take() == b"x"
    theirs.close()
    assert ours.take() == b""
    ours.close()
    assert ours.take() == b""


async def test_closing_ends_a_write_under_way() -> None:
    ours, theirs = (pipe.Pipe(number) for number in os.pipe())
    async with asyncio.timeout(50), asyncio.TaskGroup() as group:
        writing = group.create_task(theirs.write(bytes(1 << 20)))
        await asyncio.sleep(0)
        theirs.close()
    assert writing.done()
    ours.close()


async def test_writing_to_nobody_is_no_error() -> None:
    ours, theirs = (pipe.Pipe(number) for number in os.pipe())
    ours.close()
    await theirs.write(b"x")
    theirs.close()


@pytest.mark.parametrize("word", ["a\0b", "\udcff\ud800", "x" * (1 << 20)])
async def test_a_word_no_program_can_be_told_is_refused(word: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        await command.run(["true", word], env=ENV, timeout_s=10)
    assert caught.value.reason == "ArgumentInvalid"


async def test_a_variable_no_program_can_be_told_is_refused() -> None:
    with pytest.raises(errors.Invalid) as caught:
        await command.run(["true"], env={**ENV, "A": "b\0"}, timeout_s=10)
    assert caught.value.reason == "ArgumentInvalid"


async def test_a_file_that_is_no_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\0" * 64)
    (tmp_path / "x").chmod(0o755)
    with pytest.raises(errors.Unavailable) as caught:
        await command.run([str(tmp_path / "x")], env=ENV, timeout_s=10)
    assert caught.value.reason == "ProgramMissing"


async def test_a_machine_short_of_descriptors_is_not_a_missing_program() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The lowest number that is free is the next one given: other tests' files leave gaps below the highest.
    following = os.dup(0)
    os.close(following)
    resource.setrlimit(resource.RLIMIT_NOFILE, (following, hard))
    try:
        with pytest.raises(errors.Unavailable) as refused:
            await command.run(["true"], env=ENV, timeout_s=5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert refused.value.reason == "ProgramNotStarted"
