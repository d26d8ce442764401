"""JSON of others: whatever is wrong with it is one error."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.wire.text import typedjson


class _Item(msgspec.Struct):
    name: str = ""


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"other":' * 100_000, b'{"name":"\xff"}', b'{"name":1}', b"", b'{"name":"\\ud800"}']
)
def test_what_is_not_the_wanted_json_is_one_error(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        typedjson.decode(data, type=_Item)


def test_what_is_json_is_decoded() -> None:
    assert typedjson.decode(b'{"name":"a","more":[1]}', type=_Item) == _Item(name="a")
