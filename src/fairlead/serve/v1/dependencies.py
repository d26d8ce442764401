"""Declares what handlers are given: the store of objects and the backend where containers run, as the caller may.

On a machine the caller is who the kernel says connected to the socket. Root gets the machine, any other user what
`backend.own` leaves of it. Over a cluster the API server judges the kubeconfig's user, and nothing is judged here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from litestar import di, params

from fairlead import errors
from fairlead.serve import peer
from fairlead.serve.backend import own
from fairlead.serve.backend.port import Backend
from fairlead.store.port import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInfo:
    """Facts of this service that do not change while it runs."""

    version: str
    node: str
    """Name of the node this service runs on; empty: on none."""
    started_at: float
    """Unix seconds."""
    scheduler_name: str
    """Given to pods that name no scheduler; empty: the cluster's own."""
    resource: str
    """Extended resource meant by a plain number of GPUs."""
    socket: Path
    state_folder: Path
    cdi_folder: Path
    profile: str = ""
    """Profile of simulated silicon; empty on real hardware."""


_NOBODY: Final = 65534
"""What a user of another user namespace looks like, and an account.  Source: user_namespaces(7), overflowuid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """What the machine leaves to callers who are not root."""

    most_devices: int = 0
    """Of one resource, for one user at once; 0: no limit."""
    masters: frozenset[int] = field(default_factory=lambda: frozenset({0, os.geteuid()}))
    """Ids of users who may do everything: root, and the user whom the service runs as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything a handler may touch."""

    store: Store
    """Objects that the caller may see."""
    backend: Backend
    info: ServiceInfo
    callers: Callers | None
    """None: each caller may do everything, since it runs in the caller's own process."""
    whole: Store | None = None
    """All objects, for sums that name no user; None: `store` has them all."""

    @property
    def census(self) -> Store:
        """All objects, for sums that name no user."""
        return self.whole or self.store


def for_caller(services: Services, scope: Any) -> Services:
    """Return the services as the caller of one request or session may use them.

    Raises: Denied (`CallerUnknown`): the server noted no caller.
    """
    if services.callers is None:
        return services
    caller = peer.of_state(scope.get("state") or {})
    if caller is None or (caller.uid == _NOBODY and caller.uid not in services.callers.masters):
        message = "it is not known who calls" if caller is None else "you are nobody (65534), whom many may be"
        raise errors.Denied(message, reason="CallerUnknown", hint="connect to the API socket as a user of this machine")
    if caller.uid in services.callers.masters:
        return services
    user = own.User(uid=caller.uid, most_devices=services.callers.most_devices)
    return replace(
        services,
        store=own.OwnStore(whole=services.store, user=user),
        backend=own.backend(services.backend, user),
        whole=services.store,
    )


Dependencies = di.NamedDependency[params.SkipValidation[Services]]
"""How a handler asks for the services (parameter `services`)."""
