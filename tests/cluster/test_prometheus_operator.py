"""The real prometheus-operator reads the chart's monitors and rules on a real API server, and writes what they mean.

The operator writes the configuration of a `Prometheus` object with no replica, since no registry has an image here.
Debian's Prometheus is built without Kubernetes discovery, so what the configuration keeps is held to the chart's
objects instead; scraping itself is `test_prometheus.py`'s.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from tests.cluster import charts
from tests.cluster.test_helm import Tools
from tools.cluster import api, build, home

# Building the operator takes minutes, once.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

_SPACE: Final = "watched"
_CRDS: Final = "example/prometheus-operator-crd"
_SECRETS: Final = f"/api/v1/namespaces/{_SPACE}/secrets"
_CONFIGMAPS: Final = f"/api/v1/namespaces/{_SPACE}/configmaps"
_VALUES: Final = {
    "serviceMonitor": {"enabled": True, "interval": "7s"},
    "podMonitor": {"enabled": True, "interval": "9s"},
    "prometheusRule": {"enabled": True},
}
_EVERYTHING: Final = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "Prometheus",
    "metadata": {"name": "own", "namespace": _SPACE},
    "spec": {"replicas": 0, "serviceMonitorSelector": {}, "podMonitorSelector": {}, "ruleSelector": {}},
}
_LABEL: Final = re.compile(r"__meta_kubernetes_(?:service|pod)_label_(\w+)")


@pytest.fixture
def operator(cluster: home.Cluster, server: api.API) -> Iterator[Tools]:
    """The operator on the cluster's node, its kinds in the API server; both are gone afterwards."""
    folder, certificates = build.ensure(build.PROMETHEUS_OPERATOR), cluster.site.certificates
    tools = Tools(cluster)
    kinds = str(build.sources_of(build.PROMETHEUS_OPERATOR) / _CRDS)
    tools.kubectl("create", "-f", kinds)
    tools.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", kinds)
    server.create("/api/v1/namespaces", {"metadata": {"name": _SPACE}})
    line = (
        str(folder / "prometheus-operator"),
        f"--apiserver={cluster.site.server}",
        f"--ca-file={certificates / 'ca.crt'}",
        f"--cert-file={certificates / 'admin.crt'}",
        f"--key-file={certificates / 'admin.key'}",
        "--web.listen-address=127.0.0.1:9096",
        f"--namespaces={_SPACE}",
    )
    name = "prometheus-operator"
    cluster.processes[name] = cluster.host.start(line, cluster.log(name))
    try:
        yield tools
    finally:
        cluster.stop(name)
        tools.kubectl("delete", "namespace", _SPACE, "--ignore-not-found")
        tools.kubectl("delete", "-f", kinds, "--ignore-not-found")


def _jobs(items: list[api.Object]) -> dict[str, Any] | None:
    """Return the scrape jobs that the operator wrote, by name, once both monitors are among them."""
    found = {item["metadata"]["name"]: item.get("data", {}) for item in items}
    packed = found.get("prometheus-own", {}).get("prometheus.yaml.gz", "")
    config = yaml.safe_load(gzip.decompress(base64.b64decode(packed))) if packed else {}
    jobs = {job["job_name"]: job for job in config.get("scrape_configs") or ()}
    return jobs if len(jobs) >= 4 else None


def _rules(items: list[api.Object]) -> dict[str, str] | None:
    return next((item["data"] for item in items if "rulefiles" in item["metadata"]["name"]), None)


def _kept(job: dict[str, Any]) -> tuple[dict[str, str], str]:
    """Return the labels (as Prometheus writes their names) and the port that a target must have to be kept."""
    labels, port = {}, ""
    for rule in job["relabel_configs"]:
        source = rule.get("source_labels", [""])[0]
        if rule.get("action") == "keep" and (match := _LABEL.fullmatch(source)):
            labels[match[1]] = rule["regex"].removesuffix(";true").strip("()")
        elif rule.get("action") == "keep" and "port_name" in source:
            port = rule["regex"]
    return labels, port


def _has(found: dict[str, str], wanted: dict[str, str]) -> bool:
    flat = {re.sub(r"\W", "_", name): value for name, value in found.items()}
    return all(flat.get(name) == value for name, value in wanted.items())


def test_the_operator_makes_jobs_of_the_monitors_and_files_of_the_rules(operator: Tools, server: api.API) -> None:
    objects = charts.render(_VALUES, namespace=_SPACE)
    wanted = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "Service"}
    items = [item for item in objects if item["kind"] in wanted] + [_EVERYTHING]
    operator.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    jobs = server.until(_SECRETS, _jobs, what="the operator wrote the configuration")

    service = charts.one(objects, "Service", "-metrics")
    agent = charts.one(objects, "DaemonSet", "-agent")["spec"]["template"]
    ports = {port["name"] for port in agent["spec"]["containers"][0]["ports"]}
    expected = {
        f"serviceMonitor/{_SPACE}/fairlead/0": ("monitor", "7s", False),
        f"serviceMonitor/{_SPACE}/fairlead/1": ("gpu-metrics", "7s", True),
        f"podMonitor/{_SPACE}/fairlead/0": ("monitor", "9s", False),
        f"podMonitor/{_SPACE}/fairlead/1": ("gpu-metrics", "9s", True),
    }
    assert {
        name: (_kept(job)[1], job["scrape_interval"], job["honor_labels"]) for name, job in jobs.items()
    } == expected
    assert {port["name"] for port in service["spec"]["ports"]} == {"monitor", "gpu-metrics"}
    assert ports >= {"monitor", "gpu-metrics"}
    for name, job in jobs.items():
        target = service if name.startswith("service") else agent
        labels, _ = _kept(job)
        assert labels, name
        assert _has(target["metadata"]["labels"], labels), (name, labels)

    files = server.until(_CONFIGMAPS, _rules, what="the operator wrote the rules")
    written = [group for text in files.values() for group in yaml.safe_load(text)["groups"]]
    chart = charts.one(objects, "PrometheusRule")["spec"]["groups"]
    assert {(group["name"], rule["alert"]) for group in written for rule in group["rules"]} == {
        (group["name"], rule["alert"]) for group in chart for rule in group["rules"]
    }
