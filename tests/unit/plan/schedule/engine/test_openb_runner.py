"""The trace runner reads published files as they are, makes a trace where there are none, and draws curves."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import openb, openb_trace
from fairlead.plan.schedule.engine.shape import Shape

_PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos
one,1000,10,1,500,,LS
two,2000,20,2,1000,T4|P100,BE
three,500,5,0,0,,BE
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders").mkdir()
    (tmp_path / "nodes.json").write_text(json.dumps([["a", 8000, 100, 2, "T4", 1], ["b", 8000, 100, 2, "T4", 1]]))
    with gzip.open(tmp_path / "openb_pod_list_tiny.csv.gz", "wt") as file:
        file.write(_PODS)
    with gzip.open(tmp_path / "orders" / "tiny_42.txt.gz", "wt") as file:
        file.write("PODS two one three two\nPERM 1 0\n")
    return tmp_path


def test_a_published_trace_is_read_in_its_order_and_ties_go_by_rank(folder: Path) -> None:
    trace = openb_trace.read(folder, "tiny")
    arrivals, hosts = trace.arrival(42)
    whole = Shape(cpu_milli=2000, memory_mib=20, gpus=2, models=frozenset({"T4", "P100"}))
    assert arrivals[:2] == [whole, Shape(cpu_milli=1000, memory_mib=10, gpus=1, gpu_milli=500)]
    assert [host.name for host in hosts] == ["b", "a"]
    result = openb.run(trace, "bestfit", 42)
    assert result.allocated == {50: 50.0, 62: 62.5, 112: 62.5}
    assert result.failures == {"2 GPU": 1}


def test_a_trace_without_models_takes_any(folder: Path) -> None:
    rows = [",".join(line.split(",")[:5]) for line in _PODS.splitlines()]
    with gzip.open(folder / "openb_pod_list_plain.csv.gz", "wt") as file:
        file.write("\n".join(rows))
    assert openb_trace.read(folder, "plain").requests["two"].models == frozenset()


def test_an_order_that_is_not_published_asks_for_130_percent_and_is_the_same_each_time(folder: Path) -> None:
    trace = openb_trace.read(folder, "tiny")
    arrivals, _ = trace.arrival(7)
    assert 1.3 <= sum(shape.total_milli for shape in arrivals) / 4000 < 1.9
    assert trace.arrival(7) == trace.arrival(7)


def test_a_clone_alone_runs_a_generated_trace_with_the_published_shape() -> None:
    trace = openb_trace.generated()
    assert (len(trace.hosts), len(trace.requests)) == (1213, 8152)
    assert 5800 < sum(host.gpus for host in trace.hosts) < 6700
    share = sum(shape.is_share for shape in trace.requests.values()) / len(trace.requests)
    assert 0.35 < share < 0.41
    small = openb_trace.generated(nodes=40, requests=300)
    runs = [openb.run(small, "fairlead", 42) for _ in range(2)]
    assert runs[0].allocated == runs[1].allocated
    assert runs[0].failures == runs[1].failures
    assert openb.run(small, "random", 42).allocated[100] < runs[0].allocated[100]


def test_the_verb_prints_every_point_and_draws_the_curve(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "curve.svg"
    asked = ["--traces", str(folder), "--trace", "all", "--policy", "fgd,fairlead", "--seeds", "42,7"]
    assert openb.main([*asked, "--json", "--svg", str(picture)]) == 0
    points = json.loads(capsys.readouterr().out)
    assert [(one["policy"], one["seed"]) for one in points] == [
        ("fgd", 42),
        ("fgd", 7),
        ("fairlead", 42),
        ("fairlead", 7),
    ]
    assert points[0]["allocated_percent"]["50"] == 50.0
    assert len(ElementTree.parse(picture).findall("{http://www.w3.org/2000/svg}polyline")) == 2  # noqa: S314 our own
    assert openb.main(asked) == 0
    assert "tiny · fgd · seeds 42, 7" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--policy", "best"], ["--trace", "none"]])
def test_what_is_not_there_is_named_with_what_is(
    folder: Path, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        openb.main(["--traces", str(folder), *wrong])
    assert "fairlead" in (said := capsys.readouterr().err) or "tiny" in said


def _run(trace: str, policy: str, seed: int, allocated: float) -> openb.Result:
    return openb.Result(
        trace=trace,
        policy=policy,
        seed=seed,
        allocated={100: allocated},
        fragmented={},
        failures={},
        decisions_per_s=1.0,
    )


def test_a_policy_ties_with_fgd_within_two_of_its_deviations_on_the_same_arrivals() -> None:
    """The deviation of 95, 96, 97 is 1."""
    gains = {"up": 2.1, "near": -1.9, "down": -2.1}
    results = [
        _run(trace, policy, seed, 95.0 + seed + (gain if policy == "fairlead" else 0.0))
        for trace, gain in gains.items()
        for policy in ("fgd", "fairlead")
        for seed in range(3)
    ]
    assert openb.verdicts(results, ["fairlead"]) == [
        "up: fairlead beats fgd, +2.10 points at 100 % (two deviations: 2.00)",
        "near: fairlead ties fgd, -1.90 points at 100 % (two deviations: 2.00)",
        "down: fairlead loses to fgd, -2.10 points at 100 % (two deviations: 2.00)",
        "fairlead ties or beats fgd on 2 of 3",
    ]
