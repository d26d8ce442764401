"""Turns what docker's or podman's `inspect` says of a container into the options of `fairlead run`. Pure.

What has no option here is named by its path, whatever it is: every member of `HostConfig` that is not at its default
and not carried out, and those of `Config` that a program would notice. What the image says by itself is left to it.
Source: moby api/types/container (Config, HostConfig); podman docs, podman-inspect.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead import errors

_CDI_GPU: Final = re.compile(r"(?:nvidia\.com|amd\.com)/gpu=(?P<name>[A-Za-z0-9:_-]+)")
_GPU_NODE: Final = re.compile(r"/dev/nvidia[0-9]+")
_DRIVER_NODE: Final = re.compile(r"/dev/(?:nvidia|dri/)")
_PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""What engines give to an image that has no PATH."""
_TERM: Final = {("StopSignal", "SIGTERM"), ("StopSignal", "15")}
_UNSET: Final[tuple[Any, ...]] = (None, "", 0, False, -1, [], {}, "default", "private", "0", "shareable")
_RESTARTS: Final = {"no": "no", "on-failure": "on-failure", "always": "always", "unless-stopped": "unless-stopped"}
_SHM: Final = (67108864, 65536000)
"""64 MB, by which docker and podman each mean nothing in particular."""
_READ: Final = frozenset(
    {
        "Binds", "PortBindings", "RestartPolicy", "Memory", "NanoCpus", "CpuQuota", "CpuPeriod", "ShmSize", "Ulimits",
        "CapDrop", "NetworkMode", "IpcMode", "ReadonlyRootfs", "Tmpfs", "DeviceRequests", "Devices", "AutoRemove",
        "Mounts", "ExtraHosts", "MemoryReservation", "Dns", "DnsSearch", "DnsOptions", "GroupAdd",
        # What the engine notes of its own, or that is so here by itself.
        "ContainerIDFile", "LogConfig", "ConsoleSize", "MaskedPaths", "ReadonlyPaths", "CgroupnsMode", "Cgroup",
        "CgroupMode", "CgroupManager", "CgroupConf", "Runtime", "OciRuntime", "OomKillDisable", "Annotations",
        "VolumeDriver", "Isolation", "UTSMode", "PublishAllPorts", "MemorySwappiness", "MemorySwap", "Init",
        "AutoRemoveImage", "Cgroups", "CreateCommand", "UsernsMode",
    }
)  # fmt: skip
"""Members of `HostConfig` that are carried out, judged below, or say nothing about the program."""
_PODMANS_CAPS: Final = frozenset({"CAP_AUDIT_WRITE", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SYS_CHROOT"})


@dataclass(slots=True)
class Line:
    """The line that runs it here, as far as it can be."""

    options: list[str] = field(default_factory=list)
    image: str = ""
    command: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """What is not carried out: the field's path, what it says, and what to do."""

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the words of the line."""
        return ("fairlead", "run", "-d", *self.options, self.image, *(("--", *self.command) if self.command else ()))


def line_of(found: Mapping[str, Any], image: Mapping[str, Any]) -> Line:
    """Return the line for a container.

    Args:   image: what `inspect` says of its image; empty: it is not there.
    Raises: ProtocolError (`InspectUnreadable`): a member is of another type than an engine's.
    """
    try:
        return _line_of(found, image)
    except (TypeError, AttributeError, ValueError, OverflowError) as error:
        message = f"what the engine says of its container is not what engines say: {error}"
        raise errors.ProtocolError(errors.readable(message), reason="InspectUnreadable") from error


def _line_of(found: Mapping[str, Any], image: Mapping[str, Any]) -> Line:
    config, host = _table(found, "Config"), _table(found, "HostConfig")
    made = _table(image, "Config")
    line = Line(image=str(config.get("Image") or found.get("ImageName") or ""))
    line.options += ["--name", _name(str(found.get("Name") or "container"))]
    line.options += _gpus(found, host, line.left_out)
    line.options += _own(config, made, str(found.get("Id") or ""))
    line.options += _mounts(found, host, line.left_out)
    line.options += _limits(config, host, line.left_out)
    line.options += _rights(config, host, line.left_out)
    line.options += _network(host, line.left_out)
    line.options += _names(host, line.left_out)
    line.options += _health(config, made, line.left_out)
    entrypoint, standard = _words(config.get("Entrypoint")), _words(made.get("Entrypoint"))
    command = _words(config.get("Cmd"))
    if entrypoint != standard and entrypoint:
        line.options += ["--entrypoint", entrypoint[0]]
        line.command = [*entrypoint[1:], *command]
    elif command != _words(made.get("Cmd")):
        line.command = command
    line.left_out += _rest(config, made, host)
    return line


def _table(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = found.get(name)
    return inner if isinstance(inner, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []


def _words(value: Any) -> list[str]:
    """Return a command's words: older podman writes the entrypoint as one text."""
    return value.split() if isinstance(value, str) else [str(one) for one in _list(value)]


def _name(text: str) -> str:
    return re.sub(r"[^a-z0-9.-]+", "-", text.removeprefix("/").lower()).strip("-.") or "container"


def _own(config: Mapping[str, Any], made: Mapping[str, Any], id_: str) -> Iterator[str]:
    """Yield options of variables, labels and the process that the image does not have by itself."""
    known = {*map(str, _list(made.get("Env"))), _PATH}
    engines = {"container", "HOME", "HOSTNAME", "TERM"}
    for text in map(str, _list(config.get("Env"))):
        if text not in known and text.partition("=")[0] not in engines:
            yield from ("-e", text)
    labels, standard = _table(config, "Labels"), _table(made, "Labels")
    for key, value in labels.items():
        if standard.get(key) != value:
            yield from ("-l", f"{key}={value}")
    for name, option in (("WorkingDir", "-w"), ("User", "-u")):
        value = str(config.get(name) or "")
        if value and value != str(made.get(name) or "") and (name, value) != ("WorkingDir", "/"):
            yield from (option, value)
    hostname = str(config.get("Hostname") or "")
    if hostname and not id_.startswith(hostname):
        yield from ("--hostname", hostname)
    yield from ("-t",) if config.get("Tty") else ()
    signal = config.get("StopSignal")
    if signal not in _UNSET and signal != made.get("StopSignal") and ("StopSignal", str(signal)) not in _TERM:
        yield from ("--stop-signal", str(signal))
    stop = config.get("StopTimeout")
    if isinstance(stop, int) and stop != 10:
        yield from ("--stop-timeout", str(stop))


def _gpus(found: Mapping[str, Any], host: Mapping[str, Any], left_out: list[str]) -> Iterator[str]:
    """Yield `-g`: of docker's requests, of CDI names, and of device nodes that were given by hand."""
    count, names = 0, set[str]()
    for index, one in enumerate(_list(host.get("DeviceRequests"))):
        ids, number = _words(one.get("DeviceIDs")), one.get("Count")
        if ids or number:
            names.update(ids)
            if number == -1:
                yield from ("-g", "all")
                return
            count += number if isinstance(number, int) else 0
        if one.get("Options"):
            left_out.append(f"HostConfig.DeviceRequests[{index}].Options: {one['Options']}: leave it out")
    created = " ".join(_words(_table(found, "Config").get("CreateCommand")))
    names.update(match["name"] for match in _CDI_GPU.finditer(created))
    nodes = [str(one.get("PathOnHost") or "") for one in _list(host.get("Devices")) if isinstance(one, Mapping)]
    names.update(path for path in nodes if _GPU_NODE.fullmatch(path) and not _CDI_GPU.search(created))
    left_out += [
        f"HostConfig.Devices: {path}: write a CDI spec that defines it, and add --device vendor/class=name"
        for path in nodes
        if not _DRIVER_NODE.match(path)
    ]
    if "all" in names:
        yield from ("-g", "all")
    elif names or count:
        if names:
            which = ", ".join(sorted(names))
            left_out.append(f"GPUs by name ({which}): as many are asked for, and the scheduler chooses which")
        yield from ("-g", str(count + len(names)))


def _mounts(found: Mapping[str, Any], host: Mapping[str, Any], left_out: list[str]) -> Iterator[str]:
    for index, one in enumerate(_list(found.get("Mounts"))):
        kind, target, ending = one.get("Type"), one.get("Destination"), "" if one.get("RW", True) else ":ro"
        if kind == "bind":
            yield from ("-v", f"{one.get('Source')}:{target}{ending}")
        elif kind == "volume" and one.get("Name"):
            name = str(one["Name"])
            yield from ("-v", f"{name}:{target}{ending}")
            left_out.append(f"Mounts[{index}]: volume {name}: a volume of that name is made empty; copy what it has")
        elif kind == "tmpfs":
            yield from ("--tmpfs", str(target))
        else:
            left_out.append(f"Mounts[{index}]: a mount of type {kind} at {target} is not offered")
    for path, words in _table(host, "Tmpfs").items():
        size = next((word for word in str(words).split(",") if word.startswith("size=")), "")
        yield from ("--tmpfs", f"{path}:{size}" if size else path)


def _limits(config: Mapping[str, Any], host: Mapping[str, Any], left_out: list[str]) -> Iterator[str]:
    if memory := host.get("Memory"):
        yield from ("-m", str(memory))
    cpus = (host.get("NanoCpus") or 0) / 1e9
    if not cpus and (host.get("CpuQuota") or 0) > 0:
        cpus = host["CpuQuota"] / (host.get("CpuPeriod") or 100_000)
    if cpus:
        yield from ("--cpus", f"{cpus:g}")
    shm = host.get("ShmSize")
    if shm and shm not in _SHM:
        yield from ("--shm-size", str(shm))
    is_defaults = "CreateCommand" in config and "--ulimit" not in " ".join(_words(config["CreateCommand"]))
    for one in _list(host.get("Ulimits")) if not is_defaults else ():  # podman lists those of its configuration
        name = str(one.get("Name") or "").removeprefix("RLIMIT_").lower()
        yield from ("--ulimit", f"{name}={one.get('Soft')}:{one.get('Hard')}")
    restart = _table(host, "RestartPolicy")
    word = str(restart.get("Name") or "no")
    if word not in {"no", ""}:
        yield from ("--restart", _RESTARTS.get(word, word))
    if restart.get("MaximumRetryCount"):
        left_out.append(
            f"HostConfig.RestartPolicy.MaximumRetryCount: {restart['MaximumRetryCount']}: restarts are not counted "
            "here, they are spaced out up to five minutes"
        )
    yield from ("--rm",) if host.get("AutoRemove") else ()


def _rights(config: Mapping[str, Any], host: Mapping[str, Any], left_out: list[str]) -> Iterator[str]:
    yield from ("--read-only",) if host.get("ReadonlyRootfs") else ()
    yield from ("--init",) if host.get("Init") is True else ()
    for group in _list(host.get("GroupAdd")):
        yield from ("--group-add", str(group))
    dropped = [str(one).upper().removeprefix("CAP_") for one in _list(host.get("CapDrop"))]
    is_podmans = bool(config.get("CreateCommand"))  # podman notes as dropped what docker has and it has not
    for name in dropped:
        if not (is_podmans and f"CAP_{name}" in _PODMANS_CAPS):
            yield from ("--cap-drop", name)
    if host.get("Privileged"):
        left_out.append("HostConfig.Privileged: no container here may do what root may; ask for what it needs")


def _network(host: Mapping[str, Any], left_out: list[str]) -> Iterator[str]:
    mode = str(host.get("NetworkMode") or "")
    if mode in {"none", "host"}:
        yield from ("--network", mode)
    elif mode not in {"", "default", "bridge", "slirp4netns", "pasta", "podman"}:
        left_out.append(f"HostConfig.NetworkMode: {mode}: networks of the engine are not joined")
    if (ipc := str(host.get("IpcMode") or "")) == "host":
        yield from ("--ipc", "host")
    elif ipc.startswith("container:"):
        left_out.append(f"HostConfig.IpcMode: {ipc}: containers of one pod share it, `fairlead run -f FILE`")
    for inside, bindings in _table(host, "PortBindings").items():
        number, _, protocol = inside.partition("/")
        for one in _list(bindings):
            address, port = str(one.get("HostIp") or ""), str(one.get("HostPort") or "")
            free = port in {"", "0"}  # which the engine chose when the container started
            where = f"[{address}]:" if ":" in address else f"{address}:" if address not in {"", "0.0.0.0"} else ""  # noqa: S104
            ending = "" if protocol in {"", "tcp"} else f"/{protocol}"
            yield from ("-p", f"{where}{'' if free else port}:{number}{ending}")


def _names(host: Mapping[str, Any], left_out: list[str]) -> Iterator[str]:
    """Yield options of /etc/hosts and of the resolver."""
    for text in map(str, _list(host.get("ExtraHosts"))):
        if text.endswith("host-gateway"):
            left_out.append(f"HostConfig.ExtraHosts: {text}: name the machine's address, --add-host NAME:ADDRESS")
        else:
            yield from ("--add-host", text)
    servers, searches = _list(host.get("Dns")), _list(host.get("DnsSearch"))
    for option, values in (("--dns", servers), ("--dns-option", _list(host.get("DnsOptions")))):
        for one in values:
            yield from (option, str(one))
    if servers:
        for one in searches:
            yield from ("--dns-search", str(one))
    elif searches:
        left_out.append(f"HostConfig.DnsSearch: {_short(searches)}: taken beside name servers alone, --dns")


def _health(config: Mapping[str, Any], made: Mapping[str, Any], left_out: list[str]) -> Iterator[str]:
    """Yield the options of a check that was given to the container, and that its image may have."""
    check = _table(config, "Healthcheck")
    words = _words(check.get("Test"))
    if not words or words == ["NONE"]:
        return
    kind, rest = words[0], words[1:]
    if kind not in {"CMD", "CMD-SHELL"} or not rest:
        left_out.append(f"Config.Healthcheck: {_short(words)}: not carried out")
        return
    if check == _table(made, "Healthcheck"):
        left_out.append("Config.Healthcheck: of the image: it is carried out by the options that are written here")
    yield from ("--health-cmd", rest[0] if kind == "CMD-SHELL" else shlex.join(rest))
    for name, option in (("Interval", "interval"), ("Timeout", "timeout"), ("StartPeriod", "start-period")):
        seconds = round((check.get(name) or 0) / 1e9)
        if seconds:
            yield from (f"--health-{option}", f"{seconds}s")
    if check.get("Retries"):
        yield from ("--health-retries", str(check["Retries"]))


def _rest(config: Mapping[str, Any], made: Mapping[str, Any], host: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is set and has no option here."""
    for name in ("Domainname", "MacAddress", "OpenStdin"):
        value = config.get(name)
        if value not in _UNSET and value != made.get(name):
            yield f"Config.{name}: {_short(value)}: not carried out"
    for name, value in sorted(host.items()):
        if name not in _READ and name != "Privileged" and not _is_unset(value):
            yield f"HostConfig.{name}: {_short(value)}: not carried out"


def _is_unset(value: Any) -> bool:
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in _UNSET)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
