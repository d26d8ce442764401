"""`fairlead quota` against a service: set, shown, in force, removed."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.conftest import Service

_QUOTA = '{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": 1}}}'


def test_a_quota_is_set_shown_enforced_and_removed(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "quota.json"
    file.write_text(_QUOTA)
    assert "pods 0/1" in service.fairlead("quota", "apply", "-f", str(file)).stdout
    assert service.fairlead("run", "--detach", "demo", "--", "sleep", "60").exit_code == 0
    refused = service.fairlead("run", "--detach", "demo")
    assert (refused.exit_code, 'the quota "q" allows: 1 container asked, 1 of 1 in use' in refused.stderr) == (3, True)
    assert service.fairlead("quota", "list", "-o", "name").stdout == "q\n"
    assert service.fairlead("quota", "rm", "q").exit_code == 0
    assert service.fairlead("quota", "list", "-o", "name").stdout == ""


def test_a_file_that_is_not_there_is_told(service: Service) -> None:
    answer = service.fairlead("quota", "apply", "-f", "/nowhere/quota.yaml")
    assert (answer.exit_code, "cannot read /nowhere/quota.yaml" in answer.stderr) == (2, True)


def test_a_name_is_never_a_part_of_the_path(service: Service) -> None:
    done = service.fairlead("quota", "rm", "é?x#y")
    assert done.exit_code == 2
    assert "é?x#y" in done.stderr
