"""Parses kubeconfig files: clusters, users, the chosen context; and what exec plugins print.

Several files make one configuration: the first that names something wins, and relative paths are relative to the file
that holds them. What is not understood is refused rather than skipped where skipping would weaken the connection
(`auth-provider`, SOCKS proxies); everything else unknown is ignored. Reading files and running plugins is left to
`store/kubernetes/credentials.py`.
Source: client-go tools/clientcmd/api/v1 types.go; client.authentication.k8s.io/v1 types.go.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from fairlead import errors
from fairlead.wire.kubernetes.meta import Wire
from fairlead.wire.text import typedjson

EXEC_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class _Kebab(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """Base of the parts whose keys are written with dashes."""


class Cluster(_Kebab, frozen=True):
    """Address of an API server, and the certificates that prove its identity."""

    server: str = ""
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None


class NameValue(Wire, frozen=True):
    """One variable of an exec plugin's environment."""

    name: str
    value: str = ""


class Exec(Wire, frozen=True):
    """A program that prints credentials."""

    api_version: str = ""
    command: str = ""
    args: tuple[str, ...] | None = None
    env: tuple[NameValue, ...] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class User(_Kebab, frozen=True):
    """Credentials; at most one of certificate, token, name with password and exec plugin is usual."""

    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    impersonate: str | None = msgspec.field(default=None, name="as")
    impersonate_uid: str | None = msgspec.field(default=None, name="as-uid")
    impersonate_groups: tuple[str, ...] | None = msgspec.field(default=None, name="as-groups")
    exec: Exec | None = None
    auth_provider: dict[str, Any] | None = None


class Context(_Kebab, frozen=True):
    """Which user on which cluster, and where by default."""

    cluster: str = ""
    user: str = ""
    namespace: str | None = None


class NamedCluster(Wire, frozen=True):
    """One entry of `clusters`."""

    name: str
    cluster: Cluster = Cluster()


class NamedUser(Wire, frozen=True):
    """One entry of `users`."""

    name: str
    user: User | None = None


class NamedContext(Wire, frozen=True):
    """One entry of `contexts`."""

    name: str
    context: Context = Context()


class Kubeconfig(_Kebab, frozen=True):
    """One file, or several merged."""

    clusters: tuple[NamedCluster, ...] | None = None
    users: tuple[NamedUser, ...] | None = None
    contexts: tuple[NamedContext, ...] | None = None
    current_context: str | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Cluster and user that a context selects."""

    cluster: Cluster
    user: User
    namespace: str = "default"


class ExecStatus(Wire, frozen=True):
    """Credentials that an exec plugin printed."""

    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: str | None = None


class _ExecCredential(Wire, frozen=True):
    api_version: str = ""
    status: ExecStatus | None = None


Part = TypeVar("Part", Cluster, User)


def parse(data: bytes, *, path: Path) -> Kubeconfig:
    """Read one file; paths in it become absolute.

    Args:    data: YAML or JSON.   path: where it lies, for relative paths and messages.
    Raises:  ProtocolError: not a kubeconfig.
    """
    # A pod's agent has no such file, and does not pay for PyYAML.
    from fairlead.wire.text import safeyaml

    try:
        config = msgspec.convert(safeyaml.load(data) or {}, Kubeconfig)
    except ValueError as error:  # msgspec's are ValueErrors, as a bad date's is
        problem = " ".join(str(error).split())
        raise errors.ProtocolError(
            f"kubeconfig {path} cannot be read: {problem}", reason="KubeconfigInvalid"
        ) from error
    folder = path.absolute().parent
    clusters = tuple(
        msgspec.structs.replace(entry, cluster=_located(entry.cluster, folder, "certificate_authority"))
        for entry in config.clusters or ()
    )
    users = tuple(msgspec.structs.replace(entry, user=_user_at(entry.user, folder)) for entry in config.users or ())
    return msgspec.structs.replace(config, clusters=clusters, users=users)


def _user_at(user: User | None, folder: Path) -> User:
    found = _located(user or User(), folder, "client_certificate", "client_key", "token_file")
    plugin = found.exec
    if plugin is None or "/" not in plugin.command:
        return found
    return msgspec.structs.replace(found, exec=msgspec.structs.replace(plugin, command=str(folder / plugin.command)))


def _located(part: Part, folder: Path, *fields: str) -> Part:
    """Resolve the named path fields against the file's folder."""
    paths = {name: str(folder / value) for name in fields if (value := getattr(part, name))}
    return msgspec.structs.replace(part, **paths)


def merge(configs: Sequence[Kubeconfig]) -> Kubeconfig:
    """Make one configuration of several: the first entry of a name wins, and the first current context."""
    current = next((config.current_context for config in configs if config.current_context), None)
    return Kubeconfig(
        clusters=tuple({entry.name: entry for config in reversed(configs) for entry in config.clusters or ()}.values()),
        users=tuple({entry.name: entry for config in reversed(configs) for entry in config.users or ()}.values()),
        contexts=tuple({entry.name: entry for config in reversed(configs) for entry in config.contexts or ()}.values()),
        current_context=current,
    )


def choose(config: Kubeconfig, context: str | None = None) -> Choice:
    """Return the cluster and the user of a context, by default the current one.

    Raises: Invalid: no context is meant, or it names what is not there, or its user needs what is not supported.
    """
    contexts = {entry.name: entry.context for entry in config.contexts or ()}
    name = context or config.current_context or ""
    if name not in contexts:
        message = f'kubeconfig has no context "{name}" (there are: {", ".join(contexts) or "none"})'
        raise errors.Invalid(message, reason="ContextUnknown", hint="name one, or set current-context")
    chosen = contexts[name]
    clusters = {entry.name: entry.cluster for entry in config.clusters or ()}
    users = {entry.name: entry.user or User() for entry in config.users or ()}
    if not clusters.get(chosen.cluster, Cluster()).server:
        message = f'context "{name}" names cluster "{chosen.cluster}", which has no server in the kubeconfig'
        raise errors.Invalid(message, reason="ClusterUnknown")
    if chosen.user and chosen.user not in users:
        raise errors.Invalid(f'context "{name}" names user "{chosen.user}", which is not there', reason="UserUnknown")
    user = users.get(chosen.user, User())
    _check(user, clusters[chosen.cluster])
    return Choice(cluster=clusters[chosen.cluster], user=user, namespace=chosen.namespace or "default")


def _check(user: User, cluster: Cluster) -> None:
    if user.auth_provider is not None:
        message = (
            f'auth-provider "{user.auth_provider.get("name", "")}" is not supported: Kubernetes removed it in 1.26'
        )
        raise errors.Invalid(message, reason="CredentialsUnsupported", hint="use an exec plugin")
    if user.exec is not None and user.exec.api_version not in EXEC_VERSIONS:
        message = (
            f'exec plugin version "{user.exec.api_version}" is not supported (offered: {", ".join(EXEC_VERSIONS)})'
        )
        raise errors.Invalid(message, reason="CredentialsUnsupported", hint=user.exec.install_hint or None)
    if user.exec is not None and user.exec.interactive_mode == "Always":
        message = f"exec plugin {user.exec.command} wants a terminal, which a service has not"
        raise errors.Invalid(message, reason="CredentialsUnsupported", hint="use a token or a certificate")
    if cluster.proxy_url and not cluster.proxy_url.startswith(("http://", "https://")):
        raise errors.Invalid(
            f"proxy-url {cluster.proxy_url} is not supported (offered: http, https)", reason="ProxyUnsupported"
        )


def decode_data(text: str, what: str) -> bytes:
    """Return what a `…-data` field holds. Raises: ProtocolError: not base64."""
    try:
        return base64.b64decode(text, validate=False)
    except binascii.Error as error:
        raise errors.ProtocolError(f"{what} is not base64: {error}", reason="KubeconfigInvalid") from error


def exec_info(plugin: Exec, cluster: Cluster) -> str:
    """Return the value of `KUBERNETES_EXEC_INFO` for a plugin."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        facts = {
            "server": cluster.server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify or None,
            "certificate-authority-data": cluster.certificate_authority_data,
            "proxy-url": cluster.proxy_url,
        }
        spec["cluster"] = {name: value for name, value in facts.items() if value is not None}
    return msgspec.json.encode({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}).decode()


def parse_exec(data: bytes, plugin: Exec) -> ExecStatus:
    """Read what a plugin printed. Raises: ProtocolError: it is not a credential of the version asked for."""
    try:
        answer = typedjson.decode(data, type=_ExecCredential)
    except msgspec.MsgspecError as error:
        message = f"exec plugin {plugin.command} printed no ExecCredential: {error}"
        raise errors.ProtocolError(message, reason="ExecCredentialInvalid") from error
    if answer.api_version != plugin.api_version:
        message = f"exec plugin {plugin.command} answered in {answer.api_version}, not {plugin.api_version}"
        raise errors.ProtocolError(message, reason="ExecCredentialInvalid")
    found = answer.status or ExecStatus()
    if not found.token and not (found.client_certificate_data and found.client_key_data):
        message = f"exec plugin {plugin.command} gave neither a token nor a certificate with its key"
        raise errors.ProtocolError(message, reason="ExecCredentialInvalid")
    return found
