"""Decides what a Secret may be called and hold, and what is shown of it: the names of its keys and digests. Pure.

A digest tells two values of one Secret apart, so that a person sees whether a change arrived. It is keyed with a salt
that is never shown: who sees digests cannot try guesses against them.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead import errors
from fairlead.plan.pod.values import secret
from fairlead.plan.tenancy import baseline
from fairlead.wire.kubernetes import core, names, quantity
from fairlead.wire.text import typedjson

NOTES: Final = f"{names.OWN}/secrets"
"""Annotation with what is shown of Secrets: of a Secret on one machine, of a Tenancy on a cluster."""
MOST: Final = 100
"""Secrets of a namespace."""
LARGEST_BYTES: Final = 1 << 20
"""Values of one Secret together.  Source: k8s.io/api/core/v1 types.go, MaxSecretSize."""
_MOST_KEYS: Final = 64
_LONGEST: Final = 253
_UNFIT: Final = re.compile(r"[^a-z0-9.-]+")
_DIGITS: Final = 12
_COUNTED: Final = ("secrets", "count/secrets")


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a Secret beside its values."""

    digests: Mapping[str, str] = {}
    """By key."""
    salt: str
    sizes: Mapping[str, int] = {}
    """Bytes of each value, by key."""
    created_at: str = ""
    updated_at: str = ""
    uid: str = ""
    """Of the Secret on a cluster, which is changed and removed as this one only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A Secret, as it may be shown."""

    name: str
    namespace: str
    note: Note


def not_found(name: str, namespace: str) -> errors.NotFound:
    """Return the error that says so."""
    message = f'secret "{errors.readable(name[:_LONGEST])}" not found in namespace "{namespace}"'
    hint = "`fairlead secrets create NAME FILE` makes one, `fairlead secrets list` lists them"
    return errors.NotFound(message, reason="SecretNotFound", hint=hint)


def exists(name: str, namespace: str) -> errors.Conflict:
    """Return the error that says so."""
    message = f'secret "{name}" is already in namespace "{namespace}"'
    hint = f"`fairlead secrets create --replace {name} FILE` gives it another value"
    return errors.Conflict(message, reason="AlreadyExists", hint=hint)


def check(name: str, values: Mapping[str, bytes]) -> None:
    """Refuse what no Secret can be. Raises: Invalid (`SecretInvalid`), which says nothing of the values."""
    check_name(name)
    if not values:
        raise _invalid(f'secret "{name}" has no value', "give at least one")
    if len(values) > _MOST_KEYS:
        raise _invalid(f'secret "{name}" has {len(values)} keys, at most {_MOST_KEYS} are kept', "make several")
    for key in values:
        if not secret.KEY.fullmatch(key) or key in {".", ".."} or key.startswith(".."):
            shown = errors.readable(key[:_LONGEST])
            message = f'key "{shown}" of secret "{name}" is not of letters, digits, "-", "_" and "."'
            raise _invalid(message, "for example password or tls.key")
    size = sum(map(len, values.values()))
    if size > LARGEST_BYTES:
        message = f'secret "{name}" has {size} bytes, at most {LARGEST_BYTES} are kept'
        raise _invalid(message, "keep what is larger in a volume: `fairlead volume create NAME`")


def check_name(name: str) -> None:
    """Refuse what no Secret can be called. Raises: Invalid (`SecretInvalid`)."""
    if not names.is_object_name(name):
        close = _UNFIT.sub("-", name.lower()).strip("-.")[:_LONGEST] or "token"
        message = f'secret name "{errors.readable(name[:_LONGEST])}" is not of lower case letters, digits, "-" and "."'
        raise _invalid(message, f'for example "{close}"')
    if name == baseline.PULLS:
        message = f'secret name "{name}" is reserved for registry credentials'
        raise _invalid(message, "`fairlead tenancy login` gives those; choose another name")


def _invalid(message: str, hint: str) -> errors.Invalid:
    return errors.Invalid(message, reason="SecretInvalid", hint=hint)


def refuse_reserved(pod: core.Pod) -> None:
    """Refuse a pod that takes its tenancy's registry credentials, which nothing shows. Raises: Denied."""
    if baseline.PULLS in secret.names(pod.spec):
        name = pod.metadata.name or pod.metadata.generate_name
        message = f'pod "{name}" takes the secret "{baseline.PULLS}", which holds registry credentials'
        raise errors.Denied(message, reason="SecretReserved", hint="images are pulled with them without that")


def noted(note: Note, values: Mapping[str, bytes], now: str) -> Note:
    """Return a note with what may be shown of other values."""
    sizes = {key: len(values[key]) for key in sorted(values)}
    return msgspec.structs.replace(note, digests=digests(values, note.salt), sizes=sizes, updated_at=now)


def digests(values: Mapping[str, bytes], salt: str) -> dict[str, str]:
    """Return a digest of each value, by key."""
    keyed = salt.encode()
    return {key: hmac.new(keyed, values[key], hashlib.sha256).hexdigest()[:_DIGITS] for key in sorted(values)}


def check_quota(name: str, quotas: Iterable[core.ResourceQuota], present: int) -> None:
    """Let one more Secret pass, or refuse it as an API server would.

    Args:    quotas: those of its namespace.   present: Secrets of that namespace.
    Raises:  Denied (`Forbidden`).
    """
    hint = "delete secrets that are not needed (`fairlead secrets list`), or have the quota raised"
    if present >= MOST:
        message = f'secrets "{name}" is forbidden: its namespace has {present}, at most {MOST} are kept'
        raise errors.Denied(message, reason="Forbidden", hint=hint)
    for quota in sorted(quotas, key=lambda item: item.metadata.name):
        if quota.spec.scopes or quota.spec.scope_selector:
            continue
        for resource in _COUNTED:
            limit = quota.spec.hard.get(resource)
            if limit is not None and present + 1 > quantity.parse_quantity(limit):
                message = (
                    f'secrets "{name}" is forbidden: exceeded quota: {quota.metadata.name}, '
                    f"requested: {resource}=1, used: {resource}={present}, limited: {resource}={limit}"
                )
                raise errors.Denied(message, reason="Forbidden", hint=hint, quota=quota.metadata.name)


def read_notes(text: str) -> dict[str, Note]:
    """Return notes by the Secret's name. Raises: ProtocolError (`SecretNotesInvalid`)."""
    try:
        return typedjson.decode(text.encode() or b"{}", type=dict[str, Note])
    except msgspec.MsgspecError as error:
        message, hint = f"the annotation {NOTES} is not what was written", "remove it, and give the secrets again"
        raise errors.ProtocolError(message, reason="SecretNotesInvalid", hint=hint) from error


def emit_notes(notes: Mapping[str, Note]) -> str:
    """Return the annotation."""
    return msgspec.json.encode(dict(sorted(notes.items()))).decode()
