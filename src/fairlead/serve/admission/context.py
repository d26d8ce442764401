"""Declares what a submission is judged with: what its caller may use, and what the service gives where nothing is said.

A submission goes one way: it is read and completed here (`container`, `manifest`), judged by the
checks of `CHECKS` and by those of the step that stores it (`backend.containers.checks`, or a cluster's API server).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairlead.serve.accounts.port import Accounts
from fairlead.serve.backend.port import Absent, Backend
from fairlead.store.port import Store
from fairlead.wire.kubernetes.meta import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One caller's, for one request."""

    store: Store
    """Objects that the caller may see."""
    backend: Backend
    """As the caller may use it."""
    accounts: Accounts | Absent
    refuse_writing: Callable[[type[Object]], None]
    """Raises where the caller may write no objects of a kind."""
    resource: str
    """Extended resource meant by a plain number of GPUs."""
    scheduler_name: str
    """Given to pods that name no scheduler; empty: the cluster's own."""
    is_machine: bool = False
    """Whether containers run on this machine, whose ports can be looked at."""
