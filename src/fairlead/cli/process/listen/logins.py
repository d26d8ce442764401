"""Composes people's logins by an identity provider from the settings."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from fairlead import errors, files, settings
from fairlead.serve.accounts.oidc import mapping
from fairlead.serve.accounts.oidc.port import Identities, Logins
from fairlead.serve.accounts.oidc.provider import Config, OpenIDProvider


def of_settings(config: settings.Settings) -> Callable[[Identities], Logins] | None:
    """Return what makes the logins; None: no provider is set.

    Raises: Invalid: a setting is wrong; Denied (`SecretExposed`): others may read the client's secret; Unavailable.
    """
    oidc = config.oidc
    if not oidc.issuer:
        return None
    if not oidc.client_id:
        message = "oidc.issuer is set, and oidc.client_id is not"
        raise errors.Invalid(message, reason="OIDCClientMissing", hint="set it to what the provider calls this service")
    provider = OpenIDProvider(
        Config(
            issuer=oidc.issuer,
            client_id=oidc.client_id,
            client_secret=_secret(oidc.client_secret) if oidc.client_secret is not None else "",
            scopes=oidc.scopes,
            account_claim=oidc.account,
            rows=mapping.read(oidc.map),
        )
    )
    return lambda identities: Logins(
        provider=provider,
        identities=identities,
        may_create=oidc.strangers == "create",
        redirect=oidc.redirect,
        key_s=oidc.key_hours * 3600.0,
    )


def _secret(file: Path) -> str:
    try:
        about, data = file.stat(), files.read_bounded(file)
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        raise errors.Unavailable(message, reason="SecretUnreadable", hint="oidc.client_secret names it") from error
    # A Secret in a pod is root's, and the pod's group may read it: there is no narrower way to mount one for a process
    # that is not root.
    is_mounted = about.st_uid == 0 != os.geteuid() and about.st_gid in {os.getegid(), *os.getgroups()}
    if about.st_mode & ((stat.S_IRWXG & ~stat.S_IRGRP if is_mounted else stat.S_IRWXG) | stat.S_IRWXO):
        message = f"others may read {file}, which holds the client's secret"
        raise errors.Denied(message, reason="SecretExposed", hint=f"chmod 600 {file}")
    return data.decode("utf-8", "replace").strip()
