"""Keys and certificates of a cluster, made with the `openssl` command.

One authority signs servers, clients and aggregated requests; it lives as long as the cluster. Elliptic-curve keys: one
certificate costs about 10 ms. Who a client is to Kubernetes stands in its subject: O is a group, CN the user.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairlead import errors

_DAYS: Final = "3650"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One certificate that the authority signs."""

    name: str
    user: str
    groups: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    """`IP:…` and `DNS:…` entries; a certificate with some is a server's."""


def make(folder: Path, pairs: Iterable[Pair]) -> None:
    """Write `ca`, `service-account` and each pair as NAME.crt and NAME.key."""
    folder.mkdir(mode=0o700)
    _openssl(folder, "req", "-x509", *_key("ca"), "-subj", "/CN=fairlead test authority", *_out("ca"))
    _openssl(
        folder, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "service-account.key"
    )
    _openssl(folder, "pkey", "-in", "service-account.key", "-pubout", "-out", "service-account.pub")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda pair: _sign(folder, pair), pairs))


def _sign(folder: Path, pair: Pair) -> None:
    subject = "".join((*(f"/O={group}" for group in pair.groups), f"/CN={pair.user}"))
    use = "serverAuth,clientAuth" if pair.addresses else "clientAuth"
    names = ("-addext", "subjectAltName=" + ",".join(pair.addresses)) if pair.addresses else ()
    extensions = ("-addext", "basicConstraints=critical,CA:FALSE", "-addext", f"extendedKeyUsage={use}", *names)
    signer = ("-CA", "ca.crt", "-CAkey", "ca.key")
    _openssl(folder, "req", "-x509", *signer, *_key(pair.name), "-subj", subject, *extensions, *_out(pair.name))


def _key(name: str) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key")


def _out(name: str) -> tuple[str, ...]:
    return ("-days", _DAYS, "-out", f"{name}.crt")


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(("openssl", *arguments), cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode:
        message = f"openssl {arguments[0]} ended with {done.returncode}: {done.stderr.strip()[-500:]}"
        raise errors.Unavailable(message, reason="CertificateFailed", hint="openssl 3.0 or newer is needed")


def kubeconfig(folder: Path, name: str, *, server: str) -> Mapping[str, Any]:
    """Return a kubeconfig for the pair `name`, everything in it, so that the file can be copied away."""

    def data(file: str) -> str:
        return base64.b64encode((folder / file).read_bytes()).decode()

    user = {"client-certificate-data": data(f"{name}.crt"), "client-key-data": data(f"{name}.key")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": {"server": server, "certificate-authority-data": data("ca.crt")}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "default", "context": {"cluster": "cluster", "user": name}}],
        "current-context": "default",
    }
