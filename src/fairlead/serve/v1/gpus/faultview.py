"""Declares requests and answers of breaking simulated silicon, without the web framework."""

from __future__ import annotations

from typing import Annotated

import msgspec


class FaultRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault for simulated silicon."""

    fault: str
    gpu: Annotated[int | None, msgspec.Meta(description="index; empty: the machine")] = None
    value: str | None = None
    node: Annotated[str | None, msgspec.Meta(description="whose silicon; empty: the only node there is")] = None


class FaultDone(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    message: str
