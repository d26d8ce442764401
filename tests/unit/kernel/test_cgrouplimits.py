"""Limits of a container in made-up cgroup folders, version 1 and 2: found by its id, written in their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import errors
from fairlead.kernel import cgrouplimits
from fairlead.kernel.cgrouplimits import Limits

_ID = "c0ffee" * 10
_GIB = 1 << 30


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A machine with version 1."""
    lines = f"4:memory:/machine/libpod-{_ID}\n3:cpu,cpuacct:/machine/libpod-{_ID}\n0::/machine/libpod-{_ID}\n"
    _write(tmp_path / "proc/7", cgroup=lines)
    base = tmp_path / "sys/fs/cgroup"
    _write(base / f"cpu,cpuacct/machine/libpod-{_ID}", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    _write(
        base / f"memory/machine/libpod-{_ID}",
        memory__limit_in_bytes=str(_GIB),
        memory__memsw__limit_in_bytes=str(_GIB),
        memory__usage_in_bytes=str(900 << 20),
        memory__stat=f"total_inactive_file {100 << 20}\n",
    )
    return tmp_path


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """A machine with version 2, whose processes are in a folder below the container's."""
    _write(tmp_path / "proc/7", cgroup=f"0::/machine.slice/libpod-{_ID}.scope/container\n")
    folder = tmp_path / f"sys/fs/cgroup/machine.slice/libpod-{_ID}.scope"
    _write(
        folder, cpu__max="max 100000", memory__max="max", memory__current="5000", memory__stat="inactive_file 1000\n"
    )
    return tmp_path


def test_version_one_is_read_and_written(first: Path) -> None:
    found = cgrouplimits.of_container(7, _ID, first)
    assert found.limits() == Limits(cpu=None, memory_bytes=_GIB)
    assert found.used_bytes() == 800 << 20
    for limit in (2 * _GIB, _GIB // 2):
        found.write(Limits(cpu=1.5, memory_bytes=limit))
        assert found.limits() == Limits(cpu=1.5, memory_bytes=limit)
        assert found.memory is not None
        assert (found.memory / "memory.memsw.limit_in_bytes").read_text() == str(limit)


def test_version_two_is_written_in_the_containers_own_folder(second: Path) -> None:
    found = cgrouplimits.of_container(7, _ID, second)
    assert found.limits() == Limits()
    found.write(Limits(cpu=0.25, memory_bytes=_GIB))
    assert (found.version, found.limits()) == (2, Limits(cpu=0.25, memory_bytes=_GIB))
    assert found.used_bytes() == 4000


def test_only_what_is_given_is_written(second: Path) -> None:
    found = cgrouplimits.of_container(7, _ID, second)
    found.write(Limits(cpu=2.0))
    assert found.limits() == Limits(cpu=2.0, memory_bytes=None)


def test_a_pid_of_somebody_else_is_not_touched(first: Path) -> None:
    for pid, container in ((7, "decaf" * 12), (8, _ID), (7, "")):
        with pytest.raises(errors.NotFound):
            cgrouplimits.of_container(pid, container, first)


def test_a_controller_that_is_not_there_is_said(tmp_path: Path) -> None:
    _write(tmp_path / "proc/7", cgroup=f"4:memory:/machine/libpod-{_ID}\n")
    _write(tmp_path / f"sys/fs/cgroup/memory/machine/libpod-{_ID}", memory__limit_in_bytes=str(_GIB))
    found = cgrouplimits.of_container(7, _ID, tmp_path)
    with pytest.raises(errors.Unavailable, match="no cgroup with the controller cpu"):
        found.write(Limits(cpu=1.0))
