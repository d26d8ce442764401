"""Builds a container's engine spec from its pod and its devices' answers. Pure, but for the size of the memory."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict

import msgspec
from google.protobuf import message

from fairlead import errors
from fairlead.engine.port import Bind, ContainerSpec, ContainerState, NetworkMode, Port
from fairlead.model import cdikind
from fairlead.model.container import isolation
from fairlead.model.gpu import Vendor
from fairlead.node.kubelet.devices.checkpoint import Grant
from fairlead.plan.cdi import capability, generate
from fairlead.plan.pod import admission, mountable
from fairlead.plan.pod.life import podsync
from fairlead.plan.pod.network import resolver
from fairlead.plan.pod.values import downward, environment, secret, valuevolume
from fairlead.plan.shim import foreignanswer
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, names, quantity
from fairlead.wire.proto import deviceplugin_pb2 as pb

_VARIED: Final = cdikind.ALLOCATED[Vendor.NVIDIA.value]
"""The kind of which the agent's specs have variants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose containers these are."""

    node: str
    home: str
    """Unique id of the state folder: another Fairlead on this machine never touches them."""


def engine_name(pod: core.Pod, container: str, attempt: int) -> str:
    """Return the name under which the engine knows one attempt: unique, readable, at most 253 characters."""
    short = pod.metadata.uid.replace("-", "")[:12]
    return f"fl-{pod.metadata.name[:60]}-{container[:60]}-{short}-{attempt}"


def labels(
    pod: core.Pod, container: str, attempt: int, identity: Identity, grants: tuple[Grant, ...]
) -> dict[str, str]:
    """Return the labels by which a container is found and its devices are known after a crash."""
    return {
        names.POD_UID: pod.metadata.uid,
        names.POD_NAME: pod.metadata.name,
        names.POD_NAMESPACE: pod.metadata.namespace,
        names.CONTAINER_NAME: container,
        names.ATTEMPT: str(attempt),
        names.NODE: identity.node,
        names.HOME: identity.home,
        names.DEVICES: json.dumps({grant.resource: list(grant.device_ids) for grant in grants}, sort_keys=True),
    }


def merged_answer(grants: tuple[Grant, ...]) -> pb.ContainerAllocateResponse:
    """Return the answers for one container as one; duplicates are dropped, later resources win on names."""
    merged = pb.ContainerAllocateResponse()
    for grant in grants:
        merged.MergeFrom(_answer(grant))
    return merged


def is_word_asked(grants: tuple[Grant, ...]) -> bool:
    """Return whether a plugin answered by variables or mounts, whose words need this node's specs to become names."""
    return any(foreignanswer.asked(_answer(grant)).names for grant in grants)


def allocated_names(grants: tuple[Grant, ...], defined: Collection[str] = ()) -> tuple[str, ...]:
    """Return the CDI names that stand for the plugins' answers, each answer read for itself.

    Args:   defined: fully qualified names in this node's specs; needed where `is_word_asked`.
    Raises: Unavailable (`AnswerUntranslatable`).
    """
    found = (foreignanswer.translate(_answer(one), one.resource, one.device_ids, defined) for one in grants)
    return tuple(dict.fromkeys(name for names in found for name in names))


def _answer(grant: Grant) -> pb.ContainerAllocateResponse:
    """Raises: ProtocolError: what is kept of the plugin's answer is not a message."""
    try:
        return pb.ContainerAllocateResponse.FromString(grant.response)
    except message.DecodeError as error:
        words = f"the kept answer of the plugin of {grant.resource} for {grant.container} cannot be read"
        hint = "delete the pod, so that its devices are allocated again"
        raise errors.ProtocolError(words, reason="GrantUnreadable", hint=hint) from error


def cdi_names(
    item: core.Container, grants: tuple[Grant, ...], *, has_variants: bool, defined: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the qualified names the engine is asked for.

    Where this node's specs have a class for each capability, a container that sets NVIDIA_DRIVER_CAPABILITIES gets the
    classes it names. Only the pod's own word counts: an image may not widen what its pod was given.
    Args:   defined: as `allocated_names`.
    Raises: Invalid (`CapabilityUnknown`); Unavailable (`AnswerUntranslatable`).
    """
    names = allocated_names(grants, defined)
    text = environment.given(item).get(capability.VARIABLE) if has_variants else None
    if text is None:
        return names
    found: list[str] = []
    for name in names:
        kind, _, device = name.partition("=")
        found += generate.variant_names(kind, (device,), text) if kind == _VARIED else (name,)
    return tuple(found)


def device_paths(grants: tuple[Grant, ...]) -> tuple[str, ...]:
    """Return the container paths of device nodes that the plugins' answers list themselves."""
    return tuple(dict.fromkeys(one.container_path for one in merged_answer(grants).devices))


def container_spec(
    pod: core.Pod,
    item: core.Container,
    attempt: int,
    *,
    identity: Identity,
    grants: tuple[Grant, ...],
    volumes: Mapping[str, Path],
    network_of: str | None,
    cdi_devices: tuple[str, ...] = (),
) -> ContainerSpec:
    """Return what the engine is to create.

    Args:    grants: what this container holds.   volumes: host path by volume name.
             network_of: engine name of the sandbox, None where the container owns its namespace.
             cdi_devices: what `cdi_names` made of the grants, and what drivers named for its claims.
    """
    answer = merged_answer(grants)
    # The allocation alone decides about devices: what plugins say overrides what the pod's author wrote.
    env = {**environment.given(item), **dict(answer.envs)}
    limits = item.resources.limits
    return ContainerSpec(
        name=engine_name(pod, item.name, attempt),
        image=item.image,
        command=environment.expand_all(item.command, env),
        args=environment.expand_all(item.args, env),
        env=env,
        labels=labels(pod, item.name, attempt, identity, grants),
        working_dir=item.working_dir or None,
        user=_user(pod, item),
        network=None if network_of else network(pod),
        shares_host_ipc=pod.spec.host_ipc,
        ulimits=tuple((one.name, one.soft, one.hard) for one in machine(pod).limits),
        **_rights(pod, item),
        cdi_devices=cdi_devices,
        binds=(*_volume_binds(pod, item, volumes), *_answer_binds(answer)),
        device_nodes=tuple((one.host_path, one.container_path, one.permissions) for one in answer.devices),
        cpu_limit=float(quantity.parse_quantity(limits["cpu"])) if "cpu" in limits else None,
        memory_limit_bytes=quantity.parse_whole(limits["memory"]) if "memory" in limits else None,
        network_of=network_of,
        ports=() if network_of else ports((item,)),
        **(_NO_NAMES if network_of else known_names(pod)),
        processes_of=network_of if pod.spec.share_process_namespace else None,
        groups=_groups(pod),
        stop_signal=item.lifecycle.stop_signal if item.lifecycle is not None else "",
        shm_bytes=_shared_memory(limits, has_devices=bool(grants or cdi_devices)),
        tty=item.tty,
        stdin=item.stdin,
        runtime=runtime(pod),
    )


def with_secrets(
    wanted: ContainerSpec,
    pod: core.Pod,
    item: core.Container,
    *,
    grants: tuple[Grant, ...],
    held: Mapping[str, secret.Values],
    values: secret.Given = secret.NOTHING,
) -> ContainerSpec:
    """Return a container with the variables that it takes from Secrets, ConfigMaps and fields of its pod.

    Args:    held: the Secrets that are there, by name.   values: what is taken from elsewhere.
    Raises:  as `plan.pod.values.secret.environment`.
    """
    plain, taken = secret.environment(item, held, pod.metadata.namespace, values)
    given = dict(merged_answer(grants).envs)
    kept = {name: value for name, value in taken.items() if name not in given}
    env = {**plain, **given}
    return dataclasses.replace(
        wanted,
        command=environment.expand_all(item.command, {**env, **kept}),
        args=environment.expand_all(item.args, {**env, **kept}),
        env=env,
        secret_env=kept,
    )


def values(
    pod: core.Pod, item: core.Container, maps: Mapping[str, core.ConfigMap], facts: downward.Facts
) -> secret.Given:
    """Return what a container's variables may take from ConfigMaps and fields of its pod."""

    def fact(source: core.EnvVarSource) -> str:
        if source.field_ref is not None:
            return downward.field_value(pod, source.field_ref.field_path, facts)
        if source.resource_field_ref is not None:
            return downward.resource_value(pod.spec, item, source.resource_field_ref, facts)
        return ""

    return secret.Given(maps={name: one.data for name, one in maps.items()}, fact=fact)


def machine(pod: core.Pod) -> core.MachineOptions:
    """Return what the pod asks of this machine beyond Kubernetes' fields."""
    return pod.spec.machine or core.MachineOptions()


def runtime(pod: core.Pod) -> str:
    """Return the engine's runtime for the pod's containers, which has the name of its class; empty: its own."""
    return pod.spec.runtime_class_name if is_gvisor(pod) else ""


def is_gvisor(pod: core.Pod) -> bool:
    """Return whether the pod's containers run on gVisor."""
    return isolation.of_class(pod.spec.runtime_class_name) == isolation.GVISOR


class Limited(TypedDict, total=False):
    """The fields of a spec that limit what its container takes."""

    cpu_limit: float | None
    memory_limit_bytes: int | None


def summed_limits(pod: core.Pod) -> Limited:
    """Return the limits of the sandbox: on gVisor all containers of a pod run in it, elsewhere none does.

    As of a pod's cgroup: what all containers have a limit of, or the most that an init container has.
    """
    if not is_gvisor(pod):
        return {}
    found = admission.effective_limits(pod.spec)
    every = (*pod.spec.containers, *pod.spec.init_containers)
    known = {name for name in ("cpu", "memory") if all(name in one.resources.limits for one in every)}
    return {
        "cpu_limit": float(found["cpu"]) if "cpu" in known else None,
        "memory_limit_bytes": int(found["memory"]) if "memory" in known else None,
    }


def network(pod: core.Pod) -> NetworkMode | None:
    """Return the network that the pod asks for; None: its tenancy's, or the engine's own."""
    if pod.spec.host_network:
        return NetworkMode.HOST
    return NetworkMode.NONE if machine(pod).no_network else None


def in_tenancy(wanted: ContainerSpec, tenancy: Tenancy | None) -> ContainerSpec:
    """Return a container in its tenancy's network, unless it has none of its own or asks for none."""
    if tenancy is None or wanted.network_of is not None or wanted.network is NetworkMode.NONE:
        return wanted
    if tenancy.spec.network.mode == kind.NONE:
        return dataclasses.replace(wanted, network=NetworkMode.NONE, ports=())
    return dataclasses.replace(wanted, network=None, network_name=tenancy.status.network.name)


def hostname(pod: core.Pod) -> str:
    """Return the name a pod sees as its own: the one it asks for, else the pod's, cut to a valid host name."""
    return pod.spec.hostname_override or pod.spec.hostname or pod.metadata.name[:63].rstrip("-.")


class KnownNames(TypedDict, total=False):
    """The fields of a spec that say which names its container knows; of the one that owns the pod's network."""

    hostname: str
    hosts: tuple[tuple[str, str], ...]
    dns: tuple[str, ...]
    dns_searches: tuple[str, ...]
    dns_options: tuple[str, ...]


_NO_NAMES: Final = KnownNames()
"""Of a container that joins another's network, whose names it has."""


def known_names(pod: core.Pod) -> KnownNames:
    """Return the pod's host name, the lines that it asks for in /etc/hosts, and its resolver."""
    resolver_of = pod.spec.dns_config or core.PodDNSConfig()
    return {
        "hostname": hostname(pod),
        "hosts": tuple((one.ip, name) for one in pod.spec.host_aliases for name in one.hostnames),
        "dns": resolver_of.nameservers,
        "dns_searches": resolver_of.searches,
        "dns_options": resolver.options(resolver_of),
    }


def with_sub_paths(
    item: core.Container, pod: core.Pod, held: Mapping[str, secret.Values], values: secret.Given
) -> core.Container:
    """Return a container whose mounts name the parts of volumes that `subPathExpr` stands for.

    Args:    as `with_secrets`.
    Raises:  Invalid (`CreateContainerConfigError`): a variable is not there, or leads out of the volume; and as
             `plan.pod.values.secret.environment`.
    """
    if not any(one.sub_path_expr for one in item.volume_mounts):
        return item
    plain, taken = secret.environment(item, held, pod.metadata.namespace, values)
    mounts = tuple(_with_sub_path(item, one, plain, taken) for one in item.volume_mounts)
    return msgspec.structs.replace(item, volume_mounts=mounts)


def _with_sub_path(
    item: core.Container, mount: core.VolumeMount, env: Mapping[str, str], secrets: Collection[str]
) -> core.VolumeMount:
    """Return a mount whose path is known. Args: secrets: names of variables whose values nothing may show."""
    if not mount.sub_path_expr:
        return mount
    path = environment.expand(mount.sub_path_expr, env)
    problem = ""
    if environment.references(mount.sub_path_expr, secrets):
        problem = "it takes a value of a Secret, which paths and messages would show"
    elif unknown := environment.missing(mount.sub_path_expr, env):
        problem = f'the container has no variable "{errors.readable(unknown[0][:80])}"'
    elif not path or not secret.is_inside(path) or "\0" in path:
        problem = f'it stands for "{errors.readable(path[:80])}", which is no path within the volume'
    if problem:
        message = f'container "{item.name}": subPathExpr "{errors.readable(mount.sub_path_expr[:80])}": {problem}'
        raise errors.Invalid(
            message, reason="CreateContainerConfigError", hint="give the variable in the container's env"
        )
    return msgspec.structs.replace(mount, sub_path=path, sub_path_expr="")


def ports(containers: Sequence[core.Container]) -> tuple[Port, ...]:
    """Return the ports of the node that lead into these containers."""
    return tuple(
        Port(
            host_port=one.host_port,
            container_port=one.container_port,
            protocol=one.protocol.lower(),
            host_ip=one.host_ip,
        )
        for item in containers
        for one in item.ports
        if one.host_port
    )


def _shared_memory(limits: Mapping[str, str | int | float], *, has_devices: bool) -> int | None:
    """Return the size of /dev/shm: generous with devices, since data loaders and NCCL pass tensors through it.

    It is a ceiling: pages count to the container's memory once they are written.
    """
    if not has_devices:
        return None
    if "memory" in limits:
        return max(1, quantity.parse_whole(limits["memory"]) // 2)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _user(pod: core.Pod, item: core.Container) -> str | None:
    """Return `user[:group]`; the container's own fields go before the pod's, each for itself."""
    if machine(pod).user:
        return machine(pod).user
    contexts = [one for one in (item.security_context, pod.spec.security_context) if one is not None]
    user = next((one.run_as_user for one in contexts if one.run_as_user is not None), None)
    group = next((one.run_as_group for one in contexts if one.run_as_group is not None), None)
    if user is None:
        return None
    return str(user) if group is None else f"{user}:{group}"


def _groups(pod: core.Pod) -> tuple[str, ...]:
    context = pod.spec.security_context or core.SecurityContext()
    return (*map(str, context.supplemental_groups), *machine(pod).groups)


class _Rights(TypedDict):
    is_root_read_only: bool
    may_gain_privileges: bool
    dropped_capabilities: tuple[str, ...]


def _rights(pod: core.Pod, item: core.Container) -> _Rights:
    """Return what the container's context takes away. Raises: Invalid: it may not be root, and would be."""
    context = item.security_context or core.SecurityContext()
    contexts = (context, pod.spec.security_context or core.SecurityContext())
    must_not_be_root = next((one.run_as_non_root for one in contexts if one.run_as_non_root is not None), False)
    user = next((one.run_as_user for one in contexts if one.run_as_user is not None), None)
    if must_not_be_root and not user:
        who = "runs as root" if user == 0 else "states no runAsUser, and an image's own user is not looked up here"
        message = f'container "{item.name}" has runAsNonRoot and {who}'
        hint = "state runAsUser, another than 0"
        raise errors.Invalid(message, reason="CreateContainerConfigError", hint=hint)
    return {
        "is_root_read_only": bool(context.read_only_root_filesystem),
        "may_gain_privileges": context.allow_privilege_escalation is not False,
        "dropped_capabilities": context.capabilities.drop,
    }


def _volume_binds(pod: core.Pod, item: core.Container, volumes: Mapping[str, Path]) -> tuple[Bind, ...]:
    claims = {one.name: one.persistent_volume_claim for one in pod.spec.volumes if one.persistent_volume_claim}
    read_only = {name for name, claim in claims.items() if claim.read_only}
    read_only |= {one.name for one in pod.spec.volumes if valuevolume.is_of_values(one)}
    hosts = {one.name for one in pod.spec.volumes if one.host_path is not None}
    return tuple(
        Bind(
            host_path=str(volumes.get(subpath_key(item, number), volumes[mount.name] / mount.sub_path)),
            container_path=mount.mount_path,
            is_read_only=mount.read_only or mount.name in read_only,
            is_untrusted=mount.name not in hosts or mountable.is_marked(pod),
        )
        for number, mount in enumerate(item.volume_mounts)
    )


def subpath_key(item: core.Container, number: int) -> str:
    """Return the name under which a mount's part of a volume stands beside the volumes; none has a slash."""
    return f"{item.name}/{number}"


def _answer_binds(answer: pb.ContainerAllocateResponse) -> tuple[Bind, ...]:
    return tuple(
        Bind(host_path=one.host_path, container_path=one.container_path, is_read_only=one.read_only)
        for one in answer.mounts
        if not foreignanswer.is_request(one)
    )


def seen(state: ContainerState, booted_at: float = 0.0, message: str = "") -> podsync.Seen:
    """Return a container of the engine as the plan of its pod sees it, read from its labels.

    Args: booted_at: when the machine was started, Unix seconds.   message: its last word.
    """
    attempt = state.labels.get(names.ATTEMPT, "0")
    return podsync.Seen(
        container=state.labels.get(names.CONTAINER_NAME, ""),
        attempt=int(attempt) if attempt.isdigit() else 0,
        engine_name=state.name,
        container_id=state.container_id,
        phase=state.phase.value,
        exit_code=state.exit_code if state.exit_code is not None else 0,
        oom_killed=state.oom_killed,
        started_at=state.started_at,
        finished_at=state.finished_at,
        is_before_boot=state.started_at is not None and state.started_at < booted_at,
        message=message,
    )
