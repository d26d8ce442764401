"""Describes the request for a container that joins another one which runs."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from fairlead import errors
from fairlead.plan.pod.running import resize
from fairlead.plan.pod.values import environment
from fairlead.wire.kubernetes import core, quantity

Quantity = str | int | float
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Kubernetes' letters of generated names: no word comes out by chance."""


class DebugRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A container that joins another one; it has no GPUs and is not started again."""

    image: Annotated[str, msgspec.Meta(description="image to run; empty: the container's own")] = ""
    name: Annotated[str, msgspec.Meta(description="of the new container; empty: one is made up")] = ""
    target: Annotated[
        str, msgspec.Meta(description="container of the group whose processes it sees; empty: those of none")
    ] = ""
    command: Annotated[tuple[str, ...], msgspec.Meta(description="replaces the image's entrypoint")] = ()
    args: Annotated[tuple[str, ...], msgspec.Meta(description="replaces the image's command")] = ()
    env: Mapping[str, str] = {}
    workdir: str = ""
    pull: Annotated[str, msgspec.Meta(description="Always, IfNotPresent or Never; empty: IfNotPresent")] = ""
    stdin: bool = False
    tty: bool = False


class ConditionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One condition of a status."""

    type: Annotated[str, msgspec.Meta(description="as a readiness gate of the pod names it")]
    status: Annotated[str, msgspec.Meta(description="True, False or Unknown")]
    reason: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    message: Annotated[str, msgspec.Meta(max_length=32768)] = ""


class StatusRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a container's status that other programs than the node write."""

    conditions: Annotated[tuple[ConditionRequest, ...], msgspec.Meta(max_length=100)]


class ResizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Other limits of a container that runs; what is not given stays."""

    container: Annotated[str, msgspec.Meta(description="which one of the group; empty: the first")] = ""
    cpu: Annotated[Quantity | None, msgspec.Meta(description="CPUs at most, `1.5` or `500m`")] = None
    memory: Annotated[Quantity | None, msgspec.Meta(description="memory at most, `4Gi` or bytes")] = None


class RenameRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another name of a container."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=253, description="unique in its namespace")]


def amounts(asked: ResizeRequest, pod: core.Pod) -> dict[str, core.ResourceRequirements]:
    """Return all resources of the container that is resized, by its name.

    Raises: Invalid (`ResizeEmpty`): nothing is asked; (`ResizeInvalid`): 0 or less; a quantity.
    """
    given = {"cpu": asked.cpu, "memory": asked.memory}
    limits = {name: text for name, text in given.items() if text is not None}
    if not limits:
        raise errors.Invalid("neither cpu nor memory is given", reason="ResizeEmpty", hint="give one of them")
    if small := [f"{name} {text}" for name, text in limits.items() if quantity.parse_quantity(text) <= 0]:
        message = f"{small[0]} is not a limit: it must be above 0"
        raise errors.Invalid(message, reason="ResizeInvalid", hint="a limit that is there cannot be taken away")
    name = asked.container
    if not name or (name == pod.metadata.name and all(one.name != name for one in resize.items(pod.spec))):
        name = pod.spec.containers[0].name
    item = next((one for one in resize.items(pod.spec) if one.name == name), None)
    if item is None:
        return {name: core.ResourceRequirements(limits=limits)}  # whoever judges it says which there are
    return {name: resize.limited(item, limits)}


def container(asked: DebugRequest, pod: core.Pod) -> core.EphemeralContainer:
    """Return the container that is asked for; one without a name gets kubectl's, `debugger-x7k2q`.

    A target with the name of the whole is its first container: who ran it knows no other name.
    """
    first, every = pod.spec.containers[0], (*pod.spec.containers, *pod.spec.init_containers)
    target = asked.target
    if target == pod.metadata.name and not any(one.name == target for one in every):
        target = first.name
    named = next((one for one in every if one.name == target), first)
    return core.EphemeralContainer(
        name=asked.name or f"debugger-{''.join(secrets.choice(_LETTERS) for _ in range(5))}",
        image=asked.image or named.image,
        command=tuple(map(environment.literal, asked.command)),
        args=tuple(map(environment.literal, asked.args)),
        env=tuple(core.EnvVar(name=name, value=environment.literal(value)) for name, value in asked.env.items()),
        working_dir=asked.workdir,
        image_pull_policy=asked.pull,
        stdin=asked.stdin,
        tty=asked.tty,
        target_container_name=target,
    )
