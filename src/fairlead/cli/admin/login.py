"""`fairlead login` and `fairlead context`: which services a person has a key for, and which one verbs go to.

A service is known by the fingerprint of its public key, as a host is to ssh: shown and asked about at the first login,
and compared before every request. The key comes from standard input or a prompt, never from the command line.
"""

from __future__ import annotations

import http.client
import re
import sys
import urllib.parse
from typing import Final

import click
import msgspec

from fairlead import errors
from fairlead.cli.core import client as api
from fairlead.cli.core import invocation, options, output, plaintext
from fairlead.cli.core.login import devicelogin
from fairlead.cli.core.output import Column
from fairlead.client import contexts, credentials
from fairlead.serve.accounts import keys
from fairlead.serve.v1.accounts.view import Self

_PORT: Final = 8443
_CONNECT_S: Final = 5.0
_MOST: Final = 4096
_FORM: Final = re.compile(r"sha256//[A-Za-z0-9+/]{43}=", re.ASCII)


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One context as it is listed, without its key."""

    name: str
    url: str
    fingerprint: str
    is_current: bool


_COLUMNS: Final = (
    Column[Shown]("CURRENT", lambda item: "*" if item.is_current else ""),
    Column[Shown]("NAME", lambda item: item.name),
    Column[Shown]("ADDRESS", lambda item: item.url),
    Column[Shown]("FINGERPRINT", lambda item: item.fingerprint or "-", is_wide=True),
)


@click.command()
@click.argument("url", metavar="URL")
@click.option("--name", metavar="NAME", help="what to call it  [default: its host]")
@click.option(
    "--fingerprint",
    metavar="SHA256",
    help="public-key fingerprint to require, as `fairlead up` prints it; skips the question",
)
@click.option("--oidc", "is_by_provider", is_flag=True, help="by the identity provider, in a browser of yours")
@click.pass_context
def login(ctx: click.Context, *, url: str, name: str | None, fingerprint: str | None, is_by_provider: bool) -> None:
    """Keep a service's address and your key for it, from a prompt, a pipe or OIDC; verbs go there from now on."""
    call = invocation.current(ctx)
    address = _address(url)
    file = credentials.file(call.env)
    known = contexts.read(file)
    pin = _pinned(address, known.at(address), fingerprint)
    entered = contexts.Context(
        name=name or str(urllib.parse.urlsplit(address).hostname), url=address, key="", fingerprint=pin
    )
    if entered.name == contexts.LOCAL:
        message = f'"{contexts.LOCAL}" means this machine\'s own service'
        raise errors.Invalid(message, reason="ContextInvalid", hint="choose another --name")
    entered = msgspec.structs.replace(entered, key=devicelogin.key(entered) if is_by_provider else _key())
    with api.at(address, entered) as client:
        found = client.call("GET", "/v1/self", Self)
    contexts.write(file, known.with_context(entered))
    roles = ["administrator"] if found.is_administrator else []
    roles += [f"{one.role} of {one.tenancy}" for one in found.memberships]
    plaintext.echo(f"logged in to {address} as {found.account} ({', '.join(roles) or 'a member of no tenancy yet'})")
    plaintext.echo(f"context: {entered.name}; `fairlead context use {contexts.LOCAL}` goes back to this machine")


def _address(text: str) -> str:
    """Return an address as it is kept. Raises: Invalid (`URLInvalid`)."""
    parts = urllib.parse.urlsplit(text if "://" in text else f"https://{text}")
    try:
        port = parts.port or _PORT
    except ValueError:
        port = 0
    if parts.scheme != "https" or not parts.hostname or not port or parts.username is not None or parts.query:
        message = f'"{text}" is not an address to log in to'
        raise errors.Invalid(message, reason="URLInvalid", hint="https://HOST:PORT, as `fairlead up` shows it")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"https://{host}:{port}{parts.path.rstrip('/')}"


def _key() -> str:
    """Return the key that is typed or piped. Raises: Invalid (`KeyMalformed`), without what was entered."""
    is_typed = sys.stdin.isatty()
    text = click.prompt("API key", hide_input=True, err=True) if is_typed else sys.stdin.readline(_MOST)
    if keys.parse(text.strip()) is None:
        message = "what was entered is not an API key"
        hint = "one begins with flk_; pipe it in, or paste it at the prompt: `fairlead key create` makes one"
        raise errors.Invalid(message, reason="KeyMalformed", hint=hint)
    return str(text.strip())


def _pinned(address: str, known: contexts.Context | None, wanted: str | None) -> str:
    """Return the fingerprint to pin; empty where this machine's authorities vouch for the service.

    Raises: Denied: `FingerprintChanged`, `FingerprintUnknown`; Invalid: `wanted` is none; Unavailable.
    """
    if wanted is not None and not _FORM.fullmatch(wanted):
        message = f'"{wanted}" is not a fingerprint'
        raise errors.Invalid(message, reason="FingerprintInvalid", hint="sha256//…, as `fairlead status` shows it")
    if wanted is None and known is not None and not known.fingerprint:
        return ""
    if wanted is None and known is None and _is_vouched_for(address):
        return ""
    certificate = _certificate(address)
    if wanted is not None or known is not None:
        pin = wanted or (known.fingerprint if known else "")
        contexts.check_pin(certificate, pin, address)
        return pin
    return _asked(address, contexts.fingerprint(certificate))


def _asked(address: str, found: str) -> str:
    plaintext.echo(f"{address} is not known yet; the fingerprint of its key is\n  {found}", err=True)
    if not sys.stdin.isatty():
        message = f"there is no terminal to ask at whether {address} is the right service"
        hint = f"compare it with what `fairlead up` shows there, and give --fingerprint {found}"
        raise errors.Denied(message, reason="FingerprintUnknown", hint=hint)
    if not click.confirm("Is it what `fairlead up` shows there?", err=True):
        raise errors.Denied("it was not confirmed, so no key was sent", reason="FingerprintUnknown")
    return found


def _is_vouched_for(address: str) -> bool:
    """Return whether an authority that this machine trusts has signed the service's certificate."""
    import ssl

    parts = urllib.parse.urlsplit(address)
    connection = http.client.HTTPSConnection(str(parts.hostname), parts.port, timeout=_CONNECT_S)
    try:
        connection.connect()
    except ssl.SSLError:
        return False
    except OSError as error:
        raise _unreachable(address, error) from error
    finally:
        connection.close()
    return True


def _certificate(address: str) -> bytes:
    """Return the certificate that a service shows. Raises: Unavailable (`ServiceUnreachable`)."""
    parts = urllib.parse.urlsplit(address)
    unverified = contexts.unverified()
    connection = http.client.HTTPSConnection(str(parts.hostname), parts.port, timeout=_CONNECT_S, context=unverified)
    try:
        connection.connect()
        return connection.sock.getpeercert(binary_form=True) or b""
    except OSError as error:
        raise _unreachable(address, error) from error
    finally:
        connection.close()


def _unreachable(address: str, error: OSError) -> errors.Unavailable:
    message = f"the service at {address} does not answer: {error}"
    hint = "`fairlead up --listen :8443` serves there; to a registry of images log in as with `podman login`"
    return errors.Unavailable(message, reason="ServiceUnreachable", hint=hint)


@click.group("context")
def contexts_group() -> None:
    """Choose which service verbs go to; FAIRLEAD_CONTEXT chooses for one command."""


@contexts_group.command("list")
@options.output_option
@click.pass_context
def list_verb(ctx: click.Context, *, form: str) -> None:
    """List the services that you are logged in to; the marked one is in force."""
    call = invocation.current(ctx)
    found = contexts.read(credentials.file(call.env))
    current = call.env.get("FAIRLEAD_CONTEXT") or found.current
    every = [Shown(name=contexts.LOCAL, url="", fingerprint="", is_current=current == contexts.LOCAL)]
    every += [
        Shown(name=one.name, url=one.url, fingerprint=one.fingerprint, is_current=current == one.name)
        for one in found.items
    ]
    output.show_listing(every, _COLUMNS, form=form, name=lambda item: item.name)


@contexts_group.command("use")
@click.argument("name", metavar="NAME")
@click.pass_context
def use_verb(ctx: click.Context, *, name: str) -> None:
    """Have verbs go to a service from now on; `local` is this machine's own."""
    file = credentials.file(invocation.current(ctx).env)
    found = contexts.read(file)
    if name != contexts.LOCAL:
        found.find(name)
    contexts.write(file, msgspec.structs.replace(found, current=name))


@contexts_group.command("remove")
@click.argument("name", metavar="NAME")
@click.pass_context
def remove_verb(ctx: click.Context, *, name: str) -> None:
    """Forget a service and the key for it; the key itself stays in force until it is revoked."""
    file = credentials.file(invocation.current(ctx).env)
    found = contexts.read(file)
    found.find(name)
    contexts.write(file, found.without(name))
