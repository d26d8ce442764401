"""Makes, checks and renews the certificate that the API shows on TLS, unless the operator brings one.

Our own is signed by its own key (ECDSA, P-256: every TLS library takes it), names the machine's names and addresses,
and lies in the state folder, 0600. It is renewed a month before its end, and when the machine has another name or
address. The key stays the same: a client that pinned its fingerprint, which is made of the public key alone, need not
do so again. An operator's certificate that is replaced on disk is taken up within some ten seconds.
Source: RFC 5280 (profile); RFC 7469 section 2.4 (SHA-256 of the SubjectPublicKeyInfo, base64), as curl writes it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import hashlib
import ipaddress
import os
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fairlead import errors, files, telemetry

_DAYS: Final = 365
_RENEW: Final = dt.timedelta(days=30)
_LOOK_S: Final = 10.0
"""Between two looks at the files, of which only times and numbers are read."""
_RENEWAL_S: Final = 3600.0
_ALLOWED_SKEW: Final = dt.timedelta(hours=1)
_MOST_BYTES: Final = 1 << 20

Clock = Callable[[], dt.datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where a certificate and its key lie."""

    certificate: Path
    key: Path


def own(folder: Path) -> Files:
    """Return where our own lies."""
    return Files(certificate=folder / "tls" / "certificate.pem", key=folder / "tls" / "key.pem")


def operators(certificate: Path | None, key: Path | None) -> Files | None:
    """Return the operator's; None: there is none. Raises: Invalid: one of the two is missing."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        message = "a certificate needs its key, and a key its certificate"
        raise errors.Invalid(message, reason="CertificateInvalid", hint="set both api.certificate and api.key")
    return Files(certificate=certificate, key=key)


def ensure_own(where: Files, names: Sequence[str], now: dt.datetime) -> None:
    """Make our own certificate where there is none that is good for another month and for these names; idempotent.

    Raises: ProtocolError (`CertificateDamaged`): the key cannot be read, which is never overwritten; Unavailable.
    """
    try:
        where.key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not where.key.exists():
            files.write_atomic(where.key, _pem(ec.generate_private_key(ec.SECP256R1())), mode=0o600)
        if not _is_good(where, names, now):
            made = _signed(_read_key(where.key), names, now)
            files.write_atomic(where.certificate, made.public_bytes(serialization.Encoding.PEM), mode=0o600)
    except OSError as error:
        message = f"cannot keep the API's certificate in {where.key.parent}: {error.strerror}"
        raise errors.Unavailable(message, reason="CertificateUnreachable", hint="check --state-folder") from error


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        found = serialization.load_pem_private_key(files.read_bounded(path, limit_bytes=_MOST_BYTES), password=None)
    except (ValueError, TypeError) as error:
        hint = "move it away: another one is made, and clients have to pin it again"
        raise errors.ProtocolError(f"{path} is not a private key", reason="CertificateDamaged", hint=hint) from error
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        message, hint = f"{path} is not a key of ours", "set a key of your own as api.key, with its api.certificate"
        raise errors.ProtocolError(message, reason="CertificateDamaged", hint=hint)
    return found


def _is_good(where: Files, names: Sequence[str], now: dt.datetime) -> bool:
    if not where.certificate.exists():
        return False
    try:
        found = _read(where.certificate)
        said = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (errors.Invalid, x509.ExtensionNotFound, ValueError):
        return False  # it holds nothing that cannot be made again from the key
    is_ours = _public(found) == _public_of(_read_key(where.key))
    is_young = found.not_valid_before_utc <= now and now + _RENEW < found.not_valid_after_utc
    return is_ours and is_young and set(_general(names)) <= set(said)


def _general(names: Iterable[str]) -> list[x509.GeneralName]:
    return [_general_name(name) for name in dict.fromkeys(names)]


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _signed(key: ec.EllipticCurvePrivateKey, names: Sequence[str], now: dt.datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    usage = x509.KeyUsage(
        digital_signature=True,
        **dict.fromkeys(
            (
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "key_cert_sign",
                "crl_sign",
                "encipher_only",
                "decipher_only",
            ),
            False,
        ),
    )
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _ALLOWED_SKEW)
        .not_valid_after(now + dt.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName(_general(names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )


def _read(path: Path) -> x509.Certificate:
    """Return the first certificate of a file. Raises: Invalid (`CertificateInvalid`)."""
    try:
        return x509.load_pem_x509_certificate(files.read_bounded(path, limit_bytes=_MOST_BYTES))
    except OSError as error:
        message = f"cannot read certificate {path}: {error.strerror}"
        raise errors.Invalid(message, reason="CertificateInvalid", hint="check api.certificate") from error
    except ValueError as error:
        message = f"{path} is not a certificate in PEM"
        raise errors.Invalid(message, reason="CertificateInvalid", hint="check api.certificate") from error


def _public(found: x509.Certificate) -> bytes:
    kind, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return found.public_key().public_bytes(kind, form)


def _public_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    kind, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(kind, form)


def fingerprint(where: Files) -> str:
    """Return the fingerprint of a certificate's public key, `sha256//BASE64`. Raises: Invalid."""
    return "sha256//" + base64.b64encode(hashlib.sha256(_public(_read(where.certificate))).digest()).decode()


def open_context(where: Files) -> ssl.SSLContext:
    """Return what a server of TLS 1.2 and newer needs. Raises: as `load`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load(context, where)
    return context


def load(context: ssl.SSLContext, where: Files) -> None:
    """Have connections from now on shown the certificate; where it is unfit, they go on with the one before.

    The pair is read once and tried apart from the context: OpenSSL takes a certificate before it looks at the key, and
    drops the old key where the two do not fit, so that nobody could connect any more.
    Raises: Invalid (`CertificateInvalid`).
    """
    _read(where.certificate)
    try:
        key = files.read_bounded(where.key, limit_bytes=_MOST_BYTES)
        certificate = files.read_bounded(where.certificate, limit_bytes=_MOST_BYTES)
        with _in_memory("certificate", certificate) as one, _in_memory("key", key) as two:
            for each in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
                each.load_cert_chain(one, two, password=_refuse_password)
    except ssl.SSLError as error:
        message = f"{where.key} is not the key of {where.certificate}, or not a key in PEM without a password"
        raise errors.Invalid(message, reason="CertificateInvalid", hint="check api.certificate and api.key") from error
    except OSError as error:
        message = f"cannot read {error.filename or where.key}: {error.strerror}"
        raise errors.Invalid(message, reason="CertificateInvalid", hint="check api.key") from error


@contextlib.contextmanager
def _in_memory(name: str, data: bytes) -> Iterator[str]:
    """Give a path under which this process reads what a file held. Raises: OSError."""
    with os.fdopen(os.memfd_create(name, os.MFD_CLOEXEC), "wb") as file:
        file.write(data)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _refuse_password() -> str:
    return ""  # OpenSSL would ask at the terminal


async def keep(context: ssl.SSLContext, where: Files, names: Callable[[], Sequence[str]] | None, now: Clock) -> None:
    """Renew our own in time, and take up what was replaced on disk, until cancelled.

    Args: names: of our own; None: it is the operator's, which is only read.
    """
    seen, refused, judged = _stamp(where), _stamp(where), now()
    while True:
        await asyncio.sleep(_LOOK_S)
        try:
            if names is not None and (now() - judged).total_seconds() >= _RENEWAL_S:
                judged = now()
                ensure_own(where, names(), judged)
            # A pair that is half replaced, or wrong, is said once and tried again when it changes.
            if (fresh := _stamp(where)) not in {seen, refused}:
                refused = fresh
                load(context, where)
                seen = fresh
                telemetry.log.info("certificate taken up", path=str(where.certificate))
        except errors.FairleadError as error:
            telemetry.log.error("certificate not renewed", reason=error.reason, error=errors.sentence(error))


def ends_at(where: Files) -> dt.datetime:
    """Return when a certificate ends. Raises: Invalid (`CertificateInvalid`)."""
    return _read(where.certificate).not_valid_after_utc


def covers(where: Files, domain: str) -> bool:
    """Return whether a certificate is good for each name of one label below a domain. Raises: Invalid."""
    try:
        said = _read(where.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return False  # browsers go by these names alone
    return f"*.{domain}" in {name.lower() for name in said.get_values_for_type(x509.DNSName)}


def _stamp(where: Files) -> tuple[int, ...]:
    try:
        return tuple(part for path in (where.certificate, where.key) for part in _facts(path))
    except OSError:
        return ()


def _facts(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_ino
