"""Translates an API server's refusals, and says which failures a later try may heal.

Only a body that is a `Status` is quoted: anything else may come from a proxy and hold what does not belong into a log.
Source: Kubernetes API conventions, "HTTP status codes" and "Response status kind".
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlead import errors
from fairlead.wire.kubernetes import api

_LONGEST = 2000
REDIRECTED: Final = "Redirected"
"""Reason of an answer that sends the client elsewhere: a later try will not help."""


class Transient(Exception):
    """A failure that may pass; never leaves this package.

    `may_have_happened` says that the server could have carried the request out before it failed; `wait_s` is how long
    the server asks to be left alone.
    """

    def __init__(self, error: errors.FairleadError, *, may_have_happened: bool, wait_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.may_have_happened = may_have_happened
        self.wait_s = wait_s


def refusal(code: int, body: bytes) -> errors.FairleadError:
    """Return the error that an answer of this status code stands for."""
    return from_status(code, _status(body), known=bool(body))


def _status(body: bytes) -> api.Status:
    try:
        found = api.status.decode(body)
    except msgspec.MsgspecError:
        return api.Status()
    return found if found.kind == "Status" else api.Status()


def from_status(code: int, found: api.Status, *, known: bool = True) -> errors.FairleadError:
    """Return the error that a refusal stands for; `known` is False where there was no body at all."""
    message = _shortened(found.message) or f"API server answered {code}" + ("" if known else " without a body")
    reason = found.reason or f"Http{code}"
    error: errors.FairleadError
    match code:
        case 301 | 302 | 303 | 307 | 308:
            message = f"the API server answered with a redirect ({code}), which no API server does"
            hint = (
                "credentials are shown to nobody else: name the API server itself in the kubeconfig, not a login page"
            )
            error = errors.Unavailable(message, reason=REDIRECTED, hint=hint)
        case 409:
            error = _conflict(message, reason)
        case 410:
            hint = "list again, then watch from that version"
            error = errors.Gone(message, reason="HistoryCompacted", hint=hint)
        case 404:
            error = _not_found(message, reason, found)
        case 401:
            hint = "the credentials are not taken: look at the kubeconfig's user, or at the service account"
            error = errors.Denied(message, reason=reason, hint=hint)
        case 403:
            error = errors.Denied(message, reason=_cause(found) or reason)
        case 400 | 405 | 406 | 413 | 415 | 422:
            error = errors.Invalid(message, reason=reason)
        case _:
            error = errors.Unavailable(message, reason=reason, hint="look at the API server's log")
    return error


def _conflict(message: str, reason: str) -> errors.FairleadError:
    if reason == "AlreadyExists":
        return errors.Conflict(message, reason=reason, hint="read it, or choose another name")
    if "uid in precondition" in message.lower() or "uid mismatch" in message.lower():
        return errors.Conflict(message, reason="UidMismatch", hint="read the object again")
    if "already assigned to node" in message:
        return errors.Conflict(message, reason="AlreadyBound", hint="read the pod again")
    return errors.Conflict(message, reason="StaleVersion", hint="read the object again and repeat the change")


def _not_found(message: str, reason: str, found: api.Status) -> errors.FairleadError:
    if found.reason and found.details is not None and found.details.name:
        return errors.NotFound(message, reason=reason)
    hint = "its CustomResourceDefinition may be missing: apply the manifests"
    return errors.NotFound(message, reason="KindNotServed", hint=hint)


def _cause(found: api.Status) -> str:
    causes = found.details.causes if found.details is not None else ()
    return next((cause.reason for cause in causes if cause.reason == "NamespaceTerminating"), "")


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
