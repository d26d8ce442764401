"""Signs reports with this node's own Ed25519 key, made at the first start, and verifies them with its public half.

The private key is a file that root alone can read, beside the ledger; who has it can write reports, so a fleet that
must not trust its nodes' disks takes the reports away as they are made. Loaded only where reports are.
Source: RFC 8032; the library is `cryptography`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from cryptography import exceptions
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from fairlead import errors, files

KEY: Final = "reports.key"
PUBLIC: Final = "reports.pub"


class Signer:
    """This node's key."""

    def __init__(self, folder: Path) -> None:
        """Read the key, or make one. Raises: ProtocolError (`KeyDamaged`): it is left as it is."""
        path = folder / KEY
        if not path.exists():
            fresh = ed25519.Ed25519PrivateKey.generate()
            private = fresh.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            files.write_atomic(path, private, mode=0o600)
        try:
            found = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except ValueError as error:
            raise _damaged(path) from error
        if not isinstance(found, ed25519.Ed25519PrivateKey):
            raise _damaged(path)
        self._key = found
        public = found.public_key()
        pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        if not (folder / PUBLIC).exists() or (folder / PUBLIC).read_bytes() != pem:
            files.write_atomic(folder / PUBLIC, pem)
        self.name = name_of(public)
        """Fingerprint of the public key."""

    def sign(self, data: bytes) -> bytes:
        """Return the signature."""
        return self._key.sign(data)


class Verifier:
    """A public key."""

    def __init__(self, path: Path) -> None:
        """Read it. Raises: NotFound, ProtocolError."""
        try:
            found = serialization.load_pem_public_key(path.read_bytes())
        except OSError as error:
            message = f"cannot read public key {path}: {error.strerror}"
            raise errors.NotFound(message, reason="KeyMissing", hint="name the node's reports.pub by --key") from error
        except ValueError as error:
            raise _damaged(path) from error
        if not isinstance(found, ed25519.Ed25519PublicKey):
            raise _damaged(path)
        self._key = found
        self.name = name_of(found)

    def is_signed(self, data: bytes, signature: bytes) -> bool:
        """Return whether the signature is this key's of these bytes."""
        try:
            self._key.verify(signature, data)
        except exceptions.InvalidSignature:
            return False
        return True


def name_of(key: ed25519.Ed25519PublicKey) -> str:
    """Return the fingerprint of a public key, 16 hexadecimal digits of its SHA-256."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


def _damaged(path: Path) -> errors.ProtocolError:
    hint = "move it away: the next start makes another, and old reports are verified with the old reports.pub"
    return errors.ProtocolError(f"{path} is not an Ed25519 key", reason="KeyDamaged", hint=hint)
