"""The trace on a real kubelet's node: the articles' pod leaves the same trace as on one machine, step by step."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.model.container.step import TraceStep
from fairlead.node.deviceplugin import podresources
from fairlead.plan import trace
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.trace import STAGES, Record, Trace
from fairlead.store import tracerecorder
from fairlead.wire.kubernetes import api as wire
from fairlead.wire.kubernetes import core
from tests.cluster import node, pods
from tests.katastandin import coldplug, guest
from tools.cluster import api, home, image

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]

_ROOT = Path(__file__).parents[2]
_MANIFEST = _ROOT / "examples/articles/gpu-pod.yaml"
_CUDA = "docker.io/nvidia/cuda:11.8.0-base-ubuntu22.04"
_EVENTS = "/api/v1/namespaces/default/events"
_DEVICES = "/apis/fairlead.dev/v1alpha1/gpudevices"

# What tests/system/test_whole_trace.py asserts of `fairlead up` for the same pod: nothing reads a first output here.
ONE_MACHINE = [stage.key for stage in STAGES if not stage.is_optional]
MARK = "fairlead.dev/GPUHealthy"


@pytest.fixture
def agent(cluster: home.Cluster, server: api.API, tmp_path: Path) -> Iterator[node.Agent]:
    """An agent beside the real kubelet, over the real API, with silicon that a test can break."""
    node.define(cluster, "gpudevices")
    archive = tmp_path / "cuda.tar"
    image.write_busybox(archive, _CUDA)
    cluster.load_image(archive)
    arguments = (*node.BREAKABLE, str(cluster.kubeconfig), cluster.node)
    with node.running(node.Agent(cluster, arguments), server) as one:
        yield one
    server.delete(_DEVICES)


def steps_of(server: api.API, uid: str) -> list[TraceStep]:
    """Return the steps that the events of an object carry; what a kubelet warns of by itself is left out."""
    decoder = wire.object_decoder(core.Event)
    found = server.get(_EVENTS, fieldSelector=f"involvedObject.uid={uid}")["items"]
    steps = (tracerecorder.parse_step(decoder.decode(json.dumps(item))) for item in found)
    own = (step for step in steps if step is not None and (step.layer != "kubelet" or not step.is_warning))
    return sorted(own, key=lambda step: step.at)


def until_steps(
    server: api.API, uid: str, check: Callable[[list[TraceStep]], bool], *, what: str, timeout_s: float = 60
) -> list[TraceStep]:
    """Wait until the steps of a pod are as wanted, and return them."""

    def reached(_: list[api.Object]) -> list[TraceStep] | None:
        steps = steps_of(server, uid)
        return steps if check(steps) else None

    return server.until(_EVENTS, reached, what=what, timeout_s=timeout_s)


def has(*reasons: str) -> Callable[[list[TraceStep]], bool]:
    return lambda steps: set(reasons) <= {step.reason for step in steps}


def first_run(steps: list[TraceStep]) -> list[TraceStep]:
    """Return the steps up to the end of the first run: this pod is started again and again."""
    last = next(index for index, step in enumerate(steps) if step.reason == "ContainerEnded")
    return steps[: last + 1]


def trace_of(server: api.API, cluster: home.Cluster, pod: api.Object, steps: list[TraceStep]) -> Trace:
    whole = wire.object_decoder(core.Pod).decode(json.dumps(pod))
    uid = server.get(f"/api/v1/nodes/{cluster.node}")["metadata"]["uid"]
    before = steps_of(server, uid)
    return trace.order_trace(trace.with_acceptance(steps, whole), before, is_final=True, resources=("nvidia.com/gpu",))


def shown(told: Trace) -> str:
    steps = [entry.step for entry in told.entries if entry.step is not None]
    return "\n".join(f"{step.at:.3f} {step.reason}: {step.message} {step.facts}" for step in steps)


def test_the_articles_pod_leaves_the_trace_it_leaves_on_one_machine(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    node.kubectl(cluster, "apply", "-f", str(_MANIFEST))
    pod = space.until("gpu-pod", lambda pod: bool(pod["spec"].get("nodeName")), what="is placed")
    uid = pod["metadata"]["uid"]
    ran = until_steps(server, uid, has("ContainerEnded"), what="the first run ended")

    told = trace_of(server, cluster, pod, first_run(ran))
    assert [entry.stage for entry in told.entries] == ONE_MACHINE, shown(told)
    assert {entry.record for entry in told.entries} == {Record.RECORDED}
    by_stage = {entry.stage: entry.step for entry in told.entries}
    assert by_stage["ended"] is not None
    assert by_stage["ended"].facts["exit_code"] == 0
    assert_isolated(by_stage["isolated"])
    assert space.log("gpu-pod").count("H100") == 2


def assert_isolated(step: TraceStep | None) -> None:
    """ENXIO: granted, and no driver behind it; EPERM: refused by the kernel."""
    assert step is not None
    facts = {name: step.facts[name] for name in ("opens", "unread", "granted")}
    opens = facts["opens"]
    assert isinstance(opens, dict), facts
    assert facts["unread"] == [], facts
    own = {where for where in opens if re.fullmatch(r"/dev/nvidia\d", where)}
    assert len(own) == 2, facts
    assert {opens[where] for where in own} == {"ENXIO"}, facts
    # 254 is the display's node, which is of the driver and of no tenant.
    assert {where: said for where, said in opens.items() if where.startswith("195:")} == {
        f"195:{minor}": "EPERM" for minor in (*range(8), 254) if f"/dev/nvidia{minor}" not in own
    }


def test_every_run_of_a_pod_that_comes_and_goes_is_told(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    node.kubectl(cluster, "apply", "-f", str(_MANIFEST))
    uid = space.get("gpu-pod")["metadata"]["uid"]

    def told(steps: list[TraceStep]) -> bool:
        return sum(step.reason == "ContainerEnded" for step in steps) >= 3

    steps = until_steps(server, uid, told, what="three runs are told")
    runs = [step.reason for step in steps if step.layer in {"cdi", "engine", "kernel", "process"}]
    once = ["EditsResolved", "ContainerCreated", "IsolationRead", "ContainerStarted", "ContainerEnded"]
    # A kubelet tells late of an end, at times only when the next run has begun; within a run the order always holds.
    places = {reason: [place for place, found in enumerate(runs) if found == reason][:3] for reason in once}
    assert {reason: len(found) for reason, found in places.items()} == dict.fromkeys(once, 3), runs
    for run in zip(*(places[reason] for reason in once), strict=True):
        assert list(run) == sorted(run), runs
    looked = [step for step in steps if step.reason == "IsolationRead"][:3]
    # A container of milliseconds may be gone before the probe on a busy machine: then the step says so.
    read = [step for step in looked if "took the probe along" not in str(step.facts["unread"])]
    assert read, looked
    for step in read:
        assert_isolated(step)


def test_an_agent_that_starts_anew_tells_nothing_twice(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    space.start_looking("stays", gpus=2)
    space.sight("stays")
    uid = space.get("stays")["metadata"]["uid"]
    before = until_steps(server, uid, has("ContainerStarted"), what="its start is told")
    assert_isolated(next(step for step in before if step.reason == "IsolationRead"))

    agent.stop(signal.SIGKILL)
    node.until_allocatable(server, cluster.node, 0)
    agent.start()
    node.until_allocatable(server, cluster.node, 8)
    until_holders(server, {0: ["stays"], 1: ["stays"]})
    space.delete("stays")
    after = until_steps(server, uid, has("DevicesFreed"), what="its devices are free")
    assert after[: len(before)] == before
    assert {step.reason for step in after[len(before) :]} <= {"ContainerEnded", "DevicesFreed"}


def test_a_container_that_an_agent_did_not_see_begin_is_read_while_it_runs(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    space.start_looking("unseen", gpus=2)
    space.sight("unseen")
    uid = space.get("unseen")["metadata"]["uid"]
    until_steps(server, uid, has("ContainerStarted"), what="its start is told")
    agent.stop(signal.SIGKILL)
    node.until_allocatable(server, cluster.node, 0)
    for step in ("ContainerCreated", "IsolationRead", "ContainerStarted"):
        forget(server, uid, step)
    agent.start()
    node.until_allocatable(server, cluster.node, 8)
    steps = until_steps(
        server, uid, has("ContainerCreated", "IsolationRead", "ContainerStarted"), what="it is told again"
    )
    assert_isolated(next(step for step in steps if step.reason == "IsolationRead"))


def forget(server: api.API, uid: str, reason: str) -> None:
    """Remove a step's event, as the server does after an hour."""
    for item in server.get(_EVENTS, fieldSelector=f"involvedObject.uid={uid},reason={reason}")["items"]:
        server.delete(f"{_EVENTS}/{item['metadata']['name']}")


def until_holders(server: api.API, wanted: dict[int, list[str]]) -> None:
    """Wait until the GPUs' objects name these pods as holders, by index, and nobody else."""

    def reached(items: list[api.Object]) -> bool | None:
        found = {
            item["spec"]["index"]: [one["pod"] for one in item.get("status", {}).get("holders", [])] for item in items
        }
        return True if {index: names for index, names in found.items() if names} == wanted else None

    server.until(_DEVICES, reached, what=f"holders {wanted}")


async def ask_kubelet(socket: Path) -> tuple[tuple[Holding, ...], dict[str, frozenset[str]]]:
    client = podresources.Client(socket)
    try:
        return await client.list_holdings(), await client.list_allocatable()
    finally:
        await client.close()


def kata_config(socket: Path) -> coldplug.Config:
    """Return a configuration of Kata's with a kubelet's socket."""
    text = guest.configuration(emulator="/none", kernel="/none", initrd="/none", sock=str(socket))
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        return coldplug.load_config(Path(file.name))


def test_the_real_kubelet_answers_what_the_embedded_one_does(
    agent: node.Agent, cluster: home.Cluster, space: pods.Space
) -> None:
    """The contract of tests/contract/test_podresources_contract.py, put to the reference."""
    space.start_looking("holds", gpus=2)
    nodes = space.sight("holds").nodes
    space.start("without", "exec sleep 3600")
    space.until_phase("without", "Running")
    socket = cluster.device_plugins.parent / "pod-resources" / "kubelet.sock"
    holdings, allocatable = asyncio.run(ask_kubelet(socket))
    (held,) = holdings
    assert (held.namespace, held.pod, held.container, held.resource) == ("default", "holds", "main", pods.RESOURCE)
    assert len(held.ids) == len(nodes)
    assert len(allocatable[pods.RESOURCE]) == 8
    assert set(held.ids) <= allocatable[pods.RESOURCE]

    # As Kata's shim asks (here its stand-in): by the pod's name, for names of CDI devices.
    config = kata_config(socket)
    marks = {coldplug.NAME: "holds", coldplug.NAMESPACE: "default"}
    names = coldplug.ask_devices(marks, config)
    assert set(names) == {f"{pods.RESOURCE}={one}" for one in held.ids}
    assert coldplug.ask_devices({**marks, coldplug.NAME: "without"}, config) == []
    with pytest.raises(coldplug.Refused, match="not found"):
        coldplug.ask_devices({**marks, coldplug.NAME: "nobody"}, config)

    space.delete("holds")
    assert asyncio.run(ask_kubelet(socket))[0] == ()


def mark(pod: api.Object) -> tuple[str, str] | None:
    found = (item for item in pod["status"].get("conditions", []) if item["type"] == MARK)
    return next(((item["status"], item["reason"]) for item in found), None)


def test_a_running_pod_on_a_broken_gpu_is_marked_until_the_gpu_is_back(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    space.start_looking("holds", gpus=2)
    held = space.sight("holds").nodes
    uid = space.get("holds")["metadata"]["uid"]
    until_holders(server, {index: ["holds"] for index in held})

    broken = min(held)
    begun = time.monotonic()
    agent.inject("xid", broken, "79")
    marked = space.until("holds", lambda pod: mark(pod) is not None, what="is marked")
    took_s = time.monotonic() - begun
    assert mark(marked) == ("False", "XID79")
    warning = next(
        step
        for step in until_steps(server, uid, has("GPUUnhealthy"), what="is warned")
        if step.reason == "GPUUnhealthy"
    )
    assert warning.is_warning
    assert "XID 79" in warning.message or "XID79" in warning.message
    assert took_s < 5, took_s
    assert marked["status"]["phase"] == "Running"

    agent.inject("recover", broken)
    space.until("holds", lambda pod: mark(pod) == ("True", "GPURecovered"), what="is unmarked")
    until_steps(server, uid, has("GPURecovered"), what="is told")
    space.delete("holds")
    until_holders(server, {})
