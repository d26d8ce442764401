"""The articles' manifests on one machine: what fits runs, what does not is refused for the reason a cluster gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from home import Home, Result

from tests import articles
from tools.cluster import image as archives

pytestmark = [pytest.mark.podman, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def home_of_articles(service: Home) -> Iterator[Home]:
    """A running service, with the images' stand-ins under every name that the manifests use."""
    first, *others = articles.IMAGES
    archive = service.folder / "articles.tar"
    archives.write_busybox(archive, first, command=articles.COMMAND, extra=articles.FILES)
    service.podman("load", "--quiet", "--input", str(archive))
    for name in others:
        service.podman("tag", first, name)
    yield service
    service.podman("rmi", "--force", *articles.IMAGES)


def run(home: Home, manifest: dict[str, Any], *options: str) -> Result:
    return home("run", *options, "-f", "-", stdin=json.dumps(manifest))


def start(home: Home, manifest: dict[str, Any], *options: str) -> None:
    result = run(home, manifest, "-d", *options)
    assert result.code == 0, result.err


def until_said(home: Home, name: str) -> list[str]:
    """Return what a stand-in said once it has said all."""
    home.until_state(name, "running")
    home.until(lambda: "root:" in home.ok("logs", name).out, what=f"{name} has said all")
    return home.ok("logs", name).out.splitlines()


def gpus_in(lines: list[str]) -> int:
    return sum(line.startswith("GPU ") for line in lines)


def test_cuda_mem_test_counts_two_and_succeeds(home_of_articles: Home) -> None:
    result = home_of_articles("run", "-f", str(articles.path("cuda-mem-test")))
    assert (result.code, result.out.splitlines()) == (0, ["Visible GPUs: 2"]), result.err
    home_of_articles.rm("cuda-mem-test")


@pytest.mark.parametrize("name", ["gpu-workload", "gpu-debug"])
def test_a_manifest_for_a_labelled_node_waits_for_one_and_says_so_to_people_and_in_the_clusters_words(
    home_of_articles: Home, name: str
) -> None:
    home_of_articles.ok("run", "-d", "-f", str(articles.path(name)))
    words = "not with the labels that it asks for"
    home_of_articles.until(lambda: words in home_of_articles.ok("explain", name).out, what="the reason is shown")
    assert "1 node(s) didn't match Pod's node affinity/selector" in home_of_articles.ok("events", "-o", "json").out
    home_of_articles.rm(name)


@pytest.mark.parametrize("name", ["optimized-gpu-workload", "optimized-gpu-workload-corrected"])
def test_it_runs_by_the_articles_labels_and_by_nvidias(home_of_articles: Home, name: str) -> None:
    start(home_of_articles, articles.smaller(articles.load(name)))
    assert gpus_in(until_said(home_of_articles, "optimized-gpu-workload")) == 8
    home_of_articles.rm("optimized-gpu-workload")


def test_gpu_debug_sees_one_gpu_whatever_its_environment_asks_for(home_of_articles: Home) -> None:
    start(home_of_articles, articles.changed(articles.load("gpu-debug"), nodeSelector={}))
    home_of_articles.until_state("gpu-debug", "running")
    # the container's own process: podman gives one that is run beside it what the pod wrote
    script = "nvidia-smi -L | grep -c ^GPU; tr '\\0' '\\n' </proc/1/environ | grep NVIDIA_VISIBLE"
    said = home_of_articles.ok("exec", "gpu-debug", "--", "/bin/bash", "-c", script).out.split()
    assert said == ["1", "NVIDIA_VISIBLE_DEVICES=void"]
    home_of_articles.rm("gpu-debug")


def test_secure_gpu_workload_has_no_rights_but_its_gpu(home_of_articles: Home) -> None:
    start(home_of_articles, articles.smaller(articles.load("secure-gpu-workload")))
    said = until_said(home_of_articles, "secure-gpu-workload")
    assert (said[0], gpus_in(said), said[-1]) == ("1000", 1, "root: 1")
    shown = home_of_articles.ok("exec", "secure-gpu-workload", "--", "cat", "/proc/1/status").out
    status = dict(line.split(":\t", 1) for line in shown.splitlines() if ":\t" in line)
    assert (int(status["CapBnd"], 16), status["NoNewPrivs"], status["Seccomp"]) == (0, "1", "2")
    home_of_articles.rm("secure-gpu-workload")


def eight_gpus(number: int) -> dict[str, Any]:
    return articles.changed(articles.load("optimized-gpu-workload"), name=f"training-{number}")


@pytest.mark.parametrize(
    ("quota", "let_in", "words"),
    [
        ("gpu-quota", 4, "requested: requests.cpu=32,requests.memory=128Gi"),
        (
            "gpu-quota-corrected",
            2,
            "requested: requests.nvidia.com/gpu=8, "
            "used: requests.nvidia.com/gpu=16, limited: requests.nvidia.com/gpu=16",
        ),
    ],
)
def test_a_quota_lets_in_as_many_and_refuses_in_the_same_words_as_on_a_cluster(
    home_of_articles: Home, quota: str, let_in: int, words: str
) -> None:
    home = home_of_articles
    home.ok("quota", "apply", "-f", str(articles.path(quota)))
    for number in range(let_in):
        start(home, eight_gpus(number), "-n", "ml-workloads", "--wait")  # 32 processors: more than this machine has
    refused = run(home, eight_gpus(let_in), "-d", "-n", "ml-workloads")
    assert refused.code == 3
    assert f"exceeded quota: gpu-quota, {words}" in " ".join(refused.err.split())
    home.ok("rm", "-f", "-n", "ml-workloads", "--grace", "0", *(f"training-{number}" for number in range(let_in)))
    home.ok("quota", "rm", "-n", "ml-workloads", "gpu-quota")
