"""Encrypts the values of Secrets that lie in a machine's own store, with a key in a file of its own beside it.

A value can be opened only as what it was sealed as: the namespace, the Secret and the key that it is of are part of
what is authenticated. Loaded where Secrets are written or used.
Source: NIST SP 800-38D (AES-GCM); the library is `cryptography`.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cryptography import exceptions
from cryptography.hazmat.primitives.ciphers import aead

from fairlead import errors, files
from fairlead.wire.kubernetes import core

KEY_FILE: Final = "secrets.key"
"""Of the state folder."""
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_MODE: Final = 0o600


class Seal:
    """One machine's key."""

    def __init__(self, path: Path) -> None:
        """Take the key's file; it is made with the first value that is sealed."""
        self._path = path

    def sealed(self, values: Mapping[str, bytes], name: str, namespace: str) -> dict[str, str]:
        """Return values as they are stored. Raises: ProtocolError (`SecretKeyUnreadable`), Unavailable."""
        if not self._path.exists():
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.write_atomic(self._path, base64.b64encode(os.urandom(_KEY_BYTES)) + b"\n", mode=_MODE)
        cipher, found = self._cipher(), {}
        for key, value in values.items():
            nonce = os.urandom(_NONCE_BYTES)
            found[key] = base64.b64encode(nonce + cipher.encrypt(nonce, value, _place(namespace, name, key))).decode()
        return found

    def check(self) -> None:
        """Read the key. Raises: ProtocolError (`SecretKeyUnreadable`)."""
        self._cipher()

    def opened(self, item: core.Secret) -> dict[str, bytes]:
        """Return the values of a stored Secret. Raises: ProtocolError (`SecretUnreadable`, `SecretKeyUnreadable`)."""
        name, namespace = item.metadata.name, item.metadata.namespace
        cipher, found = self._cipher(), {}
        for key, text in item.data.items():
            try:
                whole = base64.b64decode(text, validate=True)
                nonce, rest = whole[:_NONCE_BYTES], whole[_NONCE_BYTES:]
                found[key] = cipher.decrypt(nonce, rest, _place(namespace, name, key))
            except (ValueError, exceptions.InvalidTag) as error:
                message = f"key {key} of Secret {namespace}/{name} was not encrypted with the key in {self._path}"
                hint = f"put that key back, or give the value again: `fairlead secrets create --replace {name}`"
                raise errors.ProtocolError(message, reason="SecretUnreadable", hint=hint) from error
        return found

    def _cipher(self) -> aead.AESGCM:
        try:
            key = base64.b64decode(self._path.read_bytes(), validate=False)
        except OSError as error:
            raise self._unreadable(f"cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise self._unreadable("is not a key") from error
        if len(key) != _KEY_BYTES:
            raise self._unreadable("is not a key")
        return aead.AESGCM(key)

    def _unreadable(self, why: str) -> errors.ProtocolError:
        message = f"{self._path}, with which this machine's secrets are encrypted, {why}"
        hint = "put it back from a backup, or move it away and give every secret again"
        return errors.ProtocolError(message, reason="SecretKeyUnreadable", hint=hint)


def _place(namespace: str, name: str, key: str) -> bytes:
    return "\0".join((namespace, name, key)).encode()
