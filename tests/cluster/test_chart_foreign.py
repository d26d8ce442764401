"""Values that users of NVIDIA's charts know by name: those with a meaning here have it, the others are answered."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from fairlead import settings
from tests.cluster.charts import one, pod, render

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]

GROUPS = ("state", "silicon", "node", "plugin", "labels", "health", "cluster", "log", "debug")


def agent(*values: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the agent's variables, the last of a name, and its volumes."""
    found = pod(render(*values), "DaemonSet", "agent")
    variables = {item["name"]: str(item.get("value", "")) for item in found["containers"][0]["env"]}
    return variables, {item["name"]: item for item in found["volumes"]}


PLUGIN_CHART: dict[str, Any] = {
    "config": {"map": {"default": "version: v1\n"}, "default": "default", "fallbackStrategies": ["named", "single"]},
    "compatWithCPUManager": True,
    "migStrategy": "mixed",
    "failOnInitError": False,
    "deviceListStrategy": "envvar",
    "deviceIDStrategy": "index",
    "nvidiaDriverRoot": "/run/nvidia/driver",
    "gdrcopyEnabled": None,
    "gdsEnabled": True,
    "mofedEnabled": None,
    "deviceDiscoveryStrategy": "auto",
    "gfd": {"enabled": True, "noTimestamp": True, "sleepInterval": "60s"},
    "mps": {"root": "/run/nvidia/mps", "enableHostPID": True},
    "cdi": {"nvidiaHookPath": None},
    "nfd": {"enabled": False},
    "devicePlugin": {"enabled": True},
    "image": {"pullPolicy": "IfNotPresent"},
    "tolerations": [],
    "imagePullSecrets": [],
}
OPERATOR_CHART: dict[str, Any] = {
    "driver": {"enabled": False},
    "toolkit": {"enabled": False},
    "devicePlugin": {"enabled": True, "config": {"name": "plugin-configs", "default": "shared"}},
    "gfd": {"enabled": True},
    "dcgm": {"enabled": False},
    "dcgmExporter": {"enabled": False},
    "mig": {"strategy": "single"},
    "migManager": {"enabled": True, "config": {"name": "mig-configs", "default": "all-1g.10gb"}},
    "cdi": {"enabled": True, "default": True},
    "operator": {"defaultRuntime": "containerd"},
    "validator": {"plugin": {"env": []}},
    "sandboxWorkloads": {"enabled": False},
    "nfd": {"enabled": False},
}


def test_a_file_of_values_of_the_device_plugins_chart_renders_with_its_meaning() -> None:
    variables, volumes = agent(PLUGIN_CHART)
    wanted = {
        "FAIRLEAD_NODE_PASS_DEVICE_SPECS": "true",
        "FAIRLEAD_NODE_MIG_STRATEGY": "mixed",
        "FAIRLEAD_NODE_DEVICE_LIST_STRATEGY": "envvar",
        "FAIRLEAD_NODE_DEVICE_ID_STRATEGY": "index",
        "FAIRLEAD_SILICON_DRIVER_ROOT": "/run/nvidia/driver",
        "FAIRLEAD_SILICON_DISCOVERY": "auto",
        "FAIRLEAD_LABELS_NO_TIMESTAMP": "true",
        "FAIRLEAD_PLUGIN_CONFIG_DEFAULT": "default",
        "FAIRLEAD_PLUGIN_MPS_ROOT": "/run/nvidia/mps",
    }
    assert (variables["FAIRLEAD_PLUGIN_GDS"], variables.get("FAIRLEAD_PLUGIN_MOFED")) == ("true", None)
    assert {name: variables.get(name) for name in wanted} == wanted
    assert "configs" in volumes
    assert volumes["mps"]["hostPath"]["path"] == "/run/nvidia/mps"
    assert variables.keys() <= {row.env for row in settings.rows()}


def test_a_file_of_values_of_the_operators_chart_renders_with_its_meaning() -> None:
    variables, volumes = agent(OPERATOR_CHART)
    assert variables["FAIRLEAD_NODE_MIG_STRATEGY"] == "single"
    assert variables["FAIRLEAD_NODE_MIG_CONFIG"] == "all-1g.10gb"
    assert variables["FAIRLEAD_NODE_MIG_CONFIG_FILE"] == "/mig-configs/config.yaml"
    assert variables["FAIRLEAD_NODE_METRICS"] == "none"
    assert variables["FAIRLEAD_PLUGIN_CONFIG_DEFAULT"] == "shared"
    assert volumes["mig-configs"]["configMap"]["name"] == "mig-configs"
    assert volumes["configs"]["configMap"]["name"] == "plugin-configs"


def test_the_exporters_list_of_counters_is_mounted() -> None:
    for values in ({"dcgmExporter": {"config": {"name": "counters"}}}, {"metrics": {"counters": "counters"}}):
        variables, volumes = agent(values)
        assert variables["FAIRLEAD_NODE_METRICS_COUNTERS"] == "/counters/dcgm-metrics.csv"
        assert volumes["counters"]["configMap"]["name"] == "counters"


def test_our_own_name_wins_over_nvidias() -> None:
    variables, _ = agent(
        {"silicon": {"driverRoot": "/ours"}, "nvidiaDriverRoot": "/theirs"},
        {
            "migStrategy": "mixed",
            "mig": {"strategy": "single", "config": "a"},
            "migManager": {"config": {"default": "b"}},
        },
    )
    assert variables["FAIRLEAD_SILICON_DRIVER_ROOT"] == "/ours"
    assert variables["FAIRLEAD_NODE_MIG_STRATEGY"] == "mixed"
    assert variables["FAIRLEAD_NODE_MIG_CONFIG"] == "a"


def test_what_means_nothing_here_is_answered_with_what_to_write_all_at_once() -> None:
    with pytest.raises(SystemExit) as caught:
        render(
            {
                "driver": {"enabled": True},
                "toolkit": {"enabled": True},
                "tolerations": [{"operator": "Exists"}],
                "daemonsets": {"tolerations": [{"operator": "Exists"}]},
                "gds": {"enabled": True},
                "devicePlugin": {"enabled": False},
                "deviceDiscoveryStrategy": "vfio",
            }
        )
    text = str(caught.value)
    for answer in (
        "driver.enabled: Fairlead installs no driver",
        "toolkit.enabled: nodes' engines are configured by `fairlead runtime configure`",
        "tolerations: set agent.tolerations",
        "daemonsets.tolerations: set agent.tolerations",
        "gds.enabled: Fairlead installs no driver of GPUDirect Storage",
        "devicePlugin.enabled: the agent is the device plugin",
        "deviceDiscoveryStrategy: auto, nvml or tegra",
    ):
        assert answer in text


def test_a_name_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SystemExit, match="migStrateggy"):
        render({"migStrateggy": "mixed"})


def _value(row: settings.Row, number: int) -> str:
    """Return a value that a setting can have: the chart refuses others."""
    if row.choices:
        return str(row.choices[-1])
    kinds = typing.get_args(row.type) or (row.type,)
    if bool in kinds:
        return "true"
    return str(number) if {int, float} & set(kinds) else f"v-{number}"


def test_every_setting_of_the_agent_can_be_reached_by_values() -> None:
    rows = [row for row in settings.rows() if row.group in GROUPS]
    wanted = {row.key: _value(row, number) for number, row in enumerate(rows)}
    variables, _ = agent({"agent": {"settings": wanted}})
    assert {row.key: variables.get(row.env) for row in rows} == wanted


def test_health_and_labels_have_values_of_their_own() -> None:
    found = render(
        {
            "health": {"xids": {"94": "reset"}, "ignoredXids": "109", "nodeTaint": "NoSchedule"},
            "labels": {"way": "node-feature", "aliases": False},
        }
    )
    container = pod(found, "DaemonSet", "agent")["containers"][0]
    variables = {item["name"]: item.get("value") for item in container["env"]}
    assert variables["FAIRLEAD_HEALTH_XIDS"] == "94=reset"
    assert variables["FAIRLEAD_HEALTH_IGNORED_XIDS"] == "109"
    assert variables["FAIRLEAD_HEALTH_NODE_TAINT"] == "NoSchedule"
    assert (variables["FAIRLEAD_LABELS_WAY"], variables["FAIRLEAD_LABELS_ALIASES"]) == ("node-feature", "false")
    rules = {
        (r, v)
        for rule in one(found, "ClusterRole", "-agent")["rules"]
        for r in rule["resources"]
        for v in rule["verbs"]
    }
    assert {("nodes", "update"), ("nodes/status", "update"), ("nodefeatures", "patch")} <= rules
    assert not {("nodes", "update"), ("nodefeatures", "patch")} & {
        (r, v)
        for rule in one(render(), "ClusterRole", "-agent")["rules"]
        for r in rule["resources"]
        for v in rule["verbs"]
    }
