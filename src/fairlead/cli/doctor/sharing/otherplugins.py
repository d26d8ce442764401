"""Finds other device plugins, and other CDI files, of the GPUs that this machine passes through.

NVIDIA's plugins for Kata and KubeVirt serve sockets of their own names in the kubelet's folder; a socket counts only
while a process listens on it. A CDI file counts by its kind, or by a node of such a GPU that it names.
Source: NVIDIA sandbox-device-plugin and kubevirt-gpu-device-plugin (sockets `sandbox-NAME.sock`, `kubevirt-NAME.sock`),
k8s-device-plugin (`nvidia-NAME.sock`); KubeVirt's own sockets are `kubevirt-kvm.sock` and the like.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from fairlead import settings
from fairlead.cli.doctor.finding import Finding
from fairlead.frozen import frozen
from fairlead.kernel import socketpeer
from fairlead.model.driver import PassthroughGPU
from fairlead.model.gpu import Vendor
from fairlead.model.ids import GPUUUID
from fairlead.model.vfio import Function
from fairlead.plan.vfio import slot
from fairlead.silicon.vfio import attribute
from fairlead_cdi import directory
from fairlead_cdi import spec as cdi

_KUBELET: Final = Path("/var/lib/kubelet/device-plugins")
_OWN: Final = re.compile(r"fairlead-slots-.*\.json")
"""Our files of slots (`node.cdi.specfiles`), which count in our folder alone."""
_SOCKET: Final = re.compile(r"(sandbox|kubevirt|nvidia)-([A-Za-z0-9_.-]{1,80})\.sock", re.ASCII)
_MOST: Final = 8
"""Sockets that are asked: one that does not answer costs a second."""
_PLUGINS: Final = {
    "sandbox": "NVIDIA's sandbox device plugin (for Kata)",
    "kubevirt": "NVIDIA's device plugin for KubeVirt",
    "nvidia": "NVIDIA's device plugin",
}
_SWITCHES: Final = {
    "sandbox": "sandboxDevicePlugin.enabled",
    "kubevirt": "sandboxDevicePlugin.enabled",
    "nvidia": "devicePlugin.enabled",
}
_VENDORS: Final = {0x10DE: Vendor.NVIDIA, 0x1002: Vendor.AMD, 0x8086: Vendor.INTEL}
_WHY: Final = "two plugins give the same GPUs away: the other one hands out what tenants have, and asks no ledger"


@frozen
class Plugin:
    """Another device plugin that runs."""

    kind: str
    """A key of `_PLUGINS`."""
    socket: str
    pid: int
    """0: not known."""


@frozen
class SpecFile:
    """Another CDI file of the same GPUs."""

    path: str
    kind: str
    node: str = ""
    """A node of a GPU that it names; empty: its kind alone is the same."""


@frozen
class Facts:
    """What was found."""

    plugins: tuple[Plugin, ...] = ()
    files: tuple[SpecFile, ...] = ()


def collect(config: settings.Settings, gpus: Iterable[Function], naming: slot.Naming | None) -> Facts:
    """Look for others of the GPUs that are bound to VFIO.

    Args: gpus: of this machine.   naming: by the settings; None: nothing is passed through.
    """
    bound = [one for one in gpus if one.is_bound_to_vfio and one.vendor in _VENDORS]
    if not bound or naming is None:
        return Facts()
    kinds = frozenset(one.resource for one in naming.slots(map(_as_passthrough, bound)))
    folder = config.node.kubelet_folder or _KUBELET
    return Facts(
        plugins=tuple(_plugins(folder, {slot.kubevirt_name(one.model) for one in bound}, kinds)),
        files=tuple(_files(config.node.cdi_folder, kinds, _nodes(bound))),
    )


def _as_passthrough(one: Function) -> PassthroughGPU:
    vendor = _VENDORS[one.vendor]
    return PassthroughGPU(key=GPUUUID(one.identity.key), vendor=vendor, address=one.address, model=one.model)


def _plugins(folder: Path, models: Collection[str], kinds: Collection[str]) -> Iterator[Plugin]:
    named = [match for name in attribute.names(str(folder)) if (match := _SOCKET.fullmatch(name)) is not None]
    meant = [match for match in named if _is_of_gpus(match[1], match[2], models, kinds)]
    for match in meant[:_MOST]:
        path = folder / match[0]
        server = socketpeer.find_server(path)
        if server is not None:
            yield Plugin(kind=match[1], socket=str(path), pid=server.pid)


def _is_of_gpus(kind: str, name: str, models: Collection[str], kinds: Collection[str]) -> bool:
    """Return whether a socket is a plugin's of these GPUs: KubeVirt has others, NVIDIA's plugin has other resources."""
    if kind == "kubevirt":
        return name.removeprefix("nvidia.com-") in models
    return kind == "sandbox" or f"nvidia.com/{name}" in kinds


def _nodes(bound: Iterable[Function]) -> Mapping[str, str]:
    """Return the address of each GPU by the paths of its nodes."""
    return {node.path: one.address for one in bound for node in one.nodes}


def _files(own: Path, kinds: Collection[str], nodes: Mapping[str, str]) -> Iterator[SpecFile]:
    home = os.path.realpath(own)
    folders = {os.path.realpath(folder): None for folder in (*directory.DEFAULT_DIRECTORIES, own)}
    for file in directory.scan(folders).files:
        where, name = os.path.split(file.path)
        if file.spec is None or (where == home and _OWN.fullmatch(name)):
            continue
        named = next((path for path in _paths(file.spec) if path in nodes), "")
        if named or file.spec.kind in kinds:
            yield SpecFile(path=file.path, kind=file.spec.kind, node=named)


def _paths(spec: cdi.Spec) -> Iterator[str]:
    for edits in (spec.edits, *(device.edits for device in spec.devices)):
        yield from (node.host_path or node.path for node in edits.device_nodes)


def check(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each of them."""
    for one in facts.plugins:
        by = f"process {one.pid}, " if one.pid else ""
        what = f"{_PLUGINS[one.kind]} runs here too ({by}{one.socket})"
        fix = f"take its DaemonSet off this node (GPU operator: {_SWITCHES[one.kind]}=false), or set node.vfio=off"
        yield Finding(check="passthrough", level="fail", what=what, why=_WHY, fix=fix)
    for file in facts.files:
        named = f" names {file.node}" if file.node else ""
        what = f"{file.path} (kind {file.kind}){named or ' is of the same kind'}, and is not the agent's"
        why = "who is given its devices opens GPUs past the ledger, and a device that two files define starts nowhere"
        fix = f"end the plugin that writes it, then `mv {file.path} {file.path}.before`"
        yield Finding(check="passthrough", level="warn", what=what, why=why, fix=fix)
