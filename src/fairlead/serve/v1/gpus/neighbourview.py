"""Declares the request to end programs that Fairlead did not start, without the web framework."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

_MOST: Final = 4096


class EndRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which programs."""

    gpus: Annotated[
        tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=100)], ...],
        msgspec.Meta(description="indices, UUIDs or addresses of GPUs; none: all", max_length=_MOST),
    ] = ()
    ids: Annotated[
        tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=40)], ...],
        msgspec.Meta(
            description="`id` of those that are meant, as the list of GPUs has them", min_length=1, max_length=_MOST
        ),
    ]
