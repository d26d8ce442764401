"""Encodes answers that come in pieces, one JSON value a line.

A stream that fails after its first byte can no longer answer with a status. Line streams therefore end in a line
`{"problem": …}`; byte streams (logs) are cut, which HTTP shows to the reader as an incomplete body.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.model.container.output import ErrorOutput, Mark, Notice
from fairlead.serve.closing import closing
from fairlead.wire.fairlead import problem

LINES: Final = "application/x-ndjson"
_NUMBERS: Final[Mapping[type[bytes], int]] = {ErrorOutput: 2, Notice: 3, Mark: 4}
_OUTPUT: Final = 1


async def multiplexed(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Put docker's header before each piece: the stream's number, three zeros, the length in four bytes.

    A notice has the number 3, which docker keeps for the system's own words (stdcopy, Systemerr), a mark 4.
    Source: Docker Engine API, ContainerAttach, "Stream format".
    """
    async with closing(pieces) as items:
        async for item in items:
            number = _NUMBERS.get(type(item), _OUTPUT)
            yield bytes((number, 0, 0, 0)) + len(item).to_bytes(4, "big") + item


async def as_lines(values: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    """Encode values one a line; a FairleadError becomes the last line."""
    async with closing(values) as items:
        try:
            async for value in items:
                yield msgspec.json.encode(value) + b"\n"
        except errors.FairleadError as error:
            yield msgspec.json.encode({"problem": problem.problem_of(error)}) + b"\n"
