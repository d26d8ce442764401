"""Declares what every list of the API says of its pages."""

from __future__ import annotations

from typing import Annotated

import msgspec

Next = Annotated[str, msgspec.Meta(description="`after` of the next page; empty: there is none")]
