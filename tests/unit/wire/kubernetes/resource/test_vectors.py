"""Every object of the allocator's conformance vectors is read and written without losing a field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.wire.kubernetes.resource import dialect

_VECTORS = Path(__file__).parents[5].parent / "shared/data/dra/allocator.jsonl"
_PARTS = (("slices", "ResourceSlice"), ("classes", "DeviceClass"), ("claims", "ResourceClaim"))

pytestmark = pytest.mark.skipif(not _VECTORS.exists(), reason="the vectors are not beside the repository")


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for line in _VECTORS.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        for part, kind in _PARTS:
            yield from ((kind, document) for document in case[part] or ())


def without_empty(value: Any) -> Any:
    """Return a document without empty maps, lists and texts, which Go writes and nothing tells from absence."""
    if isinstance(value, dict):
        kept = {key: without_empty(child) for key, child in value.items()}
        return {key: child for key, child in kept.items() if child is not None and child not in ({}, [], "")}
    return [without_empty(child) for child in value] if isinstance(value, list) else value


def test_all_fields_come_back() -> None:
    found = list(documents())
    for kind, document in found:
        one = dialect.read(document, version=dialect.V1, kind=kind)
        written = dialect.emit(one.item, dialect.V1)
        expected = without_empty({"apiVersion": dialect.V1, "kind": kind, **document})
        assert (one.ignored, without_empty(written)) == ((), expected)
    assert len(found) > 400


@pytest.mark.parametrize("version", [dialect.V1BETA1, dialect.V1BETA2])
def test_other_versions_carry_the_same(version: str) -> None:
    for kind, document in documents():
        item = dialect.read(document, version=dialect.V1, kind=kind).item
        again = dialect.read(dialect.emit(item, version))
        assert (again.item, again.ignored) == (item, ())
