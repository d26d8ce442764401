"""Chooses which users and groups of the host the ids inside a tenant's containers stand for. Pure.

Each tenancy of a machine, and each user of a shared one, has 65,536 of its own, so that root of one has no rights on
the host or in another. They are looked for from a place that the tenant's key says, and not from the lowest on: ids of
a tenant that is gone are seldom given again, also by another Fairlead on the machine. Tenancies have the even ranges
and users the odd ones, since two places of the code choose them and neither waits for the other.
Source: systemd.io/UIDS-GIDS: 1879048192 to 2147352575 are unassigned; login.defs(5), SUB_UID_MAX 600100000.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from fairlead import errors

SIZE: Final = 65536
FIRST: Final = 1_879_048_192
LAST: Final = 2_147_352_575
_RANGES: Final = (LAST + 1 - FIRST) // SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose ids the containers of a pod have."""

    name: str
    """For messages: `tenancy "red"`, `user 1000`."""
    first: int
    """Of the range; 0: none was chosen yet."""


def choose(key: str, taken: Collection[int], *, is_user: bool = False) -> int:
    """Return the first id of a range that nothing has.

    Args:   key: a tenancy's uid or a user's namespace.   taken: first ids of the other ranges in use.
            is_user: for a user of a shared machine.
    Raises: Insufficient (`UserIDsTaken`).
    """
    count = _RANGES // 2
    start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % count
    for step in range(count):
        first = FIRST + ((start + step) % count * 2 + is_user) * SIZE
        if first not in taken:
            return first
    message = f"all {count} ranges of user ids are taken by {'users' if is_user else 'tenancies'} of this machine"
    hint = "end the containers of a user, and restart the service" if is_user else "delete a tenancy"
    raise errors.Insufficient(message, reason="UserIDsTaken", hint=hint)


def base(identity: int) -> int:
    """Return the first id of the range that an id of the host is in; 0: it is in no tenancy's."""
    return identity // SIZE * SIZE if FIRST <= identity <= LAST else 0


def shifted(identity: int, first: int) -> int:
    """Return what an id of a file becomes where the file's owner moves to the range of `first`; 0: the host's own.

    An id that neither a container nor a tenancy's range has stays as it is.
    """
    old = base(identity)
    return identity - old + first if identity - old < SIZE else identity
