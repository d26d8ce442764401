"""Files: whole or not at all, and never destroyed."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import errors, files


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_the_whole_content_arrives_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "state"
    files.write_atomic(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("durable", [True, False])
def test_the_file_is_replaced_not_rewritten(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        files.write_atomic(path, b"new", durable=durable)
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"
    assert [item.name for item in tmp_path.iterdir()] == ["state"]


def test_a_umask_does_not_change_the_mode(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        files.write_atomic(tmp_path / "spec.json", b"{}", mode=0o644)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "spec.json").stat().st_mode) == 0o644


def test_a_full_disk_keeps_the_old_content_and_leaves_nothing_behind(tiny_disk: Path) -> None:
    path = tiny_disk / "state"
    files.write_atomic(path, b"old")
    with pytest.raises(errors.Unavailable, match="No space left") as caught:
        files.write_atomic(path, bytes(200_000))
    assert caught.value.reason == "StateWriteFailed"
    assert caught.value.hint == "free some space; the old content is untouched"
    assert path.read_bytes() == b"old"
    assert [item.name for item in tiny_disk.iterdir()] == ["state"]


def test_a_folder_that_is_not_there_is_said_with_the_path(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "state"
    with pytest.raises(errors.Unavailable, match=f"cannot write {path}: No such file or directory"):
        files.write_atomic(path, b"x")


def test_a_name_that_is_a_folder_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with pytest.raises(errors.Unavailable):
        files.write_atomic(tmp_path / "state", b"x")
    assert [item.name for item in tmp_path.iterdir()] == ["state"]


def test_damaged_files_are_set_aside_under_the_next_free_number(tmp_path: Path) -> None:
    names = []
    for text in ("one", "two"):
        (tmp_path / "state.json").write_text(text)
        names.append(files.set_aside(tmp_path / "state.json", why="damaged"))
    assert [path.name for path in names] == ["state.json.damaged-1", "state.json.damaged-2"]
    assert [path.read_text() for path in names] == ["one", "two"]
    assert not (tmp_path / "state.json").exists()


def test_setting_aside_never_replaces_what_has_that_name_not_even_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("one")
    (tmp_path / "state.json.damaged-1").symlink_to(tmp_path / "nowhere")
    assert files.set_aside(tmp_path / "state.json", why="damaged").name == "state.json.damaged-2"
    assert (tmp_path / "state.json.damaged-1").is_symlink()


def test_a_file_that_cannot_be_set_aside_is_the_operators_matter(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable, match=r"cannot set .* aside"):
        files.set_aside(tmp_path / "absent", why="damaged")


def test_a_rewritten_file_keeps_mode_owner_and_its_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "link.toml"
    real.write_bytes(b"old")
    real.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(real, 12345, 54321)
    link.symlink_to("real.toml")
    before = real.stat()
    files.rewrite(link, b"new")
    after = real.stat()
    assert (link.is_symlink(), real.read_bytes()) == (True, b"new")
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.toml", "real.toml"]


def test_what_is_not_there_is_not_rewritten(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable, match="cannot write"):
        files.rewrite(tmp_path / "none", b"new")


def test_what_killed_writers_have_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "state"
    files.write_atomic(path, b"new")
    script = "import os; from fairlead import files; os.fsync = lambda handle: os.kill(os.getpid(), 9)\n"
    script += f"from pathlib import Path; files.write_atomic(Path({str(path)!r}), b'never there')"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    (left,) = (one for one in tmp_path.iterdir() if one != path)
    others = [tmp_path / name for name in (".state.0123456", ".state.0123456g", "state.01234567", ".other.01234567")]
    for other in others:
        other.touch()
    files.sweep(path)
    assert left.exists(), "a writer may be at work"
    for one in (left, *others):
        os.utime(one, (0, 0))
    files.sweep(path)
    assert (left.exists(), path.read_bytes()) == (False, b"new")
    assert all(other.exists() for other in others)


def test_a_device_at_the_end_of_a_link_stays_a_device(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("device nodes need root")
    os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (tmp_path / "config.toml").symlink_to("null")
    with pytest.raises(errors.Unavailable, match="not a regular file"):
        files.rewrite(tmp_path / "config.toml", b"new")
    assert stat.S_ISCHR((tmp_path / "null").stat().st_mode)


def test_a_pipe_is_neither_read_nor_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(errors.Unavailable, match="not a regular file"):
        files.read_regular(tmp_path / "pipe", limit_bytes=9)


def test_a_link_that_leads_nowhere_is_refused_and_nothing_at_all_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("none")
    with pytest.raises(errors.Unavailable, match="which is not there"):
        files.read_regular(tmp_path / "link", limit_bytes=9)
    assert files.read_regular(tmp_path / "none", limit_bytes=9) is None


def test_a_file_larger_than_anybody_writes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 10)
    with pytest.raises(errors.Unavailable, match="10 bytes, at most 9"):
        files.read_regular(tmp_path / "large", limit_bytes=9)


def test_a_refused_write_names_the_next_step() -> None:
    def step(number: int) -> str | None:
        return files.next_step(OSError(number, os.strerror(number)))

    assert step(errno.EACCES) == step(errno.EROFS) == "run as root, or choose another place"
    assert step(errno.ENOSPC) == "free some space; the old content is untouched"
    assert step(errno.ENOENT) is None


def test_the_stamp_of_a_file_changes_with_it_and_one_that_is_not_there_has_none(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert files.stamp(path) is None
    files.write_atomic(path, b"1")
    first = files.stamp(path)
    files.write_atomic(path, b"1")
    assert files.stamp(path) not in {None, first}
