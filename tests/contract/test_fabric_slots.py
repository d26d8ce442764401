"""The whole agent on a made-up HGX board with a Fabric Manager: from partitions to the kubelet's slots and back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead import errors, settings
from fairlead.model.driver import PassthroughGPU
from fairlead.model.fabric import FabricGPU, Partition
from fairlead.node import vfioparts
from fairlead.node.fabric import memory
from fairlead.node.inventory import monitor
from fairlead.node.vfio import gpus, nodes
from fairlead.settings import groups
from fairlead.wire.kubernetes import core, meta, names
from tests.contract.test_agent_contract import Home
from tests.fabricstub import library
from tests.fabricstub.lattice import H100
from tests.fabricstub.manager import Manager
from tests.unit.silicon.vfio import pcitree

PREFIX = "nvidia.com/h100-sxm5-80gb"
SWITCH = "nvidia.com/nvswitch"


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.compile_library(tmp_path_factory.mktemp("nvfm"))


class Held:
    def close(self) -> None:
        return


class Board(Home):
    """A node whose GPUs are bound to VFIO; opening a node and resetting a GPU are a kernel's, and are left out."""

    def __init__(self, root: Path, stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root, 0)
        self.tree = tree = pcitree.build_hgx(root, driver="vfio-pci", regions=True)
        tree.write("usr/share/misc/pci.ids", pcitree.PCI_IDS)
        self.settings = dataclasses.replace(
            self.settings,
            node=dataclasses.replace(self.settings.node, vfio="bound", fabric="on"),
            fabric=groups.FabricSettings(manager=str(root / "fm.sock"), library=str(stub), timeout_s=2),
        )
        self.resets: list[str] = []
        self.switch = SWITCH

        async def reset(_: object, one: PassthroughGPU) -> None:
            self.resets.append(str(one.key))

        monkeypatch.setattr(nodes, "take_hold", lambda _: Held())
        monkeypatch.setattr(gpus.PassthroughGPUs, "reset", reset)

    async def ask(self, name: str, size: int) -> tuple[str, ...]:
        return await self.ask_for(name, f"{PREFIX}-x{size}", 1)

    async def ask_for(self, name: str, resource: str, count: int, namespace: str = "team") -> tuple[str, ...]:
        limits = {resource: str(count)}
        pod = core.Pod(
            metadata=meta.ObjectMeta(name=name, namespace=namespace, uid=name),
            spec=core.PodSpec(
                node_name="node-1",
                containers=(core.Container(name="main", resources=core.ResourceRequirements(limits=limits)),),
            ),
            status=core.PodStatus(phase="Running"),
        )
        if resource == self.switch:
            await self.store.create(pod)

        async def forget(_: str, __: object) -> None:
            return

        grants = await self.devices.allocate(pod, forget)
        self.pods.append(pod)
        return tuple(item for grant in grants for item in grant.device_ids)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Capacity and healthy devices of each size."""
        found = self.devices.capacity()
        return {name.removeprefix(f"{PREFIX}-"): found[name] for name in found if name.startswith(PREFIX)}

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(50):
            while not is_so():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def shown(self) -> dict[str, list[str]]:
        """The nodes of each CDI device, by qualified name."""
        found = {}
        for path in (self.settings.node.cdi_folder).glob("fairlead-slots-*.json"):
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                document = json.loads(path.read_text())
                for one in document["devices"]:
                    edits = one["containerEdits"]["deviceNodes"]
                    found[f"{document['kind']}={one['name']}"] = [node["path"] for node in edits]
        return found


@pytest.fixture
def board(stub: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Board, Manager]]:
    with tempfile.TemporaryDirectory(prefix="fl-") as name, library.running(f"unix:{name}/fm.sock") as manager:
        yield Board(Path(name), stub, monkeypatch), manager


async def test_a_board_offers_its_partitions_and_a_pod_gets_four_gpus_with_their_nvlink(
    board: tuple[Board, Manager],
) -> None:
    home, manager = board
    async with home.kubelet(), home.agent():
        await home.until(lambda: home.sizes() == {"x1": (8, 8), "x2": (4, 4), "x4": (2, 2), "x8": (1, 1)})
        (first,) = await home.ask("train", 4)
        await home.until(lambda: f"{PREFIX}-x4={first}" in home.shown())
        modules = [int(one) for one in first.removeprefix("x4-").split(".")]
        assert manager.active == {1 if modules == [1, 2, 3, 4] else 2}
        by_module = {module: address for address, module in pcitree.HGX_MODULES.items()}
        groups = [int(by_module[one].split(":")[1], 16) for one in modules]
        assert home.shown()[f"{PREFIX}-x4={first}"] == ["/dev/vfio/vfio", *(f"/dev/vfio/{group}" for group in groups)]
        await home.until(lambda: home.sizes() == {"x1": (8, 4), "x2": (4, 2), "x4": (2, 2), "x8": (1, 0)})
        (single,) = await home.ask("small", 1)
        assert int(single.removeprefix("x1-")) not in modules
        (pair,) = await home.ask("pair", 2)
        beside = {5: (5, 7), 7: (5, 7), 6: (6, 8), 8: (6, 8), 1: (1, 3), 3: (1, 3), 2: (2, 4), 4: (2, 4)}
        broken = ".".join(map(str, beside[int(single.removeprefix("x1-"))]))
        assert pair not in {f"x2-{broken}", first}
        await home.end("train")
        await home.until(lambda: not manager.active & {1, 2})
        await home.until(lambda: home.sizes()["x4"] == (2, 1))
        manager.stop()
        await home.until(lambda: home.sizes()["x4"] == (2, 0))
        assert home.sizes()["x1"][1] >= 4
        assert home.sizes()["x2"][1] == 1, "the pair that is held stays healthy"


async def test_a_service_vms_pod_gets_every_switch_of_the_board_or_none(board: tuple[Board, Manager]) -> None:
    home, _ = board
    chosen = dataclasses.replace(home.settings.fabric, vm_namespace="team")
    home.settings = dataclasses.replace(home.settings, fabric=chosen)
    async with home.kubelet(), home.agent():
        await home.until(lambda: home.devices.capacity().get(SWITCH) == (4, 0))  # none is bound yet
    for address in (*pcitree.HGX_SWITCHES, "0000:08:00.1"):
        home.tree.bind(address, "vfio-pci")
    async with home.kubelet(), home.agent():
        await home.until(lambda: home.devices.capacity().get(SWITCH) == (4, 4))
        shown = {name: nodes for name, nodes in home.shown().items() if name.startswith(SWITCH)}
        assert len(shown) == 4
        assert len({tuple(nodes) for nodes in shown.values()}) == 1, "one IOMMU group has them all"
        with pytest.raises(errors.FairleadError, match="2 of 4 NVSwitches"):
            await home.ask_for("half", SWITCH, 2)
        with pytest.raises(errors.FairleadError, match="t-evil/thief asks for some"):
            await home.ask_for("thief", SWITCH, 4, "t-evil")
        await home.store.delete(core.Pod, "thief", "t-evil", grace_s=0)
        given = await home.ask_for("vm", SWITCH, 4)
        assert {f"{SWITCH}={one}" for one in given} == set(shown), "Kata resolves RESOURCE=ID"
        with pytest.raises(errors.FairleadError) as caught:
            await home.ask_for("second", SWITCH, 4)
        assert caught.value.reason == "UnexpectedAdmissionError", "the kubelet counts what the first one has"
        await home.until(lambda: home.sizes()["x4"] == (2, 2))


async def test_switches_go_by_the_name_that_nvidias_plugin_would_give_them(board: tuple[Board, Manager]) -> None:
    """NVSWITCH_ALIAS: kubelet, CDI file, gate and the pods that ask have the one name, and nobody the usual one."""
    home, _ = board
    name = "nvidia.com/nvswitch-h100"
    home.settings = dataclasses.replace(
        home.settings,
        node=dataclasses.replace(
            home.settings.node, fabric="off", vfio_names="kata", vfio_switch_alias=name.partition("/")[2]
        ),
        fabric=dataclasses.replace(home.settings.fabric, vm_namespace="team"),
    )
    home.switch = name
    for address in (*pcitree.HGX_SWITCHES, "0000:08:00.1"):
        home.tree.bind(address, "vfio-pci")
    async with home.kubelet(), home.agent():
        await home.until(lambda: home.devices.capacity().get(name) == (4, 4))
        assert SWITCH not in home.devices.capacity()
        shown = {one for one in home.shown() if "nvswitch" in one}
        with pytest.raises(errors.FairleadError, match=f"ask for {name}: 4"):
            await home.ask_for("half", name, 2)
        with pytest.raises(errors.FairleadError, match="t-evil/thief asks for some"):
            await home.ask_for("thief", name, 4, "t-evil")
        await home.store.delete(core.Pod, "thief", "t-evil", grace_s=0)
        given = await home.ask_for("vm", name, 4)
        assert {f"{name}={one}" for one in given} == shown


async def test_switches_are_offered_to_no_pod_unless_a_namespace_is_named(board: tuple[Board, Manager]) -> None:
    home, _ = board
    async with home.kubelet(), home.agent():
        await home.until(lambda: home.sizes().get("x4") == (2, 2))
        assert SWITCH not in home.devices.capacity()
        assert not [name for name in home.shown() if name.startswith(SWITCH)]


async def test_the_node_says_its_managers_version_where_schedulers_read_it(board: tuple[Board, Manager]) -> None:
    home, _ = board
    node = core.Node(metadata=meta.ObjectMeta(name="node-1", uid="node-uid", labels={"rack": "7"}))
    await home.store.create(node)
    chosen = dataclasses.replace(home.settings.fabric, version="580.95.05")
    home.settings = dataclasses.replace(home.settings, fabric=chosen)

    async def until_labelled(version: str | None) -> None:
        async with asyncio.timeout(50):
            async for change in home.store.watch(core.Node):
                labels = change.object.metadata.labels
                if labels.get(names.FABRIC_MANAGER) == version and labels["rack"] == "7":
                    return

    async with home.kubelet(), home.agent():
        await until_labelled("580.95.05")
    home.settings = dataclasses.replace(home.settings, node=dataclasses.replace(home.settings.node, fabric="off"))
    async with home.kubelet(), home.agent():
        await until_labelled(None)


class Watch:
    """What is used of an inventory monitor."""

    beside: object = None

    def ask_scan(self) -> None:
        return


def compose(chosen: settings.Settings) -> vfioparts.VFIOPart | None:
    watch: monitor.InventoryMonitor = Watch()  # type: ignore[assignment]  # what is used of one
    return vfioparts.compose(chosen, watch, boot_id="b")


def test_the_fabric_is_not_left_alone_while_partitions_of_several_gpus_are_active(tmp_path: Path) -> None:
    kept = memory.FabricMemory(tmp_path / "agent", "b")
    kept.note_partitions(
        [Partition(id=one, gpus=tuple(FabricGPU(module=gpu) for gpu in gpus)) for one, gpus in H100.partitions.items()]
    )
    chosen = settings.Settings(
        state=settings.StateSettings(folder=tmp_path), node=settings.NodeSettings(vfio="bound", fabric="off")
    )
    kept.note({7, 8})
    assert compose(chosen) is not None, "singles link no GPU to another"
    kept.note({7, 8}, {3})
    with pytest.raises(errors.Unavailable, match="partitions 3 of several") as caught:
        compose(chosen)
    assert "fabric.json" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("node", "fabric", "said"),
    [
        ({"vfio": "off"}, {}, "node.vfio is off"),
        ({"vfio_names": "index"}, {}, "no names for several GPUs"),
        ({}, {"manager": "nowhere"}, "no address"),
        ({}, {"timeout_s": -1.0}, "timeout_s"),
        ({}, {"agent": "3:6667"}, "secret"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_with_the_next_step(
    tmp_path: Path, node: dict[str, str], fabric: dict[str, object], said: str
) -> None:
    chosen = settings.Settings(
        state=settings.StateSettings(folder=tmp_path),
        node=dataclasses.replace(settings.NodeSettings(vfio="bound", fabric="on"), **node),  # type: ignore[arg-type]  # its fields
        fabric=dataclasses.replace(groups.FabricSettings(), **fabric),  # type: ignore[arg-type]  # its fields
    )
    with pytest.raises(errors.FairleadError, match=said):
        compose(chosen)
