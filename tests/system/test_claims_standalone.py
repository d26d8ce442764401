"""Claims on one machine, through the node's own DRA driver, the embedded kubelet and podman: devices come and go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from home import Home

pytestmark = pytest.mark.podman

SEEN = ("sh", "-c", "ls /dev | grep -E '^nvidia[0-9]+$'")


@pytest.fixture
def claimed(home: Home) -> Home:
    """A service whose GPUs claims get."""
    home.up(FAIRLEAD_NODE_DOOR="claims", FAIRLEAD_LEASE_LEDGER="on")
    return home


def test_containers_get_the_gpus_of_their_claims_and_give_them_back(claimed: Home) -> None:
    home = claimed
    done = home.run("--name", "pair", "-g", "2", "--device-class", "gpu.nvidia.com", "--", *SEEN)
    assert done.code == 0, f"{done.err}\n{home.log()[-4000:]}"
    assert len(done.out.split()) == 2
    said = json.dumps(home.ok("trace", "pair", "-o", "json").data)
    assert said.index("ClaimsPrepared") < said.index("ContainerStarted")
    assert "ClaimsUnprepared" in said
    every = home.run("--name", "every", "-g", "8", "--device-class", "gpu.nvidia.com", "--", *SEEN)
    assert len(every.out.split()) == 8, every.err


def test_a_container_goes_on_over_a_kill_of_the_service_and_its_gpus_come_back(claimed: Home) -> None:
    home = claimed
    home.start("long", "-g", "8", "--device-class", "gpu.nvidia.com")
    home.kill()
    assert home.process is not None
    home.process.wait(10)
    home.up(FAIRLEAD_NODE_DOOR="claims", FAIRLEAD_LEASE_LEDGER="on")
    home.until_state("long", "running")
    home.rm("long")
    after = home.run("--name", "after", "-g", "8", "--device-class", "gpu.nvidia.com", "--", *SEEN, timeout_s=90)
    assert len(after.out.split()) == 8, f"{after.err}\n{home.log()[-4000:]}"


@pytest.mark.timeout(180)
def test_a_number_of_gpus_is_met_by_a_claim_on_a_node_of_claims(claimed: Home) -> None:
    home = claimed
    done = home.run("--name", "two", "-g", "2", "--", *SEEN)
    assert done.code == 0, f"{done.err}\n{home.log()[-4000:]}"
    assert len(done.out.split()) == 2
    said = json.dumps(home.ok("trace", "two", "-o", "json").data)
    assert said.index("ClaimsPrepared") < said.index("ContainerStarted")
    home.start("six", "-g", "6")
    shown = home.show("six")
    (claim,) = shown["claims"]
    assert (shown["gpus"], shown["resources"], shown["devices"]) == (6, {"nvidia.com/gpu": 6}, {})
    assert (claim["name"], claim["resources"], len(claim["devices"])) == ("nvidia.com/gpu", ["nvidia.com/gpu"], 6)
    assert f"with 6 devices of claim {claim['claim']}" in home.ok("explain", "six").out
    assert home("run", "-d", "--name", "more", "-g", "4", home.image, "--", "sleep", "1000").code == 0
    home.until(lambda: "<extended-resources>" in home.ok("explain", "more").out, what="what it waits for")
    assert "never fit" not in home.ok("explain", "more").out
    home.rm("six")
    home.until_state("more", "running", timeout_s=60)
    home.rm("more")
    home.until(lambda: home.ask("/v1/claims")["items"] == [], what="no claim is left")


@pytest.mark.timeout(180)
def test_a_manifest_of_a_device_plugin_runs_unchanged_on_a_node_of_claims(claimed: Home, tmp_path: Path) -> None:
    home = claimed
    limits = {"nvidia.com/gpu": 1, "deviceclass.resource.kubernetes.io/gpu.nvidia.com": 2}
    containers = [
        {"name": f"c{at}", "image": home.image, "command": [*SEEN], "resources": {"limits": {name: count}}}
        for at, (name, count) in enumerate(limits.items())
    ]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}}
    path = tmp_path / "pod.yaml"
    path.write_text(json.dumps({**pod, "spec": {"containers": containers, "restartPolicy": "Never"}}))
    home.ok("run", "-d", "-f", str(path))
    home.until_state("pod", "succeeded", timeout_s=60)
    counts = [len(home.ok("logs", "pod", "-c", f"c{at}").out.split()) for at in range(2)]
    assert counts == [1, 2], home.log()[-4000:]
