"""Our CDI files: whole, only when different, only ours, and honest about what they name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.model import cdikind
from fairlead.model.driver import DeviceNode, ModeDevice, ModeFiles
from fairlead.model.gpu import Driver, Inventory, Vendor
from fairlead.node.cdi import specfiles
from fairlead.plan.cdi import generate
from fairlead.wire.cdi import stamp
from fairlead_cdi import parse
from tests import gpus


async def test_every_gpu_is_named_on_disk_before_ensure_returns(tmp_path: Path) -> None:
    specs = specfiles.SpecFiles(tmp_path / "cdi")
    names = await specs.ensure(*gpus.driven(2))
    written = json.loads((tmp_path / "cdi" / "fairlead-nvidia.com-gpu.json").read_bytes())
    on_disk = {f"{written['kind']}={device['name']}" for device in written["devices"]}
    assert {"nvidia.com/gpu=GPU-0", "nvidia.com/gpu=GPU-1"} <= names
    assert names == on_disk


async def test_a_spec_names_the_nodes_paths_also_where_the_node_is_seen_through_a_mount(tmp_path: Path) -> None:
    inventory, (driver,) = gpus.driven(1)
    nodes = tuple(dataclasses.replace(node, host_path=f"/host{node.path}") for node in driver.nodes)
    specs = specfiles.SpecFiles(tmp_path, host_mount=Path("/host"))
    await specs.ensure(inventory, (dataclasses.replace(driver, nodes=nodes),))
    assert "/host" not in specs.path("nvidia.com/gpu").read_text()


async def test_an_unchanged_spec_is_not_written_again_but_a_lost_one_is(tmp_path: Path) -> None:
    specs = specfiles.SpecFiles(tmp_path)
    await specs.ensure(*gpus.driven(2))
    path = specs.path("nvidia.com/gpu")
    inode = path.stat().st_ino
    await specs.ensure(*gpus.driven(2))
    assert path.stat().st_ino == inode
    path.write_bytes(b"{ torn")
    await specs.ensure(*gpus.driven(2))
    assert len(json.loads(path.read_bytes())["devices"]) > 2


async def test_a_gpu_that_goes_leaves_the_spec(tmp_path: Path) -> None:
    specs = specfiles.SpecFiles(tmp_path)
    await specs.ensure(*gpus.driven(2))
    assert "nvidia.com/gpu=GPU-1" not in await specs.ensure(*gpus.driven(1))


async def test_without_devices_nothing_is_written_and_a_leftover_goes(tmp_path: Path) -> None:
    specs = specfiles.SpecFiles(tmp_path)
    await specfiles.SpecFiles(tmp_path).ensure(*gpus.driven(1))
    assert await specs.ensure(Inventory(), ()) == frozenset()
    assert list(tmp_path.iterdir()) == []


async def test_removal_takes_our_files_only(tmp_path: Path) -> None:
    specs = specfiles.SpecFiles(tmp_path)
    await specs.ensure(*gpus.driven(1))
    other = tmp_path / "nvidia.yaml"
    other.write_text("cdiVersion: 0.5.0\n")
    await specs.remove()
    await specs.remove()
    assert list(tmp_path.iterdir()) == [other]
    assert specs.names == frozenset()


async def test_a_folder_that_refuses_keeps_what_was_known(tmp_path: Path) -> None:
    folder = tmp_path / "cdi"
    specs = specfiles.SpecFiles(folder)
    before = await specs.ensure(*gpus.driven(1))
    folder.rename(tmp_path / "kept")
    folder.write_text("a file is in the way")
    with pytest.raises(errors.Unavailable) as caught:
        await specs.ensure(*gpus.driven(2))
    assert (caught.value.reason, specs.names) == ("CDIFolderFailed", before)


async def test_a_gpu_without_its_node_is_not_named(tmp_path: Path) -> None:
    inventory, _ = gpus.driven(2)
    _, drivers = gpus.driven(1)
    names = await specfiles.SpecFiles(tmp_path).ensure(inventory, drivers)
    assert "nvidia.com/gpu=GPU-0" in names
    assert "nvidia.com/gpu=GPU-1" not in names


@pytest.mark.parametrize("place", ["file", "annotations"])
async def test_the_stamp_of_a_spec_says_of_which_gpus_it_is(tmp_path: Path, place: str) -> None:
    inventory, drivers = gpus.driven(2)
    changed = (
        dataclasses.replace(inventory.gpus[0], compute_capability=(7, 5), brand="tesla"),
        dataclasses.replace(inventory.gpus[1], minor=5),
    )
    nodes = tuple(dataclasses.replace(node, path=f"/dev/nvidia{5 * node.minor}") for node in drivers[0].nodes)
    driver = Driver(vendor=Vendor.NVIDIA, version="550.163.01", cuda_version=(12, 4))
    specs = specfiles.SpecFiles(tmp_path, boot_id="b", stamping=place)
    found = dataclasses.replace(inventory, gpus=changed, drivers=(driver,))
    await specs.ensure(found, (dataclasses.replace(drivers[0], nodes=nodes),))
    path = specs.path("nvidia.com/gpu")
    assert stamp.read(path, parse.parse_spec(path.read_bytes()).annotations) == stamp.Stamp(
        boot_id="b",
        driver="nvidia",
        version="550.163.01",
        cuda="12.4",
        gpus={"/dev/nvidia0": ("7.5", "tesla"), "/dev/nvidia5": ("", "")},
    )


async def test_what_containers_get_beside_gpus_has_kinds_of_its_own_that_no_ledger_hides(tmp_path: Path) -> None:
    inventory, (driver,) = gpus.driven(1)
    node = DeviceNode(path="/dev/nvidia-fs0", host_path="/host/dev/nvidia-fs0", major=240, minor=0, mode=0o666)
    channel = dataclasses.replace(node, path="/dev/nvidia-caps-imex-channels/channel0")
    companions = (
        ("gds", ModeFiles(devices=(ModeDevice(names=(), nodes=(node,)),))),
        ("imex", ModeFiles(devices=(ModeDevice(names=("0",), nodes=(channel,)),))),
    )
    specs = specfiles.SpecFiles(tmp_path, host_mount=Path("/host"))
    specs.hide()
    await specs.ensure(inventory, (dataclasses.replace(driver, companions=companions),))
    found = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    named = {one["kind"]: [device["name"] for device in one["devices"]] for one in found.values()}
    assert named == {"fairlead.dev/gds": ["all"], "fairlead.dev/imex-channel": ["0"]}
    [shown] = found["fairlead.dev-gds.json"]["devices"][0]["containerEdits"]["deviceNodes"]
    assert shown["path"] == "/dev/nvidia-fs0"
    assert "/host" not in json.dumps(found)
    await specs.ensure(inventory, (driver,))
    assert not list(tmp_path.glob("fairlead.dev-*.json"))


async def test_what_pods_held_when_an_agent_died_stays_shown_until_the_ledger_says_otherwise(tmp_path: Path) -> None:
    inventory, drivers = gpus.driven(3)
    names = [f"fairlead.dev/gpu={gpu.uuid}" for gpu in inventory.gpus]

    def agent(boot_id: str = "b") -> specfiles.SpecFiles:
        specs = specfiles.SpecFiles(tmp_path, recipe=generate.Recipe(kinds=cdikind.ALLOCATED), boot_id=boot_id)
        specs.hide()
        return specs

    def shown() -> list[str]:
        texts = [json.loads(path.read_text()) for path in tmp_path.glob("fairlead.dev-gpu.json")]
        return [f"fairlead.dev/gpu={device['name']}" for text in texts for device in text["devices"]]

    first = agent()
    await first.ensure(inventory, drivers)
    assert shown() == []
    await first.show(frozenset(names[:2]))
    assert sorted(shown()) == sorted(names[:2])

    second = agent()
    await second.ensure(inventory, drivers)
    assert sorted(shown()) == sorted(names[:2])
    await second.show(frozenset(names[1:2]))
    assert shown() == names[1:2]
    await agent("another boot").ensure(inventory, drivers)
    assert shown() == []
