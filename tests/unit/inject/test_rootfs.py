"""Paths of a hostile root file system never lead out, whatever they are made of."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairlead.inject import rootfs


@dataclass
class World:
    """A root file system, and the host beside it."""

    inside: Path
    outside: Path
    root: rootfs.Root

    def untouched(self) -> bool:
        return sorted(path.name for path in self.outside.iterdir()) == ["secret"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    inside, outside = tmp_path / "rootfs", tmp_path / "host"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("host")
    made = World(inside, outside, rootfs.Root(str(inside)))
    yield made
    made.root.close()


def test_files_are_read_listed_and_written_inside(world: World) -> None:
    world.root.write("/etc/ld.so.conf.d/x.conf", b"one")
    world.root.write("/etc/ld.so.conf.d/x.conf", b"two", mode=0o600)
    assert world.root.read("/etc/ld.so.conf.d/x.conf") == b"two"
    assert world.root.list("/etc/ld.so.conf.d") == ["x.conf"]
    assert (world.inside / "etc/ld.so.conf.d/x.conf").stat().st_mode & 0o777 == 0o600
    assert world.root.is_file("/etc/ld.so.conf.d/x.conf")
    assert not world.root.is_file("/etc")
    assert not world.root.is_file("/none")


def test_links_are_text_and_made_in_one_step(world: World) -> None:
    world.root.link("libcuda.so.550", "/usr/lib/libcuda.so.1")
    world.root.link("libcuda.so.550", "/usr/lib/libcuda.so.1")
    assert (world.inside / "usr/lib/libcuda.so.1").readlink().name == "libcuda.so.550"
    world.root.link("other", "/usr/lib/libcuda.so.1")
    assert (world.inside / "usr/lib/libcuda.so.1").readlink().name == "other"
    assert [path.name for path in (world.inside / "usr/lib").iterdir()] == ["libcuda.so.1"]


def naive_write(root: Path, path: str, data: bytes) -> None:
    """What seems to do: join, make the folder, write."""
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


@pytest.mark.parametrize("kind", ["absolute", "dots", "chain"])
def test_a_folder_that_is_a_link_to_the_host_ends_inside(world: World, kind: str) -> None:
    """CVE-2024-0133, CVE-2024-0134: writes followed the image's links out."""
    target = {"absolute": str(world.outside), "dots": "../host", "chain": "hop"}[kind]
    (world.inside / "etc").symlink_to(target)
    (world.inside / "hop").symlink_to(str(world.outside))
    naive_write(world.inside, "/etc/evil", b"x")
    assert (world.outside / "evil").exists(), "the naive way must break, or this shows nothing"
    (world.outside / "evil").unlink()
    with pytest.raises(OSError):  # noqa: PT011  the host's path does not exist inside
        world.root.write("/etc/evil", b"x")
    assert world.untouched()
    with pytest.raises(OSError):  # noqa: PT011
        world.root.link("x", "/etc/evil")
    with pytest.raises(OSError):  # noqa: PT011
        world.root.read("/etc/secret")
    assert (world.inside / "etc/secret").read_text() == "host", "the naive read must break"


def test_the_same_link_with_its_target_inside_is_followed_inside(world: World) -> None:
    (world.inside / "real").mkdir()
    (world.inside / "etc").symlink_to("/real")
    world.root.write("/etc/x", b"in")
    assert (world.inside / "real/x").read_bytes() == b"in"


def test_a_name_that_is_a_link_is_replaced_not_followed(world: World) -> None:
    (world.inside / "etc").mkdir()
    for place in ("cache", "naive"):
        (world.inside / "etc" / place).symlink_to(world.outside / "secret")
    naive_write(world.inside, "/etc/naive", b"gone")
    assert (world.outside / "secret").read_bytes() == b"gone", "the naive way must break"
    world.root.write("/etc/cache", b"new")
    assert (world.outside / "secret").read_bytes() == b"gone"
    assert (world.inside / "etc/cache").read_bytes() == b"new"
    assert not (world.inside / "etc/cache").is_symlink()


@pytest.mark.parametrize("magic", ["/proc/self/root", "/proc/self/cwd", "/proc/{pid}/root"])
def test_magic_links_are_refused(tmp_path: Path, magic: str) -> None:
    """A /proc inside the image has doors to the host that no root can hold: /proc/1/root is one."""
    root = rootfs.Root("/")
    link = tmp_path / "etc"
    link.symlink_to(magic.format(pid=os.getpid()))
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        root.open(f"{link}/etc", os.O_PATH)
    os.close(os.open(link / "etc" if "root" in magic else link, os.O_PATH))  # the naive way goes through
    root.close()


def test_what_is_not_a_regular_file_is_not_read_and_holds_nobody_up(world: World) -> None:
    os.mkfifo(world.inside / "pipe")
    (world.inside / "folder").mkdir()
    for place in ("/pipe", "/folder"):
        with pytest.raises(OSError):  # noqa: PT011
            world.root.read(place)


def test_a_folder_where_a_file_should_be_leaves_nothing_behind(world: World) -> None:
    (world.inside / "etc/x").mkdir(parents=True)
    with pytest.raises(OSError):  # noqa: PT011
        world.root.write("/etc/x", b"data")
    assert [path.name for path in (world.inside / "etc").iterdir()] == ["x"]


def test_zero_bytes_and_dots_in_paths_stay_inside(world: World) -> None:
    with pytest.raises(OSError):  # noqa: PT011
        world.root.open("/etc\0x", os.O_PATH)
    world.root.write("/../../up", b"x")
    assert (world.inside / "up").exists()
    assert world.untouched()


def test_a_file_larger_than_the_limit_is_not_read(world: World) -> None:
    with (world.inside / "big").open("wb") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(OSError, match="larger"):
        world.root.read("/big")
