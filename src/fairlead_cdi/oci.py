"""The OCI runtime spec (config.json) as plain values: decoded, encoded, and opened section by section.

It stays a dict: runtimes and engines put fields into it that no version of the specification knows, and an editor must
carry them through unchanged. Only the sections that CDI edits are looked into, with their shapes checked on the way.
Source: OCI runtime-spec v1.2 config.md, config-linux.md; v1.3 for netDevices.
"""

from __future__ import annotations

import json
from typing import Any, Final

from fairlead import errors

HOOK_STAGES: Final = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")


def decode_config(data: bytes) -> dict[str, Any]:
    """Decode a config.json. Raises: ProtocolError: not a JSON object."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise errors.ProtocolError(f"runtime spec is not JSON: {error}", reason="RuntimeSpecInvalid") from error
    if not isinstance(document, dict):
        raise errors.ProtocolError("runtime spec is not a JSON object", reason="RuntimeSpecInvalid")
    return document


def encode_config(config: dict[str, Any]) -> bytes:
    """Encode a config.json, compact, in ASCII: every text survives, lone surrogates included."""
    return json.dumps(config, separators=(",", ":")).encode()


def object_at(parent: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """Return a shallow copy of the object under `key`; absent or null gives an empty one.

    Raises: ProtocolError: something else is there.
    """
    value = parent.get(key)
    if value is not None and not isinstance(value, dict):
        raise _misshapen(where, "an object", value)
    return dict(value or {})


def list_at(parent: dict[str, Any], key: str, where: str) -> list[Any]:
    """Return a shallow copy of the list under `key`; absent or null gives an empty one.

    Raises: ProtocolError: something else is there.
    """
    value = parent.get(key)
    if value is not None and not isinstance(value, list):
        raise _misshapen(where, "a list", value)
    return list(value or [])


def _misshapen(where: str, wanted: str, value: object) -> errors.ProtocolError:
    message = f"runtime spec: {where} must be {wanted}, not {type(value).__name__}"
    return errors.ProtocolError(message, reason="RuntimeSpecInvalid", field=where)
