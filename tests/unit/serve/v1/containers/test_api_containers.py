"""Containers over the API: what is accepted, refused, shown, waited for, stopped and removed."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from fairlead import errors
from fairlead.model.container.step import TraceStep
from fairlead.serve.backend.containers import enginepods, pods
from fairlead.serve.closing import closing
from fairlead.store import tracerecorder
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice, GPUDeviceSpec
from fairlead.wire.kubernetes.scheduling.queue import Queue
from tests.unit.serve.world import NODE, RESOURCE, World


async def _run(api: httpx.AsyncClient, **fields: Any) -> str:
    answer = await api.post("/v1/containers", json={"image": "demo", **fields})
    assert answer.status_code == 201, answer.text
    name: str = answer.json()["name"]
    return name


async def _until(api: httpx.AsyncClient, name: str, state: str, namespace: str = "default") -> dict[str, Any]:
    answer = await api.get(f"/v1/containers/{name}/wait", params={"state": state, "namespace": namespace})
    body: dict[str, Any] = answer.json()
    return body


async def test_a_container_runs_to_its_end_and_its_view_tells_everything(api: httpx.AsyncClient) -> None:
    name = await _run(api, gpus=2, env={"A": "1"}, labels={"team": "red"})
    shown = await _until(api, name, "ended")
    assert name.startswith("demo-")
    assert (shown["state"], shown["exit_code"], shown["node"], shown["gpus"]) == ("succeeded", 0, NODE, 2)
    assert shown["devices"] == {RESOURCE: ["GPU-0", "GPU-1"]}
    assert shown["labels"] == {"team": "red"}


async def test_the_articles_payload_is_valid_as_it_is_and_makes_its_tenancy(
    api: httpx.AsyncClient, world: World
) -> None:
    answer = await api.post("/v1/containers", json={"container-url": "demo", "tenancy": "landon"})
    assert (answer.status_code, answer.json()["namespace"]) == (201, "landon")
    assert (await world.store.get(core.Namespace, "landon")).metadata.name == "landon"
    again = await api.post("/v1/containers", json={"container-url": "demo", "tenancy": "landon"})
    assert again.status_code == 201
    assert again.json()["gpus"] == answer.json()["gpus"] == 1  # as the article's container has


@pytest.mark.parametrize(
    ("more", "gpus"),
    [
        ({"container-url": "demo"}, 1),
        ({"container-url": "demo", "gpus": 0}, 0),
        ({"container-url": "demo", "gpus": 2}, 2),
        ({"image": "demo"}, 0),
        ({"image": "demo", "container-url": "demo"}, 1),
    ],
)
async def test_the_published_payload_has_a_gpu_where_it_names_no_number(
    api: httpx.AsyncClient, more: dict[str, object], gpus: int
) -> None:
    answer = await api.post("/v1/containers", json=more)
    assert (answer.status_code, answer.json()["gpus"]) == (201, gpus)


@pytest.mark.parametrize(("count", "shown"), [(0.5, "500m"), (-1, "-1"), ("two", "two")])
async def test_numbers_of_gpus_that_are_none_are_refused_with_the_rule(
    api: httpx.AsyncClient, count: object, shown: str
) -> None:
    answer = await api.post("/v1/containers", json={"image": "demo", "gpus": count})
    body = answer.json()
    assert (answer.status_code, body["reason"]) == (422, "PodInvalid")
    assert answer.headers["content-type"] == "application/problem+json"
    assert RESOURCE in body["detail"]
    assert f'"{shown}"' in body["detail"]


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({}, 422, "ImageRequired"),
        ({"image": "a", "container-url": "b"}, 422, "ImageAmbiguous"),
        ({"image": "demo", "user": "-rm"}, 422, "PodInvalid"),
        ({"image": "demo", "network": "container:a"}, 422, "ModeInvalid"),
        ({"image": "demo", "ipc": "shareable"}, 422, "ModeInvalid"),
        ({"image": "demo", "isolation": "lxc"}, 422, "IsolationInvalid"),
        ({"image": "demo", "isolation": "gvisor", "network": "host"}, 422, "IsolationInvalid"),
        ({"image": "demo", "isolation": "gvisor"}, 503, "IsolationUnavailable"),
        ({"image": "demo", "isolation": "vm"}, 503, "IsolationUnavailable"),
        ({"image": "demo", "ulimits": [{"name": "nosuch", "soft": 1, "hard": 1}]}, 422, "PodInvalid"),
        ({"image": "demo", "ulimits": [{"name": "core", "soft": 2, "hard": 1}]}, 422, "PodInvalid"),
        ({"image": "demo", "name": "Not A Name"}, 422, "PodInvalid"),
        ({"image": "demo", "restart": "Sometimes"}, 422, "PodInvalid"),
        ({"image": "demo", "gpu": 2}, 400, "RequestInvalid"),
        ({"image": 5}, 400, "RequestInvalid"),
    ],
)
async def test_a_wrong_request_is_a_problem_that_names_what_is_wrong(
    api: httpx.AsyncClient, world: World, body: dict[str, Any], status: int, reason: str
) -> None:
    answer = await api.post("/v1/containers", json=body)
    assert (answer.status_code, answer.json()["reason"], answer.json()["status"]) == (status, reason, status)
    assert not (await world.store.list(core.Pod)).items


async def test_a_body_that_is_no_json_is_a_problem(api: httpx.AsyncClient) -> None:
    answer = await api.post("/v1/containers", content=b"{", headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")


async def test_a_name_that_is_taken_is_a_conflict(api: httpx.AsyncClient) -> None:
    await _run(api, name="train")
    answer = await api.post("/v1/containers", json={"image": "demo", "name": "train"})
    assert (answer.status_code, answer.json()["reason"]) == (409, "AlreadyExists")
    assert "train" in answer.json()["hint"]


async def test_requests_become_limits_mounts_and_users_of_the_pod(api: httpx.AsyncClient, world: World) -> None:
    name = await _run(
        api,
        cpu="1.5",
        memory="1Gi",
        user="1000:100",
        workdir="/work",
        resources={"nvidia.com/mig-1g.10gb": 1},
        binds=[{"host_path": "/data", "container_path": "/in", "read_only": True}],
    )
    pod = await world.pod(name)
    item = pod.spec.containers[0]
    assert item.resources.limits == {"cpu": "1.5", "memory": "1Gi", "nvidia.com/mig-1g.10gb": 1}
    assert (item.security_context, item.working_dir) == (
        core.SecurityContext(run_as_user=1000, run_as_group=100),
        "/work",
    )
    assert (item.volume_mounts[0].mount_path, item.volume_mounts[0].read_only) == ("/in", True)
    assert pod.spec.volumes[0].host_path == core.HostPathVolume(path="/data")


async def test_ports_memory_and_times_become_fields_of_the_pod(api: httpx.AsyncClient, world: World) -> None:
    name = await _run(
        api,
        ports=[{"host_port": 8080, "container_port": 80, "host_ip": "127.0.0.1"}],
        memory_mounts=[{"container_path": "/dev/shm", "size": "1Gi"}],
        hostname="trainer",
        pull="Never",
        time_limit_s=60,
        grace_s=3,
    )
    pod = await world.pod(name)
    item = pod.spec.containers[0]
    assert item.ports == (core.ContainerPort(container_port=80, host_port=8080, host_ip="127.0.0.1"),)
    assert pod.spec.volumes[0].empty_dir == core.EmptyDirVolume(medium="Memory", size_limit="1Gi")
    assert item.volume_mounts[0].mount_path == "/dev/shm"
    assert (pod.spec.hostname, item.image_pull_policy) == ("trainer", "Never")
    assert (pod.spec.active_deadline_seconds, pod.spec.termination_grace_period_seconds) == (60, 3)
    shown = (await api.get(f"/v1/containers/{name}")).json()
    assert (shown["ports"], shown["grace_s"]) == (["127.0.0.1:8080->80/tcp"], 3)


async def test_what_a_manifest_asks_for_in_vain_is_said(api: httpx.AsyncClient) -> None:
    text = _MANIFEST.partition("---")[0].replace("spec:", "spec:\n  hostUsers: true", 1)
    answer = await api.post("/v1/pods", content=text)
    assert answer.json()["warnings"] == ["spec.hostUsers is not carried out on one machine"]
    wrong = await api.post("/v1/pods", content=text.replace("name: one", "name: two").replace("image:", "imgae:"))
    assert wrong.status_code == 422
    assert 'imgae: unknown field, did you mean "image"?' in wrong.json()["detail"]


@pytest.mark.parametrize(
    ("was", "becomes", "reason", "words"),
    [
        ("name: one", "name: one, annotations: {gpu-fraction: '0.5'}", "GPUsAskedOtherwise", "gpu-fraction"),
        ("name: one", "name: one, labels: {kai.scheduler/queue: none}", "QueueUnknown", 'queue "none" is not there'),
        ("spec:", "spec:\n  nodeName: gpu-node-7", "NodeNotHere", "gpu-node-7"),
        ("spec:", "spec:\n  resourceClaims: [{name: g}]", "PodInvalid", "must specify one of"),
        ("image: demo", "image: demo, env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]", "", ""),
        (
            "limits",
            "claims: [{name: g}], limits",
            "PodInvalid",
            'spec.containers[0].resources.claims[0]: Not found: "g"',
        ),
    ],
)
async def test_what_nobody_here_would_carry_out_is_refused(
    api: httpx.AsyncClient, was: str, becomes: str, reason: str, words: str
) -> None:
    """A container that asks for GPUs by number as well keeps its variable: the allocation decides."""
    text = _MANIFEST.partition("---")[0].replace(was, becomes, 1)
    for query in ("", "?dry_run=true"):
        answer = (await api.post(f"/v1/pods{query}", content=text)).json()
        assert answer.get("reason", "") == reason
        assert words in answer.get("detail", "")
        text = text.replace("name: one", "name: another", 1)


async def test_gpus_asked_for_by_a_variable_are_refused_with_the_number(api: httpx.AsyncClient) -> None:
    body = {"image": "demo", "name": "one", "env": {"NVIDIA_VISIBLE_DEVICES": "0,1"}}
    refused = await api.post("/v1/containers", json=body)
    assert (refused.status_code, refused.json()["reason"]) == (422, "GPUsAskedOtherwise")
    assert "-g 2" in refused.json()["hint"]
    assert (await api.post("/v1/containers", json={**body, "gpus": 1})).status_code == 201


async def test_a_container_of_an_unknown_queue_is_refused(api: httpx.AsyncClient, world: World) -> None:
    body = {"image": "demo", "queue": "nosuch"}
    refused = await api.post("/v1/containers", json=body)
    assert (refused.status_code, refused.json()["reason"]) == (422, "QueueUnknown")
    await world.store.create(Queue(metadata=meta.ObjectMeta(name="nosuch")))
    assert (await api.post("/v1/containers", json=body)).status_code == 201


_MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: one}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: demo, resources: {limits: {nvidia.com/gpu: 1}}}
---
apiVersion: v1
kind: Pod
metadata: {name: two, namespace: other}
spec:
  restartPolicy: Never
  containers: [{name: main, image: demo}]
"""


async def test_a_manifest_becomes_its_pods_placed_by_our_scheduler(api: httpx.AsyncClient, world: World) -> None:
    answer = await api.post("/v1/pods", content=_MANIFEST, headers={"content-type": "application/yaml"})
    assert answer.status_code == 201
    assert [(item["name"], item["namespace"]) for item in answer.json()["items"]] == [
        ("one", "default"),
        ("two", "other"),
    ]
    assert (await world.pod("one")).spec.scheduler_name == "fairlead"


async def test_a_namespace_beside_a_manifest_is_for_pods_that_name_none(api: httpx.AsyncClient) -> None:
    first, second = _MANIFEST.split("---")
    answer = await api.post("/v1/pods?namespace=team", content=first)
    assert [item["namespace"] for item in answer.json()["items"]] == ["team"]
    assert (await api.post("/v1/pods?namespace=other", content=second)).status_code == 201
    refused = await api.post("/v1/pods?namespace=team", content=_MANIFEST)
    assert (refused.status_code, refused.json()["reason"]) == (422, "NamespaceMismatch")


async def test_a_manifest_that_is_none_is_refused(api: httpx.AsyncClient) -> None:
    answer = await api.post("/v1/pods", content=b"- 1\n- 2\n")
    assert answer.status_code in {400, 422}
    assert answer.headers["content-type"] == "application/problem+json"


async def test_listings_hide_ended_containers_and_choose_by_label_and_namespace(api: httpx.AsyncClient) -> None:
    ended = await _run(api, labels={"team": "red"})
    await _until(api, ended, "ended")
    living = await _run(api, args=["sleep", "60"], labels={"team": "red"}, namespace="other")
    names = [
        {item["name"] for item in (await api.get("/v1/containers", params=params)).json()["items"]}
        for params in (
            {},
            {"all": "true"},
            {"all": "true", "namespace": "default"},
            {"all": "true", "label": "team=blue"},
        )
    ]
    assert names == [{living}, {ended, living}, {ended}, set()]
    wrong = await api.get("/v1/containers", params={"label": "red"})
    assert (wrong.status_code, wrong.json()["reason"]) == (422, "SelectorInvalid")


async def test_unknown_containers_are_not_found_whatever_is_asked(api: httpx.AsyncClient) -> None:
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", ":stop"),
        ("GET", "/wait"),
        ("GET", "/logs"),
        ("GET", "/trace"),
        ("GET", "/events"),
        ("GET", "/explain"),
    ):
        answer = await api.request(method, f"/v1/containers/nobody{path}")
        assert (answer.status_code, answer.json()["reason"]) == (404, "ContainerNotFound"), path


_GPU = GPUDeviceSpec(
    node_name=NODE,
    index=0,
    minor=0,
    uuid="GPU-1",
    vendor="nvidia",
    product="H100",
    memory="80Gi",
    simulated=True,
)


async def test_right_after_a_start_a_request_is_not_hopeless_where_the_machine_has_gpus(
    api: httpx.AsyncClient, world: World
) -> None:
    """The embedded kubelet offers none until the agent has registered; `ps` called that "never fits"."""
    name = await _run(api, resources={"nvidia.com/none": 1})
    assert (await api.get(f"/v1/containers/{name}")).json()["waiting"]["reason"] == "WillNeverFit", "no GPU is known"
    await world.store.create(GPUDevice(metadata=meta.ObjectMeta(name="vm.gpu-1"), spec=_GPU))
    waiting = (await api.get(f"/v1/containers/{name}")).json()["waiting"]
    assert (waiting["reason"], waiting["asked"]) == ("WaitingForDevices", 1)
    assert "has just started" in waiting["message"]


async def test_a_refused_configuration_is_why_no_node_has_a_device(api: httpx.AsyncClient, world: World) -> None:
    name = await _run(api, resources={"nvidia.com/none": 1})
    about = core.ObjectReference(api_version="v1", kind="Node", name=NODE)
    told = (("ConfigRefused", 'configuration refused: configuration "nope" is not there'), ("ConfigApplied", "b"))
    for number, (reason, message) in enumerate(told):
        step = TraceStep(layer="deviceplugin", reason=reason, message=message, at=time.time() + number, facts={})
        await tracerecorder.record(world.store, about, step)
        waiting = (await api.get(f"/v1/containers/{name}")).json()["waiting"]
        assert ('"nope" is not there' in waiting["message"]) == (reason == "ConfigRefused"), waiting


async def test_a_container_that_fits_nowhere_is_pending_and_explained(api: httpx.AsyncClient, world: World) -> None:
    name = await _run(api, gpus=9)
    shown = await _until_reason(api, world, name)
    assert (shown["state"], shown["reason"]) == ("pending", "Unschedulable")
    why = (await api.get(f"/v1/containers/{name}/explain")).json()
    assert why["summary"] == "will never fit: 9 asked, this machine has 4"
    assert (why["waiting"]["reason"], why["waiting"]["asked"], why["waiting"]["total"]) == ("WillNeverFit", 9, 4)
    assert why["facts"]["refused"][0]["why"] == "4 free"
    assert "9 nvidia.com/gpu asked, the largest node has 4" in why["diagnosis"]


async def _until_reason(api: httpx.AsyncClient, world: World, name: str) -> dict[str, Any]:
    async with closing(pods.follow(world.store, await world.pod(name))) as changes:
        async for change in changes:
            if change.object.status.conditions:
                break
    body: dict[str, Any] = (await api.get(f"/v1/containers/{name}")).json()
    return body


async def test_an_image_that_is_nowhere_fails_and_frees_its_gpus(api: httpx.AsyncClient) -> None:
    shown = await _until(api, await _run(api, image="nowhere", gpus=4), "ended")
    assert (shown["state"], shown["reason"], shown["exit_code"]) == ("failed", "ImageNotFound", None)
    assert (await _until(api, await _run(api, gpus=4), "ended"))["state"] == "succeeded"


async def test_stop_ends_the_process_and_keeps_the_record(api: httpx.AsyncClient, world: World) -> None:
    name = await _run(api, args=["sleep", "60"], gpus=1)
    await _until(api, name, "started")
    asked = await api.post(f"/v1/containers/{name}:stop", params={"grace": 3})
    assert (asked.status_code, asked.json()["state"]) == (202, "stopping")
    request = (await world.pod(name)).status.stop_request
    assert request is not None
    assert request.grace_period_seconds == 3
    assert (await _until(api, name, "ended"))["state"] == "stopped"
    again = await api.post(f"/v1/containers/{name}:stop")
    assert (again.status_code, again.json()["state"]) == (202, "stopped")


async def test_a_pending_container_is_stopped_at_once(api: httpx.AsyncClient) -> None:
    name = await _run(api, gpus=9)
    asked = await api.post(f"/v1/containers/{name}:stop")
    assert asked.json()["state"] == "stopped"


async def test_delete_stops_and_removes(api: httpx.AsyncClient) -> None:
    name = await _run(api, args=["sleep", "60"])
    await _until(api, name, "started")
    assert (await api.delete(f"/v1/containers/{name}")).status_code == 202
    waited = await api.get(f"/v1/containers/{name}/wait", params={"state": "gone"})
    assert waited.status_code == 404 or waited.json()["state"] == "gone"
    assert (await api.get(f"/v1/containers/{name}")).status_code == 404


async def test_wait_returns_the_present_state_when_its_time_is_over(api: httpx.AsyncClient) -> None:
    name = await _run(api, args=["sleep", "60"])
    await _until(api, name, "started")
    shown = await api.get(f"/v1/containers/{name}/wait", params={"timeout": 0.01})
    assert (shown.status_code, shown.json()["state"]) == (200, "running")
    wrong = await api.get(f"/v1/containers/{name}/wait", params={"state": "happy"})
    assert (wrong.status_code, wrong.json()["reason"]) == (422, "WaitStateUnknown")


async def test_logs_of_an_ended_container_stay_and_can_be_cut(api: httpx.AsyncClient) -> None:
    name = await _run(api, command=["sh", "-c", "echo one; echo two; exit 3"])
    shown = await _until(api, name, "ended")
    assert (shown["state"], shown["exit_code"]) == ("failed", 3)
    assert (await api.get(f"/v1/containers/{name}/logs")).text == "one\ntwo\n"
    assert (await api.get(f"/v1/containers/{name}/logs", params={"tail": 1})).text == "two\n"
    stamped = (await api.get(f"/v1/containers/{name}/logs", params={"timestamps": "true"})).text
    assert stamped.splitlines()[0].endswith("Z one")


async def test_following_logs_waits_for_the_start_and_ends_with_the_process(api: httpx.AsyncClient) -> None:
    name = await _run(api, command=["sh", "-c", "echo one; sleep 0.05; echo two"])
    assert (await api.get(f"/v1/containers/{name}/logs", params={"follow": "true"})).text == "one\ntwo\n"


async def test_logs_before_the_start_say_so(api: httpx.AsyncClient) -> None:
    name = await _run(api, gpus=9)
    answer = await api.get(f"/v1/containers/{name}/logs")
    assert (answer.status_code, answer.json()["reason"]) == (409, "ContainerNotStarted")
    assert f"fairlead logs -f {name}" in answer.json()["hint"]


async def test_following_a_container_that_never_starts_ends_empty(api: httpx.AsyncClient) -> None:
    name = await _run(api, image="nowhere")
    assert (await api.get(f"/v1/containers/{name}/logs", params={"follow": "true"})).text == ""


async def test_a_container_of_the_group_is_chosen_by_name(api: httpx.AsyncClient) -> None:
    name = await _run(api)
    answer = await api.get(f"/v1/containers/{name}/logs", params={"container": "other"})
    assert (answer.status_code, answer.json()["detail"]) == (404, f'"{name}" has no container "other" (it has: demo)')


async def test_a_submission_is_recorded_and_traced_in_order(api: httpx.AsyncClient) -> None:
    name = await _run(api, gpus=1)
    await _until(api, name, "ended")
    reasons = [item["reason"] for item in (await api.get(f"/v1/containers/{name}/events")).json()["items"]]
    assert {"Accepted", "Scheduled", "ContainerCreated", "ContainerStarted", "ContainerEnded"} <= set(reasons)
    entries = (await api.get(f"/v1/containers/{name}/trace")).json()["entries"]
    assert [entry["stage"] for entry in entries][:4] == ["found", "advertised", "accepted", "scheduled"]
    missing = [entry["stage"] for entry in entries if entry["record"] == "not recorded"]
    assert missing == ["chosen", "allocated", "edits", "isolated"]


async def test_exec_needs_a_running_container(api: httpx.AsyncClient, world: World) -> None:
    name = await _run(api)
    await _until(api, name, "ended")
    with pytest.raises(errors.Conflict) as caught:
        await enginepods.find_running(world.engine, await world.pod(name), "demo")
    assert caught.value.reason == "ContainerNotRunning"


_FORGED = {"fairlead.dev/devices": '{"nvidia.com/gpu":["GPU-forged"]}'}


@pytest.mark.parametrize("part", ["labels", "annotations"])
async def test_a_manifest_with_names_of_ours_is_refused(api: httpx.AsyncClient, world: World, part: str) -> None:
    item = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", part: _FORGED}}
    item["spec"] = {"containers": [{"name": "main", "image": "a"}]}
    answer = await api.post("/v1/pods", content=json.dumps(item))
    assert (answer.status_code, answer.json()["reason"]) == (403, "NameReserved")
    assert (await world.store.list(core.Pod)).items == ()


async def test_a_request_with_labels_of_ours_is_refused(api: httpx.AsyncClient, world: World) -> None:
    answer = await api.post("/v1/containers", json={"image": "a", "labels": _FORGED})
    assert (answer.status_code, answer.json()["reason"]) == (403, "NameReserved")
    assert (await world.store.list(core.Pod)).items == ()


async def test_a_quota_with_names_of_ours_is_refused(api: httpx.AsyncClient) -> None:
    item = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "annotations": _FORGED}}
    answer = await api.put("/v1/quotas", content=json.dumps(item))
    assert (answer.status_code, answer.json()["reason"]) == (403, "NameReserved")


async def test_a_container_that_is_killed_by_hand_is_not_started_again(api: httpx.AsyncClient, world: World) -> None:
    await _run(api, name="kept", restart="Always", args=["sh", "-c", "sleep 600"])
    await _until(api, "kept", "started")
    assert (await api.post("/v1/containers/kept:signal", params={"signal": "USR1"})).status_code == 202
    assert (await world.pod("kept")).status.stop_request is None
    assert (await api.post("/v1/containers/kept:signal", params={"signal": "KILL"})).status_code == 202
    asked = (await world.pod("kept")).status.stop_request
    assert asked is not None
    assert asked.grace_period_seconds == 0
