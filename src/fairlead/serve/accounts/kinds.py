"""Names the kinds of accounts."""

from __future__ import annotations

from typing import Final

PERSON: Final = "person"
SERVICE: Final = "service"
KINDS: Final = (PERSON, SERVICE)
