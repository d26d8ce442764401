"""Answers Allocate as NVIDIA's device plugin does, by each of its device list strategies.

Source: NVIDIA k8s-device-plugin v0.20.0, internal/plugin/server.go (getAllocateResponse and what it calls).
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Final

from fairlead.wire.proto import deviceplugin_pb2 as pb
from tests.unit.node.kubelet.fakeplugin import Plugin

STRATEGIES: Final = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
KIND: Final = "k8s.device-plugin.nvidia.com/gpu"
_ROOT: Final = "/var/run/nvidia-container-devices"


def answer(
    ids: tuple[str, ...],
    *strategies: str,
    prefix: str = "cdi.k8s.io/",
    channels: tuple[str, ...] = (),
    nodes: tuple[str, ...] = (),
) -> pb.ContainerAllocateResponse:
    """Return the plugin's answer for devices, the ids of replicas reduced to their GPUs.

    Args: prefix: of annotations (CDI_ANNOTATION_PREFIX).   channels: of IMEX.   nodes: for PASS_DEVICE_SPECS.
    """
    gpus = tuple(dict.fromkeys(one.partition("::")[0] for one in ids))
    found = pb.ContainerAllocateResponse()
    names = [f"{KIND}={gpu}" for gpu in gpus]
    if "cdi-cri" in strategies:
        found.cdi_devices.extend(pb.CDIDevice(name=name) for name in names)
    if "cdi-annotations" in strategies:
        found.annotations[f"{prefix}nvidia-device-plugin_{uuid.uuid4()}"] = ",".join(names)
    if "envvar" in strategies:
        found.envs["NVIDIA_VISIBLE_DEVICES"] = ",".join(gpus)
        if channels:
            found.envs["NVIDIA_IMEX_CHANNELS"] = ",".join(channels)
    if "volume-mounts" in strategies:
        found.envs["NVIDIA_VISIBLE_DEVICES"] = _ROOT
        places = [*gpus, *(f"imex/{channel}" for channel in channels)]
        found.mounts.extend(pb.Mount(host_path="/dev/null", container_path=f"{_ROOT}/{place}") for place in places)
    found.devices.extend(pb.DeviceSpec(container_path=path, host_path=path, permissions="rw") for path in nodes)
    return found


class VendorPlugin(Plugin):
    """NVIDIA's device plugin, as a kubelet sees it."""

    def __init__(self, *ids: str, strategies: tuple[str, ...] = ("envvar",), prefix: str = "cdi.k8s.io/") -> None:
        super().__init__(*ids)
        self.strategies, self.prefix = strategies, prefix
        self.nodes: tuple[str, ...] = ()

    def answer(self, ids: tuple[str, ...]) -> pb.ContainerAllocateResponse:
        return answer(ids, *self.strategies, prefix=self.prefix, nodes=self.nodes)


def write_spec(folder: Path, kind: str, *gpus: str) -> None:
    """Write a CDI spec whose devices set a variable, so that what was injected can be read without any GPU."""
    devices = [{"name": gpu, "containerEdits": {"env": [f"GAVE_{number}={gpu}"]}} for number, gpu in enumerate(gpus)]
    document = {"cdiVersion": "0.5.0", "kind": kind, "containerEdits": {}, "devices": devices}

    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{kind.replace('/', '-')}.json").write_text(json.dumps(document))
