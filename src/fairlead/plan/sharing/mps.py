"""Decides what MPS gives: a daemon for each shared GPU, equal limits for its clients, and what a container needs. Pure.

One control daemon serves one GPU, so that limits, restarts and faults are a GPU's own. Each replica is a share: 1/N of
the memory and 100/N percent of the threads, rounded down as NVIDIA's plugin does; a container with several replicas of
one GPU has several shares. The limits stand in the container's environment. Where no container may have more than one
share they are the daemon's defaults, too, which a program cannot lift by changing its environment.
Source: NVIDIA k8s-device-plugin, cmd/mps-control-daemon/mps; NVIDIA Multi-Process Service, "Environment Variables".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.model.device import Device
from fairlead.model.gpu import GPU
from fairlead.model.ids import GPUUUID
from fairlead.plan.gpu import nodeconfig
from fairlead.plan.gpu.offer.advertise import Advertisement, MPSClient
from fairlead.plan.sharing.replicate import MPS
from fairlead.wire.proto import deviceplugin_pb2 as pb

PIPE_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE: Final = "CUDA_MPS_LOG_DIRECTORY"
PERCENT_VARIABLE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY_VARIABLE: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
CONTAINER_PIPE: Final = "/mps/pipe"
"""Where a container finds the pipes of its daemon."""
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - the container's
TOO_MANY: Final = "MPSTooManyClients"
STARTING: Final = "MPSStarting"
DRAINING: Final = "MPSDraining"
MEMORY: Final = "memory"
THREADS: Final = "threads"
_VOLTA: Final = (7, 0)
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """One GPU's control daemon, as it should be."""

    gpu: GPUUUID
    memory_mib: int | None
    """Default limit of a client; None: the daemon has none, the containers' environment has."""
    percent: int | None


@dataclass(frozen=True, slots=True)
class DaemonState:
    """How one GPU's control daemon is."""

    reason: str = ""
    """Why replicas are withheld; empty: it is ready."""
    message: str = ""


def problem(states: Mapping[GPUUUID, DaemonState], means: str, device: Device) -> tuple[str, str] | None:
    """Return reason and message why a device must not be given away now, None where it may.

    Args: states: of each GPU that has, or is to have, a daemon.   means: by which the device's resource is shared.
    """
    state = states.get(device.gpu)
    if means == MPS and device.replica_of is not None:
        found = state or DaemonState(STARTING, "its MPS control daemon has not answered yet")
        return (found.reason, found.message) if found.reason else None
    if state is None:
        return None
    return DRAINING, state.message if state.reason == DRAINING else "its MPS daemon is being ended"


def clients_limit(gpu: GPU) -> int:
    """Return how many clients MPS serves on a GPU."""
    is_new = gpu.compute_capability is None or gpu.compute_capability >= _VOLTA
    return nodeconfig.MPS_CLIENTS if is_new else nodeconfig.MPS_CLIENTS_BEFORE_VOLTA


def plan_clients(
    offered: Iterable[Advertisement], gpus: Mapping[GPUUUID, GPU], folders: Mapping[GPUUUID, tuple[str, str]]
) -> tuple[Advertisement, ...]:
    """Return the advertisements with what a replica gives; a GPU with too many replicas for MPS is withheld.

    Args:    gpus: every GPU read so far.   folders: of the pipes and of the shared memory, by GPU.
    """
    return tuple(
        ad
        if ad.rule.means != MPS
        else _by_amount(ad, gpus, folders)
        if ad.rule.amount_of
        else _by_share(ad, gpus, folders)
        for ad in offered
    )


def _by_amount(
    ad: Advertisement, gpus: Mapping[GPUUUID, GPU], folders: Mapping[GPUUUID, tuple[str, str]]
) -> Advertisement:
    """Each unit is a GiB or a percent; a percentage that would let too many clients onto a GPU is refused."""
    is_memory = ad.rule.amount_of == MEMORY
    clients = {
        uuid: MPSClient(
            memory_mib=1024 if is_memory else None,
            percent=None if is_memory else 1,
            pipe=folders[uuid][0],
            shm=folders[uuid][1],
            least=0 if is_memory else -(-100 // clients_limit(gpus[uuid])),
        )
        for uuid in count_replicas(ad)
        if uuid in folders and uuid in gpus
    }
    return dataclasses.replace(ad, clients=clients)


def _by_share(
    ad: Advertisement, gpus: Mapping[GPUUUID, GPU], folders: Mapping[GPUUUID, tuple[str, str]]
) -> Advertisement:
    counts = count_replicas(ad)
    clients = {
        uuid: MPSClient(
            # Where the driver tells no size, a limit of 0 MiB would refuse every allocation.
            memory_mib=gpus[uuid].memory_bytes // count // _MIB or None,
            percent=100 // count,
            pipe=folders[uuid][0],
            shm=folders[uuid][1],
        )
        for uuid, count in counts.items()
        if uuid in gpus and uuid in folders
    }
    crowded = {uuid for uuid, count in counts.items() if uuid in gpus and count > clients_limit(gpus[uuid])}
    devices = tuple(
        dataclasses.replace(one, is_healthy=False, reason=TOO_MANY) if one.is_healthy and one.gpu in crowded else one
        for one in ad.devices
    )
    return dataclasses.replace(ad, devices=devices, clients=clients)


def count_replicas(ad: Advertisement) -> dict[GPUUUID, int]:
    """Return how many replicas of each GPU an advertisement has."""
    found: dict[GPUUUID, int] = {}
    for device in ad.devices:
        if device.replica_of is not None:
            found[device.gpu] = found.get(device.gpu, 0) + 1
    return found


def plan_daemons(offered: Iterable[Advertisement]) -> dict[GPUUUID, Daemon]:
    """Return the daemons that advertisements need, by GPU; one that has too many replicas needs none."""
    found: dict[GPUUUID, Daemon] = {}
    for ad in offered:
        crowded = {device.gpu for device in ad.devices if device.reason == TOO_MANY}
        for uuid, client in ad.clients.items():
            if uuid not in crowded:
                is_fixed = ad.rule.fails_above_one
                found[uuid] = Daemon(
                    gpu=uuid,
                    memory_mib=client.memory_mib if is_fixed else None,
                    percent=client.percent if is_fixed else None,
                )
    return found


def add_client(
    answer: pb.ContainerAllocateResponse, chosen: Sequence[Device], clients: Mapping[GPUUUID, MPSClient]
) -> None:
    """Add to an answer what makes the container a client of its GPU's daemon, with the limits of its replicas.

    Args: chosen: the devices that it gets, replicas of one GPU.
    """
    shares = [device for device in chosen if device.replica_of is not None and device.gpu in clients]
    if not shares:
        return
    client, count = clients[shares[0].gpu], len(shares)
    answer.envs[PIPE_VARIABLE] = CONTAINER_PIPE
    if client.percent is not None:
        answer.envs[PERCENT_VARIABLE] = str(min(100, client.percent * count))
    if client.memory_mib is not None:
        answer.envs[MEMORY_VARIABLE] = f"0={client.memory_mib * count}M"
    answer.mounts.append(pb.Mount(container_path=CONTAINER_PIPE, host_path=client.pipe))
    answer.mounts.append(pb.Mount(container_path=SHARED_MEMORY, host_path=client.shm))
