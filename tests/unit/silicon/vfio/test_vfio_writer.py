"""The child that writes to sysfs: what it writes, what it says of a refusal, and that a write which hangs is left."""

from __future__ import annotations

import asyncio
import errno
import os
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
