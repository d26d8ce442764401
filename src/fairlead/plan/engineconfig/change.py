"""Makes our changes in other people's files, and takes them back from a file that has changed since.

Going back is by meaning: a list item that is still there is removed, a value that is still ours becomes what it was.
What an administrator has set to something else in the meantime stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from fairlead.plan.engineconfig.model import Change, Edit, Item, Member
from fairlead.wire.text import jsontext, toml


def edit(path: str, before: bytes, changes: Sequence[Change]) -> Edit | None:
    """Return the edit that makes the changes; None where the file says all of it already."""
    after = apply(before, changes)
    return None if after == before else Edit(path=path, before=before, after=after, changes=tuple(changes))


def apply(data: bytes, changes: Sequence[Change]) -> bytes:
    """Return the file with our changes in it."""
    for change in changes:
        match change:
            case Item():
                data = toml.append_item(data, change.key, change.value)
            case Member():
                if jsontext.find(jsontext.parse(data, path=""), change.path) != change.value:
                    data = jsontext.put(data, change.path, change.value)
            case _:
                assert_never(change)
    return data


def revert(data: bytes, original: bytes, changes: Sequence[Change], *, path: str) -> bytes:
    """Return a file that others have changed since, without what is still ours in it.

    Args:    data: as it is now.   original: as it was before us: what a value goes back to.
    Raises:  ProtocolError: it cannot be read any more, so our lines in it cannot be found.
    """
    for change in reversed(changes):
        match change:
            case Item():
                was_there = change.key in toml.parse(original, path=path)
                toml.parse(data, path=path)
                data = toml.remove_item(data, change.key, change.value, drops_empty=not was_there)
            case Member():
                data = _revert_member(data, original, change, path=path)
            case _:
                assert_never(change)
    return data


def _revert_member(data: bytes, original: bytes, change: Member, *, path: str) -> bytes:
    before = jsontext.parse(original, path=path)
    if jsontext.find(jsontext.parse(data, path=path), change.path) != change.value:
        return data
    was = jsontext.find(before, change.path)
    if was is not None:
        return jsontext.put(data, change.path, was)
    data = jsontext.drop(data, change.path)
    for length in range(len(change.path) - 1, 0, -1):
        parent = change.path[:length]
        if jsontext.find(before, parent) is None and jsontext.find(jsontext.parse(data, path=path), parent) == {}:
            data = jsontext.drop(data, parent)
    return data
