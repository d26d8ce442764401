"""Describes logins on machines without a browser; without the web framework."""

from __future__ import annotations

from typing import Annotated

import msgspec


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """A login that a person confirms in a browser."""

    handle: Annotated[str, msgspec.Meta(description="to ask with whether it is confirmed")]
    user_code: Annotated[str, msgspec.Meta(description="to enter at the address")]
    verification_uri: str
    verification_uri_complete: Annotated[str, msgspec.Meta(description="with the code in it; empty: there is none")]
    lifetime_s: float
    interval_s: Annotated[float, msgspec.Meta(description="seconds between two questions")]


class DeviceHandle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which login is asked about."""

    handle: Annotated[str, msgspec.Meta(max_length=4096)]


class DeviceResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it is confirmed."""

    is_pending: bool
    account: str = ""
    key: Annotated[str, msgspec.Meta(description="an API key, shown once; empty: not yet")] = ""
