"""A finalizer is added to an object in protobuf, and nothing else of it is touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.store.kubernetes import rawobject

# An envelope by hand: apiVersion and kind, then an object with metadata.name "c" and a spec of five bytes.
_TYPE = b"\x0a\x1e" + b"\x0a\x0dresource/v1zz"[:15] + b"\x12\x0dResourceClaim"
_OBJECT = b"\x0a\x03\x0a\x01c" + b"\x12\x05abcde"
_BODY = b"k8s\x00" + _TYPE + b"\x12" + bytes([len(_OBJECT)]) + _OBJECT + b"\x1a\x00\x22\x00"


def test_a_finalizer_is_appended_as_metadata_of_its_own() -> None:
    added = b"\x0a\x05\x72\x03x/y"
    expected = b"k8s\x00" + _TYPE + b"\x12" + bytes([len(_OBJECT + added)]) + _OBJECT + added + b"\x1a\x00\x22\x00"
    assert rawobject.with_finalizers(_BODY, ["x/y"]) == expected


def test_a_long_object_has_a_long_length() -> None:
    raw = b"\x12\xac\x02" + b"a" * 300
    body = b"k8s\x00\x12\xaf\x02" + raw
    found = rawobject.with_finalizers(body, ["f"])
    assert found == b"k8s\x00\x12\xb4\x02" + raw + b"\x0a\x03\x72\x01f"


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"k8s\x00\x12\xff", b"k8s\x00\x12\x05abc", b"k8s\x00\x08\x01", _BODY[:-3]]
)
def test_what_is_no_envelope_is_refused(body: bytes) -> None:
    if body == _BODY[:-3]:
        body += b"\xff" * 11
    with pytest.raises(errors.ProtocolError):
        rawobject.with_finalizers(body, ["f"])


@given(st.binary(max_size=200))
def test_any_bytes_are_an_envelope_or_refused(body: bytes) -> None:
    try:
        found = rawobject.with_finalizers(b"k8s\x00" + body, ["f"])
    except errors.ProtocolError:
        return
    assert len(found) >= 4
