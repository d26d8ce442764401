"""Describes what a container was asked to be: command, variables and mounts, without values that are secret.

A variable's value is left out where it comes from a Secret, or where its name says that it is one. Members who may only
look at containers see this, so that what looks like a secret is not shown to those who know it already either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from fairlead.plan.pod.values import environment
from fairlead.wire.kubernetes import core

_SECRET: Final = re.compile(
    r"(?:^|_)(?:KEY|TOKEN|SECRET|PASS|PASSWD|PASSWORD|PASSPHRASE|CREDENTIALS?|AUTH|COOKIE|DSN|PAT)(?:$|_)|APIKEY", re.I
)
_URL_PASSWORD: Final = re.compile(r"://[^/\s:@]*:[^/\s@]+@")


class VariableView(msgspec.Struct, frozen=True, kw_only=True):
    """One variable of its environment."""

    name: str
    value: Annotated[str | None, msgspec.Meta(description="null: it is not shown")] = None
    source: Annotated[
        str,
        msgspec.Meta(
            description="`secret NAME`, `config map NAME`, `field PATH`, `looks like a secret`; empty: it is shown"
        ),
    ] = ""


class MountView(msgspec.Struct, frozen=True, kw_only=True):
    """One place where it sees a volume."""

    path: str
    volume: Annotated[str, msgspec.Meta(description="named volume; of another kind, its name in the container's group")]
    read_only: bool = False


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What a container was asked to be; of a group, its first container."""

    command: Annotated[tuple[str, ...], msgspec.Meta(description="in place of the image's entrypoint")] = ()
    args: Annotated[tuple[str, ...], msgspec.Meta(description="in place of the image's command")] = ()
    workdir: str = ""
    env: tuple[VariableView, ...] = ()
    mounts: tuple[MountView, ...] = ()
    limits: Annotated[dict[str, str], msgspec.Meta(description="CPU, memory and devices, as quantities")] = {}
    restart: str = ""


def definition(pod: core.Pod) -> Definition | None:
    """Describe what a pod's first container was asked to be; None: it has none.

    Texts are as `run` took them: the dollar signs that a pod doubles stand once, so that the same can be asked again.
    """
    if not pod.spec.containers:
        return None
    one = pod.spec.containers[0]
    claims = ((each.name, each.persistent_volume_claim) for each in pod.spec.volumes)
    named = {name: claim.claim_name for name, claim in claims if claim is not None}
    return Definition(
        command=environment.expand_all(one.command, {}),
        args=environment.expand_all(one.args, {}),
        workdir=one.working_dir,
        env=tuple(_variables(one)),
        mounts=tuple(
            MountView(path=each.mount_path, volume=named.get(each.name, each.name), read_only=each.read_only)
            for each in one.volume_mounts
        ),
        limits={name: str(value) for name, value in one.resources.limits.items()},
        restart=pod.spec.restart_policy,
    )


def _variables(one: core.Container) -> Iterator[VariableView]:
    for each in one.env_from:
        if each.secret_ref is not None:
            yield VariableView(name=f"{each.prefix}*", source=f"secret {each.secret_ref.name}")
        if each.config_map_ref is not None:
            yield VariableView(name=f"{each.prefix}*", source=f"config map {each.config_map_ref.name}")
    for variable in one.env:
        if variable.value_from is not None:
            yield VariableView(name=variable.name, source=_source(variable.value_from))
        elif _SECRET.search(variable.name) or _URL_PASSWORD.search(variable.value):
            yield VariableView(name=variable.name, source="looks like a secret")
        else:
            yield VariableView(name=variable.name, value=environment.expand(variable.value, {}))


def _source(found: core.EnvVarSource) -> str:
    if found.secret_key_ref is not None:
        return f"secret {found.secret_key_ref.name}"
    if found.config_map_key_ref is not None:
        return f"config map {found.config_map_key_ref.name}"
    if found.field_ref is not None:
        return f"field {found.field_ref.field_path}"
    return f"field {found.resource_field_ref.resource}" if found.resource_field_ref is not None else "nothing"
