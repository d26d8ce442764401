"""The real prometheus-operator reads the chart's monitors and rules; a real Prometheus scrapes what it wrote of them.

The operator writes the configuration of a `Prometheus` object with no replica, since no registry has an image here;
Debian's Prometheus runs with exactly that configuration on the cluster's node.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from fairlead.cli.admin import manifests
from tests.cluster import charts, node
from tests.cluster.test_helm import Tools
from tests.cluster.test_prometheus import PROGRAM
from tools.cluster import api, build, home, machine

# Building the operator takes minutes, once.
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(PROGRAM is None, reason="no prometheus: see tests/cluster/setup.sh"),
]

_SPACE: Final = "watched"
_PORT: Final = 9095
_CRDS: Final = "example/prometheus-operator-crd"
_SECRET: Final = f"/api/v1/namespaces/{_SPACE}/secrets"
_RULES: Final = f"/api/v1/namespaces/{_SPACE}/configmaps"
_VALUES: Final = {
    "silicon": {"simulate": "h100x8"},
    "serviceMonitor": {"enabled": True, "interval": "1s"},
    "podMonitor": {"enabled": True, "interval": "1s"},
    "prometheusRule": {"enabled": True},
}


def _wanted(cluster: home.Cluster) -> dict[str, Any]:
    """Return a Prometheus that takes every monitor and rule of its namespace, and asks the API server as we do."""
    certificates = cluster.site.certificates
    tls = {
        "caFile": str(certificates / "ca.crt"),
        "certFile": str(certificates / "admin.crt"),
        "keyFile": str(certificates / "admin.key"),
    }
    spec = {
        "version": "v2.42.0",
        "replicas": 0,
        "serviceMonitorSelector": {},
        "podMonitorSelector": {},
        "ruleSelector": {},
        "evaluationInterval": "1s",
        "apiserverConfig": {"host": cluster.site.server, "tlsConfig": tls},
    }
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "Prometheus",
        "metadata": {"name": "own", "namespace": _SPACE},
        "spec": spec,
    }


@pytest.fixture
def operator(cluster: home.Cluster, server: api.API) -> Iterator[Tools]:
    """The operator on the cluster's node, its kinds in the API server; both are gone afterwards."""
    folder = build.ensure(build.PROMETHEUS_OPERATOR)
    tools = Tools(cluster)
    kinds = str(build.sources_of(build.PROMETHEUS_OPERATOR) / _CRDS)
    tools.kubectl("create", "-f", kinds)
    tools.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", kinds)
    server.create("/api/v1/namespaces", {"metadata": {"name": _SPACE}})
    line = (
        str(folder / "prometheus-operator"),
        f"--kubeconfig={cluster.kubeconfig}",
        "--web.listen-address=127.0.0.1:9096",
        f"--namespaces={_SPACE}",
    )
    running = cluster.host.start(line, cluster.log("prometheus-operator"))
    try:
        yield tools
    finally:
        running.end(signal.SIGTERM, timeout_s=30)
        tools.kubectl("delete", "namespace", _SPACE, "--ignore-not-found")
        tools.kubectl("delete", "-f", kinds, "--ignore-not-found")


def _start_prometheus(cluster: home.Cluster, server: api.API, folder: Path) -> machine.Process:
    """Run Prometheus with what the operator wrote, its rules where the configuration looks for them."""

    def written(items: list[api.Object]) -> tuple[str, api.Object] | None:
        found = {item["metadata"]["name"]: item.get("data", {}) for item in items}
        packed = found.get("prometheus-own", {}).get("prometheus.yaml.gz", "")
        text = gzip.decompress(base64.b64decode(packed)).decode() if packed else ""
        return (text, found) if f"serviceMonitor/{_SPACE}/fairlead/0" in text else None

    text, _ = server.until(_SECRET, written, what="the operator wrote the configuration")

    def ruled(items: list[api.Object]) -> dict[str, str] | None:
        return next((item["data"] for item in items if "rulefiles" in item["metadata"]["name"]), None)

    rules = server.until(_RULES, ruled, what="the operator wrote the rules")
    folder.mkdir()
    for name, content in rules.items():
        (folder / name).write_text(content)
    text = text.replace("/etc/prometheus/rules/prometheus-own-rulefiles-0", str(folder))
    (folder / "prometheus.yaml").write_text(text)
    line = (
        str(PROGRAM),
        f"--config.file={folder}/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={cluster.site.address}:{_PORT}",
    )
    return cluster.host.start(line, cluster.log("prometheus"))


def _until(client: httpx.Client, path: str, holds: Callable[[Any], Any]) -> Any:
    """Ask Prometheus until the answer holds; returns what `holds` made of it."""
    deadline = time.monotonic() + 120
    while True:
        found: Any = None
        with contextlib.suppress(httpx.TransportError, json.JSONDecodeError):
            found = client.get(path).json()["data"]
        if found is not None and (held := holds(found)) is not None:
            return held
        assert time.monotonic() < deadline, f"{path}: {json.dumps(found)[:4000]}"
        time.sleep(0.5)


def _series(client: httpx.Client, query: str) -> list[dict[str, str]]:
    found = client.get("/api/v1/query", params={"query": query}).json()["data"]["result"]
    return [item["metric"] for item in found]


def test_the_operator_makes_prometheus_scrape_every_component_and_take_every_rule(
    operator: Tools, cluster: home.Cluster, server: api.API, fairlead_image: str
) -> None:
    repository, _, tag = fairlead_image.rpartition(":")
    image = {"image": {"repository": repository, "tag": tag, "pullPolicy": "Never"}}
    values = cluster.folder / "monitors.json"
    values.write_text(json.dumps({**_VALUES, **image}))
    operator.helm(
        "install", "fairlead", str(manifests.CHART), "-n", _SPACE, "--wait", "--timeout=120s", "-f", str(values)
    )
    try:
        _assert_watched(operator, cluster, server)
    finally:
        operator.helm("uninstall", "fairlead", "-n", _SPACE, "--wait", "--timeout=120s", check=False)
        node.until_allocatable(server, cluster.node, 0)
        operator.kubectl("delete", "crd", "gpudevices.fairlead.dev", "--ignore-not-found")


def _assert_watched(tools: Tools, cluster: home.Cluster, server: api.API) -> None:
    tools.kubectl("apply", "-f", "-", stdin=json.dumps(_wanted(cluster)))
    running = _start_prometheus(cluster, server, cluster.folder / "watched")
    try:
        with httpx.Client(base_url=f"http://{cluster.site.address}:{_PORT}", trust_env=False) as client:
            targets = _until(client, "/api/v1/targets", _all_up)
            assert {(item["labels"]["job"], item["labels"]["endpoint"]) for item in targets} >= {
                ("fairlead-metrics", "monitor"),
                ("fairlead-metrics", "gpu-metrics"),
                (f"{_SPACE}/fairlead", "monitor"),
                (f"{_SPACE}/fairlead", "gpu-metrics"),
            }
            groups = _until(client, "/api/v1/rules", lambda found: found["groups"] or None)
            rendered = charts.one(charts.render(_VALUES, namespace=_SPACE), "PrometheusRule")["spec"]["groups"]
            assert {(group["name"], rule["name"]) for group in groups for rule in group["rules"]} == {
                (group["name"], rule["alert"]) for group in rendered for rule in group["rules"]
            }
            assert all(rule["health"] in {"ok", "unknown"} for group in groups for rule in group["rules"])
            gpus = _series(client, 'DCGM_FI_DEV_GPU_TEMP{job="fairlead-metrics"}')
            assert {item["gpu"] for item in gpus} == {str(index) for index in range(8)}
            # The rules look for their own figures by the namespace that the operator's relabelling writes.
            assert _series(client, f'fairlead_devices{{namespace="{_SPACE}",state="advertised"}}')
    finally:
        running.end(signal.SIGTERM, timeout_s=30)


def _all_up(found: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the targets once every component of both monitors is scraped."""
    targets = found["activeTargets"]
    # agent, scheduler and controller by their monitor's port, the agent by its metrics' port: by both monitors
    return targets if len(targets) >= 8 and all(item["health"] == "up" for item in targets) else None


def test_the_pinned_operator_says_its_version() -> None:
    program = build.ensure(build.PROMETHEUS_OPERATOR) / "prometheus-operator"
    done = subprocess.run((program, "--version"), capture_output=True, text=True, check=True)
    assert build.version_of(build.PROMETHEUS_OPERATOR) in done.stdout + done.stderr
