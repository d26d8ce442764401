"""Host facts, read from real nodes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead_cdi import errors
from fairlead_cdi.host import node as host


def test_character_devices_have_their_numbers() -> None:
    found = host.stat_node("/dev/null")
    assert found is not None
    assert (found.type, found.major, found.minor) == ("c", 1, 3)


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert host.stat_node(str(tmp_path / "nope")) is None
    assert host.stat_node(str(tmp_path / "file" / "below")) is None


def test_other_things_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe", 0o600)
    kinds = {name: host.stat_node(str(tmp_path / name)) for name in ("link", "pipe", ".")}
    assert {name: node.type for name, node in kinds.items() if node} == {"link": "link", "pipe": "p", ".": "other"}


def test_a_path_that_cannot_be_looked_at_is_an_error() -> None:
    with pytest.raises(errors.HostError):
        host.stat_node("/dev/\0")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes nodes")
def test_numbers_are_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "node"
    os.mknod(path, 0o20600, os.makedev(195, 7))
    assert host.stat_node(str(path)) == host.HostNode("c", 195, 7, 0o600)
    path.unlink()
    os.mknod(path, 0o20600, os.makedev(510, 1))
    assert host.stat_node(str(path)) == host.HostNode("c", 510, 1, 0o600)
