"""Where a person is logged in: the file is theirs alone, and no key is shown or sent to another service."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.cli.core import target
from fairlead.cli.core.target import Named
from fairlead.client import contexts, credentials

KEY = "flk_0123456789ab_" + "c" * 64
LAB = contexts.Context(name="lab", url="https://lab:8443", key=KEY, fingerprint="sha256//x")
HOME = contexts.Context(name="home", url="https://home:8443", key=KEY)


def test_the_file_is_its_owners_alone_and_keeps_what_was_written(tmp_path: Path) -> None:
    file = credentials.file({"XDG_CONFIG_HOME": str(tmp_path / "config")})
    assert contexts.read(file) == contexts.Contexts()
    contexts.write(file, contexts.Contexts().with_context(LAB).with_context(HOME))
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)
    assert contexts.read(file) == contexts.Contexts(current="home", items=(LAB, HOME))


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "contexts.json"
    contexts.write(file, contexts.Contexts())
    file.chmod(0o640)
    with pytest.raises(errors.Denied) as refused:
        contexts.read(file)
    assert refused.value.reason == "CredentialsExposed"


def test_a_damaged_file_is_refused_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "contexts.json"
    contexts.write(file, contexts.Contexts())
    file.write_text("{")
    with pytest.raises(errors.ProtocolError):
        contexts.read(file)
    assert file.read_text() == "{"


def _chosen(named: Named, env: dict[str, str], found: contexts.Contexts | None) -> target.Target:
    return target.choose(named, env, kubeconfig=None, context="", socket=Path("/s"), is_served=True, logins=found)


def test_verbs_go_to_the_current_context_and_its_key_to_its_own_address_alone() -> None:
    found = contexts.Contexts(current="lab", items=(LAB, HOME))
    assert _chosen(Named(), {}, found) == target.Target(url=LAB.url, login=LAB)
    assert _chosen(Named(), {"FAIRLEAD_CONTEXT": "home"}, found).login == HOME
    assert _chosen(Named(), {"FAIRLEAD_CONTEXT": "local"}, found) == target.Target(url="http+unix:///s")
    assert _chosen(Named(url=f"{HOME.url}/"), {}, found).login == HOME
    assert _chosen(Named(url="https://evil:8443"), {}, found).login is None
    assert _chosen(Named(), {"FAIRLEAD_URL": "http://lab:8443"}, found).login is None
    with pytest.raises(errors.NotFound):
        _chosen(Named(), {"FAIRLEAD_CONTEXT": "nothing"}, found)


def test_a_context_that_is_forgotten_is_not_in_force_any_more() -> None:
    found = contexts.Contexts(current="lab", items=(LAB,)).without("lab")
    assert found == contexts.Contexts()
    assert KEY not in repr(LAB)


def test_another_services_key_is_not_the_pinned_one() -> None:
    with pytest.raises(errors.Denied) as refused:
        contexts.check_pin(b"rubbish", "sha256//x", "https://lab:8443")
    assert refused.value.reason == "FingerprintChanged"


def test_a_file_of_another_user_is_refused_with_both_users_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "contexts.json"
    contexts.write(file, contexts.Contexts(current="lab", items=(LAB,)))
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(errors.Denied) as refused:
        contexts.read(file)
    assert refused.value.reason == "CredentialsForeign"
    assert f"user {own}," in refused.value.message
    assert KEY not in refused.value.message


def test_a_pipe_in_its_place_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "contexts.json"
    os.mkfifo(file, 0o600)
    with pytest.raises(errors.Unavailable) as refused:
        contexts.read(file)
    assert "not a regular file" in refused.value.message
