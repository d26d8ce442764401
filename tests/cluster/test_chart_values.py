"""What the chart promises of its values, as the real helm renders them; no cluster is needed."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from fairlead import settings, telemetry
from fairlead.plan.claim import expression
from fairlead.plan.claim.validate import door
from fairlead.plan.dra import deviceclass
from fairlead.plan.metrics import dcgm
from fairlead.silicon.sim import profile
from fairlead.store.kubernetes import rights
from fairlead.wire.kubernetes.resource import dialect
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from tests.cluster.charts import one, pod, render
from tests.unit.cli.admin import access

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]


_SWITCHES: list[tuple[dict[str, Any], set[str]]] = [
    ({"agent": {"enabled": False}}, {"DaemonSet/fairlead-agent", "ServiceAccount/fairlead-agent"}),
    ({"scheduler": {"enabled": False}}, {"Deployment/fairlead-scheduler", "Role/fairlead-scheduler"}),
    ({"controller": {"enabled": False}}, {"Deployment/fairlead-controller", "ClusterRole/fairlead-controller"}),
    ({"rbac": {"create": False}}, {"ClusterRole/fairlead-agent", "RoleBinding/fairlead-controller"}),
    *(
        ({"admission": {value: {"enabled": False}}}, {f"ValidatingAdmissionPolicy{end}/fairlead-{name}"})
        for value, name in (
            ("deviceAccess", "device-access"),
            ("visibleDevices", "visible-devices"),
            ("ownNode", "own-node"),
        )
        for end in ("", "Binding")
    ),
]


_CLASSES: Final = {f"DeviceClass/{one.metadata.name}" for one in deviceclass.CLASSES}
_CLAIM_CONFIGS: Final = {f"ValidatingAdmissionPolicy{end}/fairlead-claim-configs" for end in ("", "Binding")}


def _names(found: tuple[dict[str, Any], ...]) -> set[str]:
    return {f"{item['kind']}/{item['metadata']['name']}" for item in found}


@pytest.mark.parametrize(("values", "gone"), _SWITCHES)
def test_each_part_can_be_left_out(values: dict[str, Any], gone: set[str]) -> None:
    everything, rest = _names(render()), _names(render(values))
    assert gone <= everything
    assert not gone & rest
    assert rest < everything


@pytest.mark.parametrize(
    ("values", "come"),
    [
        ({"namespace": {"create": True}}, {"Namespace/gpus"}),
        ({"podMonitor": {"enabled": True}}, {"PodMonitor/fairlead"}),
        ({"serviceMonitor": {"enabled": True}}, {"Service/fairlead-metrics", "ServiceMonitor/fairlead"}),
        ({"prometheusRule": {"enabled": True}}, {"PrometheusRule/fairlead"}),
        ({"scheduler": {"podDisruptionBudget": True}}, {"PodDisruptionBudget/fairlead-scheduler"}),
        (
            {"tenancies": {"enabled": True}},
            {
                f"ValidatingAdmissionPolicy{end}/fairlead-tenancy-{name}"
                for name in ("pods", "controller")
                for end in ("", "Binding")
            },
        ),
        ({"runtimeClass": {"create": True}}, {"RuntimeClass/fairlead"}),
        ({"priorityClasses": {"batch": {"value": -10}}}, {"PriorityClass/batch"}),
        ({"dra": {"enabled": True}}, {*_CLASSES, *_CLAIM_CONFIGS}),
        ({"dra": {"enabled": True, "deviceClasses": {"create": False}}}, _CLAIM_CONFIGS),
        (
            {"dra": {"enabled": True}, "admission": {"claimConfigs": {"enabled": False}}},
            _CLASSES,
        ),
    ],
)
def test_each_part_that_is_not_there_can_be_had(values: dict[str, Any], come: set[str]) -> None:
    assert _names(render(values)) - _names(render()) == come


_SETTINGS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"deviceListStrategy": "envvar,cdi-cri"}, {"FAIRLEAD_NODE_DEVICE_LIST_STRATEGY": "envvar,cdi-cri"}),
    ({"deviceIDStrategy": "index"}, {"FAIRLEAD_NODE_DEVICE_ID_STRATEGY": "index"}),
    ({"passDeviceSpecs": True}, {"FAIRLEAD_NODE_PASS_DEVICE_SPECS": "true"}),
    ({"cdi": {"profile": "full", "hookPath": "/usr/bin/fairlead-hook"}},
     {"FAIRLEAD_NODE_CDI_PROFILE": "full", "FAIRLEAD_NODE_CDI_HOOK": "/usr/bin/fairlead-hook"}),
    ({"silicon": {"driverRoot": "/run/nvidia/driver", "devRoot": "/run/nvidia/driver"}},
     {"FAIRLEAD_SILICON_DRIVER_ROOT": "/run/nvidia/driver", "FAIRLEAD_SILICON_DEV_ROOT": "/run/nvidia/driver"}),
    ({"dra": {"enabled": True, "partitions": True, "shares": 4}},
     {"FAIRLEAD_NODE_DOOR": "claims", "FAIRLEAD_NODE_CLAIM_PARTITIONS": "true", "FAIRLEAD_NODE_CLAIM_SHARES": "4"}),
    ({"dra": {"enabled": False}},
     {"FAIRLEAD_NODE_DOOR": "", "FAIRLEAD_NODE_CLAIM_PARTITIONS": "", "FAIRLEAD_NODE_CLAIM_SHARES": ""}),
    ({"silicon": {"simulate": "h100x8"}}, {"FAIRLEAD_SILICON_SIMULATE": "h100x8"}),
]  # fmt: skip


@pytest.mark.parametrize(("values", "wanted"), _SETTINGS)
def test_a_value_for_the_agent_is_a_setting_that_the_agent_takes(
    values: dict[str, Any], wanted: dict[str, str]
) -> None:
    container = pod(render(values), "DaemonSet", "agent")["containers"][0]
    env = {item["name"]: str(item.get("value", "")) for item in container["env"]}
    assert {name: env.get(name, "") for name in wanted} == wanted
    known = {row.env for row in settings.rows()}
    assert env.keys() <= known


# claims


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", ""])
def test_classes_of_devices_are_classes_to_an_api_server(resource: str) -> None:
    found = render({"dra": {"enabled": True, "extendedResourceName": resource}})
    read = [dialect.read(item) for item in found if item["kind"] == "DeviceClass"]
    assert [one.ignored for one in read] == [()] * len(deviceclass.CLASSES)
    classes = {one.item.metadata.name: one.item for one in read if isinstance(one.item, DeviceClass)}
    for item in classes.values():
        door.admit_class(item, expression.rules())
    assert classes["gpu.nvidia.com"].spec.extended_resource_name == (resource or None)
    assert classes["mig.nvidia.com"].spec.extended_resource_name is None
    assert {one.metadata.name: one.spec.selectors for one in deviceclass.CLASSES} == {
        name: item.spec.selectors for name, item in classes.items()
    }


_REPORTS = {
    (f"{whose}{verb}", resource)
    for whose, resource in (("", "resourceclaims/status"), ("associated-node:", "resourceclaims/driver"))
    for verb in ("patch", "update")
}
"""What a driver needs from Kubernetes 1.36 on to say how far devices are prepared; without it, it says nothing."""


def test_an_agent_may_publish_and_prepare_where_claims_are_on_and_for_its_own_node() -> None:
    before, after = render(), render({"dra": {"enabled": True}})
    wanted = {(right.verb, right.resource) for right in rights.CLAIMS}
    assert _resource_rights(after) - _resource_rights(before) == wanted | _REPORTS
    rules = one(after, "ValidatingAdmissionPolicy", "own-node")["spec"]["matchConstraints"]["resourceRules"]
    assert any(rule["resources"] == ["resourceslices"] and "DELETE" in rule["operations"] for rule in rules)


def test_a_driver_of_claims_has_the_folders_of_the_kubelets_plugins() -> None:
    spec = pod(render({"dra": {"enabled": True}}), "DaemonSet", "agent")
    places = {item["name"]: item["hostPath"]["path"] for item in spec["volumes"] if "hostPath" in item}
    folders = ("/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry")
    assert (places["plugins"], places["plugins-registry"]) == folders
    assert set(folders) <= {item["mountPath"] for item in spec["containers"][0]["volumeMounts"]}


def _resource_rights(found: tuple[dict[str, Any], ...]) -> set[tuple[str, str]]:
    rules = one(found, "ClusterRole", "fairlead-agent")["rules"]
    return {
        (verb, resource)
        for rule in rules
        if rule["apiGroups"] == ["resource.k8s.io"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }


# nodes


def _terms(found: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    """Return the expressions any one of which chooses a node for the agent."""
    affinity = pod(found, "DaemonSet", "agent").get("affinity", {})
    wanted = affinity.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    return [expression for term in wanted.get("nodeSelectorTerms", []) for expression in term["matchExpressions"]]


def test_an_agent_of_hardware_goes_to_nodes_that_are_known_to_have_gpus() -> None:
    keys = {expression["key"] for expression in _terms(render())}
    assert {"nvidia.com/gpu.present", "accelerator", "feature.node.kubernetes.io/pci-10de.present"} <= keys


@pytest.mark.parametrize("values", [{"silicon": {"simulate": "h100x8"}}, {"agent": {"gpuNodes": None}}])
def test_an_agent_of_simulated_silicon_or_of_no_marks_goes_to_every_node(values: dict[str, Any]) -> None:
    assert _terms(render(values)) == []
    assert pod(render(values), "DaemonSet", "agent")["nodeSelector"] == {"kubernetes.io/os": "linux"}


def test_an_affinity_of_ones_own_takes_the_place_of_ours() -> None:
    mine: dict[str, Any] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert pod(render({"agent": {"affinity": mine}}), "DaemonSet", "agent")["affinity"] == mine


# monitoring


def test_alerts_name_metrics_and_labels_that_there_are() -> None:
    found = one(render({"prometheusRule": {"enabled": True, "alertLabels": {"team": "gpus"}}}), "PrometheusRule")
    ours, gpus = found["spec"]["groups"]
    metrics = {metric.name: metric for metric in vars(telemetry).values() if isinstance(metric, telemetry.Metric)}
    rules = [*ours["rules"], *gpus["rules"]]
    assert len(rules) == len({rule["alert"] for rule in rules}) > 9
    assert all(rule["labels"]["team"] == "gpus" for rule in rules)
    served = {*(row.name for row in dcgm.FIELDS), dcgm.XID[0], dcgm.XID_COUNT[0], dcgm.HEALTH[0]}
    for rule in gpus["rules"]:
        assert set(re.findall(r"DCGM_\w+|fairlead_\w+", rule["expr"])) <= served, rule
    for rule in ours["rules"]:
        used = re.findall(r"(fairlead_\w+)\{ namespace=\"gpus\"(?:, (\w+)=)?", rule["expr"])
        assert used, rule
        for name, label in used:
            assert not label or label in metrics[name].labels, rule


def test_the_service_of_metrics_finds_the_pods_and_the_monitor_finds_the_service() -> None:
    found = render({"serviceMonitor": {"enabled": True}})
    service, monitor = one(found, "Service"), one(found, "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    for kind, name in (("DaemonSet", "agent"), ("Deployment", "scheduler"), ("Deployment", "controller")):
        workload = one(found, kind, name)["spec"]["template"]
        assert service["spec"]["selector"].items() <= workload["metadata"]["labels"].items()
        ports = {port["name"] for port in workload["spec"]["containers"][0]["ports"]}
        # only agents have GPUs; a Service leaves out what a pod's ports do not name
        expected = {"monitor", "gpu-metrics"} if name == "agent" else {"monitor"}
        assert ports == {port["targetPort"] for port in service["spec"]["ports"]} & expected


def test_no_port_is_open_for_metrics_that_are_not_wanted() -> None:
    found = render(
        {"metrics": {"enabled": False}, "serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}
    )
    container = pod(found, "DaemonSet", "agent")["containers"][0]
    assert {item["name"]: item.get("value") for item in container["env"]}["FAIRLEAD_NODE_METRICS"] == "none"
    assert "gpu-metrics" not in str(found)


# configuration


def _agent(**values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the agent's variables and volumes, by name."""
    found = pod(render(values), "DaemonSet", "agent")
    variables = {item["name"]: item.get("value") for item in found["containers"][0]["env"]}
    return variables, {item["name"]: item for item in found["volumes"]}


def test_configuration_files_become_a_configmap_that_the_agent_reads() -> None:
    files = {"default": "version: v1\n", "shared": "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}"}
    made = one(render({"config": {"map": files}}), "ConfigMap", "configs")
    assert made["data"] == files
    variables, volumes = _agent(config={"map": files, "default": "shared", "fallbackStrategies": ["empty"]})
    assert volumes["configs"]["configMap"]["name"] == made["metadata"]["name"]
    assert variables["FAIRLEAD_PLUGIN_CONFIG_FOLDER"] == "/available-configs"
    assert variables["FAIRLEAD_PLUGIN_CONFIG_DEFAULT"] == "shared"
    assert variables["FAIRLEAD_PLUGIN_CONFIG_FALLBACKS"] == "empty"


def test_an_existing_configmap_is_named_and_none_is_made() -> None:
    _, volumes = _agent(config={"name": "mine"})
    assert volumes["configs"]["configMap"]["name"] == "mine"
    assert not any(item["kind"] == "ConfigMap" for item in render({"config": {"name": "mine"}}))


def test_defaults_leave_the_flags_to_the_configuration_file() -> None:
    ours = ("FAIRLEAD_NODE_DEVICE", "FAIRLEAD_NODE_PASS", "FAIRLEAD_NODE_MIG", "FAIRLEAD_PLUGIN")
    variables, volumes = _agent()
    assert [name for name in variables if name.startswith(ours)] == []
    assert "configs" not in volumes
    chosen, _ = _agent(
        deviceListStrategy="envvar", migStrategy="mixed", sharedDevicesAllocationPolicy="packed", passDeviceSpecs=True
    )
    assert chosen["FAIRLEAD_NODE_DEVICE_LIST_STRATEGY"] == "envvar"
    assert chosen["FAIRLEAD_NODE_MIG_STRATEGY"] == "mixed"
    assert chosen["FAIRLEAD_PLUGIN_SHARING_POLICY"] == "packed"
    assert chosen["FAIRLEAD_NODE_PASS_DEVICE_SPECS"] == "true"


# the rest


def _security(**values: Any) -> dict[str, Any]:
    found: dict[str, Any] = pod(render(values), "DaemonSet", "agent")["containers"][0]["securityContext"]
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
    assert "hostPID" not in pod(render(simulated), "DaemonSet", "agent")
    found = pod(render({**simulated, "trace": {"readBack": True}}), "DaemonSet", "agent")
    assert found["hostPID"] is True
    added = found["containers"][0]["securityContext"]["capabilities"]["add"]
    assert added == ["MKNOD", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"]


def test_an_agent_of_hardware_names_paths_of_the_node() -> None:
    container = pod(render({"silicon": {"driverRoot": "/run/nvidia/driver"}}), "DaemonSet", "agent")["containers"][0]
    env = {item["name"]: item.get("value") for item in container["env"]}
    mounts = {item["mountPath"]: item for item in container["volumeMounts"]}
    assert env["FAIRLEAD_SILICON_ROOT"] == env["FAIRLEAD_NODE_HOST_MOUNT"] == "/host"
    assert env["FAIRLEAD_SILICON_DRIVER_ROOT"] == "/run/nvidia/driver"
    assert mounts["/host"]["readOnly"] is True
    assert container["securityContext"]["privileged"] is True


def test_every_profile_of_simulated_silicon_can_be_named() -> None:
    for name in profile.list_names():
        render({"silicon": {"simulate": name}})


def test_what_helm_does_at_moments_of_a_release_is_left_to_helm() -> None:
    plain = render()
    hooks = [item for item in render(hooks=True) if item not in plain]
    moments = {(item["kind"], item["metadata"]["annotations"]["helm.sh/hook"]) for item in hooks}
    assert moments >= {("Job", "post-delete"), ("ClusterRole", "post-delete"), ("Pod", "test")}


def test_the_removals_role_is_exactly_what_the_page_says() -> None:
    assert access.granted(render(hooks=True), "withdraw") == access.documented("withdraw")


def test_the_controller_may_keep_tenancies_only_where_that_is_asked_for() -> None:
    plain, found = render(), render({"tenancies": {"enabled": True, "networks": ["10.96.0.0/12"]}})
    more = access.granted(found, "fairlead-controller") - access.granted(plain, "fairlead-controller")
    both = access.granted(plain, "fairlead-controller") & access.documented("tenancies")
    assert more | both == access.documented("tenancies") == {(one.verb, one.full) for one in rights.TENANCIES}
    container = pod(found, "Deployment", "controller")["containers"][0]
    assert {"name": "FAIRLEAD_CONTROL_TENANCIES", "value": "true"} in container["env"]
    assert {"name": "FAIRLEAD_CONTROL_TENANCY_NETWORKS", "value": "10.96.0.0/12"} in container["env"]
    assert not any(one["name"].startswith("FAIRLEAD_CONTROL_TENANC") for one in _env(plain))


def _env(found: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    env: list[dict[str, Any]] = pod(found, "Deployment", "controller")["containers"][0]["env"]
    return env


def test_each_pool_has_a_scheduler_and_a_lease_of_its_own_and_one_has_the_rest() -> None:
    plain, label = _names(render()), "example.com/pool"
    found = render({"scheduler": {"sharding": {"label": label, "pools": ["training"]}, "podDisruptionBudget": True}})
    pool = "fairlead-scheduler-training"
    own = {f"Deployment/{pool}", f"Lease/{pool}", f"PodDisruptionBudget/{pool}"}
    assert _names(found) - plain == own | {"PodDisruptionBudget/fairlead-scheduler"}
    for name, value in (("fairlead-scheduler", ""), (pool, "training")):
        deployment, spec = one(found, "Deployment", name), pod(found, "Deployment", name)
        container = spec["containers"][0]
        env = {item["name"]: item.get("value") for item in container["env"]}
        assert (env["FAIRLEAD_CONTROL_SHARD_LABEL"], env["FAIRLEAD_CONTROL_SHARD"]) == (label, value)
        assert container["args"] == ["scheduler"]
        assert spec["serviceAccountName"] == "fairlead-scheduler"
        component = deployment["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        assert component == name.removeprefix("fairlead-")
    held = [rule for rule in one(found, "Role", "fairlead-scheduler")["rules"] if "resourceNames" in rule]
    assert held[0]["resourceNames"] == ["fairlead-scheduler", pool]


def test_the_scheduler_answers_to_the_name_of_the_values() -> None:
    container = pod(render({"scheduler": {"name": "gpus"}}), "Deployment", "scheduler")["containers"][0]
    assert {"name": "FAIRLEAD_CONTROL_SCHEDULER_NAME", "value": "gpus"} in container["env"]
