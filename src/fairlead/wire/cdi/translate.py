"""Translates errors of the CDI library into Fairlead's: same message, reason, hint and context, another class.

The library has errors of its own, because it is a distribution of its own. Each function that calls it for the rest of
Fairlead carries `@cdi_errors`, or has the call in `with cdi_errors:`; above such a function only errors of
`fairlead.errors` arrive, so exit codes and answers come from the one table. A function that handles a library error
itself catches the library's class.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ContextDecorator
from types import TracebackType
from typing import Final

from fairlead import errors
from fairlead_cdi import errors as cdi

_CLASSES: Final[Mapping[type[cdi.CDIError], type[errors.FairleadError]]] = {
    cdi.DeviceNotFound: errors.NotFound,
    cdi.RequestError: errors.Invalid,
    cdi.HostError: errors.Unavailable,
    cdi.DocumentError: errors.ProtocolError,
}
"""The library's class to ours; a class without a row has that of its nearest ancestor."""


def translated(error: cdi.CDIError) -> errors.FairleadError:
    """Return the error in Fairlead's class."""
    kind = next(_CLASSES[one] for one in type(error).__mro__ if one in _CLASSES)
    return kind(error.message, reason=error.reason, hint=error.hint, **error.context)


class _Translation(ContextDecorator):
    """Raises Fairlead's error in place of the library's, and chains them."""

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Translate what the library raised; everything else passes."""
        if isinstance(error, cdi.CDIError):
            raise translated(error) from error


cdi_errors: Final = _Translation()
"""Decorator and context manager; it has no state, so one is enough."""
