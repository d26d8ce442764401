"""A real Prometheus scrapes simulated GPUs: alerts fire and clear, every query of the dashboard has data.

No cluster is needed: the page is the agent's exporter's, served as the agent serves it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import pytest_asyncio
import yaml

from fairlead.cli.admin import manifests
from fairlead.model.ids import DeviceID
from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import latest
from fairlead.node.metrics import exporter
from fairlead.plan.gpu import deviceids
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.metrics import holder
from fairlead.serve import plainserver, probes, sockets
from fairlead.silicon.sim.silicon import SimulatedSilicon
from tests.cluster.charts import one, render
from tests.cluster.test_alerts import PROMTOOL

PROGRAM: Final = None if PROMTOOL is None else shutil.which(str(Path(PROMTOOL).with_name("prometheus")))
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(180),
    pytest.mark.skipif(PROGRAM is None, reason="no prometheus: see tests/cluster/setup.sh"),
]
_DASHBOARD: Final = manifests.CHART / "dashboards/gpus.json"


@dataclass(frozen=True, slots=True)
class Scene:
    """One node of simulated GPUs and the Prometheus that watches it."""

    silicon: SimulatedSilicon
    snapshots: latest.Latest[Snapshot]
    client: httpx.AsyncClient

    async def scan(self) -> None:
        """Look at the silicon, as an agent's monitor does."""
        inventory = await self.silicon.scan()
        known = {**self.snapshots.value.known, **{gpu.uuid: gpu for gpu in inventory.gpus}}
        self.snapshots.set(Snapshot(inventory=inventory, known=known, is_scanned=True))

    async def ask(self, query: str) -> list[dict[str, Any]]:
        answer = await self.client.get("/api/v1/query", params={"query": query})
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    async def alerts(self) -> dict[str, list[dict[str, str]]]:
        """Return the labels of what fires, by alert."""
        found: dict[str, list[dict[str, str]]] = {}
        for item in (await self.client.get("/api/v1/alerts")).json()["data"]["alerts"]:
            if item["state"] == "firing":
                found.setdefault(item["labels"]["alertname"], []).append(item["labels"])
        return found

    async def until(self, holds: Callable[[dict[str, list[dict[str, str]]]], bool]) -> dict[str, list[dict[str, str]]]:
        async with asyncio.timeout(60):
            while True:
                if holds(alerts := await self.alerts()):
                    return alerts
                await asyncio.sleep(0.3)


def _quick_rules() -> dict[str, Any]:
    """Return the chart's rules, evaluated each second and with a second's patience."""
    values = {"prometheusRule": {"enabled": True, "lowGPUUtilization": {"for": "1s"}}}
    spec: dict[str, Any] = one(render(values), "PrometheusRule")["spec"]
    group = next(group for group in spec["groups"] if group["name"] == "gpus")
    for rule in group["rules"]:
        if "for" in rule:
            rule["for"] = "1s"
    return {"groups": [{**group, "interval": "1s"}]}


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    silicon = SimulatedSilicon(tmp_path / "sim", "h100x8", call_timeout_s=1.0)
    snapshots: latest.Latest[Snapshot] = latest.Latest(Snapshot())
    holdings = podresources.Holdings(tmp_path / "kubelet.sock")
    page = exporter.Exporter("n1", silicon, snapshots=snapshots, holdings=holdings, xids=exporter.XIDCounts())
    listener = sockets.listen_at("127.0.0.1:0")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(_quick_rules()))
    target = "{}:{}".format(*listener.getsockname())
    jobs = [{"job_name": "gpus", "honor_labels": True, "static_configs": [{"targets": [target]}]}]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": jobs,
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    with sockets.listen_at("127.0.0.1:0") as free:
        address = "{}:{}".format(*free.getsockname())
    try:
        async with (
            asyncio.TaskGroup() as tasks,
            httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client,
            _prometheus(tmp_path, address),
        ):
            app = probes.create_app(lambda: "", lambda: "", page.expose)
            serving = tasks.create_task(plainserver.serve_at(app, listener))
            found = Scene(silicon, snapshots, client)
            await found.scan()
            first, second = (gpu.uuid for gpu in snapshots.value.inventory.gpus[:2])
            held = tuple(
                Holding(namespace="lab", pod=pod, container="main", resource="nvidia.com/gpu", ids=(DeviceID(uuid),))
                for pod, uuid in (("train", first), ("notebook", second))
            )
            holdings.latest.set(held)
            table = deviceids.make_table(snapshots.value.known.values())
            found.silicon.hold(
                {uuid: tuple(item.name for item in who) for uuid, who in holder.find_holders(held, table).items()}
            )
            await _until_scraped(found)
            yield found
            serving.cancel()
    finally:
        await silicon.close()


@contextlib.asynccontextmanager
async def _prometheus(folder: Path, address: str) -> AsyncIterator[None]:
    assert PROGRAM is not None
    argv = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
    with (folder / "log").open("wb") as log:
        running = await asyncio.create_subprocess_exec(PROGRAM, *argv, f"--web.listen-address={address}", stderr=log)
        try:
            yield
        finally:
            running.terminate()
            await running.wait()


async def _until_scraped(scene: Scene) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                if await scene.ask('DCGM_FI_DEV_GPU_UTIL{pod="train"}'):
                    return
            except (httpx.TransportError, AssertionError):
                pass
            await asyncio.sleep(0.3)


def _lint(page: str) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run((PROMTOOL, "check", "metrics"), input=page, capture_output=True, text=True, check=False)


async def test_idleness_of_a_held_gpu_raises_an_alert_that_clears(scene: Scene) -> None:
    scene.silicon.inject("utilization", gpu=0, value="95")
    scene.silicon.inject("utilization", gpu=1, value="3")
    # a scrape from before the injection may have had both idle for a moment
    alerts = await scene.until(
        lambda now: [labels["pod"] for labels in now.get("LowGPUUtilization", ())] == ["notebook"]
    )
    (labels,) = alerts["LowGPUUtilization"]
    assert (labels["namespace"], labels["pod"], labels["gpu"], labels["hostname"]) == ("lab", "notebook", "1", "n1")
    scene.silicon.inject("utilization", gpu=1, value="80")
    await scene.until(lambda now: "LowGPUUtilization" not in now)


async def test_a_lost_gpu_and_a_hot_one_raise_alerts_that_name_them(scene: Scene) -> None:
    scene.silicon.inject("lost", gpu=4, value=None)
    scene.silicon.inject("temperature", gpu=5, value="91")
    scene.silicon.inject("ecc", gpu=6, value="2")
    await scene.scan()
    wanted = {"GPUNotHealthy": "4", "GPUHot": "5", "GPUUncorrectableECC": "6"}
    alerts = await scene.until(lambda now: wanted.keys() <= now.keys())
    assert {name: [labels["gpu"] for labels in alerts[name]] for name in wanted} == {
        name: [gpu] for name, gpu in wanted.items()
    }
    for gpu in (4, 5, 6):
        scene.silicon.inject("recover", gpu=gpu, value=None)
    await scene.scan()
    await scene.until(lambda now: not wanted.keys() & now.keys())


async def test_every_query_of_the_dashboard_returns_data(scene: Scene) -> None:
    dashboard = json.loads(_DASHBOARD.read_text())
    await asyncio.sleep(3)  # a rate needs two scrapes
    empty = []
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$hostname", ".*").replace("$__rate_interval", "10s")
            assert "$" not in query
            if not await scene.ask(query):
                empty.append((panel["title"], query))
    assert empty == []
    (variable,) = (item for item in dashboard["templating"]["list"] if item["type"] == "query")
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
    assert {item["metric"][label] for item in await scene.ask(metric)} == {"n1"}


async def test_promtool_finds_no_fault_in_the_page(scene: Scene) -> None:
    (target,) = (await scene.client.get("/api/v1/targets")).json()["data"]["activeTargets"]
    async with httpx.AsyncClient(trust_env=False) as client:
        page = (await client.get(target["scrapeUrl"])).text
    done = await asyncio.to_thread(_lint, page)
    complaints = [line for line in done.stderr.splitlines() if line and "non-histogram" not in line]
    # What is left is taste in names: a counter ends in _total, a label is in snake_case. These names are DCGM's.
    assert all("should" in line for line in complaints), complaints
