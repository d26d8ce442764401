"""Declares what handlers are given: the store of objects and the backend where containers run, as the caller may.

On a machine the caller is who the kernel says connected to the socket. Root gets the machine, any other user what
`backend.tenancy.own` leaves of it. Who comes by TLS is the account of a key: an administrator gets the machine,
everybody else what `backend.tenancy.member` leaves of it for what the route does. Over a cluster the API server judges
the kubeconfig's user, and nothing is judged here.
"""

from __future__ import annotations

import functools
import os
import urllib.parse
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from litestar import di, params

from fairlead import errors
from fairlead.plan.tenancy import baseline
from fairlead.serve import peer
from fairlead.serve.accounts import keys, roles
from fairlead.serve.accounts.audit import Place
from fairlead.serve.accounts.port import Accounts
from fairlead.serve.accounts.recording import Recording
from fairlead.serve.admission import sessiontemplate
from fairlead.serve.admission.context import Context
from fairlead.serve.api.resultcache import ResultCache
from fairlead.serve.backend.place import Everywhere, Part
from fairlead.serve.backend.port import Absent, Backend
from fairlead.serve.backend.tenancy import member, own
from fairlead.serve.opened.grants import Grants
from fairlead.serve.v1 import permissions
from fairlead.store.port import Store
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes.meta import Object


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
    system_namespace: str = ""
    """Namespace of the leases of Fairlead's schedulers; empty: one machine, and no leases."""
    socket: Path
    state_folder: Path
    cdi_folder: Path
    profile: str = ""
    """Profile of simulated silicon; empty on real hardware."""
    door: Callable[[], tuple[str, str]] = lambda: ("", "")
    """Returns address and fingerprint of the API on TLS; empty: it is off."""
    ssh_door: Callable[[], tuple[str, int, str] | None] = lambda: None
    """Returns name, port and public key of the SSH door; None: it is off."""
    templates: tuple[sessiontemplate.Template, ...] = sessiontemplate.BUILT_IN
    """Of sessions."""


_NOBODY: Final = 65534
"""Uid as which the kernel shows users of other user namespaces; the account nobody has it too.

Source: user_namespaces(7), overflowuid.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """What the machine leaves to callers who are not root."""

    most_devices: int = 0
    """Of one resource, for one user at once; 0: no limit."""
    mounts: tuple[str, ...] = ()
    """Folders of the machine that users and accounts may mount read-only (`mountable.parse`)."""
    masters: frozenset[int] = field(default_factory=lambda: frozenset({0, os.geteuid()}))
    """Ids of users who may do everything: root, and the user whom the service runs as."""


NO_ACCOUNTS: Final = Absent(
    kind=errors.Unavailable,
    message="accounts and keys are for the API on TLS, which is off",
    reason="AccountsOff",
    hint="start with `fairlead up --listen :8443`, or set api.listen",
)
NO_GRANTS: Final = Absent(
    kind=errors.Unavailable,
    message="containers are opened in browsers by the API on TLS, which is off",
    reason="OpenOff",
    hint="`fairlead port-forward NAME PORT` leads there; or start with `fairlead up --listen :8443`",
)
_ROOTS: Final = Absent(
    kind=errors.Denied, message="accounts and keys are root's", reason="RootOnly", hint="ask root to do it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything a handler may touch."""

    store: Store
    """Objects that the caller may see."""
    refuse_writing: Callable[[type[Object]], None] = lambda _kind: None
    """Raises what `store` would, where the caller may write no objects of a kind."""
    backend: Backend
    info: ServiceInfo
    callers: Callers | None
    """None: each caller may do everything, since it runs in the caller's own process."""
    whole: Store | None = None
    """All objects, for sums that name no user; None: `store` has them all."""
    part: Part | None = None
    """What the caller has of the machine; None: all of it."""
    accounts: Accounts | Absent = NO_ACCOUNTS
    principal: roles.Principal | None = None
    """Who asks by TLS; None: the machine's root, by its socket."""
    noted: Callable[[str], None] = lambda _namespace: None
    """Called, for the audit log, with the namespace that a request is about."""
    owe: Callable[[int], None] = lambda _count: None
    """Charges the key's rate limit for so many requests more."""
    recording: Recording | None = None
    """Of the request in the audit log; None: it came by the unix socket."""
    caller: str = "local"
    """Who asks, by a name that no other caller has: keys of requests are each caller's own."""
    views: ResultCache[Any] = field(default_factory=lambda: ResultCache(512))
    """What containers look like, by their pods."""
    grants: Grants | Absent = NO_GRANTS
    """Ports that are open in browsers."""
    again: Callable[[], Awaitable[Services]] | None = None
    """Returns the services as the caller may use them at a later time, if they may still; None: there is no caller."""
    censuses: ResultCache[Any] = field(default_factory=lambda: ResultCache(1))
    """What is read out of all nodes and pods, by their listings."""

    @property
    def admission(self) -> Context:
        """What a submission is judged with."""
        return Context(
            store=self.store,
            backend=self.backend,
            accounts=self.accounts,
            refuse_writing=self.refuse_writing,
            resource=self.info.resource,
            scheduler_name=self.info.scheduler_name,
            is_machine=bool(self.info.node),
        )

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
        return replace(services, again=functools.partial(_same, services))
    user = own.User(uid=caller.uid, most_devices=services.callers.most_devices, mounts=services.callers.mounts)
    store = own.OwnStore(whole=services.store, user=user)
    return replace(
        services,
        store=store,
        refuse_writing=store.refuse,
        backend=own.backend(services.backend, user),
        whole=services.store,
        part=user,
        accounts=_ROOTS,
        caller=f"uid {caller.uid}",
        again=functools.partial(_of_caller, services, scope),
    )


async def _same(services: Services) -> Services:
    return services


async def _of_caller(services: Services, scope: Any) -> Services:
    return for_caller(services, scope)


async def for_request(services: Services, scope: Any) -> Services:
    """Return the services as one request may use them: by its key, or by who connected.

    Raises: Denied: as `for_caller`; the account's role does not allow it anywhere.
    """
    principal, recording = permissions.principal_of(scope), permissions.recording_of(scope)
    if principal is None:
        return for_caller(services, scope)
    found = (await services.store.list(Tenancy)).items
    noted = _noted(recording, found, scope) if recording is not None else services.noted
    action = permissions.action_of(scope["route_handler"].handler_name)
    again = functools.partial(_renewed, services, action, permissions.renewal_of(scope))
    asked = replace(
        services, noted=noted, owe=functools.partial(permissions.owe, scope), recording=recording, again=again
    )
    return _for_account(asked, found, principal, action)


async def _renewed(
    services: Services, action: roles.Action, renew: Callable[[], Awaitable[roles.Principal]] | None
) -> Services:
    """Return the services as an account may use them now for what it once asked for.

    Raises: Unauthenticated: its key or session is over; Denied: its role or its scopes are.
    """
    if renew is None:
        raise keys.required()
    principal = await renew()
    principal.check(action)
    return _for_account(services, (await services.store.list(Tenancy)).items, principal, action)


def _for_account(
    services: Services, found: Sequence[Tenancy], principal: roles.Principal, action: roles.Action
) -> Services:
    """Return the services as an account may use them for an action. Args: found: the machine's tenancies."""
    asking = f"account {principal.account}"
    if principal.is_administrator:
        backend = services.backend
        if services.info.node:
            backend = replace(backend, places=Everywhere(account=principal.account))
        return replace(services, backend=backend, principal=principal, caller=asking)
    mounts = services.callers.mounts if services.callers is not None else ()
    part = replace(_part(found, principal, action), noted=services.noted, mounts=mounts)
    store = member.MemberStore(whole=services.store, member=part)
    hidden = replace(services.info, socket=Path(), state_folder=Path(), cdi_folder=Path())
    return replace(
        services,
        store=store,
        refuse_writing=store.refuse,
        backend=member.backend(services.backend, part),
        whole=services.store,
        part=part,
        info=hidden,
        principal=principal,
        caller=asking,
    )


def _noted(recording: Recording, found: Sequence[Tenancy], scope: Any) -> Callable[[str], None]:
    """Tell a request's recording which tenancies there are, and which one its query names."""
    recording.places = {
        name: Place(namespace=name, tenancy=item.metadata.name, uid=item.metadata.uid)
        for item in found
        if (name := baseline.namespace_name(item))
    }
    named = dict(urllib.parse.parse_qsl(scope["query_string"].decode("latin-1"))).get("namespace", "")
    if named in recording.places and recording.home == Place():
        recording.note(named)
    return recording.note


def _part(items: Sequence[Tenancy], principal: roles.Principal, action: roles.Action) -> member.Member:
    """Return what an account may use: tenancies are known by uid, since another may have the name of one later."""
    found = {item.metadata.uid: item for item in items}
    allowed, forbidden = {}, {}
    for one in principal.memberships:
        if (item := found.get(one.uid)) is None:
            continue
        namespace = baseline.namespace_name(item)
        if principal.may(action, one.role):
            allowed[namespace] = item
        else:
            forbidden[namespace] = roles.refusal(principal.account, action)
    return member.Member(allowed=allowed, forbidden=forbidden, account=principal.account)


Dependencies = di.NamedDependency[params.SkipValidation[Services]]
"""How a handler asks for the services (parameter `services`)."""
