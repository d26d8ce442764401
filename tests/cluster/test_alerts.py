"""The chart's alerts, judged by Prometheus' own promtool: they parse, fire when they should, and rest when they should.

No cluster is needed. `SCENES` has for each alert a series of figures under which it fires, with what it says then, and
one under which it does not; series have only the labels that our metrics and a scrape give.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from fairlead import telemetry
from fairlead.plan.metrics import dcgm
from fairlead.serve import monitor
from tests.cluster.charts import one, render

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]

UNPACKED: Final = Path.home() / ".cache/fairlead/debian/prometheus/usr/bin/promtool"
"""Where tests/cluster/setup.sh puts Debian's."""
PROMTOOL: Final = str(UNPACKED) if UNPACKED.exists() else shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool: see tests/cluster/setup.sh")
_SCRAPED: Final = frozenset({"namespace", "pod", "job", "instance"})
_OF: Final = 'namespace="gpus", pod="POD"'


@dataclass(frozen=True, slots=True)
class Scene:
    """Figures of a release in namespace `gpus`, and what is said of them."""

    alert: str
    series: dict[str, str]
    """Values a minute apart, in promtool's notation, by series."""
    at: str
    said: tuple[tuple[dict[str, str], str], ...] = ()
    """Labels and summary of each alert that fires; none: it rests."""
    labels: dict[str, str] = field(default_factory=dict)


def _devices(pod: str, advertised: str, healthy: str) -> dict[str, str]:
    name = 'fairlead_devices{resource="nvidia.com/gpu", state="%s", ' + _OF.replace("POD", pod) + "}"
    return {name % "advertised": advertised, name % "healthy": healthy}


def _leaders(name: str, *values: str, namespace: str = "gpus") -> dict[str, str]:
    made = f'fairlead_leader{{lease="fairlead-{name}", namespace="{namespace}", pod="{name}-%d"}}'
    return {made % at: value for at, value in enumerate(values)}


def _decisions(result: str, values: str) -> dict[str, str]:
    return {f'fairlead_scheduler_decisions_total{{result="{result}", {_OF}}}': values}


def _requests(code: str, values: str) -> dict[str, str]:
    return {f'fairlead_api_requests_total{{method="GET", code="{code}", {_OF}}}': values}


_OF_GPU: Final = {"hostname": "n1", "gpu": "1", "UUID": "GPU-1"}
_GPU: Final = ", ".join(f'{name}="{value}"' for name, value in _OF_GPU.items())
_HELD: Final = ', namespace="lab", pod="nb", container="main"'
_IDLE: Final = {**_OF_GPU, "namespace": "lab", "pod": "nb"}


def _gpu(field: str, values: str, held: str = "") -> dict[str, str]:
    return {f"DCGM_FI_DEV_{field}{{{_GPU}{held}}}": values}


_UNLED: Final = {"lease": "fairlead-scheduler", "namespace": "gpus"}
_ILL: Final = {"namespace": "gpus", "pod": "agent-a", "resource": "nvidia.com/gpu"}
SCENES: Final = (
    Scene("FairleadNoAgent", {}, "11m", (({"namespace": "gpus"}, "No agent of Fairlead's reports devices"),)),
    Scene(
        "FairleadNoAgent",
        {'fairlead_devices{resource="r", state="healthy", namespace="other", pod="x"}': "1x20"},
        "11m",
        (({"namespace": "gpus"}, "No agent of Fairlead's reports devices"),),
    ),
    Scene("FairleadNoAgent", _devices("agent-a", "8x20", "8x20"), "11m"),
    Scene("FairleadNoAgent", _devices("agent-a", "8x2 _x3 8x20", "8x2 _x3 8x20"), "11m"),
    Scene(
        "FairleadDevicesUnhealthy",
        _devices("agent-a", "8x20", "6x20") | _devices("agent-b", "8x20", "8x20"),
        "6m",
        ((_ILL, "2 devices of nvidia.com/gpu are not healthy at agent-a"),),
    ),
    Scene("FairleadDevicesUnhealthy", _devices("agent-a", "8x20", "8x20"), "6m"),
    Scene("FairleadDevicesUnhealthy", _devices("agent-a", "8x20", "8 8 6 6 8x20"), "6m"),
    Scene(
        "FairleadNoLeader",
        _leaders("scheduler", "0x10", "0x10") | _leaders("controller", "1x10"),
        "4m",
        ((_UNLED, "Nobody leads fairlead-scheduler"),),
    ),
    Scene(  # every replica is gone, and its figures with it
        "FairleadNoLeader",
        _leaders("scheduler", "1 1 stale") | _leaders("controller", "1x20"),
        "12m",
        ((_UNLED, "Nobody leads fairlead-scheduler"),),
    ),
    Scene(  # another release's leader is not ours
        "FairleadNoLeader",
        _leaders("scheduler", "1x10", namespace="other") | _leaders("controller", "1x10"),
        "4m",
        ((_UNLED, "Nobody leads fairlead-scheduler"),),
    ),
    Scene(
        "FairleadNoLeader", _leaders("scheduler", "1 0 0 0 0 0", "0 1 1 1 1 1") | _leaders("controller", "1x10"), "4m"
    ),
    Scene(
        "FairleadSchedulingFails",
        _decisions("failed", "0+1x20"),
        "12m",
        (({"namespace": "gpus", "pod": "POD", "result": "failed"}, "The scheduler fails to decide"),),
    ),
    Scene(
        "FairleadMPSDaemonFails",
        {f'fairlead_mps_failures_total{{reason="MPSDaemonDied", {_OF}}}': "0+1x20"},
        "12m",
        (
            (
                {"namespace": "gpus", "pod": "POD", "reason": "MPSDaemonDied"},
                "An MPS control daemon of POD fails again and again (MPSDaemonDied)",
            ),
        ),
    ),
    Scene(
        "FairleadMPSDaemonFails",
        {f'fairlead_mps_failures_total{{reason="MPSDaemonDied", {_OF}}}': "0 0 0 1x20"},
        "12m",
    ),
    Scene("FairleadSchedulingFails", _decisions("refused", "0+9x20") | _decisions("failed", "3x20"), "12m"),
    Scene(
        "FairleadPodsWait",
        {f"fairlead_scheduler_pending_pods{{{_OF}}}": "3x90"},
        "70m",
        (({}, "3 pods have waited for a node"),),
    ),
    Scene("FairleadPodsWait", {f"fairlead_scheduler_pending_pods{{{_OF}}}": "3x30 0 3x60"}, "70m"),
    Scene(
        "FairleadAPIUnreachable",
        _requests("0", "0+3x30") | _requests("200", "7x30"),
        "20m",
        (({"pod": "POD"}, "POD gets no answer from the API server"),),
    ),
    Scene("FairleadAPIUnreachable", _requests("0", "3x30") | _requests("500", "0+9x30"), "20m"),
    Scene("LowGPUUtilization", _gpu("GPU_UTIL", "3x20", _HELD), "11m", ((_IDLE, "GPU 1 of n1 is used 3 % by lab/nb"),)),
    Scene("LowGPUUtilization", _gpu("GPU_UTIL", "3 3 3 50 3x20", _HELD), "11m"),
    Scene("LowGPUUtilization", _gpu("GPU_UTIL", "0x20"), "11m"),  # nobody holds it
    Scene(
        "GPUNotHealthy",
        {f'fairlead_gpu_health{{{_GPU}, reason="XID79"}}': "0x5", f"fairlead_gpu_health{{{_GPU}}}": "stale"},
        "2m",
        (({**_OF_GPU, "reason": "XID79"}, "GPU 1 of n1 is not offered: XID79"),),
    ),
    Scene("GPUNotHealthy", {f"fairlead_gpu_health{{{_GPU}}}": "1x5"}, "2m"),
    Scene(
        "GPUXIDErrors",
        {f'DCGM_EXP_XID_ERRORS_COUNT{{{_GPU}, xid="48"}}': "_x20 1x3"},
        "21m",
        (({**_OF_GPU, "xid": "48"}, "GPU 1 of n1 reported XID 48"),),
    ),
    Scene(
        "GPUXIDErrors",
        {f'DCGM_EXP_XID_ERRORS_COUNT{{{_GPU}, xid="48"}}': "1x20 2x3"},
        "22m",
        (({**_OF_GPU, "xid": "48"}, "GPU 1 of n1 reported XID 48"),),
    ),
    Scene("GPUXIDErrors", {f'DCGM_EXP_XID_ERRORS_COUNT{{{_GPU}, xid="48"}}': "7x40"}, "30m"),
    Scene(
        "GPUUncorrectableECC",
        _gpu("ECC_DBE_VOL_TOTAL", "0 2x5"),
        "2m",
        ((_OF_GPU, "GPU 1 of n1 has 2 uncorrected memory errors"),),
    ),
    Scene("GPUUncorrectableECC", _gpu("ECC_DBE_VOL_TOTAL", "0x5"), "2m"),
    Scene(
        "GPURowRemapFailed",
        _gpu("ROW_REMAP_FAILURE", "1x5"),
        "1m",
        ((_OF_GPU, "GPU 1 of n1 has no spare memory rows left"),),
    ),
    Scene("GPURowRemapFailed", _gpu("ROW_REMAP_FAILURE", "0x5"), "1m"),
    Scene("GPUHot", _gpu("GPU_TEMP", "91x9"), "6m", ((_OF_GPU, "GPU 1 of n1 is at 91 C"),)),
    Scene("GPUHot", _gpu("GPU_TEMP", "91 91 91 60 91x9"), "6m"),
)


def _rules(**values: Any) -> dict[str, Any]:
    """Return the chart's rules as a file of Prometheus' own: the object's spec is that."""
    spec: dict[str, Any] = one(render({"prometheusRule": {"enabled": True}, **values}), "PrometheusRule")["spec"]
    return spec


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run((PROMTOOL, *words), cwd=folder, capture_output=True, text=True, check=False)


@needs_promtool
@pytest.mark.parametrize(
    "values", [{}, {"scheduler": {"enabled": False}}, {"controller": {"enabled": False}}, {"agent": {"enabled": False}}]
)
def test_prometheus_takes_the_rules(values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(_rules(**values)))
    done = _run(tmp_path, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_each_alert_fires_when_it_should_and_rests_when_it_should(tmp_path: Path) -> None:
    rules = _rules()
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    written = {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"]}
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in scene.series.items()],
            "alert_rule_test": [
                {
                    "eval_time": scene.at,
                    "alertname": scene.alert,
                    "exp_alerts": [
                        {
                            "exp_labels": {**written[scene.alert]["labels"], **labels},
                            "exp_annotations": {
                                "summary": summary,
                                "description": written[scene.alert]["annotations"]["description"],
                            },
                        }
                        for labels, summary in scene.said
                    ],
                }
            ],
        }
        for scene in SCENES
    ]
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    done = _run(tmp_path, "test", "rules", "tests.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_scene_in_which_it_fires_and_one_in_which_it_rests() -> None:
    alerts = {rule["alert"] for group in _rules()["groups"] for rule in group["rules"]}
    assert {scene.alert for scene in SCENES if scene.said} == alerts
    assert {scene.alert for scene in SCENES if not scene.said} == alerts


def test_scenes_have_no_series_that_a_scrape_of_ours_does_not_give() -> None:
    labels = {metric.name: metric.labels for metric in telemetry.METRICS}
    for name in (name for scene in SCENES for name in scene.series):
        metric, _, rest = name.partition("{")
        if metric not in labels:  # a GPU's, whose labels tests/cluster/test_prometheus.py has from the page itself
            assert metric in {*(row.name for row in dcgm.FIELDS), dcgm.XID_COUNT[0], dcgm.HEALTH[0]}
            continue
        used = set(re.findall(r"(\w+)=\"", rest))
        assert used <= {*labels[metric], *_SCRAPED}, name
        assert set(labels[metric]) <= used, name


@needs_promtool
def test_prometheus_finds_no_fault_in_the_form_of_our_metrics(tmp_path: Path) -> None:
    meter = monitor.PrometheusMeter()
    for metric in telemetry.METRICS:
        values = ["x"] * len(metric.labels)
        if metric.buckets_s:
            meter.observe(metric, 0.1, *values)
        elif metric.name.endswith("_total"):
            meter.add(metric, *values)
        else:
            meter.set(metric, 1, *values)
    assert PROMTOOL is not None
    text = meter.expose().decode()
    done = subprocess.run((PROMTOOL, "check", "metrics"), input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {metric.name for metric in telemetry.METRICS} <= set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
