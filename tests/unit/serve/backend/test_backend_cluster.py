"""The API over a cluster: what nodes publish, what its API server keeps of output, and plain refusals of the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from fairlead import errors
from fairlead.plan.metering.price import Pricing
from fairlead.serve.backend import cluster
from fairlead.serve.v1 import dependencies
from fairlead.store import subresource
from fairlead.store.embedded import memory
from fairlead.store.port import Store
from fairlead.store.subresource import LogOptions
from fairlead.wire.kubernetes import core, gpudevice, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from fairlead.wire.kubernetes.node.nodeimages import ContainerImage, ImageStatus, NodeImages
from tests import gpus
from tests.unit.serve.world import application, in_process


class Server:
    """An API server's other doors: output by pod and container, sessions, evictions."""

    address = "https://cluster:6443"

    def __init__(self) -> None:
        self.outputs: dict[str, bytes] = {}
        self.is_silent = False
        self.evicted: list[tuple[str, int | None]] = []
        self.budget = ""
        self.judged: list[core.Pod] = []
        self.recreated: list[tuple[str, int | None]] = []
        self.refusal: errors.FairleadError | None = None
        self.commands: list[tuple[str, tuple[str, ...]]] = []

    async def version(self) -> str:
        if self.is_silent:
            raise errors.Unavailable("it does not answer", reason="APIServerUnreachable", hint="start it")
        return "v1.36.2"

    async def logs(self, pod: core.Pod, container: str, options: LogOptions) -> AsyncGenerator[bytes, None]:
        which = "-previous" if options.previous else ""
        output = self.outputs.get(f"{pod.metadata.namespace}/{pod.metadata.name}/{container}{which}")
        if output is None:
            message = f'container "{container}" in pod "{pod.metadata.name}" is waiting to start'
            raise errors.Conflict(message, reason="ContainerNotStarted")
        yield output

    async def bind(self, pod: core.Pod, node: str) -> None:
        raise AssertionError(node)

    async def judge(self, pod: core.Pod) -> core.Pod:
        self.judged.append(pod)
        if self.refusal is not None:
            raise self.refusal
        return pod

    async def recreate(self, pod: core.Pod, *, grace_s: int | None) -> core.Pod:
        self.recreated.append((pod.metadata.name, grace_s))
        return pod

    async def evict(self, pod: core.Pod, *, grace_s: int | None, why: str = "", reason: str = "Preempted") -> None:
        if self.budget:
            raise errors.Denied(self.budget, reason="DisruptionBudget")
        self.evicted.append((pod.metadata.name, grace_s))

    async def exec(self, pod: core.Pod, container: str, argv: tuple[str, ...], **_: Any) -> subresource.Session:
        self.commands.append((container, argv))
        raise errors.Conflict("it has ended", reason="ContainerNotRunning")

    async def attach(self, pod: core.Pod, container: str, *, stdin: bool, replay: bool = False) -> subresource.Session:
        raise AssertionError(container)

    async def port_forward(self, pod: core.Pod, port: int) -> subresource.Connection:
        raise AssertionError(port)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def store() -> memory.MemoryStore:
    return memory.MemoryStore()


@pytest.fixture
async def api(store: memory.MemoryStore, server: Server) -> AsyncIterator[httpx.AsyncClient]:
    door = dependencies.Services(
        callers=None,
        store=store,
        backend=cluster.backend(store=store, server=server, pods=server, pricing=Pricing()),
        info=dependencies.ServiceInfo(
            version="0.0.0",
            node="",
            started_at=time.time(),
            scheduler_name="",
            resource="nvidia.com/gpu",
            socket=Path("/none"),
            state_folder=Path(),
            cdi_folder=Path(),
        ),
    )
    transport = in_process(application(door))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def add_gpu(
    store: Store,
    node: str,
    index: int,
    status: gpudevice.GPUDeviceStatus,
    *slices: gpudevice.MIGSlice,
) -> None:
    spec = gpus.spec(
        node,
        index,
        product="NVIDIA H100 80GB HBM3",
        pci_bus_id=f"0000:0{index}:00.0",
        numa_node=index,
        driver_version="550.1",
        cuda_version="12.4",
        mig_mode="Enabled" if slices else "Disabled",
        mig_devices=slices,
    )
    about = meta.ObjectMeta(name=gpudevice.object_name(spec.uuid, node, simulated=True))
    made = await store.create(GPUDevice(metadata=about, spec=spec))
    await store.update_status(msgspec.structs.replace(made, status=status))


async def add_pod(store: Store, name: str, *containers: str, node: str = "a") -> core.Pod:
    spec = core.PodSpec(containers=tuple(core.Container(name=one, image="image") for one in containers), node_name=node)
    return await store.create(core.Pod(metadata=meta.ObjectMeta(name=name, namespace="team"), spec=spec))


async def run(
    store: Store, name: str, container: str, run_id: str, *, ended: int | None = None, before: str = ""
) -> None:
    """Let a container's run begin, or end with a code."""
    pod = await store.get(core.Pod, name, "team")
    running = core.ContainerStateRunning(started_at=meta.now())
    state = core.ContainerStateUnion(running=running)
    if ended is not None:
        over = core.ContainerStateTerminated(exit_code=ended, started_at=meta.now(), finished_at=meta.now())
        state = core.ContainerStateUnion(terminated=over)
    past = core.ContainerStateTerminated(exit_code=1, container_id=f"containerd://{before}") if before else None
    status = core.ContainerStatus(
        name=container,
        state=state,
        last_state=core.ContainerStateUnion(terminated=past),
        container_id=f"containerd://{run_id}",
    )
    phase = "Running" if ended is None else ("Failed" if ended else "Succeeded")
    changed = core.PodStatus(phase=phase, container_statuses=(status,))
    await store.update_status(msgspec.structs.replace(pod, status=changed))


async def test_gpus_of_all_nodes_are_listed_with_health_and_holders(
    api: httpx.AsyncClient, store: memory.MemoryStore
) -> None:
    ill = gpudevice.GPUDeviceStatus(health="Unhealthy", reason="XID79", message="fell off the bus")
    holder = gpudevice.Holder(namespace="team", pod="train", container="main")
    await add_gpu(store, "b", 0, gpudevice.GPUDeviceStatus(health="Healthy", holders=(holder,)))
    await add_gpu(store, "a", 1, ill)
    await add_gpu(store, "a", 0, gpudevice.GPUDeviceStatus(health="Healthy"))
    found = (await api.get("/v1/gpus")).json()
    assert [(item["node"], item["gpu"]["index"], item["health"]) for item in found["gpus"]] == [
        ("a", 0, "Healthy"),
        ("a", 1, "Unhealthy"),
        ("b", 0, "Healthy"),
    ]
    assert found["gpus"][1]["reason"] == "XID79"
    assert found["gpus"][2]["holders"] == [
        {
            **{"device": "GPU-0", "namespace": "team", "container": "train", "resource": "", "part": "main"},
            **{"since": None, "claim": "", "enforced_by": ""},
        }
    ]
    assert found["gpus"][0]["gpu"]["memory_bytes"] == 81559 << 20
    assert found["drivers"] == [{"vendor": "nvidia", "version": "550.1", "cuda_version": [12, 4]}]
    assert found["is_simulated"] is True


async def test_mig_devices_and_who_has_them_are_read_from_the_objects(
    api: httpx.AsyncClient, store: memory.MemoryStore
) -> None:
    half = gpudevice.MIGSlice(
        uuid="MIG-1", profile="3g.40gb", start=4, size=4, index=1, gpu_instance=2, compute_instance=0, memory="40448Mi"
    )
    older = gpudevice.MIGSlice(uuid="MIG-0", profile="3g.40gb", start=0, size=4)
    one = gpudevice.Holder(namespace="team", pod="train", devices=("MIG-1",), mig_devices=("MIG-1",))
    dra = gpudevice.Holder(namespace="team", pod="claim", devices=("gpu-0-mig-0",), mig_devices=("MIG-0",))
    await add_gpu(store, "a", 0, gpudevice.GPUDeviceStatus(health="Healthy", holders=(one, dra)), older, half)
    [found] = (await api.get("/v1/gpus")).json()["gpus"]
    keys = "uuid", "index", "profile", "gpu_instance", "placement_start", "placement_size", "memory_bytes"
    assert [tuple(mig[key] for key in keys) for mig in found["gpu"]["mig_devices"]] == [
        ("MIG-0", 0, "3g.40gb", 0, 0, 4, 0),
        ("MIG-1", 1, "3g.40gb", 2, 4, 4, 40448 << 20),
    ]
    assert [(holder["container"], holder["device"]) for holder in found["holders"]] == [
        ("train", "MIG-1"),
        ("claim", "MIG-0"),
    ]


async def test_topology_is_by_node_and_says_that_links_are_not_known(
    api: httpx.AsyncClient, store: memory.MemoryStore
) -> None:
    for name, index in (("b", 0), ("a", 1), ("a", 0)):
        await add_gpu(store, name, index, gpudevice.GPUDeviceStatus())
    found = (await api.get("/v1/topology")).json()["items"]
    assert [(item["node"], len(item["gpus"]), item["links"]) for item in found] == [("a", 2, None), ("b", 1, None)]


async def test_status_describes_the_cluster_and_a_server_that_is_silent(
    api: httpx.AsyncClient, store: memory.MemoryStore, server: Server
) -> None:
    await add_gpu(store, "a", 0, gpudevice.GPUDeviceStatus(health="Lost"))
    found = (await api.get("/v1/status")).json()
    assert found["cluster"] == {"server": "https://cluster:6443", "version": "v1.36.2"}
    assert found["gpus"] == {"found": 1, "unreadable": 1, "Lost": 1}
    assert found["engine"] is None
    server.is_silent = True
    assert (await api.get("/v1/status")).json()["problems"] == ["it does not answer (start it)"]


async def test_output_is_what_the_server_keeps_of_the_named_container(
    api: httpx.AsyncClient, store: memory.MemoryStore, server: Server
) -> None:
    await add_pod(store, "two", "main", "side")
    server.outputs = {"team/two/main": b"from main\n", "team/two/side": b"from side\n"}
    logs = "/v1/containers/two/logs"
    assert (await api.get(logs, params={"namespace": "team"})).text == "from main\n"
    assert (await api.get(logs, params={"namespace": "team", "container": "side"})).text == "from side\n"
    missing = await api.get(logs, params={"namespace": "team", "container": "third"})
    assert (missing.status_code, "main, side" in missing.json()["detail"]) == (404, True)


async def test_no_output_yet_is_a_conflict_with_its_reason(api: httpx.AsyncClient, store: memory.MemoryStore) -> None:
    await add_pod(store, "waits", "main", node="")
    await add_pod(store, "pulls", "main")
    for name in ("waits", "pulls"):
        answer = await api.get(f"/v1/containers/{name}/logs", params={"namespace": "team"})
        assert (answer.status_code, answer.json()["reason"]) == (409, "ContainerNotStarted")


async def test_followed_output_waits_for_the_start_and_goes_on_through_restarts(
    api: httpx.AsyncClient, store: memory.MemoryStore, server: Server
) -> None:
    await add_pod(store, "again", "main")
    server.outputs = {"team/again/main": b"ran\n"}
    follow = {"namespace": "team", "follow": "true"}
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(api.get("/v1/containers/again/logs", params=follow))
        await run(store, "again", "main", "first")
        await run(store, "again", "main", "first")
        await run(store, "again", "main", "second", ended=3)
    assert reading.result().text in {"ran\nran\n", "ran\n"}  # a watch may begin after the first run was over
    once = await api.get("/v1/containers/again/logs", params={**follow, "once": "true"})
    assert once.text == "ran\n"


async def test_a_pod_is_handed_to_the_server_as_it_is_asked_for(
    api: httpx.AsyncClient, store: memory.MemoryStore
) -> None:
    made = await api.post("/v1/containers", json={"image": "demo", "name": "mine", "gpus": 2, "namespace": "team"})
    assert made.status_code == 201
    pod = await store.get(core.Pod, "mine", "team")
    assert pod.spec.scheduler_name == ""
    assert pod.spec.containers[0].resources.limits == {"nvidia.com/gpu": 2}
    assert not (await store.list(core.Event)).items
    again = await api.post("/v1/containers", json={"image": "demo", "name": "mine", "namespace": "team"})
    assert (again.status_code, again.json()["reason"]) == (409, "AlreadyExists")


async def test_a_run_that_ended_unseen_is_read_as_the_one_before(
    api: httpx.AsyncClient, store: memory.MemoryStore, server: Server
) -> None:
    await add_pod(store, "quick", "main")
    server.outputs = {"team/quick/main": b"one\n"}
    follow = {"namespace": "team", "follow": "true"}
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(api.get("/v1/containers/quick/logs", params=follow))
        await asyncio.sleep(0.05)
        await run(store, "quick", "main", "first")
        await asyncio.sleep(0.05)
        # The second and the third run begin before anybody looks again.
        server.outputs |= {"team/quick/main": b"three\n", "team/quick/main-previous": b"two\n"}
        await run(store, "quick", "main", "third", ended=0, before="second")
    assert reading.result().text == "one\ntwo\nthree\n"


async def test_stop_is_an_eviction_that_a_budget_may_forbid(
    api: httpx.AsyncClient, store: memory.MemoryStore, server: Server
) -> None:
    await add_pod(store, "goes", "main")
    stop = "/v1/containers/goes:stop?namespace=team&grace=5"
    assert (await api.post(stop)).status_code == 202
    assert server.evicted == [("goes", 5)]
    server.budget = "it would violate the pod's disruption budget"
    refused = await api.post(stop)
    assert (refused.status_code, refused.json()["reason"]) == (403, "DisruptionBudget")
    await run(store, "goes", "main", "first", ended=0)
    assert (await api.post(stop)).json()["state"] == "succeeded"


async def test_images_are_what_nodes_report_one_a_digest(api: httpx.AsyncClient, store: memory.MemoryStore) -> None:
    tags = {"a": "docker.io/library/busybox:1", "b": "mirror/busybox:1"}
    for node, tag in tags.items():
        image = ContainerImage(names=(f"{tag.partition(':')[0]}@sha256:abc", tag), size_bytes=7)
        await store.create(NodeImages(metadata=meta.ObjectMeta(name=node), status=ImageStatus(images=(image,))))
        item = await store.get(NodeImages, node)
        await store.update_status(msgspec.structs.replace(item, status=ImageStatus(images=(image,))))
    (found,) = (await api.get("/v1/images")).json()["items"]
    assert found == {
        "id": "sha256:abc",
        "names": list(tags.values()),
        "size_bytes": 7,
        "created_at": None,
        "nodes": ["a", "b"],
    }


async def test_removal_leaves_the_mark_of_a_stop_out(api: httpx.AsyncClient, store: memory.MemoryStore) -> None:
    await add_pod(store, "goes", "main")
    answer = await api.delete("/v1/containers/goes", params={"namespace": "team", "grace": 0})
    assert answer.status_code == 202
    marked = await store.get(core.Pod, "goes", "team")
    assert marked.metadata.deletion_timestamp is not None
    assert not marked.metadata.annotations


@pytest.mark.parametrize(
    ("method", "path", "says"),
    [
        ("POST", "/v1/containers/train:attach", "--pid"),
        ("POST", "/v1/containers/train:detach", "--pid"),
        ("DELETE", "/v1/images?name=x", "registry"),
    ],
)
async def test_what_needs_a_machine_is_refused_with_what_does_it_on_a_cluster(
    api: httpx.AsyncClient, method: str, path: str, says: str
) -> None:
    answer = await api.request(method, path, json=None if method in {"GET", "DELETE"} else {"gpu": "0"})
    assert (answer.status_code, answer.json()["reason"]) == (400, "NotOnCluster")
    assert says in answer.json()["hint"]


async def test_a_manifest_is_taken_whole_or_not_at_all(api: httpx.AsyncClient, store: memory.MemoryStore) -> None:
    manifest = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: team}
spec:
  containers: [{name: main, image: demo}]
"""
    made = await api.post("/v1/pods", content=manifest.replace("NAME", "whole"))
    assert (made.status_code, made.json()["warnings"]) == (201, []), made.text
    more = manifest.replace("NAME", "more") + "  serviceAccountName: other\n  subdomain: x\n"
    refused = await api.post("/v1/pods", content=more)
    assert (refused.status_code, refused.json()["reason"]) == (400, "FieldsUnread"), refused.text
    assert "subdomain" in refused.json()["detail"]
    assert [one.metadata.name for one in (await store.list(core.Pod)).items] == ["whole"]


async def test_a_restart_is_the_servers_own_pod_made_anew(
    api: httpx.AsyncClient, store: memory.MemoryStore, server: Server
) -> None:
    await add_pod(store, "train", "main")
    answer = await api.post("/v1/containers/train:restart", params={"namespace": "team", "grace": 3})
    assert (answer.status_code, server.recreated) == (200, [("train", 3)]), answer.text


async def test_a_foreign_pod_is_traced_by_what_its_kubelet_says(
    api: httpx.AsyncClient, store: memory.MemoryStore
) -> None:
    pod = await add_pod(store, "plain", "main", "side")
    await run(store, "plain", "main", "first", ended=3)
    warning = core.Event(
        metadata=meta.ObjectMeta(name="plain.1", namespace="team"),
        involved_object=core.ObjectReference(kind="Pod", name="plain", namespace="team", uid=pod.metadata.uid),
        reason="BackOff",
        message="Back-off restarting failed container",
        type="Warning",
        source=core.EventSource(component="kubelet"),
        last_timestamp=meta.now(),
    )
    await store.create(warning)
    told = (await api.get("/v1/containers/plain/trace", params={"namespace": "team"})).json()["entries"]
    by_title = {item["title"]: item for item in told}
    assert by_title["process ended"]["step"]["message"] == "main ended with 3, its kubelet says"
    assert by_title["container created"]["record"] == "not recorded"
    assert by_title["BackOff"]["step"]["is_warning"] is True
    side = {"namespace": "team", "container": "side"}
    other = (await api.get("/v1/containers/plain/trace", params=side)).json()["entries"]
    assert {item["step"]["reason"] for item in other if item["step"]} == {"Accepted", "BackOff"}


async def test_readiness_is_the_servers_answer(api: httpx.AsyncClient) -> None:
    assert (await api.get("/readyz")).json() == {"status": "ready"}


@pytest.mark.parametrize("is_there", [False, True])
async def test_labels_of_ours_are_refused_at_a_volume_of_the_cluster(
    api: httpx.AsyncClient, store: memory.MemoryStore, is_there: bool
) -> None:
    """One would pass for a tenancy's export: it could not be removed, and went with a prune."""
    body: dict[str, Any] = {"name": "data", "namespace": "team", "size": "1Gi"}
    if is_there:
        assert (await api.post("/v1/volumes", json=body)).status_code == 201
    refused = await api.post("/v1/volumes", json=body | {"labels": {"fairlead.dev/tenancy-uid": "forged"}})
    assert (refused.status_code, refused.json()["reason"]) == (403, "NameReserved"), refused.text
    assert len((await store.list(core.PersistentVolumeClaim)).items) == is_there
