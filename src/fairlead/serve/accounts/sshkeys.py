"""Declares the public keys of accounts for the SSH door, and reads one as people write it. Pure.

Source: RFC 4253 section 6.6 (form of a public key); RFC 4251 section 5 (strings); sshd(8), AUTHORIZED_KEYS FILE FORMAT.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Annotated, Final, Protocol

import msgspec
from cryptography import exceptions
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve.accounts.roles import Principal

KINDS: Final = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)
"""Kinds that the door takes. DSA is broken, and certificates have their own rules, which nothing here would keep."""
FINGERPRINT: Final = "ssh_key"
"""Key in the scope's state: fingerprint of the key that a request of the SSH door came by."""
_KINDS_HINT: Final = f"one of {', '.join(KINDS)}; options before a key are not carried out"
_LEAST_RSA: Final = 2048
_LONGEST: Final = 8192
_LONGEST_NOTE: Final = 200
_HINT: Final = "one line of a file such as ~/.ssh/id_ed25519.pub; `ssh-keygen -t ed25519` makes a pair"


@frozen
class PublicKey:
    """One public key."""

    kind: str
    blob: bytes
    comment: str

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` prints it."""
        return fingerprint(self.blob)

    @property
    def line(self) -> str:
        """Kind and key, without a comment."""
        return f"{self.kind} {base64.b64encode(self.blob).decode()}"


class SSHKeyView(msgspec.Struct, frozen=True, kw_only=True):
    """One public key of an account."""

    id: str
    account: str
    kind: str
    fingerprint: Annotated[str, msgspec.Meta(description="as `ssh-keygen -l` prints it")]
    public_key: str
    note: str
    created_at: str
    expires_at: Annotated[str | None, msgspec.Meta(description="null: never")]
    last_used_at: Annotated[str | None, msgspec.Meta(description="time of last use, to the minute; null: never")]


class SSHKeys(Protocol):
    """Public keys of accounts."""

    async def authenticate(self, fingerprint: str) -> Principal:
        """Return whose key it is, and note that it was used. Raises: Unauthenticated (`SSHKeyRefused`)."""
        ...

    async def is_known(self, fingerprint: str) -> bool:
        """Return whether a key is of an account and in force."""
        ...

    async def add(self, account: str, key: PublicKey, *, note: str, expires_at: float | None) -> SSHKeyView:
        """Keep a key.

        Raises: NotFound (`AccountUnknown`); Conflict: `SSHKeyTaken`, `SSHKeysTooMany`; Invalid: the note.
        """
        ...

    async def list(self, account: str | None) -> tuple[SSHKeyView, ...]:
        """Return keys in the order of their making. Args: account: whose; None: of every account."""
        ...

    async def remove(self, id_: str, account: str | None) -> SSHKeyView:
        """Forget a key. Args: account: whose it must be; None: any account's. Raises: NotFound (`SSHKeyUnknown`)."""
        ...


def fingerprint(blob: bytes) -> str:
    """Return the fingerprint of a key's bytes, as `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def check_note(note: str) -> str:
    """Return a note. Raises: Invalid (`NoteInvalid`)."""
    if len(note) > _LONGEST_NOTE or not note.isprintable():
        message = f"a note is one line of at most {_LONGEST_NOTE} characters"
        raise errors.Invalid(message, reason="NoteInvalid", hint="for example ann's laptop")
    return note


def parse(text: str) -> PublicKey:
    """Return the key of a line: kind, key, and perhaps a comment.

    Raises: Invalid (`SSHKeyInvalid`): it is no key, a private one, of a kind that is not taken, or has options before
            it, which the door would not carry out.
    """
    line = text.strip()
    if "PRIVATE KEY" in line:
        message = "this is a private key, which stays where it is"
        raise errors.Invalid(message, reason="SSHKeyInvalid", hint=f"give the public one: {_HINT}")
    words = line.split(None, 2)
    if len(line) > _LONGEST or "\n" in line or "\0" in line or len(words) < 2:
        raise errors.Invalid("this is not a public key of SSH", reason="SSHKeyInvalid", hint=_HINT)
    kind, data = words[0], words[1]
    if kind not in KINDS:
        shown = errors.readable(kind[:60])
        message = f'"{shown}" is not a kind of key that the SSH door takes'
        raise errors.Invalid(message, reason="SSHKeyInvalid", hint=_KINDS_HINT)
    try:
        blob = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise errors.Invalid("the key is not base64", reason="SSHKeyInvalid", hint=_HINT) from error
    _check_blob(kind, blob)
    return PublicKey(kind=kind, blob=blob, comment=words[2] if len(words) > 2 else "")


def _check_blob(kind: str, blob: bytes) -> None:
    """Hold a key to its kind. Raises: Invalid (`SSHKeyInvalid`)."""
    size = int.from_bytes(blob[:4], "big")
    if blob[4 : 4 + size] != kind.encode():
        raise errors.Invalid(f"the key is not of the kind {kind}", reason="SSHKeyInvalid", hint=_HINT)
    if kind.startswith("sk-"):
        return  # of a security key: the client library reads it at the first login
    try:
        found = serialization.load_ssh_public_key(f"{kind} {base64.b64encode(blob).decode()}".encode())
    except (ValueError, exceptions.UnsupportedAlgorithm) as error:
        raise errors.Invalid(f"the {kind} key is damaged", reason="SSHKeyInvalid", hint=_HINT) from error
    if isinstance(found, rsa.RSAPublicKey) and found.key_size < _LEAST_RSA:
        message = f"an RSA key of {found.key_size} bits is too short"
        raise errors.Invalid(message, reason="SSHKeyInvalid", hint=f"from {_LEAST_RSA} bits on, or ssh-ed25519")
