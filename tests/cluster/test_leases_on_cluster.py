"""Possession beside a real kubelet: the ledger below Allocate, and GPULease objects as kubectl shows them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.node.deviceplugin import podresources
from tests.cluster import node, pods
from tools.cluster import api, home

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif("195 nvidia" in Path("/proc/devices").read_text(), reason="a real driver has these numbers"),
]

_TURNS = 6
_LEASES = "/apis/fairlead.dev/v1alpha1/gpuleases"


@pytest.fixture
def agent(cluster: home.Cluster, server: api.API) -> Iterator[node.Agent]:
    """An agent that keeps a ledger and publishes; its objects are gone afterwards."""
    node.define(cluster, "gpudevices", "gpuleases")
    state = cluster.folder / "lease-state"
    arguments = (
        *node.PRODUCT,
        "--lease-ledger=on",
        f"--cluster-kubeconfig={cluster.kubeconfig}",
        f"--node-name={cluster.node}",
        f"--state-folder={state}",
        f"--state-run={state}/run",
    )
    with node.running(node.Agent(cluster, arguments), server) as one:
        yield one
    for path in (_LEASES, "/apis/fairlead.dev/v1alpha1/gpudevices"):
        server.delete(path)


def until_leases(server: api.API, pod: str, states: list[str]) -> list[api.Object]:
    """Wait until a pod's leases have these states; return them."""

    def reached(items: list[api.Object]) -> list[api.Object] | None:
        found = [item for item in items if item.get("status", {}).get("heldBy") == f"default/{pod}"]
        return found if [item["status"]["state"] for item in found] == states else None

    return server.until(_LEASES, reached, what=f"leases of {pod} are {states}")


def test_who_had_which_gpu_is_read_with_kubectl_until_it_was_verified(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    space.start_looking("two", gpus=2)
    pods.assert_sees_its_own(space.sight("two"), 2)
    held = until_leases(server, "two", ["Held"] * 2)
    uid = space.get("two")["metadata"]["uid"]
    assert {holder["podUID"] for item in held for holder in item["status"]["holders"]} == {uid}

    header, *rows = node.kubectl(cluster, "get", "gpuleases").splitlines()
    assert header.split() == ["NAME", "NODE", "STATE", "HOLDER", "HELD", "ENDED", "REASON"]
    assert [row.split()[1:4] for row in rows] == [[cluster.node, "Held", "default/two"]] * 2
    chosen = ("get", "gl", "-o", "name", "--field-selector")
    assert len(node.kubectl(cluster, *chosen, "status.state=Held").split()) == 2
    assert node.kubectl(cluster, *chosen, "status.state=Verified") == ""
    assert "charged to the holder" in node.kubectl(cluster, "explain", "gpulease.status.endedAt")

    space.delete("two")
    space.until_gone("two")
    until_leases(server, "two", ["Verified"] * 2)

    space.start_looking("all", gpus=8)
    space.sight("all")
    until_leases(server, "all", ["Held"] * 8)
    until_leases(server, "two", ["Verified"] * 2)  # each possession is an object of its own


def test_an_administrator_takes_a_gpu_out_of_service_and_no_object_brings_it_back(
    agent: node.Agent, cluster: home.Cluster, server: api.API
) -> None:
    def kept_back(items: list[api.Object]) -> list[api.Object] | None:
        found = [item for item in items if item["status"].get("reason") == "LeaseQuarantined"]
        return found or None

    name = node.kubectl(cluster, "get", "gpudevices", "-o", "name").split()[0]
    patch = ("patch", name, "--type=merge", "-p")
    node.kubectl(cluster, *patch, '{"spec":{"quarantine":"fan rattles"}}')
    devices = "/apis/fairlead.dev/v1alpha1/gpudevices"
    (device,) = server.until(devices, kept_back, what="the GPU is kept back")
    assert (device["status"]["health"], device["status"]["message"]) == ("Unhealthy", "fan rattles")
    node.until_allocatable(server, cluster.node, 7)
    header, *rows = node.kubectl(cluster, "get", "gpudevices").splitlines()
    assert "REASON" in header.split()
    assert [row.split()[0] for row in rows if "LeaseQuarantined" in row] == [device["metadata"]["name"]]
    node.kubectl(cluster, *patch, '{"spec":{"quarantine":null}}')
    agent.stop(signal.SIGKILL)
    agent.start()
    node.until_allocatable(server, cluster.node, 7)
    folder = f"--state-folder={cluster.folder / 'lease-state'}"
    line = (sys.executable, "-m", "fairlead.cli.main", "lease", "release", device["spec"]["uuid"], folder)
    subprocess.run(line, check=True, timeout=60)
    node.until_allocatable(server, cluster.node, 8)


def test_a_lease_says_what_happened_while_the_agent_was_away_and_its_spec_never_changes(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    space.start_looking("one", gpus=1)
    space.sight("one")
    (lease,) = until_leases(server, "one", ["Held"])
    name = lease["metadata"]["name"]
    change = ("patch", "gpulease", name, "--type=merge", "-p", '{"spec":{"gpu":"GPU-of-somebody-else"}}')
    done = subprocess.run(cluster.kubectl(*change), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode
    assert "the spec of a GPULease never changes" in done.stderr

    agent.stop(signal.SIGKILL)
    space.delete("one")
    space.until_gone("one")
    agent.start()
    node.until_allocatable(server, cluster.node, 8)
    (after,) = until_leases(server, "one", ["Verified"])
    assert after["metadata"]["uid"] == lease["metadata"]["uid"]
    assert after["spec"] == lease["spec"]


def test_a_gpu_that_the_kubelet_gives_to_two_pods_is_one_pods(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    """It forgets what an Allocate gives if a pod with a GPU ends meanwhile, and its list is read."""
    ending = [f"ending-{number}" for number in range(8)]
    for name in ending:
        space.start_looking(name, gpus=1)
    has = {next(iter(space.sight(name).nodes)): name for name in ending}
    assert has.keys() == pods.ALL
    space.delete(has[0])  # ties fall to the lower number: the slow pod gets this one, and the next would too
    until_leases(server, has[0], ["Verified"])
    for turn in range(_TURNS):
        slow, after = f"slow-{turn}", f"after-{turn}"
        give_slowly(cluster, server, space, slow, while_ends=has[7])
        assert space.sight(slow).nodes == {0}
        space.start_looking(after, gpus=1)
        assert space.sight(after).nodes == {7}
        if "devices offered twice" in agent.log():
            return
        has[7] = after
        space.delete(slow)
        until_leases(server, slow, ["Verified"])
    pytest.skip(f"the kubelet did not forget in {_TURNS} turns")


def test_a_gpu_of_a_pod_removed_by_force_is_kept_until_its_processes_are_gone(
    agent: node.Agent, cluster: home.Cluster, server: api.API, space: pods.Space
) -> None:
    """Its kubelet forgets it at once; its processes live on for their grace, and could open the GPU."""
    space.start_looking("forced", gpus=1)
    space.sight("forced")
    until_leases(server, "forced", ["Held"])
    inside = processes_of(space.get("forced")["metadata"]["uid"])
    assert inside
    server.delete(f"{space.path}/forced", grace_s=0)
    alive_at = 0.0
    while any(Path(f"/proc/{pid}/root/dev").exists() for pid in inside):
        alive_at = time.time()
        time.sleep(0.02)
    assert alive_at
    until_leases(server, "forced", ["Verified"])
    with contextlib.closing(sqlite3.connect(ledger_of(cluster))) as ledger:
        steps = [json.loads(text) for (text,) in ledger.execute("SELECT document FROM history ORDER BY id")]
    closed = [step["at"] for step in steps if step["event"] == "closed"]
    assert closed[-1:] > [alive_at]


def processes_of(uid: str) -> list[int]:
    """Return the processes in a pod's cgroup."""
    found = []
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdigit() and f"/pod{uid}/" in (path / "cgroup").read_text():
                found.append(int(path.name))
    return found


def ledger_of(cluster: home.Cluster) -> Path:
    return cluster.folder / "lease-state" / "lease" / "ledger.db"


def give_slowly(cluster: home.Cluster, server: api.API, space: pods.Space, name: str, *, while_ends: str) -> None:
    """Start a pod with a GPU whose Allocate takes longer than another pod takes to end; read the list meanwhile."""
    with contextlib.closing(sqlite3.connect(ledger_of(cluster), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # the agent cannot write, so Allocate has no answer yet
        server.delete(f"{space.path}/{while_ends}", grace_s=2)  # no kubelet gives less, and its shell takes it all
        time.sleep(1.4)
        space.start_looking(name, gpus=1)
        asyncio.run(read_lists(cluster.device_plugins.parent / "pod-resources" / "kubelet.sock", 1.7))
        other.execute("ROLLBACK")


async def read_lists(socket: Path, seconds: float) -> None:
    """Read the kubelet's list again and again, as monitors do."""
    client = podresources.Client(socket)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        await client.list_holdings()
        await asyncio.sleep(0.05)
    await client.close()


def test_firmware_that_waits_for_a_second_person_is_seen_with_kubectl(
    cluster: home.Cluster, server: api.API, tmp_path: Path
) -> None:
    node.define(cluster, "gpudevices", "gpuleases", "firmwarebaselines")
    folder = (f"--state-folder={tmp_path}", f"--state-run={tmp_path}/run")
    verifying = ("--lease-ledger=on", "--lease-reuse=verify", f"--cluster-kubeconfig={cluster.kubeconfig}")
    arguments = (*node.PRODUCT, *verifying, f"--node-name={cluster.node}", *folder)
    listed = "/apis/fairlead.dev/v1alpha1/firmwarebaselines"

    def stands(state: str) -> api.Object:
        def reached(items: list[api.Object]) -> api.Object | None:
            return next((one for one in items if one.get("status", {}).get("state") == state), None)

        return server.until(listed, reached, what=f"a baseline is {state}")

    def approve(who: str, board: str) -> None:
        line = (sys.executable, "-m", "fairlead.cli.main", "lease", "baseline", "approve", board, "--by", who)
        subprocess.run((*line, *folder[:1]), check=True, timeout=60)

    agent = node.Agent(cluster, arguments)
    agent.start()
    try:
        board = stands("Seen")["spec"]["board"]
        approve("ann", board)
        assert stands("Proposed")["status"]["proposedBy"] == "ann"
        header, row = node.kubectl(cluster, "get", "firmwarebaselines").splitlines()
        assert header.split() == ["NAME", "NODE", "BOARD", "STATE", "APPROVED-BY", "PROPOSED-BY", "NOT-APPROVED"]
        assert row.split()[1:] == [cluster.node, board, "Proposed", "ann"]
        node.kubectl(cluster, "delete", "firmwarebaselines", "--all")  # takes no approval back
        approve("bob", board)
        status = stands("Approved")["status"]
        assert (status["approvers"], status["approvals"]) == (["ann", "bob"], 2)
        node.until_allocatable(server, cluster.node, 8)
        one = node.kubectl(cluster, "get", "fwb", "-o", "name").strip()
        change = ("patch", one, "--type=merge", "-p", '{"spec":{"board":"another"}}')
        done = subprocess.run(cluster.kubectl(*change), capture_output=True, text=True, check=False, timeout=60)
        assert "the spec of a FirmwareBaseline never changes" in done.stderr
    finally:
        agent.stop(signal.SIGTERM)
    node.until_allocatable(server, cluster.node, 0)
    for path in (listed, _LEASES, "/apis/fairlead.dev/v1alpha1/gpudevices"):
        server.delete(path)
