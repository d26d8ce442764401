"""Logs in by the identity provider of a service: shows where to confirm, and waits for the key.

Source: RFC 8628 section 3.3: the address and the code are shown, and the person opens them on any device.
"""

from __future__ import annotations

import time

from fairlead import errors
from fairlead.cli.core import client as api
from fairlead.cli.core import plaintext
from fairlead.client import contexts
from fairlead.serve.accounts import keys
from fairlead.serve.v1.accounts.oidcview import DeviceHandle, DeviceResult, DeviceView

_SHORTEST_S, _LONGEST_S = 1.0, 60.0
"""Between two questions, whatever the service asks for."""


def key(entered: contexts.Context) -> str:
    """Return the API key that a confirmed login gets.

    Raises: NotFound (`OIDCOff`); Unauthenticated (`LoginFailed`): it was refused, or not confirmed in time.
    """
    with api.at(entered.url, entered) as client:
        begun = client.call("POST", "/v1/oidc/device", DeviceView)
        plaintext.echo(f"open  {begun.verification_uri_complete or begun.verification_uri}", err=True)
        plaintext.echo(f"code  {begun.user_code}", err=True)
        plaintext.echo(
            f"waiting until it is confirmed, {begun.lifetime_s / 60:.0f} minutes at most; Ctrl-C ends it", err=True
        )
        end = time.monotonic() + begun.lifetime_s
        while time.monotonic() < end:
            time.sleep(min(max(begun.interval_s, _SHORTEST_S), _LONGEST_S))
            found = client.call("POST", "/v1/oidc/device:finish", DeviceResult, body=DeviceHandle(handle=begun.handle))
            if not found.is_pending:
                return _checked(found.key, entered.url)
    message = "the login was not confirmed in time"
    raise errors.Unauthenticated(message, reason="LoginFailed", hint="begin it anew: `fairlead login URL --oidc`")


def _checked(text: str, address: str) -> str:
    """Return a key that is one: it becomes a header of each request. Raises: ProtocolError (`KeyMalformed`)."""
    if keys.parse(text) is None:
        message = f"the service at {address} gave something that is not an API key"
        raise errors.ProtocolError(message, reason="KeyMalformed", hint="is that a Fairlead service?")
    return text
