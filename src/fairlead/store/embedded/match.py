"""Decodes stored text into typed objects, and decides whether a selector takes them.

Fields are compared as text on the typed object, where defaults are filled in; a field that the type does not know is
looked up in the document.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from fairlead import errors
from fairlead.store import port
from fairlead.store.embedded import document as documents
from fairlead.store.embedded.document import Document, Key
from fairlead.wire.kubernetes import meta
from fairlead.wire.text import typedjson

T = TypeVar("T", bound=meta.Object)


def kind_of(kind: type[meta.Object]) -> str:
    """Return the kind's full name, `v1/Pod`."""
    return f"{kind.API_VERSION}/{kind.KIND}"


def key_of(item: meta.Object) -> Key:
    """Return where the object lives."""
    return Key(kind_of(type(item)), item.metadata.namespace, item.metadata.name)


def parse(kind: type[T], text: str) -> T:
    """Return a stored document as typed. Raises: ProtocolError: it does not fit the type."""
    try:
        return typedjson.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        document = documents.decode(text)
        found = document.get("metadata")
        about = found if isinstance(found, dict) else {}
        message = f"stored {kind.KIND} {about.get('namespace', '')}/{about.get('name', '')} cannot be read: {error}"
        raise errors.ProtocolError(message, reason=documents.UNREADABLE, hint=documents.REMEDY) from error


def emit(item: meta.Object) -> Document:
    """Return the object as a document, with apiVersion and kind."""
    document = documents.decode(meta.encode(item).decode())
    return {**document, "metadata": document.get("metadata", {})}


def from_document(kind: type[T], document: Document) -> T:
    """Return a document as typed. Raises: ProtocolError."""
    return parse(kind, documents.encode(document))


def view(kind: type[meta.Object], document: Document) -> Document:
    """Return what the type sees of a document."""
    return emit(from_document(kind, document))


def matches(selector: port.Selector, item: meta.Object, text: str) -> bool:
    """Return whether every part of the selector takes the object; `text` is its document."""
    if selector is port.EVERYTHING:
        return True
    about = item.metadata
    if selector.namespace is not None and selector.namespace != about.namespace:
        return False
    if any(about.labels.get(name) != value for name, value in selector.labels.items()):
        return False
    return all(field_text(item, path, text) == wanted for path, wanted in selector.fields.items())


def field_text(item: meta.Object, path: str, text: str) -> str:
    """Return a dotted camelCase field as text: empty where it is absent, `true` and `false` for booleans."""
    found: object = item
    for name in path.split("."):
        if isinstance(found, msgspec.Struct):
            attribute = _attributes(type(found)).get(name)
            if attribute is None:
                return _as_text(_walk(documents.decode(text), path))
            found = getattr(found, attribute)
        else:
            found = found.get(name) if isinstance(found, Mapping) else None
    return _as_text(found)


def _walk(document: Document, path: str) -> object:
    found: object = document
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


@functools.cache
def _attributes(struct: type[msgspec.Struct]) -> dict[str, str]:
    return {field.encode_name: field.name for field in msgspec.structs.fields(struct)}
