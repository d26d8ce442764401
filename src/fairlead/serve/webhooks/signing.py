"""Signs what is sent to webhooks, in the form of Standard Webhooks. Pure.

Source: Standard Webhooks specification, "Signature scheme": `webhook-id.webhook-timestamp.body`, HMAC-SHA256, "v1,".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import Final

_PREFIX: Final = "whsec_"
_BYTES: Final = 32


def make_secret() -> str:
    """Return a new secret, as the receiver's library takes it."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_BYTES)).decode()


def headers(secret: str, *, id_: str, at: int, body: bytes) -> dict[str, str]:
    """Return the headers of one attempt. Args: id_: of the event, the same at each attempt.   at: Unix seconds."""
    key = base64.b64decode(secret.removeprefix(_PREFIX))
    digest = hmac.new(key, f"{id_}.{at}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": id_,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        "content-type": "application/json",
        "user-agent": "fairlead-webhooks",
    }
