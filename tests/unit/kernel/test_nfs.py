"""Mounting exports: which program is called how, and what its refusals become.

The real programs and a kernel's server are in `tests/system/test_nfs_machine.py`; what the one here prints is theirs.
Source: nfs-utils 2.6, utils/mount/error.c (mount_error); mount(8), return codes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import command, errors
from fairlead.kernel.mounting import nfs


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where programs are found, those of the system after those that a test puts here."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setattr(command, "PATH", str(folder))
    return folder


def put(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


async def test_without_the_helper_the_package_that_has_it_is_named(programs: Path) -> None:
    with pytest.raises(errors.Unavailable, match=r"mount\.nfs is not installed") as caught:
        await nfs.mount("nas:/red", programs, "vers=4.2")
    assert caught.value.reason == "ExportNotMounted"
    assert "nfs-common" in str(caught.value.hint)


async def test_options_source_and_folder_are_words_of_their_own(programs: Path, tmp_path: Path) -> None:
    put(programs, "mount.nfs", "exit 1")
    put(programs, "mount", f'for word; do echo "$word"; done > {tmp_path}/said')
    await nfs.mount("nas:/re d", tmp_path / "a b", "vers=4.2,nosuid")
    said = (tmp_path / "said").read_text().splitlines()
    assert said == ["-t", "nfs", "-o", "vers=4.2,nosuid", "--", "nas:/re d", f"{tmp_path}/a b"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("echo 'mount.nfs: access denied by server while mounting nas:/red' >&2; exit 32", "access denied by server"),
        ("exit 32", "exit code 32"),
    ],
)
async def test_a_refusal_is_said_in_the_programs_words_with_the_line_to_try(
    programs: Path, body: str, why: str
) -> None:
    put(programs, "mount.nfs", "exit 1")
    put(programs, "mount", body)
    with pytest.raises(errors.Unavailable, match=f"nas:/red cannot be mounted: .*{why}") as caught:
        await nfs.mount("nas:/red", programs, "vers=4.2")
    assert "mount -t nfs -o vers=4.2 nas:/red /mnt" in str(caught.value.hint)


async def test_a_server_that_says_nothing_is_given_up(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nfs, "PATIENCE_S", 0.2)
    put(programs, "mount.nfs", "exit 1")
    put(programs, "mount", "exec /bin/sleep 60")
    with pytest.raises(errors.Unavailable) as caught:
        await nfs.mount("nas:/red", programs, "vers=4.2")
    assert caught.value.reason == "ProgramTimeout"


def test_what_is_mounted_last_counts_and_names_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    lines = (
        "1 0 0:1 / / rw - ext4 /dev/vda rw",
        "8 1 0:8 / /vol\\040umes/red rw shared:1 - tmpfs tmpfs rw",
        "9 1 0:9 / /vol\\040umes/red rw,nosuid shared:1 - nfs4 nas:/re\\040d rw,addr=10.0.0.1",
    )
    (tmp_path / "proc/self/mountinfo").write_text("\n".join(lines) + "\n")
    assert nfs.mounted(Path("/vol umes/red"), tmp_path) == ("nfs4", "nas:/re d")
    assert nfs.mounted(Path("/vol umes/blue"), tmp_path) == ("", "")
