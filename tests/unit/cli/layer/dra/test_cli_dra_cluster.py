"""`fairlead dra …` without files: the objects are those of the cluster that the kubeconfig means."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fairlead.store.kubernetes import document
from tests.unit.cli.conftest import fairlead
from tests.unit.store.kubernetes import scriptedserver

_SLICE: dict[str, Any] = {
    "metadata": {"name": "n1-a"},
    "spec": {
        "driver": "d.example",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    },
}
_OLD: dict[str, Any] = {**_SLICE, "spec": {**_SLICE["spec"], "devices": [{"name": "gpu-0", "basic": {}}]}}
_CLAIM: dict[str, Any] = {
    "metadata": {"name": "train", "namespace": "team"},
    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
}


class _Cluster:
    """Answers lists by path; a list of lists is pages."""

    def __init__(self, versions: tuple[str, ...], lists: dict[str, Any]) -> None:
        self.lists = {f"/apis/resource.k8s.io/{path}" if path[0] == "v" else path: it for path, it in lists.items()}
        self.lists["/apis/resource.k8s.io"] = {
            "versions": [{"groupVersion": f"resource.k8s.io/{one}"} for one in versions]
        }

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        found = self.lists.get(request.path)
        if isinstance(found, int):
            return await scriptedserver.refuse(found, message="not for you")(request)
        if found is None:
            return await scriptedserver.refuse(404)(request)
        if isinstance(found, dict):
            return await scriptedserver.reply(found)(request)
        at = int(request.query.get("continue") or 0)
        pages = found if found and isinstance(found[0], list) else [found]
        following = str(at + 1) if at + 1 < len(pages) else ""
        answer = {"metadata": {"resourceVersion": "1", "continue": following}, "items": pages[at]}
        return await scriptedserver.reply(answer)(request)


@contextlib.contextmanager
def _serving(cluster: _Cluster) -> Iterator[scriptedserver.Server]:
    """Serve in a thread: a verb has an event loop of its own."""
    loop, server = asyncio.new_event_loop(), scriptedserver.Server()
    server.answers(cluster)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(5)
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _run(tmp_path: Path, cluster: _Cluster, *words: str, namespace: str = "") -> Any:
    with _serving(cluster) as server:
        config = {
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
            "current-context": "one",
        }
        file = tmp_path / "kubeconfig"
        file.write_text(json.dumps(config))
        return fairlead("dra", *words, "--kubeconfig", str(file), env={"HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("served", "version", "item"),
    [
        (("v1beta1", "v1", "v1beta2"), "v1", _SLICE),
        (("v1beta1", "v1beta2"), "v1beta2", _SLICE),
        (("v1beta1",), "v1beta1", _OLD),
    ],
)
def test_the_newest_version_is_asked_for(tmp_path: Path, served: tuple[str, ...], version: str, item: Any) -> None:
    cluster = _Cluster(served, {f"{version}/resourceslices": [item]})
    done = _run(tmp_path, cluster, "eval", "device.driver")
    assert done.exit_code == 0, done.stderr
    assert 'd.example/n1/gpu-0   2      "d.example"' in done.stdout


def test_all_pages_are_read(tmp_path: Path) -> None:
    pages = [[{**_SLICE, "spec": {**_SLICE["spec"], "pool": {"name": name}}}] for name in ("p1", "p2", "p3")]
    done = _run(tmp_path, _Cluster(("v1",), {"v1/resourceslices": pages}), "eval", "true")
    assert [line.split()[0] for line in done.stdout.splitlines()[2:5]] == [f"d.example/p{at}/gpu-0" for at in (1, 2, 3)]


def test_a_claim_of_a_cluster_is_explained_with_its_nodes_and_what_may_not_be_read_is_said(tmp_path: Path) -> None:
    lists = {
        "v1/resourceslices": [_SLICE],
        "v1/resourceclaims": [_CLAIM],
        "v1/deviceclasses": [{"metadata": {"name": "gpu"}}],
        "v1/resourceclaimtemplates": [],
        "/api/v1/nodes": [{"metadata": {"name": "n1"}}, {"metadata": {"name": "n2"}}],
        "/api/v1/pods": 403,
    }
    done = _run(tmp_path, _Cluster(("v1",), lists), "explain", "team/train")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("ResourceClaim team/train waits, and fits on 1 of 2 nodes (n1)")
    assert "no Pod was read: " in done.stdout


def test_what_is_needed_and_may_not_be_read_ends_it(tmp_path: Path) -> None:
    lists = {"v1/resourceslices": [_SLICE], "v1/resourceclaims": 403, "v1/deviceclasses": []}
    done = _run(tmp_path, _Cluster(("v1",), lists), "explain", "team/train")
    assert done.exit_code == 3
    assert "not for you" in done.stderr


def test_a_kind_that_only_an_older_version_has_is_read_in_it(tmp_path: Path) -> None:
    taint = {"key": "k", "effect": "NoSchedule"}
    rule = {"metadata": {"name": "r"}, "spec": {"deviceSelector": {"driver": "d.example"}, "taint": taint}}
    lists = {
        "v1/resourceslices": [_SLICE],
        "v1/resourceclaims": [_CLAIM],
        "v1/deviceclasses": [{"metadata": {"name": "gpu"}}],
        "v1beta2/devicetaintrules": [rule],
    }
    done = _run(tmp_path, _Cluster(("v1", "v1beta2"), lists), "explain", "team/train")
    assert "d.example/n1/gpu-0: taint k:NoSchedule is not tolerated" in done.stdout


def test_an_object_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    bad = {"metadata": {"name": "bad"}, "spec": 3}
    done = _run(tmp_path, _Cluster(("v1",), {"v1/resourceslices": [bad, _SLICE]}), "eval", "true")
    assert "d.example/n1/gpu-0" in done.stdout
    assert "bad: spec: expected a map, got a whole number" in done.stdout


@pytest.mark.parametrize("answer", [{"items": 3}, {"metadata": {"continue": "0"}, "items": []}])
def test_a_server_that_answers_nonsense_is_named(tmp_path: Path, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_MOST_PAGES", 3)
    done = _run(tmp_path, _Cluster(("v1",), {"v1/resourceslices": answer}), "eval", "true")
    assert done.exit_code == 8
    assert "list /apis/resource.k8s.io/v1/resourceslices" in done.stderr


def test_a_cluster_without_the_group_says_what_it_takes(tmp_path: Path) -> None:
    cluster = _Cluster((), {})
    done = _run(tmp_path, cluster, "eval", "true")
    assert "does not serve resource.k8s.io" in done.stderr
    assert "1.32 or newer" in done.stderr


def test_without_a_file_and_a_cluster_the_next_step_is_named(tmp_path: Path) -> None:
    done = fairlead("dra", "eval", "true", env={"HOME": str(tmp_path)})
    assert done.exit_code == 2
    assert "no -f FILE is given" in done.stderr
    assert "give -f FILE, or --kubeconfig FILE" in done.stderr


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("claims",), "team/train"),
        (("free",), "d.example/n1"),
        (("explain", "team/train"), "ResourceClaim team/train waits, and fits on 1 of 1 node"),
    ],
)
def test_a_user_of_one_namespace_sees_it_and_that_the_others_are_not_known(
    tmp_path: Path, words: tuple[str, ...], shown: str
) -> None:
    lists = {
        "v1/resourceslices": [_SLICE],
        "v1/resourceclaims": 403,
        "v1/namespaces/team/resourceclaims": [_CLAIM],
        "v1/deviceclasses": [{"metadata": {"name": "gpu"}}],
        "v1/resourceclaimtemplates": 403,
        "/api/v1/pods": 403,
        "/api/v1/namespaces/team/pods": [],
    }
    done = _run(tmp_path, _Cluster(("v1",), lists), *words, namespace="team")
    assert done.exit_code == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert shown in text
    assert "ResourceClaim of namespaces other than team; what they have is not known" in text
    if "explain" in words:
        assert "Pod of namespaces other than team" in text
        assert "no ResourceClaimTemplate was read" in text, "not even in its own"


def test_a_namespace_that_can_be_none_is_asked_for_nothing(tmp_path: Path) -> None:
    lists = {"v1/resourceslices": [_SLICE], "v1/resourceclaims": 403}
    done = _run(tmp_path, _Cluster(("v1",), lists), "claims", namespace="../team")
    assert done.exit_code == 3
    assert "not for you" in done.stderr
