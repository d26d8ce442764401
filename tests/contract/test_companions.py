"""GDRCopy, GDS and IMEX channels beside GPUs: from the configuration file and /dev to the answer of Allocate."""

# ruff: noqa: F811  (fixtures of another file)

from __future__ import annotations

import dataclasses
import json

import pytest

from fairlead import errors
from tests.contract.test_agent_contract import NVIDIA, Home, home_folder  # noqa: F401 fixture
from tests.contract.test_vgpus import give, home, until  # noqa: F401 fixture


@pytest.mark.parametrize("home", ["t4x4"], indirect=True)
async def test_a_file_gives_containers_what_the_node_has_beside_its_gpus_and_follows_both(home: Home) -> None:
    dev = home.settings.silicon.root / "silicon/root/dev"
    file = home.settings.state.folder / "config.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("flags: {gdrcopyEnabled: true, gdsEnabled: true}\nimex: {channelIDs: [0]}\n")
    plugin = dataclasses.replace(home.settings.plugin, config_file=file)
    home.settings = dataclasses.replace(home.settings, plugin=plugin)
    (dev / "gdrdrv").hardlink_to(dev / "nvidiactl")
    async with home.kubelet(), home.agent():
        await until(home, {NVIDIA: (4, 4)})
        name, given = await give(home, NVIDIA)
        assert [one.name for one in given.cdi_devices] == [f"fairlead.dev/gpu={name}", "fairlead.dev/gdrcopy=all"]
        spec = json.loads((home.settings.node.cdi_folder / "fairlead.dev-gdrcopy.json").read_text())
        [node] = spec["devices"][0]["containerEdits"]["deviceNodes"]
        assert node["path"] == "/dev/gdrdrv"


@pytest.mark.parametrize("home", ["t4x4"], indirect=True)
async def test_a_channel_that_is_required_and_absent_is_refused_with_its_number(home: Home) -> None:
    plugin = dataclasses.replace(home.settings.plugin, imex_channels="0", imex_required=True)
    home.settings = dataclasses.replace(home.settings, plugin=plugin)
    async with home.kubelet(), home.agent():
        await until(home, {NVIDIA: (4, 4)})
        with pytest.raises(errors.FairleadError, match="IMEX channel 0 is required"):
            await give(home, NVIDIA)
