"""The objects that `fairlead manifests` ships: their order, their roles, what they promise with the default values."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
import yaml

import fairlead
from fairlead import settings
from fairlead.cli.admin import manifests
from fairlead.cli.process import agent
from fairlead.silicon.sim import profile
from fairlead.wire.kubernetes import gpudevice
from tests.cluster import charts
from tests.unit.cli.admin import access
from tools import render_schema

HARDWARE = manifests.load("hardware")
SIMULATED = manifests.load("simulated")


def test_chart_and_program_have_one_version() -> None:
    about = yaml.safe_load((manifests.CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (fairlead.__version__, fairlead.__version__)
    image = charts.pod(HARDWARE, "DaemonSet", "agent")["containers"][0]["image"]
    assert image == f"fairlead/fairlead:{fairlead.__version__}"


@pytest.mark.parametrize("found", [HARDWARE, SIMULATED])
def test_objects_come_in_an_order_in_which_they_can_be_made(found: tuple[dict[str, Any], ...]) -> None:
    grouped = [kind for kind, _ in itertools.groupby(item["kind"] for item in found)]
    assert grouped[:2] == ["Namespace", "CustomResourceDefinition"]
    assert grouped.index("ServiceAccount") < grouped.index("RoleBinding") < grouped.index("DaemonSet")


@pytest.mark.parametrize("found", [HARDWARE, SIMULATED])
def test_nothing_of_a_namespace_goes_anywhere_but_to_the_releases(found: tuple[dict[str, Any], ...]) -> None:
    assert {item["metadata"].get("namespace") for item in found} == {None, "fairlead"}


@pytest.mark.parametrize("found", [HARDWARE, SIMULATED])
def test_every_variable_of_every_container_is_a_setting(found: tuple[dict[str, Any], ...]) -> None:
    known = {row.env for row in settings.rows()}
    workloads = [item for item in found if item["kind"] in {"DaemonSet", "Deployment"}]
    assert len(workloads) == 3
    used = {env["name"] for item in workloads for env in item["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert used <= known


def test_every_setting_of_the_agent_and_no_other_is_a_value_of_the_chart() -> None:
    schema = json.loads((manifests.CHART / "values.schema.json").read_text())
    given = schema["properties"]["agent"]["properties"]["settings"]
    options = {word for option in agent.agent.params for word in option.opts}
    taken = {row.key for row in settings.rows() if f"--{row.key.replace('.', '-').replace('_', '-')}" in options}
    assert (set(given["properties"]), given["additionalProperties"]) == (taken, False), (
        "a wrong name is refused by helm"
    )


def test_the_charts_schema_has_the_registrys_settings() -> None:
    # a setting has changed: `.venv/bin/python -m tools.render_schema`, then `-m tools.render_chart`
    assert render_schema.path().read_text() == render_schema.text()


def accepts(schema: dict[str, Any], value: object) -> bool:
    """Whether a value is of a schema's type, enumeration and pattern, as helm judges it."""
    kinds: dict[str, type | tuple[type, ...]] = {
        "string": str,
        "boolean": bool,
        "integer": int,
        "number": (int, float),
        "array": list,
        "object": dict,
    }
    if "enum" in schema and value not in schema["enum"]:
        return False
    named = schema.get("type", [])
    types = [named] if isinstance(named, str) else named
    if types and not any(
        isinstance(value, kinds[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in types
    ):
        return False
    return not isinstance(value, str) or re.search(schema.get("pattern", ""), value) is not None


def test_a_value_that_would_end_a_component_at_its_start_is_refused_by_the_chart() -> None:
    values = json.loads((manifests.CHART / "values.schema.json").read_text())["properties"]
    machine = values["silicon"]["properties"]["simulate"]
    assert all(accepts(machine, name) for name in ("", *profile.list_names()))
    assert not any(accepts(machine, name) for name in ("h100x9", "h100x8 ", "H100X8"))
    networks = values["tenancies"]["properties"]["networks"]["items"]
    assert all(accepts(networks, text) for text in ("10.0.0.0/8", "0.0.0.0/0", "192.168.1.255/32", "fd00::/8", "::/0"))
    for wrong in ("10.0.0.0/33", "10.0.0/8", "256.0.0.0/8", "fd00::/129", "10.0.0.0/", "x/8", "10.0.0.0/08"):
        assert not accepts(networks, wrong), wrong


def test_a_setting_of_the_agent_has_its_type_in_the_chart_too() -> None:
    schema = json.loads((manifests.CHART / "values.schema.json").read_text())
    chart = schema["properties"]["agent"]["properties"]["settings"]
    for row in render_schema.rows():
        own = chart["properties"][row.key]
        default = "" if row.default is None else row.default
        assert accepts(own, default if isinstance(default, bool | int | float) else str(default)), row.key
        if row.choices or row.type in {bool, int, float}:
            assert not accepts(own, "certainly not"), row.key
            assert not accepts(own, []), row.key
        if row.type in {int, float}:
            assert not accepts(own, value=True), row.key


def test_services_variables_never_reach_a_container() -> None:
    # a Service called fairlead-x would bring FAIRLEAD_X_PORT, an unknown setting
    for kind, name in (("DaemonSet", "agent"), ("Deployment", "scheduler"), ("Deployment", "controller")):
        assert charts.pod(HARDWARE, kind, name)["enableServiceLinks"] is False


def test_two_agents_are_never_on_a_node_by_a_rollout() -> None:
    strategy = charts.one(HARDWARE, "DaemonSet")["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}


def test_nothing_keeps_a_cluster_of_one_node_from_being_drained() -> None:
    assert "PodDisruptionBudget" not in {item["kind"] for item in HARDWARE}


def test_policies_and_roles_name_our_kind_as_it_is() -> None:
    definition = charts.one(HARDWARE, "CustomResourceDefinition", "gpudevices.fairlead.dev")
    assert definition["spec"]["group"] == gpudevice.API_VERSION.partition("/")[0]
    rules = charts.one(HARDWARE, "ValidatingAdmissionPolicy", "own-node")["spec"]["matchConstraints"]["resourceRules"]
    assert rules[1]["apiGroups"] == [definition["spec"]["group"]]
    assert definition["spec"]["names"]["plural"] in rules[1]["resources"]


@pytest.mark.parametrize("who", ["agent", "scheduler", "controller", "viewer"])
def test_a_role_is_exactly_what_the_page_says_its_process_asks_for(who: str) -> None:
    assert access.documented(who)
    assert access.granted(HARDWARE, who) == access.documented(who)


def test_leases_are_named_as_the_processes_name_them() -> None:
    for who in ("scheduler", "controller"):
        rules = charts.one(HARDWARE, "Role", who)["rules"]
        assert [rule.get("resourceNames") for rule in rules] == [None, [f"fairlead-{who}"]]
