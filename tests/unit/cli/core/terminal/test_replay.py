"""What a replayed output has twice is written once, however it is cut into frames."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli.core.terminal.replay import Replay

_STREAMS = (b"\x01", b"\x02")
_CUTS = st.lists(st.integers(0, 30), max_size=8)


def _frames(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    return [data[start:end] for start, end in itertools.pairwise(places)]


@given(st.binary(max_size=40), st.lists(st.tuples(st.integers(0, 40), _CUTS), max_size=5), _CUTS)
def test_each_byte_is_written_once_through_any_number_of_broken_sessions(
    data: bytes, broken: list[tuple[int, list[int]]], last: list[int]
) -> None:
    found = dict.fromkeys(_STREAMS, b"")
    replay = Replay()
    for end, cuts in [*broken, (len(data), last)]:
        for frame in _frames(data[:end], cuts):
            for stream in _STREAMS:
                fresh = replay.fresh(stream + frame)
                assert fresh[:1] == stream
                found[stream] += fresh[1:]
        replay.begin_again()
    assert found == dict.fromkeys(_STREAMS, data)
