"""Changes in other people's files: made once, and taken back from a file that somebody edited since."""

from __future__ import annotations

import json

import pytest

from fairlead import errors
from fairlead.plan.engineconfig import change
from fairlead.plan.engineconfig.model import Item, Member

_ITEM = Item(key="imports", value="/etc/containerd/conf.d/*.toml")
_RUNTIME = Member(path=("runtimes", "fairlead", "path"), value="/usr/bin/fairlead-runtime")
_DEFAULT = Member(path=("default-runtime",), value="fairlead")


def test_what_is_there_already_makes_no_edit() -> None:
    once = change.apply(b"{}", [_RUNTIME, _DEFAULT])
    assert json.loads(once) == {"runtimes": {"fairlead": {"path": _RUNTIME.value}}, "default-runtime": "fairlead"}
    assert change.edit("daemon.json", once, [_RUNTIME, _DEFAULT]) is None
    edit = change.edit("daemon.json", b"{}", [_DEFAULT])
    assert edit is not None
    assert (edit.before, edit.changes) == (b"{}", (_DEFAULT,))


def test_an_added_item_is_removed_and_a_list_of_ours_goes_with_it() -> None:
    original = b"version = 2\n"
    ours = change.apply(original, [_ITEM])
    edited = ours + b'root = "/srv"\n'
    assert change.revert(edited, original, [_ITEM], path="config.toml") == b'version = 2\nroot = "/srv"\n'


def test_a_list_that_was_there_stays_though_it_is_empty() -> None:
    original = b"imports = []\n"
    ours = change.apply(original, [_ITEM])
    assert change.revert(ours, original, [_ITEM], path="config.toml") == original


def test_a_member_that_is_still_ours_becomes_what_it_was() -> None:
    original = b'{"default-runtime": "runc"}'
    ours = change.apply(original, [_DEFAULT])
    assert json.loads(change.revert(ours, original, [_DEFAULT], path="daemon.json")) == {"default-runtime": "runc"}


def test_a_member_that_somebody_set_since_is_theirs() -> None:
    theirs = b'{"default-runtime": "kata"}'
    assert change.revert(theirs, b"{}", [_DEFAULT], path="daemon.json") == theirs


def test_parents_that_came_with_us_go_with_us_and_others_stay() -> None:
    ours = change.apply(b"{}", [_RUNTIME])
    assert json.loads(change.revert(ours, b"{}", [_RUNTIME], path="daemon.json")) == {}
    kept = b'{"runtimes": {}}'
    again = change.apply(kept, [_RUNTIME])
    assert json.loads(change.revert(again, kept, [_RUNTIME], path="daemon.json")) == {"runtimes": {}}
    shared = json.dumps({"runtimes": {"fairlead": {"path": _RUNTIME.value}, "kata": {}}}).encode()
    left = json.loads(change.revert(shared, b"{}", [_RUNTIME], path="daemon.json"))
    assert left == {"runtimes": {"kata": {}}}


@pytest.mark.parametrize(("one", "now"), [(_ITEM, b"imports = ["), (_DEFAULT, b"{")])
def test_a_file_that_cannot_be_read_is_left_alone(one: Item | Member, now: bytes) -> None:
    with pytest.raises(errors.ProtocolError):
        change.revert(now, b"{}" if isinstance(one, Member) else b"", [one], path="broken")
