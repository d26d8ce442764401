"""Builds problem documents (RFC 9457) for errors, their status looked up in the error table.

A problem carries what `FairleadError` carries, so that a client can raise the same error again: the class in `type`,
the stable token in `reason`, the next step in `hint`, further facts in `context`. Pure, and without the web framework:
the command line's client reads problems with it. Answering with them is `serve.api.failure`.
Source: RFC 9457 section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from fairlead import errors

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:fairlead:error:"

_LONGEST: Final = 500
_MOST: Final = 20
"""Characters of a text, and items of a list, that are sent beside the message."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not carried out."""

    type: Annotated[str, msgspec.Meta(description="class of the error: who must act")]
    title: Annotated[str, msgspec.Meta(description="the class in words")]
    status: Annotated[int, msgspec.Meta(description="HTTP status")]
    detail: Annotated[str, msgspec.Meta(description="what failed, with the value that failed")]
    reason: Annotated[str, msgspec.Meta(description="stable token of this error")]
    hint: Annotated[str | None, msgspec.Meta(description="the next step")] = None
    context: Annotated[dict[str, Any], msgspec.Meta(description="further facts by name")] = {}


def problem_of(error: errors.FairleadError) -> Problem:
    """Describe an error of ours."""
    row = errors.row_of(error)
    kind = next(kind for kind in type(error).__mro__ if kind in errors.TABLE)
    return Problem(
        type=TYPE_PREFIX + kind.__name__,
        title=f"{kind.__name__}: {row.who} must act",
        status=row.http,
        detail=error.message,
        reason=error.reason,
        hint=error.hint,
        context={key: _plain(value) for key, value in error.context.items()},
    )


def error_of(problem: Problem) -> errors.FairleadError:
    """Return the error a problem describes; a class we do not know counts as the table's row of its status."""
    classes = {kind.__name__: kind for kind in errors.TABLE}
    by_status = {row.http: kind for kind, row in reversed(errors.TABLE.items())}
    kind = classes.get(problem.type.removeprefix(TYPE_PREFIX)) or by_status.get(problem.status, errors.ProtocolError)
    return kind(problem.detail, reason=problem.reason, hint=problem.hint, **_keywords(problem.context))


def _keywords(context: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in context.items() if key not in {"self", "message", "reason", "hint"}}


def _plain(value: object) -> object:
    """Return a JSON value; what has no JSON form is shown as text."""
    try:
        return _brief(msgspec.to_builtins(value))
    except TypeError:
        return errors.readable(str(value))


def _brief(value: Any) -> object:
    """Shorten texts and lists: they may hold whatever was asked, and that may be megabytes."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"
    if isinstance(value, list | tuple):
        return [_brief(item) for item in value[:_MOST]]
    if isinstance(value, dict):
        return {str(key)[:_LONGEST]: _brief(item) for key, item in list(value.items())[:_MOST]}
    return value
