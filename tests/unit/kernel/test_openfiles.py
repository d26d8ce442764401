"""Which processes of containers have a device open, and which cgroups name their container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.kernel import openfiles

OWN = "/kubepods.slice/kubepods-pod0a0a0a0a_0000_0000_0000_000000000001.slice/cri-1.scope"
OTHER = "pod0b0b0b0b-0000-0000-0000-000000000002"
NULL: openfiles.Number = ("c", 1, 3)


def process(proc: Path, pid: str, *, mounts: str, cgroup: str = "", opened: str = "") -> None:
    folder = proc / pid
    (folder / "ns").mkdir(parents=True)
    (folder / "fd").mkdir()
    (folder / "ns/mnt").symlink_to(f"mnt:[{mounts}]")
    (folder / "cgroup").write_text(cgroup)
    (folder / "comm").write_text("train\n")
    if opened:
        (folder / "fd/3").symlink_to(opened)


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (f"0::{OWN}\n", (OWN,)),
        (f"12:devices:{OWN}\n1:name=systemd:{OWN}\n0::/\n", (OWN, "/")),
        (f"0::{OWN}/x::pod0b0b0b0b-0000-0000-0000-000000000002\n",) * 1
        + ((f"{OWN}/x::pod0b0b0b0b-0000-0000-0000-000000000002",),),
        ("", ()),
    ],
    ids=["unified", "hybrid", "a name with colons", "ended"],
)
def test_a_process_is_found_with_its_cgroups_whole(tmp_path: Path, text: str, paths: tuple[str, ...]) -> None:
    proc = tmp_path / "proc"
    process(proc, "1", mounts="1", opened="/dev/null")
    process(proc, "self", mounts="2")
    process(proc, "7", mounts="3", cgroup=text, opened="/dev/null")
    process(proc, "8", mounts="3", cgroup=text, opened="/dev/zero")
    (found,) = openfiles.find_openers([NULL], root=tmp_path)
    assert (found.pid, found.name, found.devices, found.cgroups) == (7, "train", (NULL,), paths)


def test_a_node_within_reach_is_told_apart_from_one_that_is_open(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    for pid in ("1", "self"):
        process(proc, pid, mounts=pid)
    process(proc, "7", mounts="7", opened="/dev/null")
    process(proc, "8", mounts="8")
    process(proc, "9", mounts="9", cgroup=f"0::/kubepods/{OTHER}/main\n")
    (proc / "8/root").symlink_to("/")
    leading = tmp_path / "leading"
    (proc / "9/root").symlink_to(leading)
    leading.mkdir()
    (leading / "dev").symlink_to("/dev")  # a container's /dev that leads to the host's
    found = openfiles.find_openers([NULL], root=tmp_path)
    assert [(one.pid, one.devices, one.reachable) for one in found] == [(7, (NULL,), ()), (8, (), (NULL,))]
    named = openfiles.find_openers([NULL], groups=(OTHER,), root=tmp_path)
    assert [(one.pid, one.devices, one.reachable) for one in named[2:]] == [(9, (), ())]


def test_a_user_is_found_in_the_hosts_own_namespace_too_and_this_process_is_not(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    process(proc, "1", mounts="1")
    process(proc, "self", mounts="1")
    process(proc, "7", mounts="1", cgroup="0::/machine\n", opened="/dev/null")
    process(proc, "8", mounts="1", opened="/dev/zero")
    process(proc, str(os.getpid()), mounts="1", opened="/dev/null")
    assert openfiles.find_openers([NULL], root=tmp_path) == ()
    (found,) = openfiles.find_users([NULL], root=tmp_path)
    assert (found.pid, found.name, found.devices, found.cgroups) == (7, "train", (NULL,), ("/machine",))
