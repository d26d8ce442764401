"""Keeps where a person is logged in: addresses, pinned fingerprints and API keys, in one file of theirs, 0600.

The file is `fairlead/contexts.json` in XDG_CONFIG_HOME. As ssh does with its own, a file that others may read, or that
belongs to another user, is refused: a user who may write it could redirect this person's requests to another service. A
fingerprint is that of the service's public key, so that a renewed certificate is still the same service.
Source: XDG Base Directory Specification; RFC 7469 section 2.4.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, files
from fairlead.wire.text import typedjson

LOCAL: Final = "local"
"""Name that means this machine's own service."""
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class Context(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One service that a person is logged in to."""

    name: str
    url: str
    key: str
    fingerprint: str = ""
    """`sha256//BASE64`; empty: this machine's authorities vouch for its certificate."""

    def __repr__(self) -> str:
        """Leave the key out."""
        return f"Context(name={self.name!r}, url={self.url!r})"


class Contexts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All contexts, and the current one."""

    current: str = LOCAL
    items: tuple[Context, ...] = ()

    def find(self, name: str) -> Context:
        """Return one by its name. Raises: NotFound (`ContextUnknown`)."""
        for one in self.items:
            if one.name == name:
                return one
        hint = "`fairlead context list` shows them; `fairlead login URL` makes one"
        raise errors.NotFound(f'there is no context "{name}"', reason="ContextUnknown", hint=hint)

    def at(self, url: str) -> Context | None:
        """Return the context of an address; of several, the current one."""
        same = (one for one in self.items if one.url == url.rstrip("/"))
        found = sorted(same, key=lambda one: one.name != self.current)
        return found[0] if found else None

    def with_context(self, added: Context) -> Contexts:
        """Return the contexts with one added or replaced, which becomes the current one."""
        return Contexts(current=added.name, items=(*self.without(added.name).items, added))

    def without(self, name: str) -> Contexts:
        """Return them without one."""
        current = LOCAL if self.current == name else self.current
        return Contexts(current=current, items=tuple(one for one in self.items if one.name != name))


def read(file: Path) -> Contexts:
    """Return what a file holds; none where there is none.

    Raises: Denied: others may read it (`CredentialsExposed`), or it is another user's (`CredentialsForeign`);
            ProtocolError (`CredentialsDamaged`); Unavailable.
    """
    try:
        status, data = files.read_judged(file)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        raise errors.Unavailable(message, reason="CredentialsUnreadable", hint="it is yours to read") from error
    if status.st_uid != os.geteuid():
        message = f"{file} belongs to user {status.st_uid}, and you are user {os.geteuid()}: it is not obeyed"
        hint = f"remove it, or `chown {os.geteuid()} {file}` if it is yours; under sudo, leave out -E or set HOME"
        raise errors.Denied(message, reason="CredentialsForeign", hint=hint)
    if status.st_mode & _OTHERS:
        message = f"others may read {file}, which holds API keys"
        raise errors.Denied(message, reason="CredentialsExposed", hint=f"chmod 600 {file}, and have its keys rotated")
    try:
        return typedjson.decode(data, type=Contexts)
    except msgspec.MsgspecError as error:
        hint = "move it away, and log in again"
        raise errors.ProtocolError(f"{file} is damaged: {error}", reason="CredentialsDamaged", hint=hint) from error


def write(file: Path, found: Contexts) -> None:
    """Keep contexts. Raises: Unavailable."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.write_atomic(file, msgspec.json.format(msgspec.json.encode(found)) + b"\n", mode=0o600)
    except OSError as error:
        message = f"cannot write {file}: {error.strerror}"
        raise errors.Unavailable(message, reason="CredentialsUnwritable", hint="XDG_CONFIG_HOME moves it") from error


def chosen(found: Contexts, env: Mapping[str, str]) -> Context | None:
    """Return the context in force: FAIRLEAD_CONTEXT, else the current one; None: this machine's own service.

    Raises: NotFound (`ContextUnknown`).
    """
    name = env.get("FAIRLEAD_CONTEXT") or found.current
    return None if name == LOCAL else found.find(name)


def unverified() -> ssl.SSLContext:
    """Return a TLS context that verifies nothing: `check_pin` compares the certificate's key instead."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def fingerprint(certificate: bytes) -> str:
    """Return the fingerprint of a certificate's public key. Args: certificate: DER."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    public = x509.load_der_x509_certificate(certificate).public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    digest = hashlib.sha256(public.public_bytes(serialization.Encoding.DER, form)).digest()
    return f"sha256//{base64.b64encode(digest).decode()}"


def check_pin(certificate: bytes | None, wanted: str, address: str) -> None:
    """Refuse a service that is not the one that was pinned. Raises: Denied (`FingerprintChanged`)."""
    try:
        found = fingerprint(certificate or b"")
    except ValueError:
        found = "none that can be read"
    if not hmac.compare_digest(found, wanted):
        message = f"{address} is not the service that was pinned: its fingerprint is {found}, and {wanted} was"
        hint = "no key was sent; if its key was changed, ask its administrator, and log in again with --fingerprint"
        raise errors.Denied(message, reason="FingerprintChanged", hint=hint)
