"""Logs in by the identity provider of a service: shows where to confirm, and waits for the key.

Source: RFC 8628 section 3.3: the address and the code are shown, and the person opens them on any device.
"""

from __future__ import annotations

import time

from fairlead import errors
from fairlead.cli.core import client as api
from fairlead.cli.core import plaintext
from fairlead.client import contexts
from fairlead.serve.v1.accounts.oidcview import DeviceHandle, DeviceResult, DeviceView


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
            time.sleep(begun.interval_s)
            found = client.call("POST", "/v1/oidc/device:finish", DeviceResult, body=DeviceHandle(handle=begun.handle))
            if not found.is_pending:
                return found.key
    message = "the login was not confirmed in time"
    raise errors.Unauthenticated(message, reason="LoginFailed", hint="begin it anew: `fairlead login URL --oidc`")
