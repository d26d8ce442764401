"""Answers that come in pieces: closing what feeds them, and one JSON value a line.

A stream that fails after its first byte can no longer answer with a status. Line streams therefore end in a line
`{"problem": …}`; byte streams (logs) are cut, which HTTP shows to the reader as an incomplete body.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, TypeVar

import msgspec

from fairlead import errors
from fairlead.serve.api import problem

LINES: Final = "application/x-ndjson"

T = TypeVar("T")


@contextlib.asynccontextmanager
async def closing(iterator: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close an iterator at the block's end if it is one that can be closed: what it holds is let go at once."""
    try:
        yield iterator
    finally:
        if isinstance(iterator, AsyncGenerator):
            await iterator.aclose()


async def as_lines(values: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    """Encode values one a line; an error of ours becomes the last line."""
    async with closing(values) as items:
        try:
            async for value in items:
                yield msgspec.json.encode(value) + b"\n"
        except errors.FairleadError as error:
            yield msgspec.json.encode({"problem": problem.problem_of(error)}) + b"\n"
