"""Claims on one machine, through the node's own DRA driver, the embedded kubelet and podman: devices come and go."""

from __future__ import annotations

import json

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
