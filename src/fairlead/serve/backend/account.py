"""Finds the names of this machine's accounts, for people who read whose a container is."""

from __future__ import annotations

import functools
import pwd

from fairlead.plan.pod import userrule


@functools.lru_cache(maxsize=4096)
def owner(namespace: str) -> str:
    """Return the account whose namespace it is; empty: it is not a user's, or the machine knows no such account."""
    uid = userrule.uid_of(namespace)
    try:
        return "" if uid is None else pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return ""
