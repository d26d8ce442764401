"""`fairlead whoami`: who one is to the service, in words and as data."""

from __future__ import annotations

import json
from pathlib import Path

from fairlead.cli.admin import whoami
from fairlead.serve.accounts.port import MemberView
from fairlead.serve.accounts.roles import Role, Scope
from fairlead.serve.v1.accounts.view import Self
from tests.unit.cli.liveservice import fairlead, serving


def test_root_on_the_socket_is_told_so(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        words = service.fairlead("whoami")
        data = service.fairlead("whoami", "-o", "json")
    assert words.exit_code == 0
    assert [line.split()[0] for line in words.stdout.splitlines()] == ["account", "may", "service"]
    assert "by the socket of the machine" in words.stdout
    assert json.loads(data.stdout)["is_administrator"] is True


def test_an_account_is_told_with_its_roles_and_its_key() -> None:
    member = MemberView(account="ann", tenancy="red", uid="1", role=Role.OWNER)
    found = Self(account="ann", is_administrator=False, key="k1", scopes=(Scope.READ,), memberships=(member,))
    rows = dict(whoami.rows(found, "https://host:8443"))
    assert rows == {"account": "ann", "may": "owner of red", "key": "k1, for read", "service": "https://host:8443"}


def test_who_is_a_member_of_nothing_is_told_who_can_change_that() -> None:
    found = Self(account="ben", is_administrator=False, key="", scopes=(), memberships=())
    rows = dict(whoami.rows(found, ""))
    assert "adds you to a tenancy" in rows["may"]
    assert rows["key"] == "none: by a session"


def test_a_cluster_knows_no_accounts(tmp_path: Path) -> None:
    result = fairlead("--kubeconfig", str(tmp_path / "none"), "whoami")
    assert result.exit_code == 2
    assert "kubectl auth whoami" in result.stderr
