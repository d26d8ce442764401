"""A lock that says who holds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import errors
from fairlead.kernel import heldlock

ME = heldlock.Owner(pid=7, state="/var/lib/a", socket="/run/a.sock", since="2026-01-01T00:00:00Z")


@pytest.mark.parametrize("owner", [ME, heldlock.Owner(pid=7)])
def test_who_holds_it_is_read_and_named_to_the_next(tmp_path: Path, owner: heldlock.Owner) -> None:
    path = tmp_path / "folder/lock"
    assert heldlock.holder(path) is None
    with heldlock.held(path, "the state folder", owner):
        assert heldlock.holder(path) == owner
        with (
            pytest.raises(errors.Conflict, match=r"in use by another fairlead .*pid 7") as caught,
            heldlock.held(path, "the state folder", ME),
        ):
            pass
        assert ("down --state-folder /var/lib/a" in str(caught.value.hint)) is (owner is ME)
    assert heldlock.holder(path) is None


def test_nobody_else_may_open_a_lock_and_so_lock_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch(mode=0o644)
    for lock in (path, tmp_path / "new"):
        with heldlock.held(lock, "it", ME):
            assert lock.stat().st_mode & 0o777 == 0o600


def test_who_may_not_read_it_is_told_to_be_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(errors.Denied, match="only the user of the service") as caught:
        heldlock.holder(tmp_path / "lock")
    assert caught.value.reason == "NotRoot"


def test_what_stands_in_it_may_be_anything(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with heldlock.held(path, "it", ME):
        path.write_text("not a pid")
        with pytest.raises(errors.Conflict) as caught, heldlock.held(path, "it", ME):
            pass
    assert "fairlead status" in str(caught.value.hint)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(errors.Unavailable, match=r"cannot use it: .*/file/lock") as caught,
        heldlock.held(tmp_path / "file/lock", "it", ME),
    ):
        pass
    assert caught.value.reason == "FolderUnusable"
