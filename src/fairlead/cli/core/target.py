"""Decides which Fairlead a verb talks to: an address, a cluster by kubeconfig, or this machine's service. Pure.

Options win over the environment, and this machine's service over a cluster that was not named. A cluster that
is only implied by KUBECONFIG (or by being a pod) is looked at, never changed: a user who lost a local service should
not remove a pod somewhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fairlead.client.contexts import Context, Contexts

LOCAL = "http+unix://"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What the command line said."""

    url: str | None = None
    kubeconfig: Path | None = None
    context: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a verb goes; exactly one of `url` and `is_cluster` says it."""

    url: str = ""
    is_cluster: bool = False
    kubeconfig: Path | None = None
    """None: KUBECONFIG, ~/.kube/config, else the pod's account."""
    context: str | None = None
    """None: the current one."""
    is_implied: bool = False
    """This cluster was not named: it may be looked at only."""
    login: Context | None = None
    """As whom; None: no key is sent."""


def choose(
    named: Named,
    env: Mapping[str, str],
    *,
    kubeconfig: Path | None,
    context: str,
    socket: Path,
    is_served: bool,
    logins: Contexts | None = None,
) -> Target:
    """Return where the verb goes.

    Args:    kubeconfig, context: of the settings `cluster.kubeconfig` and `cluster.context`.
             socket: this machine's API socket.   is_served: whether a service listens there.
             logins: where the person is logged in; None: nowhere.
    Raises:  UsageError: an address and a cluster were both named; NotFound: no context of the name that was chosen.
    """
    is_named = named.kubeconfig is not None or named.context is not None
    if named.url and is_named:
        raise click.UsageError("--url names a service, --kubeconfig and --context a cluster: give one of them")
    if named.url:
        return _at(named.url, logins)
    if is_named:
        return Target(
            is_cluster=True, kubeconfig=named.kubeconfig or kubeconfig, context=named.context or context or None
        )
    if url := env.get("FAIRLEAD_URL"):
        return _at(url, logins)
    if kubeconfig is not None or context:
        return Target(is_cluster=True, kubeconfig=kubeconfig, context=context or None)
    if logins is not None and (login := _chosen(logins, env)):
        return Target(url=login.url, login=login)
    is_implied = not is_served and bool(env.get("KUBECONFIG") or env.get("KUBERNETES_SERVICE_HOST"))
    return Target(is_cluster=True, is_implied=True) if is_implied else Target(url=f"{LOCAL}{socket}")


def _at(url: str, logins: Contexts | None) -> Target:
    return Target(url=url, login=logins.at(url) if logins else None)


def _chosen(logins: Contexts, env: Mapping[str, str]) -> Context | None:
    from fairlead.client import contexts

    return contexts.chosen(logins, env)
