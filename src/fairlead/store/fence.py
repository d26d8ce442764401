"""Fences a leader's writes: one gets through only while the lease is that leader's.

A store gives a fenced view of itself (`port.Fencible`); every write through it is compared with the Lease. How much
that proves depends on the store: SQLite and memory compare inside the write's own transaction, so no write of a former
leader is ever stored. An API server has no such transaction: docs/design/store.md says what is left there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fairlead import errors
from fairlead.wire.kubernetes import coordination


def awake_clock() -> float:
    """Return seconds that pass also while the process is stopped or the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """One leadership: which lease, whose, and the token of this term."""

    lease: str
    namespace: str
    holder: str
    token: int
    is_fresh: Callable[[], bool]
    """Says by this process's clock whether the lease, renewed last by us, cannot have been taken by another process."""

    def check(self, lease: coordination.Lease | None) -> None:
        """Return if the lease is still of this term. Raises: Conflict (`LeaseLost`)."""
        if lease is None:
            raise self.lost("it is gone")
        spec = lease.spec
        if spec.holder_identity != self.holder or spec.lease_transitions != self.token:
            raise self.lost(f'"{spec.holder_identity}" holds it, with token {spec.lease_transitions}')

    def check_clock(self) -> None:
        """Return if the last renewal is recent enough. Raises: Conflict (`LeaseLost`)."""
        if not self.is_fresh():
            raise self.lost("it was not renewed in time")

    def lost(self, why: str) -> errors.Conflict:
        """Return the error of a write that comes too late."""
        about = f"lease {self.namespace}/{self.lease}"
        message = f"write of {self.holder} refused: its token {self.token} of {about} is void: {why}"
        return errors.Conflict(message, reason="LeaseLost", hint="another process leads now: start again and wait")
