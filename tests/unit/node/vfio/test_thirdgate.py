"""The third gate over nodes that a test opens and closes: who is kept out, and what an open that hangs costs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from fairlead import errors
from fairlead.model.driver import DeviceNode, PassthroughGPU
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID
from fairlead.node.vfio import thirdgate


def gpu(number: int, group: int | None = None) -> PassthroughGPU:
    path = f"/dev/vfio/{group if group is not None else number + 10}"
    return PassthroughGPU(
        key=GPUUUID(f"pcie-{number}"),
        vendor=Vendor.NVIDIA,
        address=f"0000:0{number}:00.0",
        group_nodes=(DeviceNode(path=path, host_path=path, major=240, minor=number, mode=0o600),),
    )


class Kernel:
    """Plays the kernel: a node has one opener."""

    def __init__(self) -> None:
        self.openers: dict[str, str] = {}
        self.waits = threading.Event()
        self.waits.set()
        self.asked: list[str] = []

    def take(self, one: PassthroughGPU) -> Opened:
        path = one.group_nodes[-1].host_path
        self.asked.append(path)
        self.waits.wait(20)
        if path in self.openers:
            raise errors.Conflict(f"{path} is in use", reason="VFIONodeInUse")
        self.openers[path] = "agent"
        return Opened(self, path)


class Opened:
    """A node that the agent has open."""

    def __init__(self, kernel: Kernel, path: str) -> None:
        self.kernel, self.path = kernel, path

    def close(self) -> None:
        assert self.kernel.openers.pop(self.path) == "agent"


async def test_what_is_not_given_away_is_kept_open_and_what_is_given_is_let_go() -> None:
    kernel = Kernel()
    gate = thirdgate.ThirdGate(kernel.take)
    gate.update([gpu(0), gpu(1)])
    assert await gate.take(gate.known) == {}
    assert set(kernel.openers) == {"/dev/vfio/10", "/dev/vfio/11"}
    gate.give({"pcie-0"})
    assert set(kernel.openers) == {"/dev/vfio/11"}
    assert await gate.take(gate.known) == {}, "a GPU that a tenant has is left alone"
    assert set(kernel.openers) == {"/dev/vfio/11"}
    gate.give(())
    assert await gate.take(gate.known) == {}
    assert gate.held == {"pcie-0", "pcie-1"}


async def test_a_gpu_that_somebody_has_is_named_and_hides_no_other() -> None:
    kernel = Kernel()
    kernel.openers["/dev/vfio/10"] = "qemu"
    gate = thirdgate.ThirdGate(kernel.take)
    gate.update([gpu(0), gpu(1)])
    refused = await gate.take(gate.known)
    assert {key: error.reason for key, error in refused.items()} == {"pcie-0": "VFIONodeInUse"}
    assert gate.held == {"pcie-1"}
    del kernel.openers["/dev/vfio/10"]
    assert await gate.take(gate.known) == {}


async def test_a_gpu_that_is_bound_anew_is_held_by_its_new_node() -> None:
    kernel = Kernel()
    gate = thirdgate.ThirdGate(kernel.take)
    gate.update([gpu(0)])
    await gate.take(gate.known)
    gate.update([gpu(0, group=77)])
    assert not kernel.openers
    await gate.take(gate.known)
    assert set(kernel.openers) == {"/dev/vfio/77"}


async def test_an_open_that_hangs_is_given_up_and_costs_no_other_gpu() -> None:
    kernel = Kernel()
    gate = thirdgate.ThirdGate(kernel.take, patience_s=0.05)
    gate.update([gpu(0)])
    kernel.waits.clear()
    first, second = await gate.take(["pcie-0"]), await gate.take(["pcie-0"])
    assert first["pcie-0"].reason == second["pcie-0"].reason == thirdgate.HANGS
    assert kernel.asked == ["/dev/vfio/10"], "one thread waits for a node, however often it is asked for"
    kernel.waits.set()
    await _until(lambda: gate.held == {"pcie-0"})


async def test_what_an_open_brings_late_is_closed_where_a_tenant_has_the_gpu_by_then() -> None:
    kernel = Kernel()
    gate = thirdgate.ThirdGate(kernel.take, patience_s=0.05)
    gate.update([gpu(0)])
    kernel.waits.clear()
    await gate.take(["pcie-0"])
    gate.give({"pcie-0"})
    kernel.waits.set()
    await _until(lambda: kernel.asked and not gate._opening)
    assert not kernel.openers
    assert not gate.held


async def test_what_an_open_brings_after_the_end_is_closed() -> None:
    kernel = Kernel()
    gate = thirdgate.ThirdGate(kernel.take, patience_s=0.05)
    gate.update([gpu(0), gpu(1)])
    await gate.take(["pcie-1"])
    kernel.waits.clear()
    await gate.take(["pcie-0"])
    gate.close()
    kernel.waits.set()
    await _until(lambda: not gate._opening)
    assert not kernel.openers


async def _until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  (nothing tells a test of it)
            await asyncio.sleep(0.005)
