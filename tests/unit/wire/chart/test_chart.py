"""The chart without helm: values laid over each other, refusals, order; and what our own chart promises."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead import errors, settings
from fairlead.cli.admin import manifests
from fairlead.silicon.sim import profile
from fairlead.wire.chart import files as chart
from fairlead.wire.kubernetes import gpudevice
from tests.unit.wire.chart import templatecases

ROOT = Path(__file__).parents[4]
OURS = chart.load(manifests.FOLDER)


def objects(
    *given: Mapping[str, Any], name: str = "fairlead", crds: bool = True, hooks: bool = False
) -> tuple[dict[str, Any], ...]:
    return chart.render(OURS, given, name=name, namespace="gpus", crds=crds, hooks=hooks)


def one(found: tuple[dict[str, Any], ...], kind: str, name: str = "") -> dict[str, Any]:
    (item,) = (item for item in found if item["kind"] == kind and item["metadata"]["name"].endswith(name))
    return item


def pod(found: tuple[dict[str, Any], ...], kind: str, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = one(found, kind, name)["spec"]["template"]["spec"]
    return spec


# values


@pytest.mark.parametrize(("text", "values"), templatecases.SETTINGS)
def test_a_setting_is_read_as_helm_reads_it(text: str, values: dict[str, Any]) -> None:
    assert chart.parse_setting(text) == values


def test_a_setting_that_is_to_be_text_stays_text() -> None:
    assert chart.parse_setting("a=1,b=true,c={1,2}", is_text=True) == {"a": "1", "b": "true", "c": ["1", "2"]}


@pytest.mark.parametrize("text", ["a", "=1", "a..b=1", "a[0]=1", ""])
def test_what_sets_nothing_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid, match="sets no value"):
        chart.parse_setting(text)


def test_maps_are_merged_lists_replaced_and_null_removes() -> None:
    base = {"a": {"x": 1, "y": 2}, "b": [1], "c": 3}
    assert chart.merge(base, {"a": {"x": None, "z": 4}, "b": [2], "c": {"d": 5}}) == {
        "a": {"y": 2, "z": 4},
        "b": [2],
        "c": {"d": 5},
    }


@pytest.mark.parametrize(
    ("data", "kind"), [(b"- a", errors.Invalid), (b"a: [", errors.ProtocolError), (b"a: 1\na: 2", errors.ProtocolError)]
)
def test_a_values_file_that_is_none_is_refused(data: bytes, kind: type[errors.FairleadError]) -> None:
    with pytest.raises(kind):
        chart.parse_values(data, name="values.yaml")


def test_an_empty_values_file_has_no_values() -> None:
    assert chart.parse_values(b"# nothing\n", name="values.yaml") == {}


def test_a_later_value_wins_and_a_null_brings_the_end_of_a_default() -> None:
    found = objects({"agent": {"nodeSelector": {"a": "b"}}}, {"agent": {"nodeSelector": {"kubernetes.io/os": None}}})
    assert pod(found, "DaemonSet", "agent")["nodeSelector"] == {"a": "b"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"agnet": {}}, 'did you mean "agent"'),
        ({"silicon": {"simulate": 8}}, "silicon.simulate = 8 is not of type string"),
        ({"image": {"repository": "a:b"}}, "image.repository"),
        ({"resource": "gpu'"}, "resource"),
        ({"monitor": {"host": "localhost"}}, "monitor.host"),
    ],
)
def test_a_value_that_breaks_the_schema_is_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        objects(values)
    assert said in caught.value.message


def test_a_chart_that_cannot_be_read_says_which(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable, match=str(tmp_path)):
        chart.load(tmp_path)


def test_a_template_that_writes_no_object_is_refused() -> None:
    with pytest.raises(errors.ProtocolError, match="no Kubernetes object"):
        chart.parse_objects("kind: Pod\n")


def test_what_is_emitted_is_read_back_as_the_same() -> None:
    found = objects({"namespace": {"create": True}})
    assert tuple(chart.parse_objects(chart.emit(found))) == found


# our chart


def test_chart_and_program_have_one_version() -> None:
    assert (OURS.about["version"], OURS.about["appVersion"]) == (fairlead.__version__, fairlead.__version__)


def test_objects_come_in_an_order_in_which_they_can_be_made() -> None:
    kinds = [item["kind"] for item in objects({"namespace": {"create": True}})]
    grouped = [kind for kind, _ in itertools.groupby(kinds)]
    assert grouped[:2] == ["Namespace", "CustomResourceDefinition"]
    assert len(grouped) == len(set(grouped))
    assert grouped.index("ServiceAccount") < grouped.index("RoleBinding") < grouped.index("DaemonSet")


def test_nothing_of_a_namespace_goes_anywhere_but_to_the_releases() -> None:
    spaces = {item["metadata"].get("namespace") for item in objects(crds=False)}
    assert spaces == {None, "gpus"}


_SWITCHES: list[tuple[dict[str, Any], set[str]]] = [
    ({"agent": {"enabled": False}}, {"DaemonSet/fairlead-agent", "ServiceAccount/fairlead-agent"}),
    ({"scheduler": {"enabled": False}}, {"Deployment/fairlead-scheduler", "Role/fairlead-scheduler"}),
    ({"controller": {"enabled": False}}, {"Deployment/fairlead-controller", "ClusterRole/fairlead-controller"}),
    ({"scheduler": {"podDisruptionBudget": False}}, {"PodDisruptionBudget/fairlead-scheduler"}),
    ({"rbac": {"create": False}}, {"ClusterRole/fairlead-agent", "RoleBinding/fairlead-controller"}),
    *(
        ({"admission": {value: {"enabled": False}}}, {f"ValidatingAdmissionPolicy{end}/fairlead-{name}"})
        for value, name in (
            ("deviceAccess", "device-access"),
            ("hostNamespaces", "host-namespaces"),
            ("visibleDevices", "visible-devices"),
            ("ownNode", "own-node"),
        )
        for end in ("", "Binding")
    ),
]


def _names(found: tuple[dict[str, Any], ...]) -> set[str]:
    return {f"{item['kind']}/{item['metadata']['name']}" for item in found}


@pytest.mark.parametrize(("values", "gone"), _SWITCHES)
def test_each_part_can_be_left_out(values: dict[str, Any], gone: set[str]) -> None:
    everything, rest = _names(objects()), _names(objects(values))
    assert gone <= everything
    assert not gone & rest
    assert rest < everything


@pytest.mark.parametrize(
    ("values", "come"),
    [
        ({"namespace": {"create": True}}, {"Namespace/gpus"}),
        ({"podMonitor": {"enabled": True}}, {"PodMonitor/fairlead"}),
        ({"runtimeClass": {"create": True}}, {"RuntimeClass/fairlead"}),
        ({"priorityClasses": {"batch": {"value": -10}}}, {"PriorityClass/batch"}),
    ],
)
def test_each_part_that_is_not_there_can_be_had(values: dict[str, Any], come: set[str]) -> None:
    assert _names(objects(values)) - _names(objects()) == come


def test_every_variable_of_every_container_is_a_setting() -> None:
    known = {row.env for row in settings.rows()}
    for values in ({}, {"silicon": {"simulate": "h100x8"}}):
        found = objects(values)
        workloads = [item for item in found if item["kind"] in {"DaemonSet", "Deployment"}]
        used = {env["name"] for item in workloads for env in item["spec"]["template"]["spec"]["containers"][0]["env"]}
        assert used <= known


def test_services_variables_never_reach_a_container() -> None:
    # a Service called fairlead-x would bring FAIRLEAD_X_PORT, an unknown setting
    for kind, name in (("DaemonSet", "agent"), ("Deployment", "scheduler"), ("Deployment", "controller")):
        assert pod(objects(), kind, name)["enableServiceLinks"] is False


def _security(**values: Any) -> dict[str, Any]:
    found: dict[str, Any] = pod(objects(values), "DaemonSet", "agent")["containers"][0]["securityContext"]
    return found


def test_an_agent_of_simulated_silicon_may_make_device_nodes_and_nothing_else() -> None:
    context = _security(silicon={"simulate": "h100x8"})
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["MKNOD"]}
    assert context["allowPrivilegeEscalation"] is False
    assert "privileged" not in context


def test_an_agent_that_an_engine_hands_the_gpus_to_has_no_capability() -> None:
    context = _security(agent={"privileged": False, "runtimeClassName": "nvidia"})
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_reading_back_costs_what_the_docs_say_and_only_where_it_is_on() -> None:
    simulated = {"silicon": {"simulate": "h100x8"}}
    assert "hostPID" not in pod(objects(simulated), "DaemonSet", "agent")
    found = pod(objects({**simulated, "trace": {"readBack": True}}), "DaemonSet", "agent")
    assert found["hostPID"] is True
    added = found["containers"][0]["securityContext"]["capabilities"]["add"]
    assert added == ["MKNOD", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"]


def test_an_agent_of_hardware_names_paths_of_the_node() -> None:
    container = pod(objects({"silicon": {"driverRoot": "/run/nvidia/driver"}}), "DaemonSet", "agent")["containers"][0]
    env = {item["name"]: item.get("value") for item in container["env"]}
    mounts = {item["mountPath"]: item for item in container["volumeMounts"]}
    assert env["FAIRLEAD_SILICON_ROOT"] == env["FAIRLEAD_NODE_HOST_MOUNT"] == "/host"
    assert env["FAIRLEAD_SILICON_DRIVER_ROOT"] == "/run/nvidia/driver"
    assert mounts["/host"]["readOnly"] is True
    assert container["securityContext"]["privileged"] is True


def test_two_agents_are_never_on_a_node_by_a_rollout() -> None:
    strategy = one(objects(), "DaemonSet")["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}


def test_every_profile_of_simulated_silicon_can_be_named() -> None:
    for name in profile.list_names():
        objects({"silicon": {"simulate": name}})


def test_what_helm_does_after_a_removal_is_left_to_helm() -> None:
    hooks = [item for item in objects(hooks=True) if item not in objects()]
    assert {item["kind"] for item in hooks} >= {"Job", "ServiceAccount", "ClusterRole"}
    assert {item["metadata"]["annotations"]["helm.sh/hook"] for item in hooks} == {"post-delete"}


def test_the_definitions_of_kinds_can_be_left_out() -> None:
    assert {item["kind"] for item in objects()} - {item["kind"] for item in objects(crds=False)} == {
        "CustomResourceDefinition"
    }


def test_policies_and_roles_name_our_kind_as_it_is() -> None:
    definition = one(objects(), "CustomResourceDefinition")
    assert definition["spec"]["group"] == gpudevice.API_VERSION.partition("/")[0]
    rules = one(objects(), "ValidatingAdmissionPolicy", "own-node")["spec"]["matchConstraints"]["resourceRules"]
    assert rules[1]["apiGroups"] == [definition["spec"]["group"]]
    assert definition["spec"]["names"]["plural"] in rules[1]["resources"]


# roles


def _granted(found: tuple[dict[str, Any], ...], who: str) -> set[tuple[str, str]]:
    """Return (verb, resource) of the component's roles."""
    roles = [
        item for item in found if item["kind"] in {"ClusterRole", "Role"} and item["metadata"]["name"].endswith(who)
    ]
    return {
        (verb, resource)
        for role in roles
        for rule in role["rules"]
        for verb, resource in itertools.product(rule["verbs"], rule["resources"])
    }


_VERBS = {"get", "list", "watch", "create", "update", "patch", "delete"}


def _documented(who: str) -> set[tuple[str, str]]:
    rows = re.findall(
        r"^\| (\w+) \| ([a-z, ]+) \| ([a-z/]+)", (ROOT / "docs/design/cluster-access.md").read_text(), re.M
    )
    asked = [
        (verbs.split(", "), resource)
        for name, verbs, resource in rows
        if name == who and set(verbs.split(", ")) <= _VERBS
    ]
    return {(verb, resource) for verbs, resource in asked for verb in verbs}


@pytest.mark.parametrize("who", ["agent", "scheduler", "controller", "viewer", "withdraw"])
def test_a_role_is_exactly_what_the_page_says_its_process_asks_for(who: str) -> None:
    assert _documented(who)
    assert _granted(objects(hooks=True), who) == _documented(who)


def test_leases_are_named_as_the_processes_name_them() -> None:
    for who in ("scheduler", "controller"):
        rules = one(objects({}, name="fairlead"), "Role", who)["rules"]
        assert [rule.get("resourceNames") for rule in rules] == [None, [f"fairlead-{who}"]]


def test_the_scheduler_answers_to_the_name_of_the_values() -> None:
    container = pod(objects({"scheduler": {"name": "gpus"}}), "Deployment", "scheduler")["containers"][0]
    assert {"name": "FAIRLEAD_CONTROL_SCHEDULER_NAME", "value": "gpus"} in container["env"]
