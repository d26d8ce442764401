"""Judges ConfigMaps before they are stored, and reads the values of stored ones. Pure.

Source: kubernetes pkg/apis/core/validation, ValidateConfigMap.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Final

from fairlead import errors
from fairlead.plan.pod.values import secret
from fairlead.wire.kubernetes import core, names

_LARGEST: Final = 1 << 20
"""Bytes of all values, as an API server takes them."""


def check(item: core.ConfigMap) -> None:
    """Refuse what an API server would. Raises: Invalid (`ConfigMapInvalid`)."""
    problems = list(_problems(item))
    if problems:
        text = "; ".join(problems[:10])
        raise errors.Invalid(f'ConfigMap "{item.metadata.name}" is invalid: {text}', reason="ConfigMapInvalid")


def _problems(item: core.ConfigMap) -> Iterator[str]:
    if not names.is_dns_subdomain(item.metadata.name):
        yield f'metadata.name: Invalid value: "{item.metadata.name}": {names.DNS_RULE}'
    size = sum(len(value.encode()) for value in item.data.values())
    for key in (*item.data, *item.binary_data):
        if not secret.KEY.fullmatch(key) or key in {".", ".."}:
            yield f'data[{key}]: Invalid value: "{key}": {secret.KEY_RULE}'
    for key, value in item.binary_data.items():
        if key in item.data:
            yield f'data[{key}]: Invalid value: "{key}": duplicate of key present in binaryData'
        try:
            size += len(base64.b64decode(value, validate=True))
        except (binascii.Error, ValueError):
            yield f"binaryData[{key}]: Invalid value: not base64"
    if size > _LARGEST:
        yield f"data: Too long: may not be more than {_LARGEST} bytes"


def contents(item: core.ConfigMap) -> dict[str, bytes]:
    """Return the values that files have."""
    binary = {key: base64.b64decode(value) for key, value in item.binary_data.items()}
    return {**{key: value.encode() for key, value in item.data.items()}, **binary}
