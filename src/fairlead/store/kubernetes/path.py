"""Builds the paths, selectors and query strings of an API server.

Names come from callers and go into URLs, so each is one quoted segment, never a path of its own.
Source: Kubernetes API reference, "resource URIs" and "field selectors"; apimachinery pkg/fields escaping.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping

from fairlead import errors
from fairlead.store import port
from fairlead.wire.kubernetes import meta


def collection(kind: type[meta.Object], namespace: str | None) -> str:
    """Return the path of all objects of a kind, in one namespace or (None) in all of them.

    Raises: Invalid: the kind lives in a namespace and its name is empty.
    """
    root = "/api/v1" if kind.API_VERSION == "v1" else f"/apis/{kind.API_VERSION}"
    if namespace is None or not kind.NAMESPACED:
        return f"{root}/{kind.PLURAL}"
    if not namespace:
        message = f"{kind.KIND} is invalid: metadata.namespace: this kind lives in a namespace: name one"
        raise errors.Invalid(message, reason="NamespaceMissing")
    return f"{root}/namespaces/{segment(namespace)}/{kind.PLURAL}"


def named(kind: type[meta.Object], namespace: str, name: str, part: str = "") -> str:
    """Return the path of one object, or of a part (subresource) of it. Raises: NotFound: it can have no such name."""
    found = f"{collection(kind, namespace)}/{segment(name)}"
    return f"{found}/{part}" if part else found


def segment(text: str) -> str:
    """Return a name as a part of a path. Raises: NotFound: nothing can have it."""
    if text in {"", ".", ".."} or "/" in text or "%" in text:
        raise errors.NotFound(f'nothing can be named "{text}"', reason="NotFound")
    return urllib.parse.quote(text, safe="")


def query(**values: str | int | bool | None) -> str:
    """Return a query string; None leaves a value out."""
    given = {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
    return urllib.parse.urlencode({name: value for name, value in given.items() if value not in {None, ""}})


def selection(selector: port.Selector) -> dict[str, str | None]:
    """Return the selector as query values."""
    return {
        "labelSelector": ",".join(f"{name}={value}" for name, value in selector.labels.items()) or None,
        "fieldSelector": _fields(selector.fields) or None,
    }


def _fields(fields: Mapping[str, str]) -> str:
    return ",".join(f"{name}={_escaped(value)}" for name, value in fields.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
