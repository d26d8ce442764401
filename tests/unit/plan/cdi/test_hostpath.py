"""Paths of the node as its engine sees them, where the agent sees the node through a mount."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.model.driver import DeviceNode, DriverFiles, HostFile
from fairlead.model.gpu import Vendor
from fairlead.plan.cdi import hostpath


def driver(node: str, file: str) -> DriverFiles:
    return DriverFiles(
        vendor=Vendor.NVIDIA,
        version="550.1",
        nodes=(DeviceNode(path="/dev/nvidia0", host_path=node, major=195, minor=0, mode=0o666),),
        files=(HostFile(path="/usr/lib/libcuda.so.550.1", host_path=file, kind="library"),),
    )


def paths(found: DriverFiles) -> tuple[str, str]:
    return found.nodes[0].host_path, found.files[0].host_path


def test_the_mount_is_left_out_of_host_paths_and_nothing_else_changes() -> None:
    before = driver("/host/dev/nvidia0", "/host/run/driver/usr/lib/libcuda.so.550.1")
    after = hostpath.seen_by_host(before, Path("/host"))
    assert after == driver("/dev/nvidia0", "/run/driver/usr/lib/libcuda.so.550.1")


@pytest.mark.parametrize("mount", ["/", "/elsewhere", "/hos"])
def test_what_lies_outside_of_the_mount_stays(mount: str) -> None:
    before = driver("/host/dev/nvidia0", "/host/usr/lib/libcuda.so.550.1")
    assert paths(hostpath.seen_by_host(before, Path(mount))) == paths(before)
