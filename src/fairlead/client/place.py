"""Finds which service a program means, and as whom: what it names, else what the command line would talk to.

The order is the command line's: an address, FAIRLEAD_URL, the context in force (`fairlead login`, FAIRLEAD_CONTEXT),
this machine's own socket. A cluster cannot be named: its API runs only inside a command of the CLI.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

from fairlead import errors
from fairlead.client import contexts, credentials, httptransport


def carrier(
    url: str | None,
    *,
    key: str | None = None,
    fingerprint: str | None = None,
    context: str | None = None,
    env: Mapping[str, str] = os.environ,
) -> httptransport.HTTPTransport:
    """Return what carries requests to the service that is meant.

    Raises: Invalid: an address, a key or a context do not go together; NotFound: no context has that name; Denied,
            ProtocolError, Unavailable: as `contexts.read`.
    """
    if url is not None and context is not None:
        message = f'address "{url}" and context "{context}" are given'
        raise errors.Invalid(message, reason="ServiceAmbiguous", hint="give one of them")
    if url is None and (key is not None or fingerprint is not None):
        message = "a key is given, and no address to send it to"
        raise errors.Invalid(
            message, reason="ServiceAmbiguous", hint="Client(url, key=…), or `fairlead login` and Client()"
        )
    if url is not None:
        return _at(url, key, fingerprint, env)
    if context is None and (named := env.get("FAIRLEAD_URL")):
        return _at(named, None, None, env)
    found = contexts.read(credentials.file(env))
    name = context or env.get("FAIRLEAD_CONTEXT") or found.current
    if name == contexts.LOCAL:
        return httptransport.HTTPTransport(str(_socket(env)))
    login = found.find(name)
    return httptransport.HTTPTransport(login.url, login)


def _at(url: str, key: str | None, fingerprint: str | None, env: Mapping[str, str]) -> httptransport.HTTPTransport:
    url = url if "://" in url or url.startswith("/") else f"https://{url}"
    if key is None:
        login = contexts.read(credentials.file(env)).at(url)
        return httptransport.HTTPTransport(url, login)
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https":
        message = f"a key is sent over https only, and {url} is not"
        raise errors.Invalid(
            message, reason="KeyInClear", hint="the address that `fairlead up` shows begins with https://"
        )
    login = contexts.Context(name=parts.hostname or "", url=url, key=key, fingerprint=fingerprint or "")
    return httptransport.HTTPTransport(url, login)


def _socket(env: Mapping[str, str]) -> Path:
    """Return this machine's API socket. Raises: Invalid: the settings are wrong."""
    from fairlead import settings

    chosen = env.get("FAIRLEAD_CONFIG")
    return settings.load(flags={}, env=env, file=Path(chosen) if chosen else settings.DEFAULT_FILE).api_socket
