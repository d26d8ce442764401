"""The program that clears a GPU's memory: whose it is, what it is told, and what counts as clean."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.silicon.nvidia import inspector

_GPU = "GPU-0cb2c7d1-e29a-5d76-848c-a6b5416bb6f1"


def written(folder: Path, body: str) -> Path:
    path = folder / "scrub"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


async def run(path: Path | str) -> None:
    scrub = inspector.program(str(path))
    assert scrub is not None
    await scrub(_GPU)


async def test_it_is_told_the_gpu_alone_and_nothing_of_our_surroundings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD_OF_A_STRANGER", "x")
    await run(written(tmp_path, f'echo "$#" "$@" > {tmp_path}/said; env >> {tmp_path}/said'))
    said = (tmp_path / "said").read_text()
    assert said.startswith(f"1 {_GPU}\n")
    assert "STRANGER" not in said


@pytest.mark.parametrize("body", ["echo 'page 7 differs' >&2; exit 1", "kill -9 $$", "exit 255"])
async def test_whatever_ends_otherwise_than_with_0_did_not_clear_it(tmp_path: Path, body: str) -> None:
    with pytest.raises(errors.DeviceFault) as caught:
        await run(written(tmp_path, body))
    assert caught.value.reason == "ScrubFailed"


async def test_a_program_that_does_not_stop_writing_is_ended_and_did_not_clear_it(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable) as caught:
        await run(written(tmp_path, "exec yes"))
    assert caught.value.reason == "ProgramTooLoud"


@pytest.mark.parametrize("open_to", ["file", "folder", "link"])
async def test_a_program_that_others_may_put_in_its_place_is_not_run(tmp_path: Path, open_to: str) -> None:
    """Whoever may write `exit 0` there has every GPU called clean, and runs as root."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = written(folder, f"touch {tmp_path}/ran")
    if open_to == "file":
        path.chmod(0o777)
    elif open_to == "folder":
        folder.chmod(0o777)
    else:
        folder.chmod(0o777)
        (tmp_path / "link").symlink_to(path)
        path = tmp_path / "link"
    with pytest.raises(errors.Denied) as caught:
        await run(path)
    assert caught.value.reason == "ScrubUntrusted"
    assert str(folder) in caught.value.message
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("path", ["/nowhere/scrub", "no-such-program"])
async def test_a_program_that_is_not_there_did_not_clear_it(path: str) -> None:
    with pytest.raises(errors.Unavailable) as caught:
        await run(path)
    assert caught.value.reason == "ProgramMissing"


@pytest.mark.parametrize("how", ["", "setsid"])
async def test_what_it_leaves_running_ends_with_it(tmp_path: Path, how: str) -> None:
    """A child could hold the GPU still when the next tenant gets it, in whichever session it is."""
    file = tmp_path / "mark"
    await run(written(tmp_path, f"trap '' TERM; : > {file}; {how} sh -c 'while :; do sleep 1; done' {file} &"))
    async with asyncio.timeout(30):
        while is_marked(file):  # noqa: ASYNC110 (a process of another)
            await asyncio.sleep(0.01)


def is_marked(file: Path) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{file}\0".encode() in path.read_bytes():
                return True
    return False
