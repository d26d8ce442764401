"""Parses where a Fabric Manager listens: `HOST:PORT`, the path of a unix socket, or `CID:PORT` of vsock."""

from __future__ import annotations

import enum
import re
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen

_LONGEST: Final = 255
_LONGEST_PATH: Final = 107
"""Of a unix socket's path, as the kernel takes it."""
_HOST: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.%]+\])", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_FORMS: Final = "HOST:PORT, the path of a unix socket, or CID:PORT of vsock"


class Kind(enum.Enum):
    """How the Manager is reached."""

    INET = "tcp"
    UNIX = "unix"
    VSOCK = "vsock"


@frozen
class Address:
    """One place that a Manager, or the agent beside it, listens on."""

    kind: Kind
    text: str
    """As it is handed to the library: without `unix:` or `vsock:`."""

    @property
    def host_port(self) -> tuple[str, int]:
        """Return host, or context id, and port; of a unix socket neither is there."""
        host, _, port = self.text.rpartition(":")
        return host, int(port)

    def __str__(self) -> str:
        """Return it as a person writes it."""
        return self.text


def parse(text: str) -> Address:
    """Return an address. Raises: Invalid (`FabricAddressInvalid`)."""
    if len(text.encode(errors="surrogateescape")) > _LONGEST or not text.isprintable() or not text.strip():
        raise _invalid(text)
    if text.startswith("/"):
        if len(text.encode(errors="surrogateescape")) > _LONGEST_PATH:
            message = f'path "{text}" is too long for a unix socket: {_LONGEST_PATH} bytes at most'
            raise errors.Invalid(message, reason="FabricAddressInvalid")
        return Address(kind=Kind.UNIX, text=text)
    host, colon, port = text.rpartition(":")
    if not colon or not _NUMBER.fullmatch(port):
        raise _invalid(text)
    if _NUMBER.fullmatch(host):
        if int(host) >= 2**32 or not 0 < int(port) < 2**32:
            raise _invalid(text)
        return Address(kind=Kind.VSOCK, text=text)
    if not _HOST.fullmatch(host) or not 0 < int(port) < 2**16:
        raise _invalid(text)
    return Address(kind=Kind.INET, text=text)


def parse_agent(text: str) -> Address:
    """Return where an agent listens. Raises: Invalid (`FabricAddressInvalid`): it is no address, or is TCP."""
    found = parse(text)
    if found.kind is Kind.INET:
        message = f"{found} is TCP, which whoever reaches it may use"
        raise errors.Invalid(message, reason="FabricAddressInvalid", hint="PATH or CID:PORT of vsock")
    return found


def _invalid(text: str) -> errors.Invalid:
    message = f'"{text}" is no address of a Fabric Manager'
    return errors.Invalid(message, reason="FabricAddressInvalid", hint=_FORMS)
