"""Time slices by nvidia-smi: how it is called, and what it says when it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import errors
from fairlead.model.ids import GPUUUID
from fairlead.silicon.nvidia import timeslice

GPU = GPUUUID("GPU-00000000-0000-0000-0000-000000000000")


def program(folder: Path, *, code: int = 0) -> Path:
    path = folder / "usr/bin/nvidia-smi"
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\necho "not supported on this GPU" >&2\nexit {code}\n')
    path.chmod(0o755)
    return path


async def test_the_drivers_program_is_called_with_uuid_and_interval(tmp_path: Path) -> None:
    path = program(tmp_path)
    await timeslice.SMITimeSlices((str(path),)).set_time_slice(GPU, 3)
    assert (tmp_path / "calls").read_text() == f"compute-policy -i {GPU} --set-timeslice 3\n"


async def test_a_refusal_is_said_in_the_programs_words(tmp_path: Path) -> None:
    slices = timeslice.SMITimeSlices((str(program(tmp_path, code=3)),))
    with pytest.raises(errors.Unavailable, match="not supported on this GPU"):
        await slices.set_time_slice(GPU, 0)


async def test_an_interval_that_is_none_calls_nothing(tmp_path: Path) -> None:
    slices = timeslice.SMITimeSlices((str(program(tmp_path)),))
    with pytest.raises(ValueError, match="interval 4"):
        await slices.set_time_slice(GPU, 4)
    assert not (tmp_path / "calls").exists()


def test_the_program_runs_in_the_nodes_root_where_that_is_another(tmp_path: Path) -> None:
    assert timeslice.find_program(tmp_path, Path("/")) is None
    program(tmp_path)
    assert timeslice.find_program(tmp_path, Path("/")) == ("chroot", str(tmp_path), "/usr/bin/nvidia-smi")
