"""Describes Secrets without their values; without the web framework."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated

import msgspec

from fairlead import errors
from fairlead.plan.tenancy import secret
from fairlead.wire.fairlead import listing

Texts = Annotated[Mapping[str, str], msgspec.Meta(description="text of each key")]
Encoded = Annotated[Mapping[str, str], msgspec.Meta(description="bytes of each key, in base64")]


class SecretValues(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a Secret is to hold from now on."""

    values: Texts = {}
    values_base64: Encoded = {}

    def __repr__(self) -> str:
        """Name the keys, never a value."""
        return f"<SecretValues {', '.join(sorted({*self.values, *self.values_base64}))}>"


class SecretRequest(SecretValues, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Secret to make."""

    name: str
    namespace: str = ""

    def __repr__(self) -> str:
        """Name it, never a value."""
        return f"<SecretRequest {self.name}>"


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """One Secret."""

    name: str
    namespace: str
    digests: Annotated[
        Mapping[str, str], msgspec.Meta(description="of each value, by key; of use only to see that one has changed")
    ]
    sizes: Annotated[Mapping[str, int], msgspec.Meta(description="bytes of each value, by key; empty: not known")]
    used_by: Annotated[tuple[str, ...], msgspec.Meta(description="containers that name it, ended ones too")]
    created_at: str | None
    updated_at: str | None


class SecretList(msgspec.Struct, frozen=True, kw_only=True):
    """Secrets."""

    items: tuple[SecretView, ...]
    next: listing.Next = ""


def values_of(request: SecretValues) -> dict[str, bytes]:
    """Return the values by key. Raises: Invalid (`SecretInvalid`): not base64, or a key is given twice."""
    if twice := sorted(request.values.keys() & request.values_base64.keys()):
        message = f'key "{errors.readable(twice[0])}" is in values and in values_base64'
        raise errors.Invalid(message, reason="SecretInvalid", hint="send it once")
    found = {key: text.encode() for key, text in request.values.items()}
    for key, text in request.values_base64.items():
        try:
            found[key] = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            message = f'the value of key "{errors.readable(key)}" is not base64'
            raise errors.Invalid(message, reason="SecretInvalid", hint="send text in values") from error
    return found


def secret_view(item: secret.Described, *, used_by: tuple[str, ...]) -> SecretView:
    """Describe a Secret."""
    note = item.note
    return SecretView(
        name=item.name,
        namespace=item.namespace,
        digests=note.digests,
        sizes=note.sizes,
        used_by=used_by,
        created_at=note.created_at or None,
        updated_at=note.updated_at or None,
    )
