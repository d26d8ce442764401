"""Makes the pod of a service: its one container, as a document with Kubernetes' fields. Pure.

A compose container is a pod of its own with docker compose's name, `PROJECT-SERVICE-1`, and restart policy. What the
program would miss is refused, what it does not see is said, both by the path in the file.
Source: Compose specification, "Services top-level element".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fairlead.model.container import stopsignal
from fairlead.plan.compose import fields, gpu, health, value
from fairlead.plan.compose.fields import Remarks
from fairlead.plan.compose.mount import Mounts
from fairlead.plan.compose.project import Project, object_name
from fairlead.plan.pod import machine as podmachine
from fairlead.plan.pod.network import resolver
from fairlead.plan.pod.values import environment
from fairlead.wire.kubernetes import names

_RESTART: Final = {
    "no": "Never",
    "false": "Never",
    "always": "Always",
    "unless-stopped": "Always",
    "on-failure": "OnFailure",
}
_CONDITION: Final = {"none": "Never", "on-failure": "OnFailure", "any": "Always"}
_PULL: Final = {
    "always": "Always", "never": "Never", "missing": "IfNotPresent", "if_not_present": "IfNotPresent",
    "build": "IfNotPresent", "daily": "IfNotPresent", "weekly": "IfNotPresent",
}  # fmt: skip
_GRACE_S: Final = 10
_NUMERIC: Final = re.compile(r"(?P<uid>[0-9]{1,10})(?::(?P<gid>[0-9]{1,10}))?")
_OWN: Final = frozenset(
    f"CAP_{one}"
    for one in (
        "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP",
        "SETUID", "SYS_CHROOT",
    )
)  # fmt: skip
"""Capabilities that every container has, with podman's defaults."""
GATEWAY: Final = "host-gateway"
_ENV: Final = re.compile(r"[^=\0]{1,255}")


def image(project: Project, name: str, service: Mapping[str, Any]) -> str:
    """Return the image of a service; of one that is built without a name: `localhost/PROJECT-SERVICE`."""
    path = f"services.{name}"
    if service.get("image"):
        return value.text(service["image"], f"{path}.image")
    if service.get("build"):
        return f"localhost/{object_name(project.name, name)}"
    raise value.invalid(f"{path}.image", "it is needed: a service has an image, or is built")


def spec(project: Project, name: str, machine: gpu.Machine, remarks: Remarks) -> tuple[dict[str, Any], gpu.Asked]:
    """Return what the pods of a service are, but for their names, and the GPUs that they ask for. Raises: Invalid."""
    service, path = project.services[name], f"services.{name}"
    fields.judge("service", service, path, remarks)
    deploy = value.mapping(service.get("deploy"), f"{path}.deploy")
    fields.judge("deploy", deploy, f"{path}.deploy", remarks)
    if deploy.get("mode") not in (None, "replicated", "global"):
        remarks.refuse(f"{path}.deploy.mode", "services run until they are stopped: replicated or global")
    wanted = gpu.asked(service, path, machine, remarks)
    mounts = Mounts(project, service, path, remarks)
    mounts.read()
    container: dict[str, Any] = {
        "name": object_name(name)[:63].strip("-") or "main",
        "image": image(project, name, service),
        **_command(service, path),
        "env": _environment(service, path, wanted),
        "workingDir": str(service.get("working_dir") or ""),
        "resources": _resources(service, deploy, path, wanted, remarks),
        "volumeMounts": mounts.mounts,
        "ports": _ports(service, path, remarks),
        "stdin": value.boolean(service.get("stdin_open", False), f"{path}.stdin_open"),
        "tty": value.boolean(service.get("tty", False), f"{path}.tty"),
        "imagePullPolicy": _pull(service, path),
        **health.probes(health.check(service, path, remarks)),
        **health.hooks(service, path, remarks),
    }
    found: dict[str, Any] = {
        "restartPolicy": _restart(service, deploy, path, remarks),
        "terminationGracePeriodSeconds": _grace_s(service, path),
        "hostname": _hostname(service, path, remarks),
        "hostAliases": _aliases(service, path, remarks),
        "volumes": mounts.volumes,
    }
    machine_options = _machine(service, path, remarks)
    _rights(service, path, container, machine_options, remarks)
    _network(service, path, found, machine_options, remarks)
    _ipc(service, path, found, remarks)
    _resolver(service, path, found, remarks)
    _groups(service, path, found, machine_options)
    if value.boolean(service.get("init", False), f"{path}.init"):
        found["shareProcessNamespace"] = True
    if word := _stop_signal(service, path):
        container["lifecycle"] = {**container.get("lifecycle", {}), "stopSignal": word}
    if machine_options:
        found["machine"] = machine_options
    if wanted.uuids or (wanted.count and machine.by_claims):
        container["resources"].get("limits", {}).pop("nvidia.com/gpu", None)
        container["resources"]["claims"] = [{"name": "gpus"}]
    found["containers"] = [{key: one for key, one in container.items() if one not in ({}, [], "", False, None)}]
    return {key: one for key, one in found.items() if one not in ({}, [], "", False, None)}, wanted


def _command(service: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return entrypoint and command; an entrypoint that is taken away leaves the command to be the program."""
    entrypoint = value.words(service.get("entrypoint"), f"{path}.entrypoint")
    command = value.words(service.get("command"), f"{path}.command")
    if entrypoint is not None and not entrypoint:
        if not command:
            raise value.invalid(f"{path}.entrypoint", "it takes the image's program away, and no command is given")
        entrypoint, command = command, None
    found = {"command": entrypoint, "args": command}
    return {key: [environment.literal(word) for word in words] for key, words in found.items() if words}


def _environment(service: Mapping[str, Any], path: str, wanted: gpu.Asked) -> list[dict[str, str]]:
    given = {key: str(one) for key, one in (service.get("environment") or {}).items() if one is not None}
    for name in given:
        if not _ENV.fullmatch(name):
            raise value.invalid(f"{path}.environment", f'"{value.shown(name)}" is not the name of a variable')
    if wanted.capabilities and gpu.CAPABILITIES not in given:
        given[gpu.CAPABILITIES] = ",".join(wanted.capabilities)
    return [{"name": name, "value": environment.literal(one)} for name, one in given.items()]


def _resources(
    service: Mapping[str, Any], deploy: Mapping[str, Any], path: str, wanted: gpu.Asked, remarks: Remarks
) -> dict[str, Any]:
    given = value.mapping(deploy.get("resources"), f"{path}.deploy.resources")
    value.only(given, ("limits", "reservations"), f"{path}.deploy.resources")
    limits, requests = dict[str, Any](), dict[str, Any]()
    for kind, into, cpus, memory in (
        ("limits", limits, "cpus", "mem_limit"),
        ("reservations", requests, "", "mem_reservation"),
    ):
        where = f"{path}.deploy.resources.{kind}"
        one = value.mapping(given.get(kind), where)
        fields.judge(kind, one, where, remarks)
        amount = one.get("cpus", service.get(cpus) if cpus else None)
        if amount not in (None, "", 0, "0"):
            into["cpu"] = value.text(amount, f"{where}.cpus")
        size = one.get("memory", service.get(memory))
        if size not in (None, "", 0, "0"):
            into["memory"] = str(value.size(size, f"{where}.memory"))
    if wanted.count:
        limits["nvidia.com/gpu"] = str(wanted.count)
    return {key: one for key, one in (("limits", limits), ("requests", requests)) if one}


def _ports(service: Mapping[str, Any], path: str, remarks: Remarks) -> list[dict[str, Any]]:
    found = dict[tuple[Any, ...], dict[str, Any]]()
    is_host = service.get("network_mode") == "host"
    for at, one in enumerate(service.get("ports") or ()):
        where = f"{path}.ports[{at}]"
        entry: dict[str, Any] = {"containerPort": one["target"], "protocol": one["protocol"].upper()}
        published = one["published"]
        if is_host and published != str(one["target"]):
            published = ""
        elif not published:
            remarks.say(where, f'no port of the machine leads to {one["target"]}: write "PORT:{one["target"]}"')
        if "-" in published:
            published = published.partition("-")[0]
            remarks.note(where, f"the first port of the range is taken, {published}")
        if published:
            entry["hostPort"] = int(published)
            if one["host_ip"]:
                entry["hostIP"] = _address(one["host_ip"], where)
        found[one["target"], one["protocol"], published, one["host_ip"]] = entry
    inner = {(entry["containerPort"], entry["protocol"]) for entry in found.values()}
    for at, word in enumerate(service.get("expose") or ()):
        number, _, protocol = str(word).partition("/")
        if "-" in number:
            continue  # a range says nothing that anybody reads
        port = value.whole(number, f"{path}.expose[{at}]", least=1, most=65535)
        key = (port, (protocol or "tcp").upper())
        if key not in inner:
            found[key] = {"containerPort": port, "protocol": key[1]}
    return list(found.values())


def _address(given: str, path: str) -> str:
    try:
        return str(ipaddress.ip_address(given))
    except ValueError as error:
        raise value.invalid(path, f'"{value.shown(given)}" is not an address of the machine') from error


def _pull(service: Mapping[str, Any], path: str) -> str:
    given = str(service.get("pull_policy") or "")
    word = given.partition("_")[0] if given.startswith("every_") else given
    if word not in {"", "every", *_PULL}:
        raise value.invalid(f"{path}.pull_policy", f'"{value.shown(given)}" is not one', ", ".join(_PULL))
    return _PULL.get(word, "IfNotPresent" if word else "")


def _restart(service: Mapping[str, Any], deploy: Mapping[str, Any], path: str, remarks: Remarks) -> str:
    policy = value.mapping(deploy.get("restart_policy"), f"{path}.deploy.restart_policy")
    if policy:
        where = f"{path}.deploy.restart_policy"
        fields.judge("restart_policy", policy, where, remarks)
        word = str(policy.get("condition") or "any")
        if word not in _CONDITION:
            raise value.invalid(f"{where}.condition", f'"{value.shown(word)}" is not one', ", ".join(_CONDITION))
        return _CONDITION[word]
    given = value.text(service.get("restart") or "no", f"{path}.restart")
    word, _, times = given.partition(":")
    if word not in _RESTART or (times and word != "on-failure"):
        known = "no, always, on-failure[:N], unless-stopped"
        raise value.invalid(f"{path}.restart", f'"{value.shown(given)}" is not one', known)
    if times:
        value.whole(times, f"{path}.restart")
        remarks.say(f"{path}.restart", f"it is started again without a limit, not {times} times")
    return _RESTART[word]


def _grace_s(service: Mapping[str, Any], path: str) -> int:
    given = service.get("stop_grace_period")
    return _GRACE_S if given is None else round(value.span(given, f"{path}.stop_grace_period"))


def _hostname(service: Mapping[str, Any], path: str, remarks: Remarks) -> str:
    given = str(service.get("hostname") or "")
    if given and not names.is_dns_label(given):
        remarks.refuse(f"{path}.hostname", f'"{value.shown(given)}": {names.DNS_RULE}')
    return given


def _aliases(service: Mapping[str, Any], path: str, remarks: Remarks) -> list[dict[str, Any]]:
    found = list[dict[str, Any]]()
    for name, addresses in (service.get("extra_hosts") or {}).items():
        where = f"{path}.extra_hosts.{name}"
        for address in addresses:
            if address != GATEWAY:
                found.append({"ip": _address(address, where), "hostnames": [name]})
            elif service.get("network_mode") in ("host", "none"):
                remarks.refuse(where, "a container without a network of its own has no way to the machine")
    return found


def gateway_names(service: Mapping[str, Any]) -> list[str]:
    """Return the names by which a service's containers are to know the machine."""
    return [name for name, addresses in (service.get("extra_hosts") or {}).items() if GATEWAY in addresses]


def _machine(service: Mapping[str, Any], path: str, remarks: Remarks) -> dict[str, Any]:
    found = dict[str, Any]()
    user = str(service.get("user") or "")
    if user and not _NUMERIC.fullmatch(user):
        found["user"] = user
    limits = list[dict[str, Any]]()
    for name, given in (service.get("ulimits") or {}).items():
        where = f"{path}.ulimits.{name}"
        value.only(given, ("soft", "hard"), where)
        soft = value.whole(given.get("soft", given.get("hard")), f"{where}.soft", least=-1, most=2**62)
        hard = value.whole(given.get("hard", soft), f"{where}.hard", least=-1, most=2**62)
        limits.append({"name": name, "soft": soft, "hard": hard})
    if limits:
        found["limits"] = limits
    if devices := gpu.others(service):
        found["devices"] = list(dict.fromkeys(devices))
    if service.get("runtime") not in (None, "", "nvidia", "runc", "crun", "io.containerd.runc.v2"):
        remarks.refuse(f"{path}.runtime", "the machine's own runtime is used: leave it out, or write nvidia")
    return found


def _rights(
    service: Mapping[str, Any], path: str, container: dict[str, Any], machine: dict[str, Any], remarks: Remarks
) -> None:
    """Put in what takes rights away; refuse what would give more than every container has."""
    context = dict[str, Any]()
    if (found := _NUMERIC.fullmatch(str(service.get("user") or ""))) and "user" not in machine:
        context["runAsUser"] = int(found["uid"])
        if found["gid"]:
            context["runAsGroup"] = int(found["gid"])
    if value.boolean(service.get("read_only", False), f"{path}.read_only"):
        context["readOnlyRootFilesystem"] = True
    if value.boolean(service.get("privileged", False), f"{path}.privileged"):
        remarks.refuse(f"{path}.privileged", "no container gets the machine's own rights: GPUs need none of them")
    _capabilities(service, path, context, remarks)
    _options(service, path, context, remarks)
    if context:
        container["securityContext"] = context


def _capabilities(service: Mapping[str, Any], path: str, context: dict[str, Any], remarks: Remarks) -> None:
    added = {_capability(one) for one in service.get("cap_add") or ()}
    if beyond := sorted(added - _OWN):
        shown = ", ".join(one.removeprefix("CAP_") for one in beyond[:10])
        remarks.refuse(f"{path}.cap_add", f"containers get no capability beside the usual ones, and not {shown}")
    dropped = [_capability(one) for one in service.get("cap_drop") or ()]
    if "CAP_ALL" in dropped and added:
        dropped = sorted(_OWN - added)  # what stays is what is added
    if dropped:
        context["capabilities"] = {"drop": [one.removeprefix("CAP_") for one in dropped]}


def _options(service: Mapping[str, Any], path: str, context: dict[str, Any], remarks: Remarks) -> None:
    for at, word in enumerate(service.get("security_opt") or ()):
        where = f"{path}.security_opt[{at}]"
        key, _, rest = word.replace("=", ":", 1).partition(":")
        if key == "no-new-privileges":
            context["allowPrivilegeEscalation"] = rest == "false"
        elif key == "label":
            remarks.say(where, "labels of SELinux are the engine's")
        else:
            remarks.refuse(where, "the engine's own profile holds for every container")


def _capability(word: str) -> str:
    upper = word.upper()
    return upper if upper.startswith("CAP_") else f"CAP_{upper}"


def _network(
    service: Mapping[str, Any], path: str, found: dict[str, Any], machine: dict[str, Any], remarks: Remarks
) -> None:
    mode = str(service.get("network_mode") or "")
    if mode and service.get("networks"):
        raise value.invalid(f"{path}.network_mode", "it is given beside networks: one of them")
    match mode:
        case "" | "bridge" | "default":
            pass
        case "host":
            found["hostNetwork"] = True
            remarks.note(f"{path}.network_mode", "in the machine's network no names of services are known")
        case "none":
            machine["noNetwork"] = True
        case _:
            remarks.refuse(f"{path}.network_mode", f'"{value.shown(mode)}": a service has a network place of its own')
    for name, given in (service.get("networks") or {}).items():
        fields.judge("network", given or {}, f"{path}.networks.{name}", remarks)


def _ipc(service: Mapping[str, Any], path: str, found: dict[str, Any], remarks: Remarks) -> None:
    match str(service.get("ipc") or ""):
        case "" | "private" | "shareable":
            pass
        case "host":
            found["hostIPC"] = True
        case other:
            remarks.refuse(f"{path}.ipc", f'"{value.shown(other)}": host or private')


def _resolver(service: Mapping[str, Any], path: str, found: dict[str, Any], remarks: Remarks) -> None:
    servers = [_address(one, f"{path}.dns") for one in service.get("dns") or ()]
    searches = list(service.get("dns_search") or ())
    options = [one.partition(":") for one in service.get("dns_opt") or ()]
    if searches and not servers:
        remarks.refuse(f"{path}.dns_search", "domains are taken beside name servers alone: write dns, too")
    config = {
        "nameservers": servers,
        "searches": searches,
        "options": [{"name": name, **({"value": rest} if colon else {})} for name, colon, rest in options],
    }
    if given := {key: one for key, one in config.items() if one}:
        found["dnsConfig"] = given
    if servers:
        found["dnsPolicy"] = resolver.NONE


def _groups(service: Mapping[str, Any], path: str, found: dict[str, Any], machine: dict[str, Any]) -> None:
    given = list(service.get("group_add") or ())
    for index, word in enumerate(given):
        if not podmachine.is_group(word):
            raise value.invalid(f"{path}.group_add[{index}]", f'"{value.shown(word)}" is not a group')
    numbers = [int(word) for word in given if word.isdecimal()]
    if numbers:
        found["securityContext"] = {"supplementalGroups": numbers}
    if named := [word for word in given if not word.isdecimal()]:
        machine["groups"] = named


def _stop_signal(service: Mapping[str, Any], path: str) -> str:
    word = str(service.get("stop_signal") or "")
    if word and stopsignal.number(word) is None:
        raise value.invalid(f"{path}.stop_signal", f'"{value.shown(word)}" is not a signal', "SIGINT or 2")
    return word


def aliases(name: str, service: Mapping[str, Any], more: Sequence[str] = ()) -> list[str]:
    """Return the names by which a service is known to its fellows. Args: more: by links."""
    found = [name, *more]
    if service.get("container_name"):
        found.append(str(service["container_name"]))
    for network, given in (service.get("networks") or {}).items():
        found += value.texts((given or {}).get("aliases"), f"services.{name}.networks.{network}.aliases")
    return list(dict.fromkeys(found))
