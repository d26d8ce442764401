"""Names of accounts and containers come from files that may lie, hang or be large: bounded, printable, in time."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from fairlead.node.lease.neighbours import names
from fairlead.wire.text.cgroupplace import Place

ID = "0123456789abcdef" * 4


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbroken\n")
    return tmp_path


def put(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def test_accounts_are_named_and_unknown_ones_numbered(root: Path) -> None:
    known = names.Names(root)
    assert (known.account(1000), known.account(0), known.account(4000)) == ("ann", "root", "uid 4000")


def test_containers_have_their_engines_own_name(root: Path) -> None:
    put(root / "var/lib/docker/containers" / ID / "config.v2.json", {"Name": "/trainer", "Pid": 7})
    stored = [{"id": "f" * 64, "names": ["other"]}, {"id": ID, "names": ["byhand"]}]
    put(root / "var/lib/containers/storage/overlay-containers/containers.json", stored)
    known = names.Names(root)
    assert known.container(Place(engine="docker", container=ID), 0) == "docker container trainer"
    assert known.container(Place(engine="podman", container=ID), 0) == "podman container byhand"
    assert known.container(Place(engine="containerd", container=ID), 0) == "containerd container 0123456789ab"
    assert known.container(Place(unit="a.service"), 0) == ""


def test_other_roots_and_rootless_engines_are_found(root: Path) -> None:
    put(root / "etc/docker/daemon.json", {"data-root": "/data/docker"})
    put(root / "data/docker/containers" / ID / "config.v2.json", {"Name": "/moved"})
    put(
        root / "home/ann/.local/share/containers/storage/vfs-containers/containers.json", [{"id": ID, "names": ["ann"]}]
    )
    known = names.Names(root)
    assert known.container(Place(engine="docker", container=ID), 0) == "docker container moved"
    assert known.container(Place(engine="podman", container=ID), 1000) == "podman container ann"


def test_hostile_files_name_nothing(root: Path) -> None:
    place = Place(engine="docker", container=ID)
    path = put(root / "var/lib/docker/containers" / ID / "config.v2.json", {"Name": "/a\x1b[2J\n" + "b" * 500})
    assert names.Names(root).container(place, 0) == f"docker container {('a?[2J?' + 'b' * 500)[:128]}"
    for text in ('{"Name": 7}', "[" * 100_000, "\xff", ""):
        path.write_text(text)
        assert names.Names(root).container(place, 0) == "docker container 0123456789ab"
    path.unlink()
    os.mkfifo(path)
    assert names.Names(root).container(place, 0) == "docker container 0123456789ab"
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert names.Names(root).container(place, 0) == "docker container 0123456789ab"


def test_a_name_that_takes_too_long_is_known_later(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def slow(_root: Path, _uid: int) -> str:
        answered.wait(10)
        return "late"

    monkeypatch.setattr(names, "_account", slow)
    known = names.Names(root, wait_s=0.01)
    assert known.account(1000) == "uid 1000"
    answered.set()
    found = ""
    while found != "late":
        found = known.account(1000)
