"""Declares how an additional process in a container differs from the container's first one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """Options of one process; an empty one is taken from the container."""

    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the container's variables, before which they go."""
    user: str = ""
    """`USER[:GROUP]`, by number or by the image's names."""
    workdir: str = ""


AS_THE_CONTAINER: Final = ProcessOptions()
