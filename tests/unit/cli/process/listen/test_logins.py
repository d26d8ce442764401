"""The client's secret of an identity provider: whose file it may be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead import errors, settings
from fairlead.cli.process.listen import logins

ISSUER = {
    "FAIRLEAD_OIDC_ISSUER": "https://login.example",
    "FAIRLEAD_OIDC_CLIENT_ID": "fairlead",
}


def logins_of(file: Path) -> object:
    return logins.of_settings(
        settings.load(flags={}, env={**ISSUER, "FAIRLEAD_OIDC_CLIENT_SECRET": str(file)}, file=None)
    )


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("s3cret\n")
    return file


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_secret_that_others_may_read_is_refused(secret: Path, mode: int) -> None:
    secret.chmod(mode)
    with pytest.raises(errors.Denied) as caught:
        logins_of(secret)
    assert caught.value.reason == "SecretExposed"


def test_a_secret_of_ours_alone_is_taken(secret: Path) -> None:
    secret.chmod(0o600)
    assert logins_of(secret) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file of root's")
@pytest.mark.parametrize(("mode", "is_taken"), [(0o640, True), (0o440, True), (0o660, False), (0o644, False)])
def test_a_secret_that_a_pod_mounts_is_its_groups_to_read(
    secret: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_taken: bool
) -> None:
    secret.chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: 65532)
    monkeypatch.setattr(os, "getgroups", lambda: [secret.stat().st_gid])
    if is_taken:
        assert logins_of(secret) is not None
    else:
        with pytest.raises(errors.Denied):
            logins_of(secret)
