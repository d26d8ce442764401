"""The API's certificate: made once, renewed in time, its key and fingerprint the same."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import shutil
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from fairlead import errors
from fairlead.serve import certificate

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NAMES = ("box", "localhost", "127.0.0.1", "::1")


@pytest.fixture
def own(tmp_path: Path) -> certificate.Files:
    where = certificate.own(tmp_path)
    certificate.ensure_own(where, NAMES, NOW)
    return where


def _read(where: certificate.Files) -> x509.Certificate:
    return x509.load_pem_x509_certificate(where.certificate.read_bytes())


def test_it_names_the_machine_and_is_its_owners_alone(own: certificate.Files) -> None:
    said = _read(own).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(one.value) for one in said} == set(NAMES)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (own.key, own.certificate)} == {0o600}
    certificate.open_context(own)


def test_one_that_is_good_stays_and_a_renewed_one_has_the_same_fingerprint(own: certificate.Files) -> None:
    before, pin = own.certificate.read_bytes(), certificate.fingerprint(own)
    certificate.ensure_own(own, NAMES[:2], NOW + dt.timedelta(days=300))
    assert own.certificate.read_bytes() == before
    certificate.ensure_own(own, NAMES, NOW + dt.timedelta(days=336))
    assert own.certificate.read_bytes() != before
    certificate.ensure_own(own, (*NAMES, "10.0.0.9"), NOW + dt.timedelta(days=337))
    assert "10.0.0.9" in str(_read(own).extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    assert certificate.fingerprint(own) == pin


def test_a_damaged_certificate_is_made_anew_and_a_damaged_key_never(own: certificate.Files) -> None:
    own.certificate.write_text("rubbish")
    certificate.ensure_own(own, NAMES, NOW)
    certificate.open_context(own)
    own.key.write_text("rubbish")
    with pytest.raises(errors.ProtocolError) as refused:
        certificate.ensure_own(own, NAMES, NOW)
    assert refused.value.reason == "CertificateDamaged"
    assert own.key.read_text() == "rubbish"


def test_what_an_operator_brings_is_refused_by_name_where_it_is_unfit(own: certificate.Files, tmp_path: Path) -> None:
    other = certificate.own(tmp_path / "other")
    certificate.ensure_own(other, NAMES, NOW)
    missing, rubbish = tmp_path / "missing.pem", tmp_path / "rubbish.pem"
    rubbish.write_text("rubbish")
    for cert, key in ((own.certificate, other.key), (missing, own.key), (own.certificate, missing), (rubbish, own.key)):
        with pytest.raises(errors.Invalid) as refused:
            certificate.open_context(certificate.Files(certificate=cert, key=key))
        assert refused.value.reason == "CertificateInvalid"
    for one in ((own.certificate, None), (None, own.key)):
        with pytest.raises(errors.Invalid):
            certificate.operators(*one)
    assert certificate.operators(None, None) is None


def _shown(context: ssl.SSLContext) -> bytes:
    """Return the certificate that a client is shown by a handshake in memory."""
    seen = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    seen.check_hostname, seen.verify_mode = False, ssl.CERT_NONE
    one, two = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = seen.wrap_bio(one, two), context.wrap_bio(two, one, server_side=True)
    for side in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    found = client.getpeercert(binary_form=True)
    assert found
    return found


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_pair_replaced_on_disk_is_taken_up_whole_and_half_of_one_breaks_no_connection(
    own: certificate.Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate, "_LOOK_S", 0)
    context, other = certificate.open_context(own), certificate.own(tmp_path / "other")
    certificate.ensure_own(other, NAMES, NOW)
    before, after = _shown(context), ssl.PEM_cert_to_DER_cert(other.certificate.read_text())
    async with asyncio.TaskGroup() as tasks:
        kept = tasks.create_task(certificate.keep(context, own, None, lambda: NOW))
        await _turns()
        own.certificate.unlink()
        shutil.copy(other.certificate, own.certificate)
        await _turns()
        assert _shown(context) == before
        own.key.unlink()
        await _turns()
        assert _shown(context) == before
        shutil.copy(other.key, own.key)
        await _turns()
        assert _shown(context) == after != before
        kept.cancel()
