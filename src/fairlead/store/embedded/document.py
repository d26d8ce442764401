"""Merges objects as JSON: a writer that knows part of an object changes that part and keeps the rest.

A document is what `json.loads` returns. Writers hold typed subsets of it, so every update is a merge of three: what is
stored (`old`), what the writer's type saw of it (`seen`) and what the writer wants (`new`). A field that was seen and
is wanted no more goes; a field that was never seen stays. Maps of text (labels, capacity) are seen whole, so what is
left out is removed. Lists of named things are merged by their names. Nothing here changes its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from fairlead import errors
from fairlead.wire.text import typedjson

Document: TypeAlias = dict[str, Any]

UNREADABLE: Final = "ObjectUnreadable"
REMEDY: Final = "it was written by another version or another program: correct or delete it there"
_IDENTITIES = ("uid", "name", "type", "key", "mountPath")
"""Fields that identify list elements; the first that every element has, once each, is used."""


class Key(NamedTuple):
    """Where an object lives; `kind` is `apiVersion/Kind`, the namespace of cluster-scoped objects is empty."""

    kind: str
    namespace: str
    name: str


def encode(document: Document) -> str:
    """Return the document as JSON text."""
    return msgspec.json.encode(document).decode()


def decode(text: str) -> Document:
    """Return the document that `encode` wrote. Raises: ProtocolError: it is not JSON, so another program wrote it."""
    try:
        return typedjson.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        message = f"a stored object cannot be read: {error}"
        raise errors.ProtocolError(message, reason=UNREADABLE, hint=REMEDY) from error


def metadata(document: Document) -> Document:
    """Return the document's metadata, which every stored document has."""
    found: Document = document["metadata"]
    return found


def with_metadata(document: Document, **changes: object) -> Document:
    """Return a copy with metadata fields set, or removed where the value is None."""
    merged = {**document["metadata"], **changes}
    return {**document, "metadata": {name: value for name, value in merged.items() if value is not None}}


def body(document: Document) -> Document:
    """Return what generation counts: everything but identity, metadata and status."""
    return {name: value for name, value in document.items() if name not in {"metadata", "status"}}


def merge(old: Document, seen: Document, new: Document) -> Document:
    """Return `old` with the difference from `seen` to `new` carried out on it."""
    result: Document = {}
    for name, value in old.items():
        if name in new:
            result[name] = _merge_value(value, seen.get(name), new[name])
        elif name not in seen:
            result[name] = value
        elif isinstance(value, dict) and isinstance(seen[name], dict) and (rest := merge(value, seen[name], {})):
            result[name] = rest
    return result | {name: value for name, value in new.items() if name not in old}


def difference(old: Document, new: Document) -> Document:
    """Return the merge patch (RFC 7386) that makes `new` of `old`; lists are replaced as a whole."""
    found: Document = {name: None for name in old if name not in new}
    for name, value in new.items():
        known = old.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            found |= {name: rest} if (rest := difference(known, value)) else {}
        elif name not in old or known != value:
            found[name] = value
    return found


def _merge_value(old: Any, seen: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return merge(old, seen if isinstance(seen, dict) else {}, new)
    if _holds_objects(old) and _holds_objects(new):
        return _merge_list(old, seen if _holds_objects(seen) else [], new)
    return new


def _holds_objects(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(element, dict) for element in value)


def _merge_list(old: Sequence[Document], seen: Sequence[Document], new: Sequence[Document]) -> list[Document]:
    identity = _identity(old, new)
    if identity is None:
        return _match_equal(old, seen, new)
    stored = {element[identity]: element for element in old}
    viewed = {name: element for element in seen if isinstance(name := element.get(identity), str)}
    wanted = {element[identity] for element in new}
    merged = [
        merge(stored[name], viewed.get(name, {}), element) if (name := element[identity]) in stored else element
        for element in new
    ]
    return merged + [element for name, element in stored.items() if name not in wanted and name not in viewed]


def _identity(*lists: Sequence[Document]) -> str | None:
    for field in _IDENTITIES:
        names = [[element.get(field) for element in elements] for elements in lists]
        if all(_are_distinct(found) for found in names):
            return field
    return None


def _are_distinct(names: Sequence[Any]) -> bool:
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def _match_equal(old: Sequence[Document], seen: Sequence[Document], new: Sequence[Document]) -> list[Document]:
    """Keep the stored form of elements that the writer left as they were; others are taken as given."""
    if len(seen) != len(old):
        return list(new)
    pairs = [(whole, view) for whole, view in zip(old, seen, strict=True) if merge(whole, view, view) == whole]
    return [next((whole for whole, view in pairs if view == element), element) for element in new]
