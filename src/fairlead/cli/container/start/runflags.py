"""Reads the options of `fairlead run` in the notations that docker, podman and Kubernetes users type.

Each function turns the words of one option into fields of the request and refuses what it cannot carry out by naming
the word and the one to use instead. What Kubernetes judges (quantities, names) goes on as it came.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.container.start import gpuoption
from fairlead.cli.core import options, plaintext
from fairlead.cli.core.client import Client
from fairlead.model.container import isolation
from fairlead.plan.mig import table
from fairlead.plan.pod import device, machine
from fairlead.serve.admission.request import (
    SECRETS_FOLDER,
    BindRequest,
    HealthRequest,
    HostRequest,
    LimitRequest,
    MemoryMount,
    PortRequest,
    SecretGrant,
    VolumeMount,
)
from fairlead.serve.backend.hardware import GPUListing
from fairlead.wire.kubernetes import names, quantity
from fairlead.wire.oci import imageref

_DOCKER_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([bkmg])b?")
_DOCKER_UNITS: Final = {"b": "", "k": "Ki", "m": "Mi", "g": "Gi"}
_LIMIT: Final = re.compile(r"-1|[0-9]{1,19}")
_PORT: Final = re.compile(
    r"(?:(?P<ip>\[[0-9a-fA-F:]+\]|[0-9]+(?:\.[0-9]+){3}):)?(?:(?P<host>[0-9]{0,5}):)?(?P<container>[0-9]{1,5})(?:/(?P<protocol>\w+))?"
)
_SECRET: Final = re.compile(r"(?P<name>[^/=:,]+)(?:/(?P<key>[^/=:,]+))?(?:=(?P<env>[^=:,/]+)|:(?P<path>/[^:]*))?")
_ADDRESS: Final = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}|[0-9a-fA-F:]*:[0-9a-fA-F:.]*")
_FIT: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""What docker takes for the name of a volume; which names are allowed, the service says."""
_RESTARTS: Final[Mapping[str, str]] = {
    "no": "Never",
    "never": "Never",
    "on-failure": "OnFailure",
    "onfailure": "OnFailure",
    "always": "Always",
    "unless-stopped": "Always",  # a stop asked for holds here whatever the policy is
}
_PULLS: Final[Mapping[str, str]] = {
    "always": "Always",
    "missing": "IfNotPresent",
    "ifnotpresent": "IfNotPresent",
    "never": "Never",
}
_INDEX: Final = "JOB_COMPLETION_INDEX"
"""Source: kubernetes batch/v1, the variable of an indexed Job's pods."""
_COUNT: Final = "FAIRLEAD_REPLICAS"
_MIG: Final = "mig-"
_CAPABILITY: Final = re.compile(r"[A-Z_]{1,40}")
ISOLATIONS: Final = ("mps", "mig", "none")
"""`fraction.ISOLATIONS`, which costs the kubelet's messages to load."""
_SANDBOXES: Final = (isolation.GVISOR, isolation.VM)
RESTARTS: Final = tuple(_RESTARTS)
PULLS: Final = tuple(_PULLS)
SHM: Final = "/dev/shm"  # noqa: S108 a path of the container, not of this machine


class Restart(click.Choice[str]):
    """A restart policy by docker's or Kubernetes' name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the policy. Raises: BadParameter; Invalid: docker's `on-failure:3`."""
        word, counted, _ = str(value).partition(":")
        if counted and word == "on-failure":
            message = f'--restart "{value}": restarts are not counted here, they are spaced out up to five minutes'
            raise errors.Invalid(message, reason="RestartInvalid", hint="--restart on-failure, and --timeout SECONDS")
        return str(super().convert(value, param, ctx))


def restart(word: str) -> str:
    """Return Kubernetes' name of a restart policy."""
    return _RESTARTS[word]


def pull(word: str) -> str:
    """Return Kubernetes' name of a pull policy; empty for an empty word."""
    return _PULLS[word] if word else ""


def memory(text: str | None) -> str | None:
    """Return a size as a quantity: docker's `512m` and `4g` are binary, everything else is Kubernetes' notation."""
    found = _DOCKER_SIZE.fullmatch(text or "")
    return text if found is None else f"{found[1]}{_DOCKER_UNITS[found[2]]}"


def replicas(given: Mapping[str, Any], *, detach: bool) -> list[dict[str, Any]]:
    """Return what is given of each container of `--replicas`; one where it is not asked for.

    Raises: Invalid (`ReplicasInvalid`): options that do not go together.
    """
    count, minimum = given["replicas"], given["min_available"]
    problem = ""
    if count is None:
        problem = "--gang and --min-available are for --replicas" if given["gang"] or minimum else ""
    elif not given["name"]:
        problem = "--replicas takes a --name, which each of them gets with its number"
    elif not detach:
        problem = "the output of several is not followed: --replicas takes -d"
    elif minimum is not None and (not given["gang"] or minimum > count):
        problem = f"--min-available {minimum} takes --gang and at least as many --replicas"
    if problem:
        hint = "fairlead run -d --name train --replicas 4 --gang -g 1 IMAGE"
        raise errors.Invalid(problem, reason="ReplicasInvalid", hint=hint)
    if count is None:
        return [{**given, "gang": "", "min_available": 0, "array": {}, "array_labels": {}}]
    gang = given["name"] if given["gang"] else ""
    least = (minimum or count) if gang else 0
    return [
        {
            **given,
            "name": f"{given['name']}-{number}",
            "gang": gang,
            "min_available": least,
            "array": {_INDEX: str(number), _COUNT: str(count)},
            "array_labels": {names.ARRAY: given["name"], names.INDEX: str(number)},
        }
        for number in range(count)
    ]


def devices(values: Sequence[str], client: Client) -> dict[str, Any]:
    """Return the fields `gpus` and `resources` of `-g 2`, `-g all` and `-g nvidia.com/mig-1g.10gb=1`.

    Raises: Invalid (`GPUsByName`): GPUs are asked for by name; Invalid: as `gpuoption.parse`.
    """
    fields: dict[str, Any] = {"gpus": 0, "resources": {}}
    for word in values:
        docker = gpuoption.parse(word)
        item = word if docker is None else docker.count
        resource, equals, count = item.partition("=")
        if item == "all":
            fields["gpus"] = _every_gpu(client)
        elif "," in item or item.startswith(("GPU-", "MIG-")):
            wanted = len(count.split(",")) if equals else len(item.split(","))
            shown = item.strip("\"'")
            message = f'GPUs are asked for by number, not by name: "{shown}"'
            raise errors.Invalid(message, reason="GPUsByName", hint=f"-g {wanted}")
        elif equals:
            fields["resources"][resource] = _number(count)
        elif not item.isascii() or not item.isdecimal():
            message = f'"{item}" is not a number of GPUs: they are given whole'
            hint = "-g 1; for part of a GPU: --gpu-memory 8Gi --gpu-compute 30"
            raise errors.Invalid(message, reason="GPUsInvalid", hint=hint)
        else:
            fields["gpus"] = _number(item)
    if fields["gpus"] not in (0, "") and (other := _renamed(client)):
        fields["resources"][other] = fields["resources"].get(other, 0) + fields["gpus"]
        fields["gpus"] = 0
        plaintext.echo(f"-g means {other} here: GPUs are offered as shares, not whole", err=True)
    return fields


def entrypoint(word: str | None, command: Sequence[str]) -> dict[str, Any]:
    """Return the fields `command` and `args` of `--entrypoint WORD IMAGE COMMAND...`; an empty word is none at all.

    Raises: Invalid (`CommandRequired`): then nothing is left to run.
    """
    if word:
        return {"command": (word,), "args": tuple(command)}
    if word is None:
        return {"command": (), "args": tuple(command)}
    if not command:
        message = '--entrypoint "" takes the image\'s entrypoint and command away, and no command is given'
        raise errors.Invalid(message, reason="CommandRequired", hint='fairlead run --entrypoint "" IMAGE -- COMMAND')
    return {"command": tuple(command), "args": ()}


def gpu_part(given: Mapping[str, Any], client: Client) -> dict[str, int]:
    """Return the resources that stand for `--gpu-memory`, `--gpu-compute` and `--isolation`; none: nothing was asked.

    Raises: Invalid: whole GPUs are asked for too, or a word is not an amount.   Insufficient: as `fraction.find_part`.
    """
    size, compute, (limit, _) = given["gpu_memory"], given["gpu_compute"], isolations(given)
    if size is None and compute is None:
        if limit:
            message = f"--isolation {limit} is about a part of a GPU, and none is asked for"
            raise errors.Invalid(message, reason="FractionInvalid", hint="add --gpu-memory or --gpu-compute")
        return {}
    if given["gpus"]:
        message = "--gpu-memory and --gpu-compute ask for part of one GPU, -g for devices: give one of them"
        raise errors.Invalid(message, reason="FractionInvalid", hint="a container has one part of one GPU")
    # Loads the kubelet's messages, which no other run needs.
    from fairlead.plan.sharing import fraction

    wanted = fraction.Wanted(
        memory_bytes=int(quantity.parse_quantity(amount(memory(size), "--gpu-memory", "8Gi") or 0)),
        percent=fraction.of_percent(compute) if compute is not None else 0,
        isolation=limit,
    )
    status, listing = client.status(), client.call("GET", "/v1/gpus", GPUListing)
    nodes = [
        fraction.Node(
            allocatable={resource for resource, count in node.allocatable.items() if count != "0"},
            resource=status.resource,
            gpus=[
                fraction.SharedGPU(
                    gpu=one.gpu,
                    resource=one.resource,
                    means=one.sharing,
                    replicas=one.replicas,
                    slices=table.slices_of(one.gpu.name, fraction.MOST_SLICES),
                )
                for one in listing.gpus
                if one.node == node.name
            ],
        )
        for node in status.nodes
    ]
    found = fraction.find_part(wanted, nodes)
    plaintext.echo(str(found), err=True)
    return dict(found.resources)


def isolations(given: Mapping[str, Any]) -> tuple[str, str]:
    """Return what limits a part of a GPU, and what stands between the container and its node, of `--isolation`.

    `none` is about the part where one is asked for, and no other word says what limits it.
    Raises: Invalid (`IsolationInvalid`): a word that is not offered, or two about one thing.
    """
    # An empty one is refused too: a script's variable that is not set would leave the isolation out, without a word.
    words = [word.strip() for word in given["isolation"].split(",")] if given["isolation"] is not None else []
    limits = [word for word in words if word in ISOLATIONS and word != isolation.NONE]
    sandboxes = [word for word in words if word in _SANDBOXES]
    has_part = given["gpu_memory"] is not None or given["gpu_compute"] is not None
    for _ in range(words.count(isolation.NONE)):
        (limits if has_part and not limits else sandboxes).append(isolation.NONE)
    if len(limits) + len(sandboxes) != len(words) or len(limits) > 1 or len(sandboxes) > 1:
        message = f'--isolation "{errors.readable(given["isolation"][:80])}" is not offered'
        hint = "none, gvisor or vm; for a part of a GPU mps, mig or none; both as in --isolation mig,gvisor"
        raise errors.Invalid(message, reason="IsolationInvalid", hint=hint)
    return "".join(limits), "".join(sandboxes)


def name(text: str) -> str:
    """Return a container's name. Raises: Invalid (`NameInvalid`), with one that is close to it."""
    if text and not _FIT.fullmatch(text):
        close = re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.") or "train"
        message = f'container name "{text}" is not of lower case letters, digits, "-" and "."'
        raise errors.Invalid(message, reason="NameInvalid", hint=f"--name {close}")
    return text


def image(text: str) -> str:
    """Return an image's name. Raises: Invalid (`ImageInvalid`): no engine can take it for one."""
    if not imageref.is_reference(text):
        message = f'"{text}" is not the name of an image'
        raise errors.Invalid(message, reason="ImageInvalid", hint="REGISTRY/PATH:TAG, in lower case")
    return text


def named_devices(values: Sequence[str]) -> tuple[str, ...]:
    """Return the devices of `--device`, by their CDI names. Raises: Invalid (`DeviceInvalid`)."""
    for text in values:
        if not device.is_name(text):
            message = f'--device "{errors.readable(text[:200])}" is not the name of a CDI device'
            hint = "vendor/class=name, as `fairlead cdi list` has them; GPUs: -g N; a node of the machine needs a spec"
            raise errors.Invalid(message, reason="DeviceInvalid", hint=hint)
    return tuple(values)


def capabilities(values: Sequence[str]) -> tuple[str, ...]:
    """Return capabilities under Kubernetes' names; docker takes `CAP_NET_RAW` and `net_raw`, podman lists as well.

    Raises: Invalid (`CapabilityInvalid`).
    """
    given = tuple(word.strip() for value in values for word in value.split(","))
    names = tuple(word.upper().removeprefix("CAP_") for word in given)
    for word, name in zip(given, names, strict=True):
        if not _CAPABILITY.fullmatch(name):
            message = f'"{word}" is not a capability'
            raise errors.Invalid(message, reason="CapabilityInvalid", hint="--cap-drop NET_RAW, or ALL")
    return tuple(dict.fromkeys(names))


def amount(text: str | None, flag: str, example: str) -> str | None:
    """Return a quantity as it came. Raises: Invalid (`QuantityInvalid`): it is none."""
    try:
        if text is not None:
            quantity.parse_quantity(text)
    except errors.FairleadError as error:
        message = f'{flag} "{text}" is not an amount'
        raise errors.Invalid(message, reason="QuantityInvalid", hint=f"for example {flag} {example}") from error
    return text


def user(text: str) -> str:
    """Return a user as it came. Raises: Invalid (`UserInvalid`)."""
    if text and not machine.is_user(text):
        message = f'user "{text}" is neither USER nor USER:GROUP, by number or by name'
        raise errors.Invalid(message, reason="UserInvalid", hint="for example -u nobody or -u 1000:1000")
    return text


def _renamed(client: Client) -> str:
    """Return the one resource as which GPUs are offered in place of whole ones; empty: they are offered whole, or not.

    Raises: Invalid (`GPUsRenamed`): there are several, or only MIG devices: which one is meant only the user knows.
    """
    found = client.status()
    offered = {name for node in found.nodes for name, count in node.allocatable.items() if count != "0"}
    domain = found.resource.partition("/")[0]
    others = sorted(name for name in offered if name.startswith(f"{domain}/"))
    if found.resource in offered or not others:
        return ""
    if len(others) == 1 and not others[0].startswith(f"{domain}/{_MIG}"):
        return others[0]
    message = f"no node offers {found.resource}: which of {', '.join(others)} is meant?"
    raise errors.Invalid(message, reason="GPUsRenamed", hint=f"-g {others[0]}=1")


def _every_gpu(client: Client) -> int:
    """Return how many GPUs the node with the most of them offers."""
    found = client.status()
    offered = [int(node.allocatable.get(found.resource, "0")) for node in found.nodes]
    if not (most := max(offered, default=0)):
        message = f'"all" GPUs were asked for, and no node offers {found.resource}'
        raise errors.Insufficient(message, reason="NoGPU", hint="`fairlead doctor` says why")
    return most


def _number(text: str) -> int | str:
    """Return a whole number as one; anything else goes to the service as text, which knows the rule it breaks."""
    return int(text) if text.lstrip("-").isdecimal() and len(text) <= options.LONGEST_NUMBER else text


def mounts(values: Sequence[str], long: Sequence[str], *, cluster: bool) -> dict[str, Any]:
    """Return the fields `binds` and `volumes` of `--volume` and `--mount`: folders of the host, and named volumes.

    Args:    long: docker's long notation.
             cluster: the containers run on other machines than this one, where a relative path means nothing.
    Raises:  Invalid (`VolumeInvalid`).
    """
    found = [*(_volume(item, cluster=cluster) for item in values), *(_mount(item, cluster=cluster) for item in long)]
    return {
        "binds": tuple(one for one in found if isinstance(one, BindRequest)),
        "volumes": tuple(one for one in found if isinstance(one, VolumeMount)),
    }


def _volume(text: str, *, cluster: bool) -> BindRequest | VolumeMount:
    source, *rest = text.split(":")
    options = set(rest[1].split(",")) if len(rest) == 2 else set()
    if not 1 <= len(rest) <= 2 or not rest[0].startswith("/") or options - {"ro", "rw", "z", "Z"}:
        message = f'volume "{text}" is not of the form /HOST:/CONTAINER[:ro] or NAME:/CONTAINER[:ro]'
        raise errors.Invalid(message, reason="VolumeInvalid", hint="the two are parted by one colon")
    if _NAME.fullmatch(source):
        return VolumeMount(name=source, container_path=rest[0], read_only="ro" in options)
    return BindRequest(host_path=_host(source, cluster=cluster), container_path=rest[0], read_only="ro" in options)


def _host(source: str, *, cluster: bool) -> str:
    """Return the path of the host that a source names; `.` and `..` are those of the folder we are in."""
    if source.startswith("/"):
        return source
    if source.startswith("~/"):
        return str(Path(source).expanduser())
    if source in {".", ".."} or source.startswith(("./", "../")):
        if cluster:
            message = f'volume "{source}" is relative, and the container runs on another machine'
            raise errors.Invalid(message, reason="VolumeInvalid", hint="name a path of the node, from / on")
        return str(Path(os.path.abspath(source)))  # noqa: PTH100 resolve() would follow links that the engine should
    message = f'volume "{source}" is neither a name nor a path that begins with /, ./, ../ or ~/'
    raise errors.Invalid(message, reason="VolumeInvalid", hint=f"mount a folder: -v ./{source}:/CONTAINER")


def _mount(text: str, *, cluster: bool) -> BindRequest | VolumeMount:
    """Return a mount in docker's long notation, `type=bind,source=/a,target=/b,readonly`."""
    given = dict(part.partition("=")[::2] for part in text.split(","))
    kind = given.pop("type", "")
    source = given.pop("source", given.pop("src", ""))
    target = given.pop("target", given.pop("destination", given.pop("dst", "")))
    read_only = given.pop("readonly", given.pop("ro", "false")) in {"", "true"}
    if kind not in {"bind", "volume"} or not source or not target or given:
        message = f'mount "{text}" is not of the form type=bind|volume,source=SOURCE,target=/CONTAINER[,readonly]'
        raise errors.Invalid(message, reason="VolumeInvalid", hint="memory is --tmpfs /CONTAINER:size=1g")
    if kind == "volume":
        return VolumeMount(name=source, container_path=target, read_only=read_only)
    return BindRequest(host_path=_host(source, cluster=cluster), container_path=target, read_only=read_only)


def memory_mounts(values: Sequence[str], shm_size: str | None) -> tuple[MemoryMount, ...]:
    """Return the mounts of `--tmpfs /PATH[:size=N]`, and that of `--shm-size`. Raises: Invalid (`TmpfsInvalid`)."""
    found = [_tmpfs(item) for item in values]
    if shm_size is not None:
        found.append(MemoryMount(container_path=SHM, size=amount(memory(shm_size), "--shm-size", "16g")))
    return tuple(found)


def _tmpfs(text: str) -> MemoryMount:
    path, _, options = text.partition(":")
    given = dict(part.partition("=")[::2] for part in options.split(",") if part)
    size = given.pop("size", None)
    if not path.startswith("/") or set(given) - {"rw", "nosuid", "nodev"}:
        message = f'tmpfs "{text}" is not of the form /CONTAINER[:size=N]'
        raise errors.Invalid(message, reason="TmpfsInvalid", hint="--tmpfs /scratch:size=1g")
    return MemoryMount(container_path=path, size=memory(size))


def secrets(values: Sequence[str]) -> tuple[SecretGrant, ...]:
    """Return what `--secret` asks for, in our notation or podman's long one. Raises: Invalid (`SecretFlagInvalid`)."""
    return tuple(_long_secret(text) if "," in text else _secret(text) for text in values)


def _secret(text: str) -> SecretGrant:
    if (found := _SECRET.fullmatch(text)) is None:
        raise _no_secret(text)
    return SecretGrant(**{name: value or "" for name, value in found.groupdict().items()})


def _long_secret(text: str) -> SecretGrant:
    """Read podman's notation, `NAME,type=env,target=VARIABLE`, and docker's, `source=NAME,target=/PATH`."""
    first, *rest = text.split(",")
    given = dict(part.partition("=")[::2] for part in rest)
    name, target = first.removeprefix("source="), given.pop("target", "")
    kind = given.pop("type", "mount")
    plain = _secret(name)
    if given or kind not in {"env", "mount"} or plain.env or plain.path or (kind == "env" and not target):
        raise _no_secret(text)
    if kind == "env":
        return SecretGrant(name=plain.name, key=plain.key, env=target)
    path = target if target.startswith("/") or not target else f"{SECRETS_FOLDER}/{target}"
    return SecretGrant(name=plain.name, key=plain.key, path=path)


def _no_secret(text: str) -> errors.Invalid:
    message = f'--secret "{text}" is not of the form NAME[/KEY][=VARIABLE|:/PATH]'
    hint = "--secret token, --secret token=API_TOKEN, --secret db/password:/etc/db"
    return errors.Invalid(message, reason="SecretFlagInvalid", hint=hint)


def ulimits(values: Sequence[str]) -> tuple[LimitRequest, ...]:
    """Return the limits of `--ulimit NAME=SOFT[:HARD]`; `unlimited` is -1. Raises: Invalid (`UlimitInvalid`)."""
    return tuple(map(_ulimit, values))


def _ulimit(text: str) -> LimitRequest:
    name, _, rest = text.partition("=")
    soft, colon, hard = rest.replace("unlimited", "-1").partition(":")
    if not name or not _LIMIT.fullmatch(soft) or (colon and not _LIMIT.fullmatch(hard)):
        message = f'ulimit "{text}" is not of the form NAME=SOFT[:HARD]'
        raise errors.Invalid(message, reason="UlimitInvalid", hint="--ulimit memlock=-1, --ulimit nofile=1024:65536")
    return LimitRequest(name=name, soft=int(soft), hard=int(hard if colon else soft))


def ports(values: Sequence[str]) -> tuple[PortRequest, ...]:
    """Return the ports of `-p [IP:][HOST]:CONTAINER[/udp]`; no HOST: a free one. Raises: Invalid (`PortInvalid`)."""
    return tuple(_port(item) for item in values)


def _port(text: str) -> PortRequest:
    found = _PORT.fullmatch(text)
    if found is None or found["host"] is None:
        message = f'port "{text}" is not of the form [ADDRESS:]HOST:CONTAINER[/udp]'
        hint = f"-p {found['container']}:{found['container']}" if found else "-p 8080:80"
        raise errors.Invalid(message, reason="PortInvalid", hint=hint)
    return PortRequest(
        host_port=int(found["host"] or 0),
        container_port=int(found["container"]),
        protocol=(found["protocol"] or "tcp").upper(),
        host_ip=(found["ip"] or "").strip("[]"),
    )


def hosts(values: Sequence[str]) -> tuple[HostRequest, ...]:
    """Return the lines of `--add-host NAME:ADDRESS`. Raises: Invalid (`HostInvalid`)."""
    found = []
    for text in values:
        name, colon, address = text.partition(":") if "=" not in text else text.partition("=")
        address = address.strip("[]")
        if not colon or not _FIT.fullmatch(name) or not _ADDRESS.fullmatch(address):
            message = f'--add-host "{errors.readable(text)}" is not of the form NAME:ADDRESS'
            hint = "--add-host db:10.0.0.7; docker's host-gateway is not offered: name the address"
            raise errors.Invalid(message, reason="HostInvalid", hint=hint)
        found.append(HostRequest(name=name, address=address))
    return tuple(found)


def health(given: Mapping[str, Any]) -> HealthRequest | None:
    """Return the check of `--health-cmd`, which a shell runs as docker's; None: none is asked for.

    Raises: Invalid (`HealthInvalid`): options that do not go together.
    """
    words = {name: given[f"health_{name}"] for name in ("interval", "timeout", "retries", "start_period")}
    if not given["health_cmd"]:
        named = [name for name, value in words.items() if value is not None]
        if named and not given["no_healthcheck"]:
            option = named[0].replace("_", "-")
            message = f"--health-{option} is about a check, and none is given"
            raise errors.Invalid(message, reason="HealthInvalid", hint="--health-cmd 'curl -f http://localhost:8000/'")
        return None
    if given["no_healthcheck"]:
        message = "--no-healthcheck and --health-cmd say the contrary"
        raise errors.Invalid(message, reason="HealthInvalid", hint="leave one of them out")
    fields = {"interval": "interval_s", "timeout": "timeout_s", "retries": "retries", "start_period": "start_period_s"}
    set_ones = {fields[name]: value for name, value in words.items() if value is not None}
    return HealthRequest(command=("/bin/sh", "-c", given["health_cmd"]), **set_ones)


_HIGHEST: Final = 1_000_000_000
"""Source: Kubernetes scheduling API, HighestUserDefinablePriority."""


def priority(text: str | None, *, cluster: bool) -> int | str:
    """Return a priority as a request has it: the name of a class, on one machine a number as well."""
    if text is None:
        return 0
    number = text.removeprefix("-")
    if text and not number.isdecimal():
        return text
    if cluster or not number.isascii() or not number or len(number) > 10 or abs(int(number)) > _HIGHEST:
        message = f'priority "{text}" is not the name of a PriorityClass' + ("" if cluster else ", nor a number")
        hint = "`kubectl get priorityclasses`" if cluster else f"one of {-_HIGHEST} to {_HIGHEST}; 0 is everybody's"
        raise errors.Invalid(message, reason="PriorityInvalid", hint=hint)
    return int(text)
