"""Keeps each tenancy's registry credentials on this machine, and which images they fetched.

One file a tenancy, named by its uid, in podman's format and mode 0600: podman reads it itself, so that no credential is
an argument, a variable or a line of a log. A tenancy without a login has a file without entries: neither the login of
the machine's owner nor another tenancy's is ever used for it.

The engine keeps images of all tenancies in one store. An image that one of them fetched with credentials is noted, by
name before the fetch and by id after it, and another tenancy gets it only by fetching it itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, files
from fairlead.wire.oci import registryauth
from fairlead.wire.oci.registryauth import Login
from fairlead.wire.text import typedjson

_FETCHED: Final = "fetched.json"
_MODE: Final = 0o600
_EMPTY: Final = registryauth.emit({})


class Registries:
    """The credentials in one folder."""

    def __init__(self, folder: Path) -> None:
        """Take the folder; it is made when something is written."""
        self._folder = folder

    def add(self, uid: str, registry: str, login: Login) -> tuple[str, ...]:
        """Keep a login; returns the registries that the tenancy has one for. Raises: Invalid, Unavailable."""
        registryauth.check(registry, login)
        return self._change(uid, lambda found: found.update({registry: login}))

    def drop(self, uid: str, registry: str) -> tuple[str, ...]:
        """Forget a login; returns the registries that are left. Idempotent."""
        return self._change(uid, lambda found: found.pop(registry, None))

    def _change(self, uid: str, change: Callable[[dict[str, Login]], object]) -> tuple[str, ...]:
        path = self._path(uid)
        found = registryauth.parse(path.read_bytes()) if path.exists() else {}
        change(found)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.write_atomic(path, registryauth.emit(found), mode=_MODE)
        return tuple(sorted(found))

    def authfile(self, uid: str) -> Path:
        """Return the tenancy's file; one without entries is made where there is none."""
        path = self._path(uid)
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.write_atomic(path, _EMPTY, mode=_MODE)
        return path

    def has_login(self, uid: str, image: str) -> bool:
        """Return whether an image may be fetched with the tenancy's credentials; a short name, with any of them."""
        path = self._path(uid)
        logins = registryauth.parse(path.read_bytes()) if path.exists() else {}
        host, slash, _ = image.partition("/")
        if not slash or not set(host) & set(".:"):
            return bool(logins)
        return any(image == one or image.startswith((f"{one}/", f"{one}:", f"{one}@")) for one in logins)

    def forget(self, uid: str) -> None:
        """Remove a tenancy's credentials. Idempotent."""
        path = self._path(uid)
        if path.exists():
            path.unlink(missing_ok=True)
            files.flush_folder(self._folder)

    def _path(self, uid: str) -> Path:
        if not uid.replace("-", "").isalnum():
            raise errors.Invalid(f'"{uid}" is not a uid', reason="UIDInvalid")
        return self._folder / f"{uid}.json"


class Fetched:
    """Which images were fetched with credentials, and by whom; the kubelet is its one writer."""

    def __init__(self, folder: Path) -> None:
        """Take the folder that the credentials are in."""
        self._path = folder / _FETCHED

    def begin(self, image: str) -> None:
        """Note that an image of this name comes with credentials: whose it is will be noted with its id."""
        self._write(lambda found: found.setdefault(image, ()))

    def note(self, identity: str, uid: str) -> None:
        """Note that a tenancy fetched an image itself; a pod of no tenancy has the uid ""."""
        self._write(lambda found: found.update({identity: tuple({*found.get(identity, ()), uid})}))

    def is_anybodys(self) -> bool:
        """Return whether any image was fetched with credentials."""
        return self._path.exists()

    def is_others(self, image: str, identity: str, uid: str) -> bool:
        """Return whether an image was fetched with credentials, and never by this tenancy."""
        found = self._read()
        return uid not in found[identity] if identity in found else image in found

    def _write(self, change: Callable[[dict[str, tuple[str, ...]]], object]) -> None:
        found = self._read()
        before = dict(found)
        change(found)
        if found != before:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.write_atomic(self._path, msgspec.json.encode(found), mode=_MODE)

    def _read(self) -> dict[str, tuple[str, ...]]:
        try:
            return typedjson.decode(self._path.read_bytes(), type=dict[str, tuple[str, ...]])
        except FileNotFoundError:
            return {}
        except msgspec.MsgspecError as error:
            message = f"{self._path} is not what was written: whose images are on this machine is not known"
            hint = f"remove the images (`fairlead image prune --all`), then {self._path}"
            raise errors.ProtocolError(message, reason="FetchedImagesInvalid", hint=hint) from error
