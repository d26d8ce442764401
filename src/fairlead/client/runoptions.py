"""Declares the types of what the API takes.

Made by tools/generate_client.py from the API's description; edit what it describes, then run that program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict


class BindRequest(TypedDict):
    """`BindRequest` of the API."""

    host_path: str
    container_path: str
    read_only: NotRequired[bool]


class ClaimRequest(TypedDict):
    """`ClaimRequest` of the API."""

    name: str
    """Of a ResourceClaim in its namespace; with a template: any label."""
    template: NotRequired[str]
    """ResourceClaimTemplate that a claim is made from; empty: the claim is there."""


class HealthRequest(TypedDict):
    """`HealthRequest` of the API."""

    interval_s: NotRequired[int]
    """Seconds between two."""
    timeout_s: NotRequired[int]
    """Seconds that one may take."""
    retries: NotRequired[int]
    """Failures in a row that make it unhealthy."""
    start_period_s: NotRequired[int]
    """Seconds before the first."""


class HostRequest(TypedDict):
    """`HostRequest` of the API."""

    name: str
    address: str
    """IP address that it stands for."""


class LimitRequest(TypedDict):
    """`LimitRequest` of the API."""

    name: str
    """Nofile, memlock, …."""
    soft: int
    hard: int


class MemoryMount(TypedDict):
    """`MemoryMount` of the API."""

    container_path: str
    size: NotRequired[str | int | float | None]
    """Bytes at most, `1Gi`; null: half the memory."""


class PortRequest(TypedDict):
    """`PortRequest` of the API."""

    host_port: int
    """0: a free one of this machine, which the answer names."""
    container_port: int
    protocol: NotRequired[str]
    """TCP, UDP or SCTP."""
    host_ip: NotRequired[str]
    """Address that listens; empty: all of the host."""


class SecretGrant(TypedDict):
    """`SecretGrant` of the API."""

    name: str
    """Of the secret, in the container's namespace."""
    key: NotRequired[str]
    """Which of its values; empty: the only one."""
    env: NotRequired[str]
    """Variable that has it; empty: none."""
    path: NotRequired[str]
    """File that has it; empty: `/run/secrets/NAME`, where no variable is named."""


class VolumeMount(TypedDict):
    """`VolumeMount` of the API."""

    name: str
    container_path: str
    read_only: NotRequired[bool]


class RunOptions(TypedDict, total=False):
    """`ContainerRequest` of the API."""

    tenancy: str
    """Tenancy to run in."""
    namespace: str
    """Namespace to run in."""
    name: str
    """Unique in its namespace; empty: made from the image's name."""
    gpus: str | int | float | None
    """Whole GPUs, all on one node; null: 1 with `container-url` and no resources, else 0."""
    resources: Mapping[str, str | int | float]
    """Devices by resource, `nvidia.com/mig-1g.10gb`."""
    devices: Sequence[str]
    """CDI devices by name, `vendor/class=name`, on one machine; no GPUs."""
    claims: Sequence[ClaimRequest]
    """Claims whose devices it sees."""
    device_class: str
    """DeviceClass of a claim that is made with it, for as many devices as `gpus`."""
    where: str
    """What those devices must be, `model=H100,memory>=40Gi,numa=same`; makes a claim too."""
    env: Mapping[str, str]
    secrets: Sequence[SecretGrant]
    """Values of secrets, as variables or files in memory."""
    cpu: str | int | float | None
    """CPUs at most, `1.5` or `500m`."""
    memory: str | int | float | None
    """Memory at most, `4Gi` or bytes."""
    restart: str
    """Never, OnFailure or Always."""
    labels: Mapping[str, str]
    tty: bool
    stdin: bool
    user: str
    """`uid`, `uid:gid`, or the image's names; empty: its own."""
    groups: Sequence[str]
    """More groups of its processes, by number or the image's names."""
    init: bool
    """An init is process 1, which reaps children; the program is not."""
    stop_signal: str
    """What a stop sends first, `SIGINT`; empty: the image's own, else SIGTERM."""
    workdir: str
    read_only: bool
    """Its root file system is only read."""
    cap_drop: Sequence[str]
    """Capabilities taken away; `ALL`: every one."""
    binds: Sequence[BindRequest]
    volumes: Sequence[VolumeMount]
    ports: Sequence[PortRequest]
    memory_mounts: Sequence[MemoryMount]
    hostname: str
    """Empty: the container's name."""
    hosts: Sequence[HostRequest]
    """More lines of /etc/hosts."""
    dns: Sequence[str]
    """Addresses of name servers, in place of the engine's."""
    dns_searches: Sequence[str]
    """Domains that short names are looked up in; beside `dns` alone."""
    dns_options: Sequence[str]
    """Options of its resolver, beside the engine's: `ndots:2`."""
    health: HealthRequest | None
    """How it is looked whether it is well; null: nobody looks."""
    pull: str
    """Always, IfNotPresent or Never; empty: IfNotPresent."""
    priority: int | str
    """Higher goes first in the queue; text: the name of a PriorityClass."""
    preempt: bool
    """End containers of lower priority, if that makes room."""
    queue: str
    """Queue that it is in; empty: its namespace's."""
    gang: str
    """Group that starts all at once or not at all; empty: none."""
    gang_minimum: int
    """How many of the group start at once."""
    reservation: str
    """Of its namespace, on one machine: it starts in one of its windows; empty: none."""
    time_limit_s: int | None
    """Stopped after that many seconds."""
    network: str
    """None, host or bridge; empty: as the engine is configured."""
    ipc: str
    """Host or private; empty: private."""
    isolation: str
    """None, gvisor or vm; empty: its tenancy's, which binds it, else none."""
    ulimits: Sequence[LimitRequest]
    remove_after_s: int | None
    """Removed so many seconds after its end; null: its record stays."""
    grace_s: int
    """Seconds between SIGTERM and SIGKILL."""
