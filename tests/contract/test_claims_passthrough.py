"""The whole agent on a made-up HGX board whose GPUs claims get for virtual machines, beside one that has a driver.

Nodes take one opener, by `flock`, as the kernel's do; a reset is counted in place of a board's.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
import pytest
import yaml

from fairlead import settings
from fairlead.model.driver import PassthroughGPU
from fairlead.node.dra import serving
from fairlead.node.lease import gate
from fairlead.node.vfio import gpus, nodes
from fairlead.plan.claim import default
from fairlead.plan.claim.refusal import Allocation
from fairlead.plan.dra import deviceclass
from fairlead.settings import groups
from fairlead.silicon import hardware
from fairlead.wire.kubelet import deviceplugin as wire
from fairlead.wire.kubelet import drahealth, draplugin
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource import dialect
from fairlead.wire.kubernetes.resource.device import Device
from fairlead.wire.kubernetes.resource.resourceclaim import (
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
)
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice
from tests import nodehold
from tests.contract.test_agent_contract import PATIENCE_S
from tests.contract.test_claim_driver import ClaimHome
from tests.fabricstub import library
from tests.fabricstub.lattice import H100
from tests.unit.plan.claim import claimworld
from tests.unit.silicon.vfio import pcitree

ADDRESSES = sorted(pcitree.HGX_MODULES)
MODULES = {pcitree.HGX_MODULES[address]: f"gpu-vfio-{number}" for number, address in enumerate(ADDRESSES)}
SLOT = "nvidia.com/h100-sxm5-80gb-x1"


def _hold(root: Path, address: str) -> nodehold.NodeHold:
    return nodehold.hold(root / "held" / address, address, may_make=True)


class PassedHome(ClaimHome):
    """A node with a GPU by driver and eight that are bound to VFIO; the test is the kubelet and the machines."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root, 1)
        self.tree = pcitree.build_hgx(root, driver="vfio-pci", regions=True)
        self.tree.write("usr/share/misc/pci.ids", pcitree.PCI_IDS)
        self.choose(vfio="bound")
        self.resets: list[str] = []
        (root / "held").mkdir()

        async def reset(_: object, one: PassthroughGPU) -> None:
            self.resets.append(one.address)

        monkeypatch.setattr(nodes, "take_hold", lambda gpu: _hold(root, gpu.address))
        monkeypatch.setattr(gpus.PassthroughGPUs, "reset", reset)

    def choose_fabric(self, stub: Path) -> None:
        """Have partitions switched by the Manager at `fm.sock`. Args: stub: the library that speaks to it."""
        self.choose(fabric="on")
        manager = str(self.settings.silicon.root / "fm.sock")
        fabric = groups.FabricSettings(manager=manager, library=str(stub), timeout_s=2)
        self.settings = dataclasses.replace(self.settings, fabric=fabric)

    def machine(self, address: str) -> nodehold.NodeHold:
        """Open a GPU's node as a virtual machine does. Raises: Conflict: somebody has it."""
        return _hold(self.settings.silicon.root, address)

    def edits(self, claim: draplugin.Claim) -> list[str]:
        """Return the paths of the nodes in a claim's CDI file."""
        path = self.settings.node.cdi_folder / f"k8s.gpu.nvidia.com-claim_{claim.uid}.json"
        found = json.loads(path.read_text())
        return [node["path"] for one in found["devices"] for node in one["containerEdits"].get("deviceNodes", ())]

    async def published(self) -> dict[str, Device]:
        found = (await self.store.list(ResourceSlice)).items
        return {device.name: device for one in found for device in one.spec.devices}

    async def until_published(self, is_so: Callable[[dict[str, Device]], bool]) -> dict[str, Device]:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so(found := await self.published()):  # noqa: ASYNC110 (the store's)
                await asyncio.sleep(0.02)
        return found

    async def until_untainted(self) -> dict[str, Device]:
        def is_so(found: dict[str, Device]) -> bool:
            passed = [one for name, one in found.items() if name.startswith("gpu-vfio-")]
            return len(passed) == len(ADDRESSES) and not any(one.taints for one in passed)

        return await self.until_published(is_so)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[PassedHome]:
    monkeypatch.setattr(PassedHome, "ledger", "on")
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        made = PassedHome(Path(name), monkeypatch)
        asyncio.run(made.store.create(core.Node(metadata=meta.ObjectMeta(name="node-1", uid="uid-of-node"))))
        yield made


async def test_gpus_with_and_without_a_driver_are_published_and_no_plugin_offers_one(home: PassedHome) -> None:
    async with home.kubelet(), home.agent() as report, home.registered():
        found = await home.until_untainted()
        assert sorted(found) == ["gpu-0", *(f"gpu-vfio-{number}" for number in range(8))]
        assert {name: one.attributes["type"].string for name, one in found.items()} == {
            "gpu-0": "gpu",
            **dict.fromkeys(MODULES.values(), "vfio"),
        }
        for module, name in MODULES.items():
            assert found[name].attributes["gpuModuleId"].int_ == module
        assert report.supply.value.resources == ()


async def test_a_machine_gets_its_gpu_by_both_services_and_gives_it_back(home: PassedHome) -> None:
    async with home.kubelet(), home.agent(), home.registered() as info:
        await home.until_untainted()
        for version in draplugin.SERVICES:
            one = home.write(f"vm-{version.partition('.')[0]}", "gpu-vfio-0")
            async with grpc.aio.insecure_channel(wire.target(Path(info.endpoint))) as channel:
                stub = draplugin.Stub(channel, version)
                answer = (await stub.prepare([one], timeout_s=20))[one.uid]
                assert (answer.error, [got.device for got in answer.devices]) == ("", ["gpu-vfio-0"])
                assert home.edits(one) == ["/dev/vfio/vfio", f"/dev/vfio/{int(ADDRESSES[0][5:7], 16)}"]
                machine, before = home.machine(ADDRESSES[0]), len(home.resets)
                assert await stub.unprepare([one], timeout_s=20) == {one.uid: ""}
                # The machine runs on: its GPU is tainted, given to nobody, and no reset reaches it.
                again = home.write(f"next-{one.name}", "gpu-vfio-0")
                await home.until_published(lambda found: bool(found["gpu-vfio-0"].taints))
                assert home.resets[before:] == []
                machine.close()
                answer = (await stub.prepare([again], timeout_s=40))[again.uid]
                assert answer.error == ""
                assert home.resets[before:] == [ADDRESSES[0]]
                await stub.unprepare([again], timeout_s=20)
        assert home.files() == set()


async def test_a_node_without_any_driver_gives_its_gpus_to_claims(home: PassedHome) -> None:
    """As nodes are whose GPUs are all passed through: no NVML answers, nor was it ever there."""
    home.silicon = hardware.open_hardware(home.settings.silicon)  # type: ignore[assignment]  # whatever is there
    async with home.kubelet(), home.agent(), home.driver() as stub:
        assert sorted(await home.until_untainted()) == sorted(MODULES.values())
        one = home.write("vm", "gpu-vfio-3")
        assert (await stub.prepare([one], timeout_s=30))[one.uid].error == ""
        assert home.edits(one) == ["/dev/vfio/vfio", f"/dev/vfio/{int(ADDRESSES[3][5:7], 16)}"]
        assert (await stub.unprepare([one], timeout_s=20)) == {one.uid: ""}
    await home.silicon.close()


async def test_a_gpu_that_is_lost_is_tainted_and_unhealthy_and_well_again_once_it_is_back(home: PassedHome) -> None:
    async with home.kubelet(), home.agent(), home.registered() as info:
        await home.until_untainted()
        link = home.tree.folder(ADDRESSES[2])
        target = link.readlink()
        link.unlink()
        lost = "gpu.nvidia.com/gpu-lost"
        found = await home.until_published(lambda found: lost in [one.key for one in found["gpu-vfio-2"].taints])
        assert not found["gpu-vfio-1"].taints
        async with grpc.aio.insecure_channel(wire.target(Path(info.endpoint))) as channel:
            reports = drahealth.Stub(channel, drahealth.V1).watch()
            said: dict[str, tuple[drahealth.Health, str]] = {}
            async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(reports):
                # A scan that meets it half gone says that it does not answer; the next one knows.
                while len(said) < 9 or "not on the bus" not in said["gpu-vfio-2"][1]:
                    said |= {one.device: (one.health, one.message) for one in await anext(reports)}
        assert said["gpu-vfio-2"][0] is drahealth.Health.UNHEALTHY
        assert said["gpu-vfio-1"][0] is drahealth.Health.HEALTHY
        link.symlink_to(target)
        await home.until_untainted()


async def test_a_gpu_changes_its_door_when_nobody_has_it(home: PassedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LEAVING_S", 0.1)
    monkeypatch.setattr(gate, "SLOW_S", 0.2)
    file = home.settings.silicon.root / "config.yaml"
    file.write_text(f"version: v1\nfairlead: {{claims: {{devices: ['{ADDRESSES[0]}', '{ADDRESSES[1]}']}}}}\n")
    home.settings = dataclasses.replace(home.settings, plugin=settings.PluginSettings(config_file=file))
    home.choose(door="plugin")

    def offered() -> int:
        return sum(len(ad.devices) for ad in report.supply.value.resources if ad.resource == SLOT)

    async with home.kubelet(), home.agent() as report, home.driver() as stub:
        assert offered() == 6
        await home.until_published(lambda found: sorted(found) == ["gpu-vfio-0", "gpu-vfio-1"])
        refused, given = home.write("refused", "gpu-vfio-2"), home.write("given", "gpu-vfio-0")
        said = await stub.prepare([refused, given], timeout_s=30)
        assert "is not on this node" in said[refused.uid].error
        assert said[given.uid].error == ""
        file.write_text("version: v1\n")
        await report.supply.wait(report.supply.version)
        async with asyncio.timeout(PATIENCE_S):
            while offered() != 7:
                await report.supply.wait(report.supply.version)
        assert len(report.supply.value.doors.leaving) == 1  # a claim has it
        await stub.unprepare([given], timeout_s=20)
        home.claims.claims.clear()
        async with asyncio.timeout(PATIENCE_S):
            while offered() != 8:
                await report.supply.wait(report.supply.version)
        assert not report.supply.value.doors.claimed


def page_template() -> Any:
    """Return the template that docs/how-to/pass-gpus-through.md prints."""
    page = Path(__file__).parents[2] / "docs/how-to/pass-gpus-through.md"
    (text,) = re.findall(r'^```yaml title="vfio-claim.yaml"\n(.*?)^```', page.read_text(), re.MULTILINE | re.DOTALL)
    return dialect.read(yaml.safe_load(text)).item


async def test_the_pages_claim_gets_what_the_page_says(
    home: PassedHome, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Our allocator gives it two devices of what is published, and the driver their nodes."""
    home.choose_fabric(library.compile_library(tmp_path_factory.mktemp("nvfm")))
    with library.running(f"unix:{home.settings.silicon.root}/fm.sock") as manager:
        async with home.kubelet(), home.agent(), home.driver() as stub:
            await home.until_untainted()
            await home.until_published(lambda found: "partition2" in found[MODULES[1]].attributes)
            made = default.claim(ResourceClaim(metadata=meta.ObjectMeta(name="pair"), spec=page_template().spec.spec))
            classes = {one.metadata.name: one for one in deviceclass.classes("nvidia.com/gpu")}
            found = claimworld.run(made, (await home.store.list(ResourceSlice)).items, classes=classes)
            assert len(claimworld.names(found)) == 2
            assert isinstance(found, Allocation)
            users = (ResourceClaimConsumerReference(resource="pods", name="vm", uid="uid-of-vm"),)
            status = ResourceClaimStatus(allocation=found.results[0], reserved_for=users)
            about = meta.ObjectMeta(name="pair", namespace="team", uid="uid-of-pair")
            ref = home.claims.write(msgspec.structs.replace(made, metadata=about, status=status))
            one = draplugin.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)
            assert (await stub.prepare([one], timeout_s=40))[one.uid].error == ""
            nodes = set(home.edits(one))
            assert "/dev/iommu" in nodes
            assert [re.sub("[0-9]+$", "N", node) for node in sorted(nodes - {"/dev/iommu"})] == [
                "/dev/vfio/devices/vfioN"
            ] * 2
            (active,) = manager.active
            assert len(H100.partitions[active]) == 2
            await stub.unprepare([one], timeout_s=20)


async def test_several_gpus_of_a_board_have_their_partition_before_their_machine(
    home: PassedHome, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home.choose_fabric(library.compile_library(tmp_path_factory.mktemp("nvfm")))
    with library.running(f"unix:{home.settings.silicon.root}/fm.sock") as manager:
        async with home.kubelet(), home.agent(), home.driver() as stub:
            found = await home.until_untainted()
            found = await home.until_published(lambda found: "partition2" in found[MODULES[1]].attributes)
            same = {name for name in MODULES.values() if found[name].attributes["partition2"].int_ == 3}
            assert same == {MODULES[1], MODULES[3]}
            pair, odd = home.write("pair", MODULES[1], MODULES[3]), home.write("odd", MODULES[2], MODULES[6])
            said = await stub.prepare([pair, odd], timeout_s=40)
            assert said[pair.uid].error == ""
            assert "NVLink has no partition of just these" in said[odd.uid].error
            assert manager.active == {3}
            await stub.unprepare([pair], timeout_s=20)
            async with asyncio.timeout(PATIENCE_S):
                while manager.active:  # noqa: ASYNC110 (another thread's)
                    await asyncio.sleep(0.02)
