"""`fairlead key create --output`: the key is in a file of its owner alone, and made only where it can be kept."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from fairlead import errors
from fairlead.cli.admin.keys import key
from fairlead.serve.accounts.port import KeyView, NewKey
from fairlead.serve.accounts.roles import Scope

MADE = NewKey(
    key="flk_secret",
    view=KeyView(
        id="0123456789ab",
        account="ann",
        note="",
        scopes=(Scope.READ,),
        created_at="",
        expires_at=None,
        last_used_at=None,
        state="active",
    ),
)


def test_a_key_is_written_to_a_file_of_its_owners_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with key._kept(tmp_path / "ann.key") as show:
        show(MADE)
    assert (tmp_path / "ann.key").read_text() == "flk_secret\n"
    assert (tmp_path / "ann.key").stat().st_mode & 0o777 == 0o600
    said = capsys.readouterr()
    assert (said.out, "key 0123456789ab of ann" in said.err) == ("", True)


def test_without_a_file_it_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with key._kept(None) as show:
        show(MADE)
    assert capsys.readouterr().out == "flk_secret\n"


@pytest.mark.parametrize(("place", "reason"), [("there", "FileExists"), ("none/ann.key", "KeyUnwritable")])
def test_no_key_is_made_where_it_cannot_be_kept(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "there").write_text("kept")
    with pytest.raises(errors.FairleadError, match=place) as caught, key._kept(tmp_path / place):
        raise AssertionError("a key was made")
    assert caught.value.reason == reason
    assert (tmp_path / "there").read_text() == "kept"


def _refused() -> NoReturn:
    raise errors.Denied("no", reason="No")


def test_a_refusal_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(errors.Denied), key._kept(tmp_path / "ann.key"):
        _refused()
    assert not (tmp_path / "ann.key").exists()
