"""Keeps a Secret of a service, in place of one of that name or as a new one."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TypeVar

from fairlead import errors
from fairlead.client import calls

T = TypeVar("T")


def path(name: str) -> str:
    """Return the path of a Secret. Raises: Invalid."""
    return calls.item_path("/v1/secrets", name)


def create(service: calls.Calls, name: str, namespace: str, values: Mapping[str, bytes], kind: type[T]) -> T:
    """Keep a new one, and return what is shown of it. Raises: Conflict (`AlreadyExists`); Invalid; Denied."""
    body = {"name": name, "namespace": namespace, "values_base64": _encoded(values)}
    return service.call("POST", "/v1/secrets", kind, body=body)


def replace(service: calls.Calls, name: str, namespace: str, values: Mapping[str, bytes], kind: type[T]) -> T:
    """Keep one in place of all that one of that name has; where there is none, a new one. Raises: Invalid; Denied."""
    try:
        body = {"values_base64": _encoded(values)}
        return service.call("PUT", path(name), kind, params={"namespace": namespace}, body=body)
    except errors.NotFound as error:
        if error.reason != "SecretNotFound":
            raise
    return create(service, name, namespace, values, kind)


def _encoded(values: Mapping[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in values.items()}
