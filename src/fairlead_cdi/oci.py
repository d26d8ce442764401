"""Decodes the OCI runtime spec (config.json) into plain values, encodes it, and opens its sections.

It stays a dict, because runtimes and engines put fields into it that no version of the specification has, and an editor
must carry them through. Only the sections that CDI edits are opened, and their shapes are checked on the way.
Source: OCI runtime-spec v1.2 config.md, config-linux.md; v1.3 for netDevices.
"""

from __future__ import annotations

import json
from typing import Any

from fairlead_cdi import errors


def decode_config(data: bytes) -> dict[str, Any]:
    """Decode a config.json. Raises: DocumentError: not a JSON object."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise errors.DocumentError(f"runtime spec is not JSON: {error}", reason="RuntimeSpecInvalid") from error
    if not isinstance(document, dict):
        raise errors.DocumentError("runtime spec is not a JSON object", reason="RuntimeSpecInvalid")
    return document


def encode_config(config: dict[str, Any]) -> bytes:
    """Encode a config.json, compact and in ASCII, so that every text survives, lone surrogates included."""
    return json.dumps(config, separators=(",", ":")).encode()


def object_at(parent: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """Return a shallow copy of the object under `key`; absent or null gives an empty one.

    Raises: DocumentError: something else is there.
    """
    value = parent.get(key)
    if value is not None and not isinstance(value, dict):
        raise _misshapen(where, "an object", value)
    return dict(value or {})


def list_at(parent: dict[str, Any], key: str, where: str) -> list[Any]:
    """Return a shallow copy of the list under `key`; absent or null gives an empty one.

    Raises: DocumentError: something else is there.
    """
    value = parent.get(key)
    if value is not None and not isinstance(value, list):
        raise _misshapen(where, "a list", value)
    return list(value or [])


def _misshapen(where: str, wanted: str, value: object) -> errors.DocumentError:
    message = f"runtime spec: {where} must be {wanted}, not {type(value).__name__}"
    return errors.DocumentError(message, reason="RuntimeSpecInvalid", field=where)
