"""Translates the driver's paths to the engine's view, where the agent sees the node through a mount. Pure.

In a container the node's root is at `/host`, say, and so a library is found at `/host/usr/lib/libcuda.so.1`. Engines
resolve CDI specs outside of that container: for them it is `/usr/lib/libcuda.so.1`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from fairlead.model.driver import DeviceNode, DriverFiles, HostFile, ModeFiles


def seen_by_host(driver: DriverFiles, mount: Path) -> DriverFiles:
    """Return the driver's files with `mount`, the folder at which the node's root is seen, left out of host paths.

    What lies outside of the mount is at the same place in both and stays.
    """

    def nodes(found: Iterable[DeviceNode]) -> tuple[DeviceNode, ...]:
        return tuple(dataclasses.replace(node, host_path=_without(node.host_path, mount)) for node in found)

    def files(found: Iterable[HostFile]) -> tuple[HostFile, ...]:
        return tuple(dataclasses.replace(file, host_path=_without(file.host_path, mount)) for file in found)

    def mode(found: ModeFiles) -> ModeFiles:
        devices = tuple(dataclasses.replace(one, nodes=nodes(one.nodes)) for one in found.devices)
        return dataclasses.replace(found, devices=devices, shared=nodes(found.shared), files=files(found.files))

    return dataclasses.replace(
        driver,
        nodes=nodes(driver.nodes),
        companions=tuple((name, mode(one)) for name, one in driver.companions),
        vfio_nodes=nodes(driver.vfio_nodes),
        vgpus=tuple(dataclasses.replace(one, nodes=nodes(one.nodes)) for one in driver.vgpus),
        passthrough=tuple(
            dataclasses.replace(gpu, group_nodes=nodes(gpu.group_nodes), iommufd_nodes=nodes(gpu.iommufd_nodes))
            for gpu in driver.passthrough
        ),
        switches=tuple(
            dataclasses.replace(one, group_nodes=nodes(one.group_nodes), iommufd_nodes=nodes(one.iommufd_nodes))
            for one in driver.switches
        ),
        files=files(driver.files),
    )


def _without(path: str, mount: Path) -> str:
    one = PurePosixPath(path)
    return f"/{one.relative_to(mount)}" if one.is_relative_to(mount) else path
