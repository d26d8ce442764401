"""Makes and reads API keys: `flk_ID_SECRET`, of which the id is public and the secret 256 random bits. Pure.

Only SHA-256 of the secret is stored. A slow hash as argon2 protects what people choose, because it makes guessing dear;
256 random bits cannot be guessed at any price, and a slow hash would be paid by the service at every request. Digests
are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen

PREFIX: Final = "flk"
_FORM: Final = re.compile(r"flk_([0-9a-f]{12})_([0-9a-f]{64})", re.ASCII)
_ID: Final = re.compile(r"[0-9a-f]{12}", re.ASCII)
_ID_BYTES, _SECRET_BYTES = 6, 32
_HINT: Final = "`fairlead login` keeps one; by hand: Authorization: Bearer flk_…"


@frozen
class Key:
    """One key as its owner holds it."""

    id: str
    secret: str

    @property
    def text(self) -> str:
        """The key as it is sent; shown once."""
        return f"{PREFIX}_{self.id}_{self.secret}"

    @property
    def digest(self) -> str:
        """What is stored of the secret."""
        return hashlib.sha256(self.secret.encode()).hexdigest()


def make() -> Key:
    """Return a new key."""
    return Key(id=secrets.token_hex(_ID_BYTES), secret=secrets.token_hex(_SECRET_BYTES))


def is_id(text: str) -> bool:
    """Return whether a text may be the id of a key."""
    return _ID.fullmatch(text) is not None


def parse(text: str) -> Key | None:
    """Return the parts of a key; None: it is not of the form of one."""
    found = _FORM.fullmatch(text)
    return None if found is None else Key(id=found[1], secret=found[2])


def matches(key: Key, digest: str) -> bool:
    """Return whether a key is the one of a stored digest, in constant time."""
    return hmac.compare_digest(key.digest, digest)


def of_header(values: tuple[str, ...]) -> Key:
    """Return the key of a request's Authorization headers.

    Raises: Unauthenticated: `KeyRequired`, `KeyMalformed`; no message has the value.
    """
    if not values:
        raise required()
    kind, _, text = values[0].partition(" ")
    key = parse(text.strip()) if kind.lower() == "bearer" and len(values) == 1 else None
    if key is None:
        message = "the Authorization header is not one bearer API key"
        raise errors.Unauthenticated(message, reason="KeyMalformed", hint=_HINT)
    return key


def required() -> errors.Unauthenticated:
    """Return the error of a request without a key."""
    return errors.Unauthenticated("this address wants an API key, and none came", reason="KeyRequired", hint=_HINT)
