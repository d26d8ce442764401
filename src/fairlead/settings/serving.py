"""Declares the settings of the doors for people and programs: API, console, database, logins and webhooks."""

from __future__ import annotations

from pathlib import Path

from fairlead.frozen import frozen
from fairlead.settings.row import row


@frozen
class APISettings:
    """The REST API: its unix socket and, where `api.listen` is set, TLS."""

    socket: Path | None = row(None, text="unix socket of the API; default: api.sock in the run folder")
    group: str = row("", text="group whose members may use the API, each for their own containers; empty: root alone")
    user_gpus: int = row(
        0, text="GPUs that one member of the group may hold at once, unless a quota says otherwise; 0: no limit"
    )
    mounts: str = row(
        "",
        text="folders of this machine that users and accounts may mount read-only, joined by commas: their containers "
        "read there what every account may read; empty: none",
    )
    devices: str = row(
        "",
        text="CDI devices that users, accounts and tenancies may ask for by name (`run --device`), joined by commas: "
        "vendor/class=name, or vendor/class=* for all of a kind; never GPUs; empty: none",
    )
    listen: str = row(
        "", text="HOST:PORT where the API is served on TLS to accounts with keys, :8443 for every address; empty: not"
    )
    names: str = row(
        "",
        text="more names and addresses of the API's own certificate, joined by commas; the first is the one that "
        "`status` shows",
    )
    certificate: Path | None = row(
        None, text="PEM file of the API's certificate chain; default: one of its own, made in the state folder"
    )
    key: Path | None = row(None, text="PEM file of that certificate's private key")
    session_hours: float = row(12.0, text="hours after which a browser must log in again")
    session_idle_minutes: float = row(
        60.0, text="minutes without a request after which a browser must log in again; 0: none"
    )
    audit_days: int = row(400, text="days that the audit log of the API on TLS is kept; 0: nothing of it is deleted")
    key_rate: float = row(
        50.0,
        text="requests a second of one key by TLS; all keys of an account: four times that; 0: no limit",
    )
    connections: int = row(
        2048, text="connections that the API on TLS holds open at once; each followed output or event stream is one"
    )
    address_connections: int = row(256, text="connections of one address at a time; a /64 of IPv6 counts as one")
    account_connections: int = row(1024, text="one account's connections: open requests, followed output, sessions")
    key_burst: int = row(200, text="requests that one key may send at once after a pause")
    address_rate: float = row(
        2.0, text="requests a second without a key in force that one address, or a /64 of IPv6, may send; 0: no limit"
    )
    address_burst: int = row(60, text="requests without a key in force that one address may send at once after a pause")
    open_domain: str = row(
        "",
        text="DOMAIN or DOMAIN:PORT below which `open` gives containers' ports their names, apps.gpu.lab.example: its "
        "wildcard in DNS leads to this service; empty: browsers on this machine alone, below apps.localhost",
    )
    open_hours: float = row(12.0, text="hours after which an opened port must be opened again; it ends with its login")
    open_connections: int = row(
        64, text="connections to opened ports of one account at once: a tab has up to six, and each WebSocket one"
    )


@frozen
class ConsoleSettings:
    """The web console, below /console of the API."""

    enabled: bool = row(True, text="serve the web console beside the API, on its socket and on TLS")


@frozen
class SSHSettings:
    """The SSH door into containers, beside the API on TLS, whose accounts it is for."""

    listen: str = row(
        "",
        text="PORT of the loopback, or HOST:PORT, where SSH leads accounts into their containers, :2222 for every "
        "address; empty: not",
    )
    name: str = row("", text="name or address of this machine that `ssh-config` prints; empty: the API's")
    connections: int = row(128, text="SSH connections that are held open at once")
    address_connections: int = row(16, text="SSH connections of one address at a time; a /64 of IPv6 counts as one")


@frozen
class SessionSettings:
    """Notebooks, shells and other containers that people come back to."""

    templates: Path | None = row(
        None, text="TOML file of more templates for `notebook` and `shell`, a table each; its own replace built-in ones"
    )


@frozen
class HistorySettings:
    """Figures over time: what GPUs and containers did, kept by the service of one machine."""

    days: float = row(
        14.0,
        text="days that figures of GPUs and containers are kept: 10 s apart for 2 hours, a minute apart for 2 days, "
        "then 10 minutes apart; 0: none are kept",
    )
    megabytes: float = row(
        128.0, text="MiB that the file of figures may have; beyond it the oldest go, whatever history.days says"
    )
    prometheus: str = row(
        "",
        text="address of a Prometheus that is asked instead, http://127.0.0.1:9090; the service then keeps no figures",
    )


@frozen
class DatabaseSettings:
    """The database of accounts, which is opened where the API is served on TLS."""

    url: str = row(
        "",
        text="PostgreSQL's address, postgresql://USER@HOST/NAME, its password in ~/.pgpass; empty: an SQLite file in "
        "the state folder",
    )


@frozen
class OIDCSettings:
    """Logins of people by an OpenID Connect provider, where the API is served on TLS."""

    issuer: str = row("", text="address of the provider, as its discovery document has it; empty: API keys alone")
    client_id: str = row("", text="what the provider knows this service as")
    client_secret: Path | None = row(
        None, text="file of the client's secret, which others may not read; default: a public client"
    )
    scopes: str = row("openid profile email", text="what is asked of the provider")
    redirect: str = row(
        "",
        text="where browsers come back to, as the provider knows it; empty: /v1/oidc/callback of api.listen's address",
    )
    account: str = row("preferred_username", text="claim that names a person's account, unless oidc.map names it")
    map: str = row(
        "",
        text="CLAIM:VALUE=TARGET, joined by commas; a target is user:NAME, administrator or ROLE@TENANCY: "
        "`email:ann@example.com=user:ann,groups:ml=developer@red`",
    )
    strangers: str = row(
        "refuse", text="who has no account here: refuse, or create one at the first login", choices=("refuse", "create")
    )
    key_hours: float = row(12.0, text="hours that a key of `fairlead login --oidc` lives")


@frozen
class MailSettings:
    """E-mail to people, where the API is served on TLS."""

    server: str = row("", text="name of the mail server that messages are handed to; empty: no e-mail is sent")
    port: int = row(587, text="its port: mostly 587 for starttls, 465 for tls, 25 for none")
    security: str = row(
        "starttls",
        text="how the connection is encrypted; none sends the password in the clear, so it goes to this machine alone",
        choices=("starttls", "tls", "none"),
    )
    user: str = row("", text="who logs in there; empty: nobody does")
    password_file: Path | None = row(None, text="file with that user's password, which root alone may read")
    ca: Path | None = row(None, text="certificates that the server's is signed by; without: those of this machine")
    sender: str = row("", text="address that messages come from, as fairlead@example.com")
    per_hour: int = row(20, text="messages an hour to one account, or from one tenancy's webhooks; more are given up")
    domains: str = row(
        "", text="domains that accounts may have mail sent to, joined by commas; empty: every one, once it is confirmed"
    )


@frozen
class NotifySettings:
    """When people are told, and webhooks."""

    wait_min: float = row(
        30, unit="min", text="a container that waits for a place for so long is told of once; 0: none"
    )
    ahead_min: float = row(15, unit="min", text="so long before the end of its --timeout a container's end is told of")


@frozen
class WebhookSettings:
    """Where events are sent to, where the API is served on TLS."""

    allow: str = row(
        "",
        text="networks that webhooks may go to although they are not public, joined by commas, as 10.1.0.0/16; "
        "plain http goes to these alone",
    )
