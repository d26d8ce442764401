"""Reads and writes files of registry credentials, as podman, docker and Kubernetes' pull secrets have them.

Source: containers-auth.json(5); Kubernetes, secret type kubernetes.io/dockerconfigjson.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from fairlead import errors
from fairlead.wire.text import typedjson

_REGISTRY: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]{1,5})?(?:/[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)?")
_LONGEST: Final = 255
_LONGEST_SECRET: Final = 8192
"""Tokens of cloud registries have up to some 3,000 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user name and password for one registry."""

    username: str
    password: str = field(repr=False)


class _Entry(msgspec.Struct):
    auth: str = ""


class _File(msgspec.Struct):
    auths: dict[str, _Entry] = {}


def check(registry: str, login: Login) -> None:
    """Refuse what no registry takes. Raises: Invalid (`RegistryInvalid`); the password is in no message."""
    if len(registry) > _LONGEST or not _REGISTRY.fullmatch(registry):
        message = f'"{errors.readable(registry[:_LONGEST])}" is not a registry'
        hint = "a host, a port where it has one, a path where it is of one: registry.example:5000/team"
        raise errors.Invalid(message, reason="RegistryInvalid", hint=hint)
    name, secret = login.username, login.password
    if not name or len(name) > _LONGEST or ":" in name or not name.isprintable():
        message = f"the user name for {registry} is empty, too long, or has a colon or control character"
        raise errors.Invalid(message, reason="RegistryInvalid", hint="`--username` names it")
    if not secret or len(secret) > _LONGEST_SECRET or any(ord(one) < ord(" ") for one in secret):
        message = f"the password for {registry} is empty, longer than {_LONGEST_SECRET} characters or has control ones"
        raise errors.Invalid(message, reason="RegistryInvalid", hint="`--password-stdin` reads one line")


def parse(data: bytes) -> dict[str, Login]:
    """Return the credentials by registry. Raises: ProtocolError (`RegistryAuthInvalid`), which says nothing of them."""
    try:
        entries = typedjson.decode(data, type=_File).auths
        pairs = {name: base64.b64decode(one.auth, validate=True).decode() for name, one in entries.items()}
    except (msgspec.MsgspecError, binascii.Error, UnicodeDecodeError) as error:
        message = "a file of registry credentials is not what was written"
        hint = "`fairlead tenancy login` writes it anew"
        raise errors.ProtocolError(message, reason="RegistryAuthInvalid", hint=hint) from error
    found = {}
    for name, pair in pairs.items():
        username, _, password = pair.partition(":")
        found[name] = Login(username=username, password=password)
    return found


def emit(logins: Mapping[str, Login]) -> bytes:
    """Return a file of credentials."""
    entries = {
        name: _Entry(auth=base64.b64encode(f"{one.username}:{one.password}".encode()).decode())
        for name, one in sorted(logins.items())
    }
    return msgspec.json.encode(_File(auths=entries))
