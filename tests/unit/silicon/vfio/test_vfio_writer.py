"""The child that writes to sysfs: what it writes, what it says of a refusal, and that a write which hangs is left."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from pathlib import Path

import pytest

from fairlead.silicon.vfio import writer


def run(*writes: tuple[Path, str, float]) -> list[object]:
    async def all_of_them() -> list[object]:
        found: list[object] = []
        async with writer.opened() as writing:
            for path, text, limit_s in writes:
                try:
                    await writing.write(path, text, limit_s)
                    found.append(None)
                except (OSError, writer.Hung) as error:
                    found.append(error)
        return found

    return asyncio.run(all_of_them())


def test_writes_are_done_in_order_each_with_its_newline(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("")
    two.write_text("")
    assert run((one, "vfio-pci", 5), (two, "", 5)) == [None, None]
    assert (one.read_text(), two.read_text()) == ("vfio-pci\n", "\n")


def test_a_refusal_is_the_kernels_own_and_the_next_write_goes_on(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("")
    (tmp_path / "link").symlink_to(there)
    absent, linked, done = run((tmp_path / "absent", "1", 5), (tmp_path / "link", "1", 5), (there, "1", 5))
    assert isinstance(absent, OSError)
    assert isinstance(linked, OSError)
    assert (absent.errno, linked.errno, done) == (errno.ENOENT, errno.ELOOP, None)
    assert not (tmp_path / "absent").exists()


def test_what_was_begun_before_the_first_write_is_the_child_that_writes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")

    async def begun() -> list[list[Path]]:
        seen = []
        async with writer.opened() as writing:
            await writing.begin()
            await writing.begin()
            seen.append(children())
            await writing.write(path, "vfio-pci", 5)
            seen.append(children())
        async with writer.opened() as writing:  # and one that is never used ends
            await writing.begin()
        return seen

    before = children()
    first, second = asyncio.run(begun())
    assert len(first) == len(before) + 1
    assert (second, path.read_text()) == (first, "vfio-pci\n")
    until = time.monotonic() + 20
    while children() != before:
        assert time.monotonic() < until
        time.sleep(0.01)


def children() -> list[Path]:
    """Return this process's writers."""
    found = [Path(f"/proc/{pid}") for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return [one for one in found if one.exists() and b"sysfswrite" in (one / "cmdline").read_bytes()]


@pytest.mark.parametrize("text", ["a\nb", "a\0b"])
def test_no_text_becomes_a_second_write(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text("")
    (refused,) = run((path, text, 5))
    assert isinstance(refused, OSError)
    assert path.read_text() == ""


def test_a_write_that_hangs_is_left_and_the_next_one_has_a_child_of_its_own(tmp_path: Path) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)  # opening it for writing waits for a reader that never comes
    file.write_text("")
    began = time.monotonic()
    hung, done = run((pipe, "1", 1.0), (file, "1", 5))
    assert isinstance(hung, writer.Hung)
    assert (hung.is_gone, done, file.read_text()) == (True, None, "1\n")
    assert time.monotonic() - began < 5
    assert not Path(f"/proc/{hung.pid}").exists()


def announced(*writes: tuple[Path, str], limit_s: float = 5) -> tuple[list[object], list[str]]:
    """Announce writes and have them done; returns what came of each, and what the files had right after the first."""

    async def all_of_them() -> tuple[list[object], list[str]]:
        found, had = list[object](), list[str]()
        async with writer.opened() as writing:
            await writing.announce(writes)
            for path, text in writes:
                try:
                    await writing.write(path, text, limit_s)
                    found.append(None)
                except (OSError, writer.Hung) as error:
                    found.append(error)
                    break
                had = had or await asyncio.to_thread(until_written, [one for one, _ in writes])
        return found, had

    return asyncio.run(all_of_them())


def until_written(paths: list[Path]) -> list[str]:
    """Return what files have once nothing comes any more; a pipe, which nobody is to read, has nothing."""
    files, until = [path for path in paths if path.is_file()], time.monotonic() + 1
    while time.monotonic() < until and not all(path.read_text() for path in files):
        time.sleep(0.01)
    return [path.read_text() for path in files]


def made(folder: Path, count: int) -> list[Path]:
    found = [folder / f"file{number}" for number in range(count)]
    for path in found:
        path.write_text("")
    return found


def test_announced_writes_are_one_message_and_done_without_a_turn_each(tmp_path: Path) -> None:
    one, two, three = made(tmp_path, 3)
    assert announced((one, "a"), (two, "b"), (three, "c")) == ([None] * 3, ["a\n", "b\n", "c\n"])


def test_what_is_announced_behind_a_refused_write_is_not_done(tmp_path: Path) -> None:
    one, two = made(tmp_path, 2)
    found, _ = announced((one, "a"), (tmp_path / "absent", "b"), (two, "c"))
    assert found[0] is None
    assert isinstance(found[1], OSError)
    assert (found[1].errno, until_written([two])) == (errno.ENOENT, [""])


def test_a_write_that_hangs_takes_what_was_announced_behind_it_along(tmp_path: Path) -> None:
    one, two = made(tmp_path, 2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found, _ = announced((one, "a"), (pipe, "b"), (two, "c"), limit_s=1.0)
    assert isinstance(found[-1], writer.Hung)
    assert (one.read_text(), two.read_text()) == ("a\n", "")


def test_another_write_than_was_announced_is_done_in_place_of_those(tmp_path: Path) -> None:
    one, other = made(tmp_path, 2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def otherwise() -> None:
        async with writer.opened() as writing:
            await writing.announce([(pipe, "a"), (one, "b")])
            await writing.write(other, "c", 5)

    asyncio.run(otherwise())
    assert (one.read_text(), other.read_text()) == ("", "c\n")


def test_a_write_whose_caller_goes_is_not_followed_by_the_announced_ones(tmp_path: Path) -> None:
    one, two = made(tmp_path, 2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def cancelled() -> None:
        async with writer.opened() as writing:
            await writing.announce([(one, "a"), (pipe, "b"), (two, "c")])
            await writing.write(one, "a", 5)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await writing.write(pipe, "b", 30)
            handle = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # a child that is left would go on now
            await asyncio.to_thread(until_written, [two])
            os.close(handle)

    asyncio.run(cancelled())
    assert (one.read_text(), two.read_text()) == ("a\n", "")


def test_a_child_whose_parent_was_killed_finishes_its_write_and_no_more(tmp_path: Path) -> None:
    one, two = made(tmp_path, 2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    pid = os.fork()
    if pid == 0:

        async def die() -> None:
            async with writer.opened() as writing:
                await writing.announce([(one, "a"), (pipe, "b"), (two, "c")])
                await writing.write(one, "a", 20)
                await asyncio.sleep(0.3)  # within the next write, which waits for a reader
                os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(die())
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # the write that was under way goes on
    try:
        assert until_written([one, two]) == ["a\n", ""]
    finally:
        os.close(reader)


def test_more_than_a_pipe_takes_at_once_is_written_one_by_one(tmp_path: Path) -> None:
    paths = made(tmp_path, 100)
    found, had = announced(*((path, "x" * 20) for path in paths))
    assert found == [None] * 100
    assert "" in had
