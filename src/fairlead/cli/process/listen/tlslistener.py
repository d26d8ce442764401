"""Composes the API on TLS: listener, certificate, accounts, and the database that keeps them.

Loaded only where `api.listen` is set: the database's libraries take 37 MB (measured).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import functools
import math
import socket
import time
import urllib.parse
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fairlead import errors, settings, telemetry
from fairlead.cli.process.listen import logins, notices
from fairlead.serve import authentication, certificate, server, sockets
from fairlead.serve.accounts import recording, stores
from fairlead.serve.accounts.port import Accounts
from fairlead.serve.accounts.sessions import Lifetime
from fairlead.serve.backend.port import Backend
from fairlead.serve.console import app as console
from fairlead.serve.database import engine
from fairlead.serve.limits.bucket import Rate
from fairlead.serve.limits.gate import Gate, Policy
from fairlead.serve.metering.budgetkeeper import Keeper
from fairlead.serve.opened import door, hosts
from fairlead.serve.opened.grants import Grants
from fairlead.serve.opened.grants import Limits as GrantLimits
from fairlead.serve.webhooks import address, foresight, mail
from fairlead.serve.webhooks.delivery import Sender
from fairlead.serve.webhooks.store import StoredWebhooks
from fairlead.serve.webhooks.watcher import Watcher
from fairlead.store.port import Store

if TYPE_CHECKING:
    from fairlead.cli.process.listen.sshlistener import SSHListener

_DOCUMENTATION: Final = (("198.51.100.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses that the default route leads to; nothing is sent there.  Source: RFC 5737, RFC 3849."""
_LARGEST: Final = 1_000_000
_MOST_HOURS: Final = 24 * 366


@dataclass(frozen=True, slots=True, kw_only=True)
class TLSListener:
    """The API on TLS, listening and not served yet."""

    address: str
    files: certificate.Files
    accounts: Accounts
    listener: socket.socket
    names: tuple[str, ...] | None
    """Of our own certificate; None: it is the operator's."""
    more_names: tuple[str, ...]
    """Those of the setting."""
    audit_days: int
    """How long the audit log is kept; 0: for ever."""
    policy: Policy
    """How often clients may ask."""
    limits: sockets.Limits
    """How many connections they may hold."""
    has_console: bool
    provider: str
    """Host of the identity provider; empty: there is none."""
    sender: Sender
    """Of what happens to webhooks."""
    times: foresight.Times = dataclasses.field(default_factory=foresight.Times)
    """When people are told of what is to come."""
    ssh: SSHListener | None = None
    """None: it is off."""
    grants: Grants = dataclasses.field(default_factory=Grants)
    """Containers' ports that are open in browsers."""

    def describe(self) -> tuple[str, str]:
        """Return address and fingerprint, as they are now."""
        return self.address, certificate.fingerprint(self.files)

    def describe_ssh(self) -> tuple[str, int, str] | None:
        """Return name, port and public key of the SSH door; None: it is off."""
        return None if self.ssh is None else self.ssh.describe(urllib.parse.urlsplit(self.address).hostname or "")

    async def serve(
        self, app: Any, store: Store, backend: Backend, *, meter: telemetry.Meter = telemetry.UNMETERED
    ) -> None:
        """Serve the API to who has a key, send what happens to webhooks, and hold budgets, until cancelled."""
        context = certificate.open_context(self.files)
        async with asyncio.TaskGroup() as tasks:
            names = None if self.names is None else lambda: _names(self.more_names, self.grants, self.listener)
            tasks.create_task(certificate.keep(context, self.files, names, _now), name="certificate")
            tasks.create_task(recording.keep(self.accounts.audit, self.audit_days, time.time), name="audit")
            tasks.create_task(recording.keep_sessions(self.accounts.sessions), name="sessions")
            sender = dataclasses.replace(self.sender, meter=meter, given_up=notices.GivenUp(store).record)
            tasks.create_task(sender.run(), name="webhooks")
            tasks.create_task(Watcher(store, sender.outbox, times=self.times).run(), name="events")
            keeper = Keeper(
                budgets=self.accounts.budgets,
                metering=backend.metering,
                store=store,
                stop=functools.partial(backend.lifecycle.stop, grace_s=None),
            )
            tasks.create_task(keeper.run(), name="budgets")
            refusals = recording.Refusals(self.accounts.audit)
            tasks.create_task(refusals.keep(), name="refusals")
            gate = Gate(self.policy, under_way=functools.partial(meter.set, telemetry.UNDER_WAY))
            guarded = authentication.create_app(app, self.accounts, gate=gate, refusals=refusals)
            if self.ssh is not None:
                entered = authentication.create_ssh_app(app, self.accounts, gate=gate, refusals=refusals)
                tasks.create_task(self.ssh.serve(entered, self.accounts.ssh_keys, gate), name="SSH")
            seen = guarded
            if self.has_console:
                seen = console.create_app(guarded, has_login=True, provider=self.provider)
            opened_ports = functools.partial(door.create_app, grants=self.grants)
            await server.serve_tls(seen, self.listener, context, limits=self.limits, meter=meter, before=opened_ports)


def policy(config: settings.APISettings) -> Policy:
    """Return the limits of the settings. Raises: Invalid (`RateInvalid`)."""
    return Policy(
        key=_rate("key", config.key_rate, config.key_burst),
        address=_rate("address", config.address_rate, config.address_burst),
        at_once=config.account_connections,
    )


def _grants(config: settings.APISettings, listener: socket.socket, names: Sequence[str]) -> Grants:
    """Return where opened ports are kept. Args: names: the service's own. Raises: Invalid: a setting is not one."""
    domain = hosts.parse_domain(config.open_domain)
    if domain is not None:
        hosts.check_apart(domain, names)
    if not 0 < config.open_hours <= _MOST_HOURS or not 1 <= config.open_connections <= _LARGEST:
        message = f"api.open_hours {config.open_hours:g}, api.open_connections {config.open_connections}: nothing opens"
        hint = f"hours are more than 0 and at most {_MOST_HOURS}, connections 1 or more"
        raise errors.Invalid(message, reason="OpenLimitsInvalid", hint=hint)
    limits = GrantLimits(life_s=config.open_hours * 3600.0, connections=config.open_connections)
    return Grants(domain=domain, port=listener.getsockname()[1], limits=limits)


def _connections(config: settings.APISettings) -> sockets.Limits:
    """Return how many connections are held, and make room for them. Raises: Invalid (`ConnectionsInvalid`)."""
    sockets.make_room(config.connections)
    return sockets.Limits(connections=config.connections, per_address=config.address_connections)


def _rate(name: str, per_s: float, burst: int) -> Rate:
    if per_s < 0 or not math.isfinite(per_s) or (per_s and not 1 <= burst <= _LARGEST):
        message = f"api.{name}_rate {per_s:g} with api.{name}_burst {burst} lets no request through"
        hint = "the rate is 0 (no limit) or more, the burst at least 1"
        raise errors.Invalid(message, reason="RateInvalid", hint=hint)
    return Rate(per_s=per_s, burst=burst)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@contextlib.asynccontextmanager
async def opened(config: settings.Settings) -> AsyncIterator[TLSListener]:
    """Listen, ready the certificate and open the database.

    Raises: Invalid: an address, a certificate or a database address is not one; Unavailable: the port is taken, the
            database does not answer; ProtocolError: a file of ours is damaged.
    """
    limits = policy(config.api)
    with contextlib.closing(sockets.listen_at(config.api.listen)) as listener, _ssh(config) as ssh:
        made, allowed = logins.of_settings(config), address.read_networks(config.webhooks.allow)
        post = mail.of_settings(config.mail)
        found = certificate.operators(config.api.certificate, config.api.key)
        given = tuple(name for one in config.api.names.split(",") if (name := one.strip()))
        grants = _grants(config.api, listener, (*given, *own_names(listener)))
        names = None if found else _names(given, grants, listener)
        files = found or certificate.own(config.state.folder)
        if names is not None:
            certificate.ensure_own(files, names, _now())
        certificate.open_context(files)
        async with engine.opened(engine.url_of(config.database.url, config.state.folder)) as database:
            hooks = StoredWebhooks(database=database, allowed=allowed, mail=post)
            yield TLSListener(
                address=_address(listener, *given[:1]),
                files=files,
                sender=Sender(outbox=hooks, allowed=allowed, mail=post),
                times=notices.times(config.notify),
                accounts=stores.open_accounts(database, lifetime=_lifetime(config), logins=made, hooks=hooks),
                listener=listener,
                names=names,
                more_names=given,
                audit_days=config.api.audit_days,
                policy=limits,
                limits=_connections(config.api),
                has_console=config.console.enabled,
                provider=urllib.parse.urlsplit(config.oidc.issuer).netloc,
                ssh=ssh,
                grants=grants,
            )


@contextlib.contextmanager
def _ssh(config: settings.Settings) -> Iterator[SSHListener | None]:
    """Give the SSH door, listening; None: it is off, and nothing of it is loaded. Raises: as `sshlistener.opened`."""
    if not config.ssh.listen:
        yield None
        return
    try:
        from fairlead.cli.process.listen import sshlistener
    except ModuleNotFoundError as error:
        message = f"ssh.listen needs an SSH library, and this installation is without {error.name}"
        hint = "`make install` and the Debian package bring it; a wheel has it with its extra, fairlead[server,ssh]"
        raise errors.Invalid(message, reason="SSHNotInstalled", hint=hint) from error
    with sshlistener.opened(config) as found:
        yield found


def _lifetime(config: settings.Settings) -> Lifetime:
    return Lifetime(whole_s=config.api.session_hours * 3600.0, idle_s=config.api.session_idle_minutes * 60.0)


def _address(listener: socket.socket, *names: str) -> str:
    host, port = listener.getsockname()[:2]
    for name in names:
        return f"https://[{name}]:{port}" if ":" in name else f"https://{name}:{port}"
    shown = socket.gethostname() if host in {"::", "0.0.0.0"} else f"[{host}]" if ":" in host else host  # noqa: S104
    return f"https://{shown}:{port}"


def _names(given: Sequence[str], grants: Grants, listener: socket.socket) -> tuple[str, ...]:
    """Return the names of our own certificate: those of the setting first, those of opened ports last."""
    return (*given, *own_names(listener), *(f"*.{domain}" for domain in grants.domains))


def own_names(listener: socket.socket) -> tuple[str, ...]:
    """Return names and addresses under which clients may reach this machine, its own name first."""
    host = str(listener.getsockname()[0])
    bound = () if host in {"::", "0.0.0.0"} else (host,)  # noqa: S104 compared, not bound
    found = (socket.gethostname(), socket.getfqdn(), "localhost", "127.0.0.1", "::1", *bound, *_addresses())
    return tuple(dict.fromkeys(name for name in found if name and len(name) <= 253 and name.isascii()))


def _addresses() -> Iterator[str]:
    """Yield the addresses that the default routes leave from."""
    for target, family in _DOCUMENTATION:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            yield str(probe.getsockname()[0])
