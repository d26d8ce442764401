from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from fairlead.cli.admin import manifests
from fairlead.plan.pod import tenantrule
from tests import tenantpods
from tools import render_admission


@pytest.mark.parametrize(("pod", "words"), tenantpods.REFUSED)
def test_a_tenants_pod_is_refused_in_the_words_that_a_cluster_uses(pod: dict[str, Any], words: str) -> None:
    assert any(words in problem for problem in tenantrule.problems(pod))


@pytest.mark.parametrize(("context", "words"), tenantpods.EPHEMERAL)
def test_an_ephemeral_container_is_judged_like_any(context: dict[str, Any], words: str) -> None:
    pod = tenantpods.spec(ephemeralContainers=[{"name": "debug", "securityContext": context}])
    assert any(words in problem for problem in tenantrule.problems(pod))


@pytest.mark.parametrize(
    "key", ["container.apparmor.security.beta.kubernetes.io/main", "seccomp.security.alpha.kubernetes.io/pod"]
)
def test_a_profile_is_not_turned_off_by_an_annotation(key: str) -> None:
    # an API server makes the field of it, or judges it, before any policy sees the pod
    (problem,) = tenantrule.problems(tenantpods.annotated(key))
    assert problem.startswith(f"annotation {key} asks an engine")


@pytest.mark.parametrize("pod", tenantpods.TAKEN)
def test_a_plain_pod_breaks_no_rule(pod: dict[str, Any]) -> None:
    assert tenantrule.problems(pod) == ()


@pytest.mark.parametrize(
    "pod",
    [
        tenantpods.path("/tmp/../dev"),
        tenantpods.secured(privileged="yes"),
        tenantpods.secured(capabilities={"add": "SYS_ADMIN"}),
        tenantpods.secured(capabilities=["SYS_ADMIN"]),
        tenantpods.spec(volumes=[{"name": "v", "hostPath": "/dev"}]),
        tenantpods.spec(initContainers="x"),
        tenantpods.spec(hostPID=1),
        {"metadata": {"annotations": ["cdi.k8s.io/x"]}},
    ],
)
def test_what_is_not_of_its_fields_type_is_refused(pod: dict[str, Any]) -> None:
    # an API server refuses these before any policy; standalone nothing else reads the fields
    assert tenantrule.problems(pod)


@pytest.mark.parametrize("rule", tenantrule.RULES, ids=lambda rule: rule.name)
def test_every_rule_has_a_pod_that_breaks_it(rule: tenantrule.Rule) -> None:
    own = max(re.split(r"\{\w+\}", rule.message), key=len)
    pods = [pod for pod, _ in (*tenantpods.REFUSED, *tenantpods.UNLISTED)]
    assert any(own in problem for pod in pods for problem in tenantrule.problems(pod, tenantpods.LIMITS))


@pytest.mark.parametrize(("pod", "words"), tenantpods.UNLISTED)
def test_a_namespace_limits_the_images_classes_and_folders_of_its_pods(pod: dict[str, Any], words: str) -> None:
    assert any(words in problem for problem in tenantrule.problems(pod, tenantpods.LIMITS))
    assert tenantrule.problems(pod) == ()


@pytest.mark.parametrize(("pod", "words"), tenantpods.UNLISTED_PATHS)
def test_a_namespace_lists_the_folders_of_its_pods(pod: dict[str, Any], words: str) -> None:
    assert any(words in problem for problem in tenantrule.problems(pod, tenantpods.LIMITS))
    assert tenantrule.problems(pod) != ()


@pytest.mark.parametrize("pod", tenantpods.LISTED)
def test_what_a_namespace_lists_is_taken_there(pod: dict[str, Any]) -> None:
    assert tenantrule.problems(pod, tenantpods.LIMITS) == ()


def test_an_empty_list_is_a_list() -> None:
    assert tenantrule.problems(tenantpods.imaged("x"), {tenantrule.ALLOWED_IMAGES: " , "})
    assert tenantrule.problems(tenantpods.imaged("x"), {tenantrule.ALLOWED_IMAGES: ""})


@pytest.mark.parametrize("listed", [None, "", " , ", "/srv", "/srv/models/"])
def test_a_folder_that_no_annotation_lists_is_refused(listed: str | None) -> None:
    annotations = {} if listed is None else {tenantrule.ALLOWED_PATHS: listed}
    assert tenantrule.problems(tenantpods.path("/srv/models"), annotations)


def test_a_slash_lists_every_folder_but_those_that_lead_to_root() -> None:
    annotations = {tenantrule.ALLOWED_PATHS: "/"}
    assert tenantrule.problems(tenantpods.path("/srv/models"), annotations) == ()
    (problem,) = tenantrule.problems(tenantpods.path("/dev"), annotations)
    assert "leads to GPU devices" in problem


def test_a_volume_of_a_kind_that_nobody_has_heard_of_is_refused_also_beside_a_known_one() -> None:
    kinds: tuple[dict[str, Any], ...] = ({"holoDisk": {}}, {"emptyDir": {}, "holoDisk": {}}, {})
    for kind in kinds:
        (problem,) = tenantrule.problems(tenantpods.spec(volumes=[{"name": "v", **kind}]))
        assert problem.startswith("volume v is of a kind that a tenant's pod may not have; allowed are configMap,")


def test_what_a_link_leads_to_is_judged_like_what_is_written() -> None:
    assert "hostPath /etc/cron.d leads to GPU devices" in tenantrule.leads_astray("/etc/cron.d", ())
    assert tenantrule.leads_astray("/data/docker/volumes", ("/data/docker",))
    assert tenantrule.leads_astray("/data", ("/data/docker",))
    assert tenantrule.leads_astray("/data/dockers", ("/data/docker",)) == ""


def test_the_charts_policy_is_what_the_table_says() -> None:
    # the table has changed: `.venv/bin/python -m tools.render_admission`, then `-m tools.render_chart`
    assert render_admission.path().read_text() == render_admission.text()


def test_the_charts_lists_are_the_tables() -> None:
    values = yaml.safe_load((manifests.CHART / "values.yaml").read_text())["admission"]
    lists = {
        check.value: list(check.allowed if isinstance(check, tenantrule.NotIn) else _refused(check))
        for check in (rule.refuses for rule in tenantrule.RULES)
        if isinstance(check, tenantrule.NotIn | tenantrule.In | tenantrule.LeadsTo) and check.value
    }
    assert {name: value for name, value in values["deviceAccess"].items() if name != "enabled"} == lists
    assert [row["key"] for row in values["tenants"]["matchExpressions"]] == [tenantrule.TENANCY]


def _refused(check: tenantrule.In | tenantrule.LeadsTo) -> tuple[str, ...]:
    return check.refused if isinstance(check, tenantrule.In) else check.guarded
