"""Describes what is asked of SSH keys and of the SSH door; without the web framework."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fairlead.serve.accounts.sshkeys import SSHKeyView
from fairlead.serve.v1.accounts.view import DAY_S
from fairlead.wire.fairlead import listing


class SSHKeyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A public key to add."""

    public_key: Annotated[str, msgspec.Meta(description="one line, as a file such as ~/.ssh/id_ed25519.pub has it")]
    account: Annotated[str, msgspec.Meta(description="whose; empty: the caller's own")] = ""
    lifetime_s: Annotated[
        Annotated[float, msgspec.Meta(gt=0, le=3660 * DAY_S)] | None,
        msgspec.Meta(description="seconds until it expires; null: as long as the key that adds it"),
    ] = None
    note: Annotated[str, msgspec.Meta(description="for people; empty: the key's comment")] = ""


class SSHKeyList(msgspec.Struct, frozen=True, kw_only=True):
    """Public keys."""

    items: tuple[SSHKeyView, ...]
    next: listing.Next = ""


class SSHDoorView(msgspec.Struct, frozen=True, kw_only=True):
    """Where the SSH door listens, and how it is known."""

    host: Annotated[str, msgspec.Meta(description="empty: the door is off")]
    port: int
    host_key: Annotated[str, msgspec.Meta(description="public key of the door, as known_hosts has it")]
    fingerprint: str
