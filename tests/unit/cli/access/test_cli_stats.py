"""What containers use: the figures of their GPUs beside those of their cgroup, and `top` without a name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest

from fairlead.cli.access import stats
from fairlead.serve.backend.hardware import GPUListing, GPUView, Holder
from fairlead.serve.v1.containers.access.view import UsageView
from tests import gpus
from tests.unit.cli.liveservice import Service, serving

GIB = 1 << 30


def _view(index: int, percent: int | None, used: int | None, *holders: str) -> GPUView:
    bare = gpus.gpu(index)
    health = dataclasses.replace(bare.health, utilization_percent=percent, memory_used_bytes=used)
    held = tuple(Holder(device=bare.uuid, namespace="default", container=name) for name in holders)
    return GPUView(gpu=dataclasses.replace(bare, health=health), node="one", holders=held)


def _listing(*views: GPUView) -> GPUListing:
    return GPUListing(gpus=views, unreadable=(), drivers=(), is_simulated=True)


def test_a_containers_gpus_are_a_mean_and_a_sum() -> None:
    found = stats.gpu_use(_listing(_view(0, 90, 10 * GIB, "a"), _view(1, 50, 2 * GIB, "a"), _view(2, 7, GIB, "b")))
    assert (found["default", "a"].percent, found["default", "a"].memory_bytes) == (70, 12 * GIB)
    assert (found["default", "b"].percent, found["default", "b"].is_shared) == (7, False)


def test_a_gpu_that_says_nothing_counts_for_nothing_and_a_shared_one_is_marked() -> None:
    found = stats.gpu_use(_listing(_view(0, None, None, "a"), _view(1, 40, GIB, "b", "c")))
    assert (found["default", "a"].percent, found["default", "a"].memory_bytes) == (None, None)
    assert found["default", "b"].is_shared
    assert found["default", "c"].is_shared


@pytest.mark.parametrize(("is_pods", "mark"), [(False, ""), (True, "<=")])
def test_figures_of_a_container_are_marked_that_are_its_groups(
    is_pods: bool, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sandbox of gVisor has all containers of the group, and the kernel counts that."""
    at = [f"2026-11-30T12:00:{second}Z" for second in ("00", "02")]
    before, now = (
        UsageView(
            name="web",
            namespace="default",
            container="main",
            at=when,
            cpu_ns=count * 1_000_000_000,
            memory_bytes=GIB,
            memory_limit_bytes=4 * GIB,
            processes=7,
            received_bytes=0,
            sent_bytes=0,
            devices={},
            is_pods=is_pods,
        )
        for count, when in enumerate(at)
    )
    stats.show_rows([stats.Row(now, before, stats.GPUUse())], form="table")
    _, line = capsys.readouterr().out.splitlines()
    assert line.split() == [
        "web",
        f"{mark}50.0%",
        f"{mark}1",
        "GiB",
        "/",
        "4",
        "GiB",
        f"{mark}25%",
        *line.split()[8:],
    ]
    assert f"{mark}7" in line.split()
    shown = stats.fields(stats.Row(now, before, stats.GPUUse()))
    assert str(shown["PIDs"]) == f"{mark}7"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("stats")) as service:
        service.fairlead("run", "-d", "--name", "train", "-g", "2", "demo", "sleep", "600")
        service.fairlead("run", "-d", "--name", "web", "demo", "sleep", "600")
        for name in ("train", "web"):
            assert service.fairlead("wait", "--state", "started", name).exit_code == 0
        yield service


@pytest.mark.parametrize("line", [("top",), ("stats", "--no-stream")])
def test_top_without_a_name_is_the_table_of_all(live: Service, line: tuple[str, ...]) -> None:
    done = live.fairlead(*line)
    assert done.exit_code == 0, done.stderr
    header, *rows = done.stdout.splitlines()
    assert {"NAME", "CPU", "GPUS", "GPU", "GPU MEM"} <= {title.strip() for title in header.split("   ")}
    assert sorted(row.split()[0] for row in rows) == ["train", "web"]


def test_top_with_a_name_lists_processes(live: Service) -> None:
    assert "sleep 600" in live.fairlead("top", "web").stdout


def test_programs_read_the_figures_of_gpus(live: Service) -> None:
    shown = {one["name"]: one for one in json.loads(live.fairlead("stats", "--no-stream", "-o", "json").stdout)}
    assert shown["web"]["gpu_utilization_percent"] is None
    assert len(shown["train"]["devices"]["nvidia.com/gpu"]) == 2
    assert "gpu_memory_bytes" in shown["train"]
