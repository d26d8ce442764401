"""Declares one step of a container's trace, as the layer that took it recorded it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """Who did what, why, and how long it took. Nothing is recorded that was not done or read."""

    layer: str
    """`silicon`, `deviceplugin`, `scheduler`, `kubelet`, `cdi`, `engine`, `kernel`, `process`, `api`."""
    reason: str
    """Stable CamelCase token, `DevicesAllocated`."""
    message: str
    """One line for a person."""
    at: float
    """Unix time in seconds at which the step ended."""
    duration_s: float | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    """JSON values: what was read or decided."""
    is_warning: bool = False
    teller: str = ""
    """Who says it, where it is not a record of ours but an event of another component, unverified. Never recorded."""
