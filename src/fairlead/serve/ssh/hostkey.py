"""Keeps the key by which the SSH door is known: Ed25519, in a file of the state folder that root alone may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from cryptography import exceptions
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from fairlead import errors, files
from fairlead.frozen import frozen

NAME: Final = "ssh_host_ed25519_key"
"""Of the file in the state folder."""


@frozen
class HostKey:
    """The key."""

    private: bytes
    """As OpenSSH writes it."""
    public: str
    """Kind and key, as a line of known_hosts has it behind the name."""


def ensure(folder: Path) -> HostKey:
    """Return the key of a state folder, made where there is none.

    Raises: Denied (`HostKeyExposed`): others may read it; ProtocolError (`HostKeyDamaged`); Unavailable: the disk.
    """
    file = folder / NAME
    try:
        if not file.exists():
            made = ed25519.Ed25519PrivateKey.generate().private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
            )
            files.write_atomic(file, made, mode=0o600)
        if problem := exposed(file):
            raise errors.Denied(
                problem, reason="HostKeyExposed", hint=f"rm {file} makes a new one; or chmod 600 {file}"
            )
        data = files.read_bounded(file)
    except OSError as error:
        message = f"cannot keep the SSH door's key in {file}: {error.strerror}"
        raise errors.Unavailable(message, reason="HostKeyUnwritable", hint="is the state folder there?") from error
    try:
        public = serialization.load_ssh_private_key(data, None).public_key()
    except (ValueError, TypeError, exceptions.UnsupportedAlgorithm) as error:
        message = f"{file} is not a private key of OpenSSH's form without a passphrase"
        raise errors.ProtocolError(message, reason="HostKeyDamaged", hint=f"rm {file} makes a new one") from error
    line = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return HostKey(private=data, public=line.decode())


def exposed(file: Path) -> str:
    """Return how others may read a key; empty: they may not. Raises: OSError."""
    about = os.stat(file)  # noqa: PTH116 a missing file is the caller's
    if about.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or about.st_uid not in {0, os.geteuid()}:
        return f"others may read {file}, which is the SSH door's private key"
    return ""
