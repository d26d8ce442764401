"""Our specs beside NVIDIA's own generator on one fake machine, in the modes that need no driver to answer.

Runs where the peer has been built (`python -m benchmarks generate` builds it). Ours must give a container every node
and every file that theirs gives, with the same numbers; the kind is ours to choose.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ctk
from fairlead.plan.cdi import driverprofile, generate, source
from fairlead.silicon.nvidia.files import modefiles
from fairlead_cdi import emit
from tests.unit.silicon.nvidia.files import moderoot

MODES = ("management", "imex", "gds", "mofed", "gdrcopy", "nvswitch", "csv")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ctk.PROGRAM.exists(), reason="nvidia-ctk is not built here"),
]


def theirs(name: str, root: Path) -> dict[str, Any]:
    lists = [root / moderoot.CSV / one for one in ("devices.csv", "drivers.csv")]
    command = ctk.arguments(ctk.PROGRAM, name, root, lists)
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ours(name: str, root: Path) -> dict[str, Any]:
    found = modefiles.scan(name, modefiles.Place(root=root))
    spec = source.mode_spec(name, found, generate.Recipe(profile=driverprofile.FULL))
    assert spec is not None
    return emit.as_document(spec)


def nodes(document: dict[str, Any], name: str) -> dict[str, tuple[int, int] | None]:
    """Return a device's nodes and their numbers, those of every container included; None: not said."""
    (device,) = (item for item in document["devices"] if item["name"] == name)
    parts = [device["containerEdits"], document.get("containerEdits", {})]
    found = [node for part in parts for node in part.get("deviceNodes", [])]
    return {node["path"]: (node["major"], node.get("minor", 0)) if "major" in node else None for node in found}


def mounts(document: dict[str, Any]) -> dict[str, str]:
    parts = [document.get("containerEdits", {}), *(device["containerEdits"] for device in document["devices"])]
    return {item["containerPath"]: item["hostPath"] for part in parts for item in part.get("mounts", [])}


@pytest.mark.parametrize("name", MODES)
def test_a_container_gets_all_that_the_peer_gives_it(name: str, tmp_path: Path) -> None:
    root = moderoot.build(tmp_path / "root")
    # The peer takes a channel's number from its name without looking at the limit.
    (root / "dev/nvidia-caps-imex-channels/channel1048576").unlink()
    peer, own = theirs(name, root), ours(name, root)
    assert {item["name"] for item in peer["devices"]} <= {item["name"] for item in own["devices"]}
    for device in peer["devices"]:
        wanted, given = nodes(peer, device["name"]), nodes(own, device["name"])
        assert wanted.keys() == given.keys()
        assert all(numbers in (None, given[path]) for path, numbers in wanted.items())
    assert mounts(peer).items() <= mounts(own).items()
    assert peer["kind"] == "nvidia.com/gpu"
