"""Keeps our identity at an API server fresh: certificates, token files, exec plugins, service accounts.

`find` decides which configuration is meant; it reads nothing of the process's surroundings that it is not given. A
`Credentials` then answers two questions for the client: how to open a TLS connection, and which headers a request
carries. Tokens in files are read again after a minute (kubelet replaces them every hour), exec plugins are asked again
shortly before what they gave ends, and both at once after a 401. Keys that a kubeconfig holds as data go to OpenSSL
through an anonymous file in memory, never through a disk.

Why our own reader: see `docs/design/store.md`.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors, files
from fairlead.store.kubernetes import execplugin
from fairlead.wire.kubernetes import kubeconfig

_ACCOUNT: Final = Path("var/run/secrets/kubernetes.io/serviceaccount")
_UNSENDABLE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
"""What no value of a header may hold."""
_REREAD_S: Final = 60.0
_EARLY_S: Final = 30.0
"""Credentials that end sooner than this are renewed before they are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One cluster, as one user, with the environment that exec plugins get."""

    cluster: kubeconfig.Cluster
    user: kubeconfig.User
    namespace: str
    env: Mapping[str, str]


def find(
    env: Mapping[str, str], *, home: Path, file: Path | None = None, context: str | None = None, root: Path = Path("/")
) -> Access:
    """Return the configuration that is meant: the given file, `KUBECONFIG`, `~/.kube/config`, or the pod's account.

    Args:    env: the process environment.   home: the user's folder.   context: None is the current context.
             root: where the service account's folder is looked for.
    Raises:  Unavailable: there is none of them, or one cannot be read; ProtocolError; Invalid.
    """
    listed = [Path(name) for name in env.get("KUBECONFIG", "").split(":") if name]
    usual = home / ".kube" / "config"
    if file is not None:
        return from_files([file], env=env, context=context)
    if present := [path for path in listed or [usual] if path.is_file()]:
        return from_files(present, env=env, context=context)
    if "KUBERNETES_SERVICE_HOST" in env and not listed:
        return in_cluster(env, root=root)
    message = f"no kubeconfig at {' or '.join(map(str, listed or [usual]))}, and this is not a pod"
    raise errors.Unavailable(message, reason="KubeconfigMissing", hint="name one with KUBECONFIG")


def from_files(paths: list[Path], *, env: Mapping[str, str], context: str | None = None) -> Access:
    """Return what the files say about a context. Raises: Unavailable, ProtocolError, Invalid."""
    merged = kubeconfig.merge([kubeconfig.parse(_read(path), path=path) for path in paths])
    choice = kubeconfig.choose(merged, context)
    return Access(cluster=choice.cluster, user=choice.user, namespace=choice.namespace, env=env)


def in_cluster(env: Mapping[str, str], *, root: Path = Path("/")) -> Access:
    """Return the access that a pod has through its service account. Raises: Unavailable: it has none.

    Source: Kubernetes documentation, "Accessing the Kubernetes API from a Pod".
    """
    folder = root / _ACCOUNT
    host, number = env["KUBERNETES_SERVICE_HOST"], env.get("KUBERNETES_SERVICE_PORT", "443")
    authority = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
    _read(folder / "token")
    cluster = kubeconfig.Cluster(server=f"https://{authority}", certificate_authority=str(folder / "ca.crt"))
    user = kubeconfig.User(token_file=str(folder / "token"))
    return Access(cluster=cluster, user=user, namespace=_read(folder / "namespace").decode().strip(), env=env)


def _read(path: Path) -> bytes:
    try:
        return files.read_bounded(path)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise errors.Unavailable(message, reason="CredentialsUnreadable") from error


class Credentials:
    """The access in use, on one event loop."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._renewal = asyncio.Lock()
        self._token = access.user.token
        self._fresh_until = float("-inf")
        self.tls = self._tls()

    @property
    def can_be_renewed(self) -> bool:
        """Whether asking again may give other credentials."""
        user = self._access.user
        return user.exec is not None or user.token_file is not None or user.client_certificate is not None

    async def headers(self) -> list[tuple[str, str]]:
        """Return what authenticates a request. Raises: Unavailable, ProtocolError: a plugin or a file fails."""
        if self.can_be_renewed and _now() >= self._fresh_until:
            async with self._renewal:
                if _now() >= self._fresh_until:
                    await self._renew()
        given = [*self._authorization(), *self._impersonation()]
        for name, value in given:
            if _UNSENDABLE.search(value):  # the value is a secret: the message says where it stands only
                message = f"what {self._source(name)} gives for the header {name} holds a control character"
                hint = "a line break inside a token or a name? write it as one line"
                raise errors.ProtocolError(message, reason="CredentialsInvalid", hint=hint)
        return given

    def _source(self, header: str) -> str:
        """Return who gave the value of a header."""
        user = self._access.user
        if header == "Authorization" and user.token_file is not None:
            return user.token_file
        if header == "Authorization" and user.exec is not None:
            return f"exec plugin {user.exec.command}"
        return "the kubeconfig"

    def expire(self) -> None:
        """Ask again before the next request: the server did not take what we showed."""
        self._fresh_until = float("-inf")

    async def _renew(self) -> None:
        user, fresh_until = self._access.user, _now() + _REREAD_S
        if user.client_certificate and user.client_key and self.tls is not None:
            await asyncio.to_thread(_load_files, self.tls, user.client_certificate, user.client_key)
        if user.token_file is not None:
            self._token = _text(await asyncio.to_thread(_read, Path(user.token_file)), user.token_file)
        elif user.exec is not None:
            fresh_until = await self._ask(user.exec)
        # Last: until then other callers wait, instead of going without.
        self._fresh_until = fresh_until

    async def _ask(self, plugin: kubeconfig.Exec) -> float:
        given = await execplugin.run(plugin, self._access.cluster, env=self._access.env)
        self._token = given.token
        if self.tls is not None and given.client_certificate_data and given.client_key_data:
            _load_pair(self.tls, f"{given.client_certificate_data}\n{given.client_key_data}".encode())
        left_s = execplugin.seconds_left(given, plugin)
        return float("inf") if left_s is None else _now() + max(1.0, left_s - _EARLY_S)

    def _authorization(self) -> list[tuple[str, str]]:
        user = self._access.user
        if self._token:
            return [("Authorization", f"Bearer {self._token}")]
        if user.username and user.password is not None:
            pair = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
            return [("Authorization", f"Basic {pair}")]
        return []

    def _impersonation(self) -> list[tuple[str, str]]:
        user = self._access.user
        given = [("Impersonate-User", user.impersonate), ("Impersonate-Uid", user.impersonate_uid)]
        given += [("Impersonate-Group", group) for group in user.impersonate_groups or ()]
        return [(name, value) for name, value in given if value]

    def _tls(self) -> ssl.SSLContext | None:
        """Return the settings of TLS connections, None where the server speaks plain HTTP."""
        cluster, user = self._access.cluster, self._access.user
        if not cluster.server.startswith("https://"):
            return None
        try:
            context = self._trust(cluster)
            if user.client_certificate_data and user.client_key_data:
                pair = (user.client_certificate_data, user.client_key_data)
                data = b"\n".join(kubeconfig.decode_data(text, "client certificate data") for text in pair)
                _load_pair(context, data)
        except (ssl.SSLError, OSError) as error:
            message = f"certificates for {cluster.server} cannot be used: {error}"
            raise errors.Unavailable(message, reason="CredentialsUnreadable") from error
        return context

    @staticmethod
    def _trust(cluster: kubeconfig.Cluster) -> ssl.SSLContext:
        authority = None
        if cluster.certificate_authority_data:
            data = kubeconfig.decode_data(cluster.certificate_authority_data, "certificate-authority-data")
            authority = data.decode(errors="replace")
        context = ssl.create_default_context(
            cafile=None if authority else cluster.certificate_authority, cadata=authority
        )
        # As Go's verifier has it, which kubectl uses: Python 3.13 asks more of an authority's extensions by default,
        # and before 3.13 it takes no intermediate certificate as an anchor.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if cluster.insecure_skip_tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode().strip()
    except UnicodeDecodeError as error:
        message = f"{path} does not hold a token: byte {error.start} is not UTF-8"
        raise errors.ProtocolError(
            message, reason="CredentialsInvalid", hint="write the token alone into it"
        ) from error


def _now() -> float:
    return asyncio.get_running_loop().time()


def _load_files(context: ssl.SSLContext, certificate: str, key: str) -> None:
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        message = f"client certificate {certificate} cannot be used: {error}"
        raise errors.Unavailable(message, reason="CredentialsUnreadable") from error


def _load_pair(context: ssl.SSLContext, data: bytes) -> None:
    handle = os.memfd_create("fairlead-key")
    try:
        os.write(handle, data)
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
