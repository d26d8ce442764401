"""vGPUs on one machine, through the embedded kubelet and podman: VFIO's nodes of one's own, and nothing of a GPU."""

from __future__ import annotations

import re

import pytest
import yaml
from home import Home

pytestmark = [pytest.mark.podman, pytest.mark.slow]

RESOURCE = "nvidia.com/GRID_T4-8Q"

ENVIRONMENT = r"tr '\0' '\n' < /proc/1/environ"
"""A shell drops variables whose names it could not write, such as those with a dash."""


def test_a_container_has_its_vgpus_nodes_and_its_name_and_no_other(home: Home) -> None:
    home.up(simulate="t4x2-vgpu")
    box = {
        "name": "main",
        "image": home.image,
        "command": ["sh", "-c", f"ls -1 /dev/vfio; ls /dev | grep -c nvidia; {ENVIRONMENT}; sleep 1000"],
        "resources": {"limits": {RESOURCE: 1}},
    }
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [box]}
    path = home.folder / "guest.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "guest"}, "spec": spec}))
    home.until(
        lambda: [one["health"] for one in home.ok("gpus", "-o", "json").data["vgpus"]] == ["Healthy"] * 2,
        what="both are offered",
    )
    home.ok("run", "-d", "-f", str(path))
    home.until_state("guest", "running")
    home.until(lambda: "MDEV_PCI_RESOURCE" in home.ok("logs", "guest").out, what="its environment is shown")

    [mine] = [one for one in home.ok("gpus", "-o", "json").data["vgpus"] if one["holders"]]
    assert [one["container"] for one in mine["holders"]] == ["guest"]
    lines = home.ok("logs", "guest").out.splitlines()
    assert re.fullmatch(r"1\d{3}", lines[0]), lines  # its IOMMU group
    assert lines[1:3] == ["vfio", "0"]
    assert f"MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-8Q={mine['id']}" in lines
    table = home.ok("gpus").out
    assert mine["id"] in table
    assert "GRID T4-8Q" in table
    assert home("isolate", "audit").code == 0
    findings = home("doctor", "-o", "json").data
    assert [one["what"] for one in findings if one["check"] == "vgpu"] == [
        "2 vGPUs are lent (2 of GRID T4-8Q); containers hold 1"
    ]
