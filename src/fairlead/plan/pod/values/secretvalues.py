"""Reads the values of a Secret as a manifest has them: `data` in base64, `stringData` as it is. Pure."""

from __future__ import annotations

import base64
import binascii

from fairlead import errors
from fairlead.wire.kubernetes import core


def of_manifest(item: core.Secret) -> dict[str, bytes]:
    """Return a Secret's values; those of `stringData` go first, as on an API server. Raises: Invalid."""
    found = dict[str, bytes]()
    for key, text in item.data.items():
        try:
            found[key] = base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            message = f'Secret "{item.metadata.name}" is invalid: data[{errors.readable(key[:80])}]: not base64'
            raise errors.Invalid(message, reason="SecretInvalid", hint="write plain text in stringData") from error
    return {**found, **{key: value.encode() for key, value in item.string_data.items()}}
