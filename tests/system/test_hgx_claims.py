"""ResourceClaims for tenants' machines on an HGX node: groups and iommufd, one machine after another, reset between.

The agent's DRA driver is asked by the embedded kubelet's DRA manager over their sockets. VFIO, the machines and the
board that keeps what a tenant wrote are those of `test_hgx_agent`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_hgx_agent
from hgx import image, layout, tenant
from hgx.shown import hgx_node
from test_hgx_agent import LIMIT_S, WORD

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAMES = ("gpu0", "gpu1")
OWN = (*test_hgx_agent.OWN, Path(__file__).parent / "hgx" / "claimkubelet.py")
PRELOADED = ("fairlead.node.agent", "fairlead.node.dra.serving", "kubelet", "claimkubelet")


class World(test_hgx_agent.World):
    """A node whose agent gives its GPUs to claims."""

    def begin(self) -> None:
        done = self.node.fairlead("vfio", "bind", *(self.node.address[name] for name in self.names))
        assert done.code == 0, done
        for name in self.names:
            self.group[name] = self.node.call("facts", "nodes", self.node.address[name])["group"]
        self.node.do("preload", PRELOADED)
        self.node.call("kubelet", "start")
        self.agent = self.node.call("claimkubelet", "start")

    def published(self) -> dict[str, Any]:
        """Return what slices say of each device, by its name."""
        return dict(self.node.call("claimkubelet", "published"))

    def until_said(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        until = time.monotonic() + LIMIT_S
        while not is_so(found := self.published()):
            assert time.monotonic() < until, (found, self.node.log("claimkubelet")[-3000:])
            time.sleep(0.3)
        return found

    def until_free(self) -> dict[str, Any]:
        return self.until_said(
            lambda found: len(found) == len(NAMES) and not any(one["taints"] for one in found.values())
        )

    def run(self, log: str, name: str, *, with_iommufd: bool) -> int:
        """Start a tenant's machine with a GPU, which leaves a word in its memory and stays; returns the pid."""
        line = tenant.line([self.node.address[name]], with_iommufd=with_iommufd, leave=WORD, is_staying=True)
        pid = self.node.spawn(log, f"{line} 2>&1")
        self.node.wait_for_log(log, "TENANT done", limit_s=LIMIT_S)
        return pid


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with hgx_node(layout.HGX_H100, packages=image.AGENT, modules=OWN, tenants=1) as node:
        made = World(node, NAMES)
        made.begin()
        yield made


@pytest.mark.parametrize("policy", ["LegacyOnly", "PreferIommuFD"])
def test_a_claims_machine_has_its_gpu_alone_and_the_next_one_has_it_reset(world: World, policy: str) -> None:
    found = world.until_free()
    (name, other), with_iommufd = NAMES, policy == "PreferIommuFD"
    device = next(one for one, said in found.items() if said["address"] == world.node.address[name])
    assert found[device]["module"] == world.module(name)
    assert found[device]["has_iommufd"]

    nodes = world.node.call("claimkubelet", "prepare", f"first-{policy.lower()}", device, policy)
    own = world.node.call("facts", "nodes", world.node.address[name])
    assert nodes == (["/dev/iommu", own["device"]] if with_iommufd else ["/dev/vfio/vfio", own["group"]])
    assert world.stranger(other) == "EBUSY"
    pid = world.run(policy, name, with_iommufd=with_iommufd)
    assert [(gpu.module, gpu.found) for gpu in tenant.reports(world.node.log(policy))] == [(world.module(name), 0)]

    before = world.resets()[name]
    assert world.node.call("claimkubelet", "unprepare", f"first-{policy.lower()}")  # its pod is gone, its machine not
    world.until_said(lambda said: "fairlead.dev/gpu-unverified=Releasing" in said[device]["taints"])
    time.sleep(3)
    assert world.resets()[name] == before, "no reset reaches a machine"
    assert world.node.board[name].memory(0, 4) == WORD.to_bytes(4, "little")
    assert world.rows()[world.key(name)]["state"] == "Releasing"

    assert world.node.kill(pid) == -9
    world.until_free()  # a Prepare would wait for the reset for half a minute, which is too short where all is emulated
    second = world.node.call("claimkubelet", "prepare", f"second-{policy.lower()}", device, policy, limit_s=100)
    assert second == nodes
    assert world.resets()[name] > before
    assert world.node.board[name].is_clean()
    assert world.node.call("claimkubelet", "unprepare", f"second-{policy.lower()}")
    world.until_free()
    assert {world.stranger(one) for one in NAMES} == {"EBUSY"}
