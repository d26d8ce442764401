"""Declares what a tenant sends to run a container, and builds its pod.

Pure: a request in, a pod out. Values that Kubernetes judges (numbers of GPUs, quantities, names) are passed on as they
came, so that `plan.pod.admission` refuses them in Kubernetes' own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec

from fairlead import errors
from fairlead.model.container import isolation
from fairlead.plan.pod.network import resolver
from fairlead.plan.pod.values import environment
from fairlead.plan.sandbox import choice
from fairlead.plan.schedule.fairshare import ledger
from fairlead.plan.schedule.group import membership
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.pod.probe import ExecAction, Lifecycle, Probe
from fairlead.wire.kubernetes.pod.source import KeySelector, KeyToPath
from fairlead.wire.kubernetes.pod.volume import SecretVolume

_UNFIT: Final = re.compile(r"[^a-z0-9]+")
_LONGEST: Final = 52  # a label's 63 less the dash, the suffix and room for a container's number

_LAST_WORD: Final = "/dev/termination-log"
SECRETS_FOLDER: Final = "/run/secrets"
"""Where a container finds its secrets that name no other place, as docker and podman have it."""
Quantity = str | int | float
_NETWORKS: Final = {"none": "nothing but a loopback", "bridge": "the engine's own", "host": "the node's"}
_IPCS: Final = {"private": "its own", "host": "the node's"}
_INSTEAD: Final = {
    "container:": "containers of one pod share their network: run them from one manifest, `fairlead run -f FILE`",
    "shareable": "containers of one pod share what they must: run them from one manifest, `fairlead run -f FILE`",
}


class BindRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One bind mount from the host."""

    host_path: str
    container_path: str
    read_only: bool = False


class VolumeMount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One named volume, made where there is none of that name."""

    name: str
    container_path: str
    read_only: bool = False


class PortRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One port of the host that leads into the container."""

    host_port: Annotated[int, msgspec.Meta(description="0: a free one of this machine, which the answer names")]
    container_port: int
    protocol: Annotated[str, msgspec.Meta(description="TCP, UDP or SCTP")] = "TCP"
    host_ip: Annotated[str, msgspec.Meta(description="address that listens; empty: all of the host")] = ""


class HostRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One more line of the container's /etc/hosts."""

    name: str
    address: Annotated[str, msgspec.Meta(description="IP address that it stands for")]


class HealthRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command that says whether the container is well, as docker's HEALTHCHECK: it is shown, and ends nothing."""

    command: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="run in the container; it is well where that ends with 0", min_length=1),
    ]
    interval_s: Annotated[int, msgspec.Meta(description="seconds between two", ge=1, le=86400)] = 30
    timeout_s: Annotated[int, msgspec.Meta(description="seconds that one may take", ge=1, le=86400)] = 30
    retries: Annotated[int, msgspec.Meta(description="failures in a row that make it unhealthy", ge=1, le=1000)] = 3
    start_period_s: Annotated[int, msgspec.Meta(description="seconds before the first", ge=0, le=86400)] = 0


class SecretGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One value of a secret, as a variable or as a file."""

    name: Annotated[str, msgspec.Meta(description="of the secret, in the container's namespace")]
    key: Annotated[str, msgspec.Meta(description="which of its values; empty: the only one")] = ""
    env: Annotated[str, msgspec.Meta(description="variable that has it; empty: none")] = ""
    path: Annotated[
        str, msgspec.Meta(description="file that has it; empty: `/run/secrets/NAME`, where no variable is named")
    ] = ""


class MemoryMount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file system in memory, which ends with the container."""

    container_path: str
    size: Annotated[Quantity | None, msgspec.Meta(description="bytes at most, `1Gi`; null: half the memory")] = None


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One claim whose devices the container sees."""

    name: Annotated[str, msgspec.Meta(description="of a ResourceClaim in its namespace; with a template: any label")]
    template: Annotated[
        str, msgspec.Meta(description="ResourceClaimTemplate that a claim is made from; empty: the claim is there")
    ] = ""


class LimitRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One limit of the processes' resources, as setrlimit(2) has them; -1: none."""

    name: Annotated[str, msgspec.Meta(description="nofile, memlock, …")]
    soft: int
    hard: int


class ContainerRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A container to run; `image` (or its older name `container-url`) is the only field that must be there."""

    image: Annotated[str, msgspec.Meta(description="image to run")] = ""
    container_url: Annotated[str, msgspec.Meta(description="another name for `image`")] = msgspec.field(
        default="", name="container-url"
    )
    tenancy: Annotated[
        str,
        msgspec.Meta(description="tenancy to run in"),
    ] = ""
    namespace: Annotated[str, msgspec.Meta(description="namespace to run in")] = ""
    name: Annotated[str, msgspec.Meta(description="unique in its namespace; empty: made from the image's name")] = ""
    gpus: Annotated[
        Quantity | None,
        msgspec.Meta(description="whole GPUs, all on one node; null: 1 with `container-url` and no resources, else 0"),
    ] = None
    resources: Annotated[
        Mapping[str, Quantity], msgspec.Meta(description="devices by resource, `nvidia.com/mig-1g.10gb`")
    ] = {}
    devices: Annotated[
        tuple[str, ...], msgspec.Meta(description="CDI devices by name, `vendor/class=name`, on one machine; no GPUs")
    ] = ()
    claims: Annotated[tuple[ClaimRequest, ...], msgspec.Meta(description="claims whose devices it sees")] = ()
    device_class: Annotated[
        str, msgspec.Meta(description="DeviceClass of a claim that is made with it, for as many devices as `gpus`")
    ] = ""
    where: Annotated[
        str,
        msgspec.Meta(description="what those devices must be, `model=H100,memory>=40Gi,numa=same`; makes a claim too"),
    ] = ""
    command: Annotated[tuple[str, ...], msgspec.Meta(description="replaces the image's entrypoint")] = ()
    args: Annotated[tuple[str, ...], msgspec.Meta(description="replaces the image's command")] = ()
    env: Mapping[str, str] = {}
    secrets: Annotated[
        tuple[SecretGrant, ...], msgspec.Meta(description="values of secrets, as variables or files in memory")
    ] = ()
    cpu: Annotated[Quantity | None, msgspec.Meta(description="CPUs at most, `1.5` or `500m`")] = None
    memory: Annotated[Quantity | None, msgspec.Meta(description="memory at most, `4Gi` or bytes")] = None
    restart: Annotated[str, msgspec.Meta(description="Never, OnFailure or Always")] = "Never"
    labels: Mapping[str, str] = {}
    tty: bool = False
    stdin: bool = False
    user: Annotated[str, msgspec.Meta(description="`uid`, `uid:gid`, or the image's names; empty: its own")] = ""
    groups: Annotated[
        tuple[str, ...], msgspec.Meta(description="more groups of its processes, by number or the image's names")
    ] = ()
    init: Annotated[
        bool, msgspec.Meta(description="an init is process 1, which reaps children; the program is not")
    ] = False
    stop_signal: Annotated[
        str, msgspec.Meta(description="what a stop sends first, `SIGINT`; empty: the image's own, else SIGTERM")
    ] = ""
    workdir: str = ""
    read_only: Annotated[bool, msgspec.Meta(description="its root file system is only read")] = False
    cap_drop: Annotated[tuple[str, ...], msgspec.Meta(description="capabilities taken away; `ALL`: every one")] = ()
    binds: tuple[BindRequest, ...] = ()
    volumes: tuple[VolumeMount, ...] = ()
    ports: tuple[PortRequest, ...] = ()
    memory_mounts: tuple[MemoryMount, ...] = ()
    hostname: Annotated[str, msgspec.Meta(description="empty: the container's name")] = ""
    hosts: Annotated[tuple[HostRequest, ...], msgspec.Meta(description="more lines of /etc/hosts")] = ()
    dns: Annotated[
        tuple[str, ...], msgspec.Meta(description="addresses of name servers, in place of the engine's")
    ] = ()
    dns_searches: Annotated[
        tuple[str, ...], msgspec.Meta(description="domains that short names are looked up in; beside `dns` alone")
    ] = ()
    dns_options: Annotated[
        tuple[str, ...], msgspec.Meta(description="options of its resolver, beside the engine's: `ndots:2`")
    ] = ()
    health: Annotated[
        HealthRequest | None, msgspec.Meta(description="how it is looked whether it is well; null: nobody looks")
    ] = None
    pull: Annotated[str, msgspec.Meta(description="Always, IfNotPresent or Never; empty: IfNotPresent")] = ""
    priority: Annotated[
        int | str, msgspec.Meta(description="higher goes first in the queue; text: the name of a PriorityClass")
    ] = 0
    preempt: Annotated[bool, msgspec.Meta(description="end containers of lower priority, if that makes room")] = False
    queue: Annotated[str, msgspec.Meta(description="queue that it is in; empty: its namespace's")] = ""
    gang: Annotated[str, msgspec.Meta(description="group that starts all at once or not at all; empty: none")] = ""
    gang_minimum: Annotated[int, msgspec.Meta(ge=0, description="how many of the group start at once")] = 0
    reservation: Annotated[
        str, msgspec.Meta(description="of its namespace, on one machine: it starts in one of its windows; empty: none")
    ] = ""
    time_limit_s: Annotated[int | None, msgspec.Meta(description="stopped after that many seconds")] = None
    network: Annotated[str, msgspec.Meta(description="none, host or bridge; empty: as the engine is configured")] = ""
    ipc: Annotated[str, msgspec.Meta(description="host or private; empty: private")] = ""
    isolation: Annotated[
        str, msgspec.Meta(description="none, gvisor or vm; empty: its tenancy's, which binds it, else none")
    ] = ""
    ulimits: tuple[LimitRequest, ...] = ()
    remove_after_s: Annotated[
        int | None, msgspec.Meta(description="removed so many seconds after its end; null: its record stays")
    ] = None
    grace_s: Annotated[int, msgspec.Meta(description="seconds between SIGTERM and SIGKILL")] = 10


def namespace_of(request: ContainerRequest) -> str:
    """Return where the container goes: the tenancy's namespace, else the named one, else `default`."""
    return request.tenancy or request.namespace or "default"


def pod_of(request: ContainerRequest, *, resource: str, scheduler_name: str) -> core.Pod:
    """Return the pod a request stands for, not yet admitted.

    Args:    resource: extended resource meant by `gpus`.   scheduler_name: whose scheduler places it.
    Raises:  Invalid: two images, no image, or a network that is not offered.
    """
    image = _image(request)
    base = _base_name(image)
    return core.Pod(
        metadata=meta.ObjectMeta(
            name=request.name,
            generate_name="" if request.name else f"{base}-",
            namespace=namespace_of(request),
            labels={**request.labels, **_groups(request)},
            annotations={membership.KUEUE_COUNT: str(max(1, request.gang_minimum))} if request.gang else {},
        ),
        spec=core.PodSpec(
            containers=(_container(request, base, image, resource),),
            restart_policy=request.restart,
            scheduler_name=scheduler_name,
            hostname=request.hostname,
            host_aliases=tuple(core.HostAlias(ip=one.address, hostnames=(one.name,)) for one in request.hosts),
            dns_policy=resolver.NONE if request.dns or request.dns_searches else "",
            dns_config=_resolver(request),
            security_context=_pod_security(request),
            # The pod's sandbox is process 1 then: it reaps, and the program gets every signal as elsewhere.
            share_process_namespace=request.init or None,
            termination_grace_period_seconds=request.grace_s,
            active_deadline_seconds=request.time_limit_s,
            priority=request.priority if isinstance(request.priority, int) and request.priority else None,
            priority_class_name=request.priority if isinstance(request.priority, str) else "",
            # An API server takes this field from the PriorityClass and refuses another value.
            preemption_policy="Never" if scheduler_name and not request.preempt else "",
            volumes=tuple(volume for volume, _ in _volumes(request)),
            host_network=_one_of("network", request.network, _NETWORKS) == "host",
            host_ipc=_one_of("ipc", request.ipc, _IPCS) == "host",
            runtime_class_name=isolation.class_of(choice.check_word(request.isolation)),
            machine=_machine(request),
        ),
    )


def _groups(request: ContainerRequest) -> dict[str, str]:
    """Return the labels that say which queue and group a pod is of, in Kueue's words."""
    given = {ledger.QUEUE_LABEL: request.queue, membership.KUEUE_GROUP: request.gang}
    return {name: value for name, value in given.items() if value}


def from_manifest(pod: core.Pod, scheduler_name: str, *, namespace: str = "") -> core.Pod:
    """Return a manifest's pod with what it does not name: a namespace, and our scheduler.

    Args:    namespace: asked for beside the manifest; empty: `default`.
    Raises:  Invalid (`NamespaceMismatch`): the manifest names another one.
    """
    own = pod.metadata.namespace
    if namespace and own not in {"", namespace}:
        message = f'pod "{pod.metadata.name}" is of namespace "{own}" in the manifest, and "{namespace}" is asked for'
        raise errors.Invalid(message, reason="NamespaceMismatch", hint="ask for none, or change the manifest")
    about = msgspec.structs.replace(pod.metadata, namespace=own or namespace or "default")
    spec = msgspec.structs.replace(
        pod.spec,
        scheduler_name=pod.spec.scheduler_name or scheduler_name,
        containers=tuple(map(_with_last_word, pod.spec.containers)),
        init_containers=tuple(map(_with_last_word, pod.spec.init_containers)),
    )
    return msgspec.structs.replace(pod, metadata=about, spec=spec)


def _with_last_word(item: core.Container) -> core.Container:
    """Return a container of a manifest, which can leave its last word in Kubernetes' usual file."""
    return msgspec.structs.replace(item, termination_message_path=item.termination_message_path or _LAST_WORD)


def _container(request: ContainerRequest, base: str, image: str, resource: str) -> core.Container:
    return core.Container(
        name=base,
        image=image,
        # A request's words reach the program as they are, as docker's do; a pod's would be expanded.
        command=tuple(map(environment.literal, request.command)),
        args=tuple(map(environment.literal, request.args)),
        env=(
            *(core.EnvVar(name=name, value=environment.literal(value)) for name, value in request.env.items()),
            *_secret_env(request),
        ),
        working_dir=request.workdir,
        resources=core.ResourceRequirements(limits=dict(_limits(request, resource))),
        volume_mounts=tuple(mount for _, mount in _volumes(request)),
        ports=tuple(
            core.ContainerPort(
                container_port=one.container_port,
                host_port=one.host_port,
                protocol=one.protocol,
                host_ip=one.host_ip,
            )
            for one in request.ports
        ),
        image_pull_policy=request.pull,
        readiness_probe=_health(request.health),
        security_context=_security(request),
        lifecycle=Lifecycle(stop_signal=request.stop_signal) if request.stop_signal else None,
        stdin=request.stdin,
        tty=request.tty,
    )


def _health(asked: HealthRequest | None) -> Probe | None:
    """Return a health check as a readiness probe: it says whether a container is well, and ends it never."""
    if asked is None:
        return None
    return Probe(
        exec=ExecAction(command=asked.command),
        initial_delay_seconds=asked.start_period_s,
        timeout_seconds=asked.timeout_s,
        period_seconds=asked.interval_s,
        failure_threshold=asked.retries,
    )


def _volumes(request: ContainerRequest) -> Iterator[tuple[core.Volume, core.VolumeMount]]:
    for number, bind in enumerate(request.binds):
        name = f"bind-{number}"
        source = core.HostPathVolume(path=bind.host_path)
        mount = core.VolumeMount(name=name, mount_path=bind.container_path, read_only=bind.read_only)
        yield core.Volume(name=name, host_path=source), mount
    for number, named in enumerate(request.volumes):
        name = f"volume-{number}"
        claim = core.ClaimVolume(claim_name=named.name)
        mount = core.VolumeMount(name=name, mount_path=named.container_path, read_only=named.read_only)
        yield core.Volume(name=name, persistent_volume_claim=claim), mount
    for number, one in enumerate(request.memory_mounts):
        name = f"memory-{number}"
        memory = core.EmptyDirVolume(medium="Memory", size_limit=None if one.size is None else str(one.size))
        yield core.Volume(name=name, empty_dir=memory), core.VolumeMount(name=name, mount_path=one.container_path)
    yield from _secret_files(request)


def _secret_env(request: ContainerRequest) -> Iterator[core.EnvVar]:
    for one in request.secrets:
        if one.env:
            source = KeySelector(name=one.name, key=one.key)
            yield core.EnvVar(name=one.env, value_from=core.EnvVarSource(secret_key_ref=source))


def _secret_files(request: ContainerRequest) -> Iterator[tuple[core.Volume, core.VolumeMount]]:
    for number, one in enumerate(request.secrets):
        if one.env and not one.path:
            continue
        name, path = f"secret-{number}", one.path or f"{SECRETS_FOLDER}/{one.name}"
        file = KeyToPath(key=one.key, path="value")
        source = SecretVolume(secret_name=one.name, items=(file,))
        mount = core.VolumeMount(name=name, mount_path=path, sub_path=file.path, read_only=True)
        yield core.Volume(name=name, secret=source), mount


def _image(request: ContainerRequest) -> str:
    if request.image and request.container_url and request.image != request.container_url:
        message = f'two images given: image "{request.image}" and container-url "{request.container_url}"'
        raise errors.Invalid(message, reason="ImageAmbiguous", hint="they are two names of one field: send one")
    image = request.image or request.container_url
    if not image:
        raise errors.Invalid("no image given", reason="ImageRequired", hint='send "image" or "container-url"')
    return image


def _base_name(image: str) -> str:
    """Return a name fit for a label, made from the image's last path component without tag and digest."""
    last = image.partition("@")[0].rsplit("/", 1)[-1].partition(":")[0]
    return _UNFIT.sub("-", last.lower()).strip("-")[:_LONGEST].strip("-") or "container"


def _limits(request: ContainerRequest, resource: str) -> Iterator[tuple[str, Quantity]]:
    # 0 is not a request at all, but "0.0", "two" and -1 go on to admission, which names the rule they break.
    gpus = request.gpus
    if gpus is None:  # the published payload has two fields, and gets a GPU for them
        gpus = 1 if request.container_url and not request.resources else 0
    if gpus != 0:
        yield resource, gpus
    yield from request.resources.items()
    if request.cpu is not None:
        yield "cpu", request.cpu
    if request.memory is not None:
        yield "memory", request.memory


def _security(request: ContainerRequest) -> core.SecurityContext | None:
    """Return what takes rights away; None: nothing of it is asked for."""
    uid, colon, gid = request.user.partition(":") if _is_numeric(request.user) else ("", "", "")
    wanted = core.SecurityContext(
        run_as_user=int(uid) if uid else None,
        run_as_group=int(gid) if colon else None,
        read_only_root_filesystem=request.read_only or None,
        capabilities=core.Capabilities(drop=request.cap_drop),
    )
    return None if wanted == core.SecurityContext() else wanted


def _pod_security(request: ContainerRequest) -> core.SecurityContext | None:
    numbers = tuple(int(group) for group in request.groups if _is_id(group))
    return core.SecurityContext(supplemental_groups=numbers) if numbers else None


def _resolver(request: ContainerRequest) -> core.PodDNSConfig | None:
    """Return what its resolver is to be; None: the engine's own."""
    pairs = (text.partition(":") for text in request.dns_options)
    wanted = core.PodDNSConfig(
        nameservers=request.dns,
        searches=request.dns_searches,
        options=tuple(
            core.PodDNSConfigOption(name=name, value=value if colon else None) for name, colon, value in pairs
        ),
    )
    return None if wanted == core.PodDNSConfig() else wanted


def _is_numeric(user: str) -> bool:
    uid, colon, gid = user.partition(":")
    return _is_id(uid) and (not colon or _is_id(gid))


def _machine(request: ContainerRequest) -> core.MachineOptions | None:
    """Return the part of a request that Kubernetes has no field for; None: it has no such part."""
    wanted = core.MachineOptions(
        user="" if _is_numeric(request.user) else request.user,
        no_network=request.network == "none",
        groups=tuple(group for group in request.groups if not _is_id(group)),
        limits=tuple(core.Limit(name=one.name, soft=one.soft, hard=one.hard) for one in request.ulimits),
        ttl_seconds_after_finished=request.remove_after_s,
        has_no_sandbox=request.isolation == isolation.NONE,
        reservation=request.reservation,
        devices=tuple(dict.fromkeys(request.devices)),
    )
    return None if wanted == core.MachineOptions() else wanted


def _one_of(field: str, word: str, offered: Mapping[str, str]) -> str:
    """Return a word that is offered. Raises: Invalid, with what to write instead."""
    if word in {"", *offered}:
        return word
    shown = ", ".join(offered)
    hint = next((text for start, text in _INSTEAD.items() if word.startswith(start)), f"one of {shown}")
    raise errors.Invalid(f'{field} "{word}" is not offered ({shown} are)', reason="ModeInvalid", hint=hint)


def _is_id(text: str) -> bool:
    """Return whether a text is a number of a user or group; the kernel's have 32 bits."""
    return text.isascii() and text.isdecimal() and len(text) <= len(str(2**32))
