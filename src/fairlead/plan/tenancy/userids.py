"""Chooses which users and groups of the host the ids inside a tenancy's containers stand for. Pure.

Each tenancy of a machine has 65,536 of its own, so that root of one has no rights on the host or in another. They
are looked for from a place that the tenancy's uid says, and not from the lowest on: ids of a tenancy that is gone are
seldom given again, also by another Fairlead on the machine.
Source: systemd.io/UIDS-GIDS: 1879048192 to 2147352575 are unassigned; login.defs(5), SUB_UID_MAX 600100000.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

from fairlead import errors

SIZE: Final = 65536
FIRST: Final = 1_879_048_192
LAST: Final = 2_147_352_575
_RANGES: Final = (LAST + 1 - FIRST) // SIZE


def choose(uid: str, taken: Collection[int]) -> int:
    """Return the first id of a range that nothing has.

    Args:   uid: of the tenancy.   taken: first ids of the other tenancies.
    Raises: Insufficient (`UserIDsTaken`).
    """
    start = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8], "big") % _RANGES
    for step in range(_RANGES):
        first = FIRST + (start + step) % _RANGES * SIZE
        if first not in taken:
            return first
    message = f"all {_RANGES} ranges of user ids are taken by tenancies of this machine"
    raise errors.Insufficient(message, reason="UserIDsTaken", hint="delete a tenancy")


def base(identity: int) -> int:
    """Return the first id of the range that an id of the host is in; 0: it is in no tenancy's."""
    return identity // SIZE * SIZE if FIRST <= identity <= LAST else 0


def shifted(identity: int, first: int) -> int:
    """Return what an id of a file becomes where the file's owner moves to the range of `first`; 0: the host's own.

    An id that neither a container nor a tenancy's range has stays as it is.
    """
    old = base(identity)
    return identity - old + first if identity - old < SIZE else identity
