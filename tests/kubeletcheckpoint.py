"""A kubelet's checkpoint for tests, in the form of 1.20 and later: what was given to which container of which pod.

That a real kubelet writes the same is shown in the cluster ring, where the shim reads the real one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.wire.proto import deviceplugin_pb2 as pb

ROOT = "/var/run/nvidia-container-devices"


@dataclass(frozen=True)
class Given:
    """What one container was given, and what its plugin answered."""

    pod: str
    ids: Sequence[str]
    container: str = "main"
    envs: Mapping[str, str] | None = None
    mounts: Sequence[str] = ()
    resource: str = "nvidia.com/gpu"
    annotations: Mapping[str, str] | None = None
    cdi_devices: Sequence[str] = ()

    def entry(self) -> dict[str, Any]:
        answer = pb.ContainerAllocateResponse(
            envs=self.envs or {}, annotations={"some": "note", **(self.annotations or {})}
        )
        answer.devices.add(container_path="/dev/nvidia0", host_path="/dev/nvidia0", permissions="rw")
        for name in self.cdi_devices:
            answer.cdi_devices.add(name=name)
        for name in self.mounts:
            answer.mounts.add(container_path=f"{ROOT}/{name}", host_path="/dev/null", read_only=True)
        return {
            "PodUID": self.pod,
            "ContainerName": self.container,
            "ResourceName": self.resource,
            "DeviceIDs": {"-1": list(self.ids[:1]), "1": list(self.ids[1:])},
            "AllocResp": base64.b64encode(answer.SerializeToString()).decode(),
        }


def by_environment(pod: str, *ids: str, container: str = "main") -> Given:
    """Return what the strategy `envvar` gives."""
    return Given(pod, ids, container, envs={"NVIDIA_VISIBLE_DEVICES": ",".join(ids)})


def document(*given: Given) -> dict[str, Any]:
    """Return the checkpoint; without entries a kubelet writes null."""
    registered = {"nvidia.com/gpu": ["GPU-a", "GPU-b"]}
    entries = [one.entry() for one in given] or None
    return {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered}, "Checksum": 2871834421}


def write(path: Path, *given: Given) -> None:
    """Replace the checkpoint, as a kubelet does."""
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(document(*given)))
    fresh.chmod(0o600)
    fresh.replace(path)


def identity(pod: str, container: str = "main") -> dict[str, str]:
    """Return how containerd says whose container it makes."""
    return {
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.sandbox-uid": pod,
        "io.kubernetes.cri.container-name": container,
    }
