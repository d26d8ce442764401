"""`fairlead state backup` and `restore`: whole or not at all, and what is not ours changes nothing."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import sqlite3
import stat
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fairlead import settings
from fairlead.cli.process import owner
from fairlead.cli.process.backup import archive, making, parts
from fairlead.store.sqlite import database
from fairlead.store.sqlite import store as sqlite
from tests.unit.cli.conftest import fairlead

HOME = "b8a1a3a0-6c55-4c0c-9b43-1f0d9a2d6c11\n"


def make(folder: Path) -> Path:
    """Make a state folder as a service leaves it."""
    for name in ("kubelet", "lease", "tls", "volumes", "pods"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o700)
    (folder / "kubelet" / "home-id").write_text(HOME)
    (folder / "secrets.key").write_bytes(b"key of secrets\n")
    (folder / "tls" / "key.pem").write_bytes(b"key of tls\n")
    (folder / "tls" / "certificate.pem").write_bytes(b"certificate\n")
    (folder / "volumes" / "data").write_bytes(b"a tenant's")
    (folder / "lock").write_text("")
    sqlite.SQLiteStore(folder / "state.db").close()
    ledger(folder, 1)
    return folder


def ledger(folder: Path, schema: int) -> None:
    with sqlite3.connect(folder / "lease" / "ledger.db") as connection:
        connection.execute("CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL)")
        connection.execute("INSERT INTO meta VALUES ('schema', ?)", (schema,))
    connection.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(making, "machine_digest", lambda _: "this machine")  # a bare root has no /etc/machine-id
    return make(tmp_path / "state")


@pytest.fixture
def file(folder: Path, tmp_path: Path) -> Path:
    done = fairlead("state", "backup", str(tmp_path / "b.tar"), "--state-folder", str(folder))
    assert done.exit_code == 0, done.stderr
    return tmp_path / "b.tar"


def restore(file: Path, folder: Path, *more: str) -> tuple[int, str]:
    done = fairlead("state", "restore", str(file), "--state-folder", str(folder), *more)
    return done.exit_code, done.stdout + done.stderr


def names(folder: Path) -> set[str]:
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if name != "lock" and not name.endswith(("-wal", "-shm"))}


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names(folder)}


def test_a_backup_is_its_owners_alone_and_lists_what_is_in_it_and_what_is_not(folder: Path, file: Path) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as tar:
        head, document, *members = tar.getmembers()
        manifest = json.load(tar.extractfile(document) or io.BytesIO())
    assert head.name == "fairlead-backup"
    assert {one.name for one in members} == {
        "kubelet/home-id",
        "lease/ledger.db",
        "secrets.key",
        "state.db",
        "tls/certificate.pem",
        "tls/key.pem",
    }
    assert {one["path"]: one["schema"] for one in manifest["parts"]}["state.db"] == str(database.SCHEMA)
    assert {"volumes", "pods", "settings", "images and output of containers"} <= set(manifest["left_out"])


def test_what_was_backed_up_comes_back_in_the_same_place(folder: Path, file: Path) -> None:
    before = content(folder)
    code, said = restore(file, folder, "--set-aside")
    assert code == 0, said
    kept = {name: data for name, data in content(folder).items() if not name.startswith("set-aside-1/")}
    assert kept.keys() == before.keys()
    assert {name: kept[name] for name in ("secrets.key", "kubelet/home-id", "tls/key.pem")} == {
        name: before[name] for name in ("secrets.key", "kubelet/home-id", "tls/key.pem")
    }
    assert database.check(folder / "state.db") == database.SCHEMA
    assert (folder / "set-aside-1" / "state.db").exists()
    assert not (folder / "set-aside-1" / "lease").exists()


def test_the_ledger_that_is_there_stays(folder: Path, file: Path) -> None:
    with sqlite3.connect(folder / "lease" / "ledger.db") as connection:
        connection.execute("INSERT INTO meta VALUES ('epoch', 12)")
    connection.close()
    assert "the ledger that is here is newer" in " ".join(restore(file, folder, "--set-aside")[1].split())
    with sqlite3.connect(folder / "lease" / "ledger.db") as connection:
        assert connection.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone() == (12,)
    connection.close()


def test_elsewhere_nothing_of_the_old_machines_gpus_and_containers_comes(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    code, said = restore(file, other)
    assert (code, "another machine or another folder" in " ".join(said.split())) == (0, True)
    assert names(other) == {"secrets.key", "state.db", "tls/certificate.pem", "tls/key.pem"}
    assert {stat.S_IMODE((other / name).stat().st_mode) for name in names(other)} == {0o600}


def test_state_that_is_there_is_not_overwritten_without_a_word(folder: Path, file: Path) -> None:
    before = content(folder)
    code, said = restore(file, folder)
    assert (code, "--set-aside" in said, content(folder)) == (4, True, before)


def test_a_running_service_keeps_its_state(folder: Path, file: Path) -> None:
    config = settings.load(flags={"state.folder": folder}, env={}, file=None)
    with owner.own_state(config):
        code, said = restore(file, folder, "--set-aside")
    assert (code, "in use by another fairlead" in said) == (4, True)
    assert not (folder / "set-aside-1").exists()


def test_a_file_that_is_there_is_replaced_on_demand_alone(folder: Path, file: Path) -> None:
    before = file.read_bytes()
    again = ("state", "backup", str(file), "--state-folder", str(folder))
    assert (fairlead(*again).exit_code, file.read_bytes()) == (4, before)
    assert fairlead(*again, "--replace").exit_code == 0
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".")] == []


def test_a_disk_without_hard_links_takes_a_backup_and_still_loses_no_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(target: Path, _new: Path) -> None:
        (tmp_path / "late.tar").touch()
        raise PermissionError(errno.EPERM, "Operation not permitted", str(target))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    for name, code in (("b.tar", 0), ("late.tar", 4)):
        (tmp_path / "late.tar").unlink(missing_ok=True)
        done = fairlead("state", "backup", str(tmp_path / name), "--state-folder", str(folder))
        assert done.exit_code == code, done.stderr
    assert ((tmp_path / "b.tar").stat().st_size > 0, (tmp_path / "late.tar").stat().st_size) == (True, 0)


def test_a_link_in_place_of_the_file_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("precious")
    (tmp_path / "link.tar").symlink_to(tmp_path / "theirs")
    assert fairlead("state", "backup", str(tmp_path / "link.tar"), "--state-folder", str(folder)).exit_code == 4
    assert (tmp_path / "theirs").read_text() == "precious"


@pytest.mark.parametrize("name", ["state/b.tar", "nowhere/b.tar", "state/volumes/b.tar"])
def test_a_backup_is_not_written_where_it_cannot_or_should_not_lie(folder: Path, tmp_path: Path, name: str) -> None:
    done = fairlead("state", "backup", str(tmp_path / name), "--state-folder", str(folder))
    assert done.exit_code in {2, 6}
    assert not (tmp_path / name).exists()


def test_the_copy_lies_where_no_other_account_can_reach_it_and_one_that_was_left_goes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = folder / ".fairlead-backup-abcdefgh"
    left.mkdir(mode=0o700)
    (left / "secrets.key").write_text("key")
    os.utime(left, (0, 0))
    seen, digest = list[Path](), archive.digest

    def watched(path: Path) -> tuple[int, str]:
        seen.append(path)
        return digest(path)

    monkeypatch.setattr(archive, "digest", watched)
    done = fairlead("state", "backup", str(tmp_path / "b.tar"), "--state-folder", str(folder))
    assert (done.exit_code, left.exists()) == (0, False), done.stderr
    assert seen
    assert all(path.is_relative_to(folder) for path in seen)
    assert not list(folder.glob(".fairlead-backup-*"))


def test_both_say_when_it_was_made_as_text_in_json(folder: Path, tmp_path: Path) -> None:
    made = fairlead("state", "backup", str(tmp_path / "b.tar"), "-o", "json", "--state-folder", str(folder))
    done = fairlead(
        "state", "restore", str(tmp_path / "b.tar"), "-o", "json", "--state-folder", str(tmp_path / "other")
    )
    when = json.loads(made.stdout)["manifest"]["made_at"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", when)
    assert json.loads(done.stdout)["made_at"] == when


def test_standard_output_cannot_hold_a_backup_and_json(folder: Path) -> None:
    done = fairlead("state", "backup", "-", "-o", "json", "--state-folder", str(folder))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "cannot both go to standard output" in done.stderr


def test_without_keys_the_file_opens_nothing(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "b.tar"
    assert fairlead("state", "backup", str(file), "--no-keys", "--state-folder", str(folder)).exit_code == 0
    assert b"key of" not in file.read_bytes()
    assert "put secrets.key into the folder" in restore(file, tmp_path / "other")[1]


def test_a_link_in_the_state_folder_leads_no_backup_astray(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "shadow").write_text("root's")
    (folder / "kubelet" / "linked").symlink_to(tmp_path / "shadow")
    done = fairlead("state", "backup", str(tmp_path / "b.tar"), "--state-folder", str(folder))
    assert (done.exit_code, "kubelet/linked: not a file" in done.stdout) == (0, True)
    assert b"root's" not in (tmp_path / "b.tar").read_bytes()


def test_a_folder_without_state_has_no_backup(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = fairlead("state", "backup", str(tmp_path / "b.tar"), "--state-folder", str(tmp_path / "empty"))
    assert (done.exit_code, "there is no state" in done.stderr, (tmp_path / "b.tar").exists()) == (2, True, False)


def test_a_damaged_database_is_not_backed_up_as_if_it_were_whole(folder: Path, tmp_path: Path) -> None:
    (folder / "state.db").write_bytes(b"not a database\n" * 400)
    done = fairlead("state", "backup", str(tmp_path / "b.tar"), "--state-folder", str(folder))
    assert (done.exit_code, (tmp_path / "b.tar").exists()) == (8, False)


def test_what_a_service_writes_meanwhile_is_in_it_whole_or_not_at_all(folder: Path, tmp_path: Path) -> None:
    writer = sqlite3.connect(folder / "state.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO meta VALUES ('half', 1)")
    done = fairlead("state", "backup", str(tmp_path / "b.tar"), "--state-folder", str(folder))
    writer.execute("COMMIT")
    writer.close()
    assert done.exit_code == 0, done.stderr
    assert restore(tmp_path / "b.tar", tmp_path / "other")[0] == 0
    with sqlite3.connect(tmp_path / "other" / "state.db") as connection:
        assert connection.execute("SELECT count(*) FROM meta WHERE name = 'half'").fetchone() == (0,)
    connection.close()


# What is no backup of ours, or one no more. Each must change nothing.


def packed(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/shadow" if kind in {tarfile.SYMTYPE, tarfile.LNKTYPE} else ""
    return info, data


def forged(
    path: str, data: bytes, *, kind: bytes = tarfile.REGTYPE, size: int | None = None, says: Mapping[str, object] = {}
) -> bytes:
    """Return a backup that is right in all but one part, digests included."""
    said = {"path": path, "size_bytes": len(data) if size is None else size, "sha256": hashlib.sha256(data).hexdigest()}
    manifest = {
        "format": 1,
        "fairlead": "0.1.0",
        "made_at": "2026-11-29T15:00:00Z",
        "node": "n",
        "machine": "",
        "state_folder": "",
        "has_keys": True,
        "parts": [said],
        **says,
    }
    document = json.dumps(manifest).encode()
    head = f"fairlead backup 1\n{hashlib.sha256(document).hexdigest()}\n".encode()
    return packed(member("fairlead-backup", head), member("manifest.json", document), member(path, data, kind))


def sized(size: bytes) -> bytes:
    """Return a file whose first header says a size in digits of ours, or not, with the right sum."""
    block = bytearray(packed(member("fairlead-backup", b"x" * 60)))
    block[124:135], block[148:156] = size, b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:512])
    return bytes(block)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda _: b"", "is not a backup"),
        (lambda _: b"\x1f\x8b\x08" + bytes(2000), "is not a backup"),
        (lambda _: packed(member("etc/passwd", b"x")), "is not a backup"),
        (lambda _: packed(member("fairlead-backup", b"fairlead backup 9\n-\n")), "format 1"),
        (lambda whole: whole[: len(whole) // 2], "damaged"),
        (lambda whole: whole[:1700], "damaged"),
        (lambda whole: whole.replace(b"key of secrets", b"key of secretz"), "secrets.key in it is not what was"),
        (lambda whole: whole.replace(b'"has_keys": true', b'"has_keys":false'), "its manifest is not what was"),
        (lambda whole: whole[:-1024] + packed(member("more", b"x" * 9000)), "damaged"),
        (lambda whole: whole + b"\0" * 100_000, "more than its manifest"),
        (lambda _: forged("../evil", b"x"), "which no backup has"),
        (lambda _: forged("/etc/cron.d/evil", b"x"), "which no backup has"),
        (lambda _: forged("kubelet/../../evil", b"x"), "which no backup has"),
        (lambda _: forged("volumes/evil", b"x"), "which no backup has"),
        (lambda _: forged("state.db-wal", b"x"), "which no backup has"),
        (lambda _: forged("lock", b"x"), "which no backup has"),
        (lambda _: forged(".restoring", b"x"), "which no backup has"),
        (lambda _: forged("a\x1b[2Jb", b"x"), "which no backup has"),
        (lambda _: forged("secrets.key", b"", kind=tarfile.SYMTYPE), "a header in it is not ours"),
        (lambda _: forged("secrets.key", b"", kind=tarfile.LNKTYPE), "a header in it is not ours"),
        (lambda _: forged("secrets.key", b"", kind=tarfile.CHRTYPE), "a header in it is not ours"),
        (lambda _: forged("secrets.key", b"", kind=tarfile.FIFOTYPE), "a header in it is not ours"),
        (lambda _: forged("secrets.key", b"x", kind=tarfile.GNUTYPE_SPARSE), "a header in it is not ours"),
        (lambda _: forged("secrets.key", b"x", size=1 << 50), "shorter than what its manifest lists"),
        (lambda _: forged("secrets.key", b"x", size=-1), "which no backup has"),
        (lambda _: forged("secrets.key", b"x", says={"made_at": "\x1b[2J"}), "texts that no backup has"),
        (lambda _: forged("secrets.key", b"x", says={"node": "a\nb"}), "texts that no backup has"),
        (lambda _: forged("secrets.key", b"x", says={"left_out": {"\x1b]0;evil": "x"}}), "texts that no backup has"),
        (lambda _: forged("secrets.key", b"x", says={"left_out": {"a": "x" * 5000}}), "texts that no backup has"),
        (
            lambda _: forged("secrets.key", b"x", says={"parts": [{"path": "a"}] * 20_000}),
            "its manifest cannot be read",
        ),
        (lambda _: sized(b"-0000000001"), "is not a backup"),
        (lambda _: sized(b"+0000000004"), "is not a backup"),
        (lambda _: forged("state.db", b"not a database" * 100), "damaged"),
        (lambda _: forged("accounts.db", b"x" * 1000), "damaged"),
    ],
)
def test_what_is_not_a_whole_backup_changes_nothing(
    folder: Path, file: Path, make: Callable[[bytes], bytes], word: str
) -> None:
    file.write_bytes(make(file.read_bytes()))
    before = content(folder)
    code, said = restore(file, folder, "--set-aside")
    assert (code, word in " ".join(said.split())) == (8, True), said
    assert "\x1b" not in said
    assert content(folder) == before
    assert not (file.parent / "evil").exists()
    assert not [path for path in folder.iterdir() if path.name.startswith((".restor", "set-aside"))]


@pytest.mark.parametrize("name", ["state.db", "lease/ledger.db", "accounts.db", "history.db"])
def test_a_newer_versions_backup_is_refused_with_the_reason(folder: Path, tmp_path: Path, name: str) -> None:
    newer = tmp_path / "newer.db"
    with sqlite3.connect(newer) as connection:
        connection.execute("CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL)")
        connection.execute("INSERT INTO meta VALUES ('schema', 99)")
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES ('s9999')")
        connection.execute("PRAGMA user_version = 99")
        connection.execute(f"PRAGMA application_id = {database.APPLICATION_ID}")
    connection.close()
    (tmp_path / "b.tar").write_bytes(forged(name, newer.read_bytes()))
    (folder / parts.LEDGER).unlink()
    before = content(folder)
    # The same machine's, so that the ledger is put back too.
    code, said = restore(tmp_path / "b.tar", folder, "--set-aside")
    if name == "lease/ledger.db":
        assert (code, "describes another machine" in " ".join(said.split())) == (0, True)
        return
    assert (code, "this version reads schemas up to" in " ".join(said.split())) == (8, True), said
    assert content(folder) == before


def test_a_backup_that_others_could_have_written_is_not_trusted(folder: Path, file: Path) -> None:
    file.chmod(0o666)
    code, said = restore(file, folder, "--set-aside")
    assert (code, f"chmod 600 {file}" in said) == (3, True)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_not_a_file_is_not_waited_for(folder: Path, tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "thing")
    assert restore(tmp_path / "thing", folder)[0] in {2, 6}


def test_a_service_does_not_start_on_what_an_interrupted_restore_left(
    folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "LOCKS", folder.parent)
    (folder / "state.db").unlink()  # as where the restore ended between two renames
    (folder / owner.RESTORING).write_text("")
    env = {"FAIRLEAD_STATE_FOLDER": str(folder), "FAIRLEAD_SILICON_SIMULATE": "h100x8"}
    done = fairlead("up", env=env)
    assert (done.exit_code, "state restore --set-aside" in done.stderr) == (4, True)
    assert restore(file, folder, "--set-aside")[0] == 0
    assert database.check(folder / "state.db") == database.SCHEMA
    assert not (folder / owner.RESTORING).exists()


def test_the_list_says_for_how_long_what_is_kept_and_by_which_setting(folder: Path) -> None:
    done = fairlead("state", "list", "-o", "json", "--state-folder", str(folder), "--api-audit-days", "9")
    rows = {row["path"].strip(): row for row in json.loads(done.stdout)}
    assert rows["state.db"]["size_bytes"] > 0
    assert rows["secrets.key"]["backup"] == "yes, a key"
    assert rows["volumes"]["backup"] == "no"
    assert rows["output"]["setting"] == "engine.log_max_mib"
    assert rows["ended containers"]["kept"] == "the newest 1000"
