"""Builds podman's argument lists from a `ContainerSpec`. Pure.

Nothing of the host leaks in: every variable is written `NAME=value` (podman copies the host's value for a bare name),
and `--http-proxy=false` keeps the host's proxies out. Pulling is always an act of its own, so `--pull=never`. Logs go
to a file podman can follow, whatever its configured default. Image health checks are switched off: Kubernetes
ignores them and podman needs systemd for them. What a request says comes after `--`, or is joined to its option by
`=`: no name and no word of a command is an option of podman's.

Source: podman-create(1), podman-exec(1), podman-logs(1) of podman 4.3.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib import parse

from fairlead import errors
from fairlead.engine import checks, port
from fairlead.engine.podman import host as podman_host
from fairlead.model.process import ProcessOptions
from fairlead.wire.kubernetes import names

_PLAIN: Final = re.compile(r"[-._a-zA-Z0-9]+")
_MOST_CPUS: Final = 1e6
"""The kernel refuses limits of many more.  Source: kernel/sched/core.c, MAX_BW."""
_STEADY: Final = ("--pull=never", "--http-proxy=false", "--no-healthcheck", "--log-driver=k8s-file")
_MARKS: Final = (
    names.HOME,
    names.POD_UID,
    names.POD_NAMESPACE,
    names.POD_NAME,
    names.CONTAINER_NAME,
)
"""Labels that the runtime spec carries too: an audit knows whose a container is without asking podman. All of them are
written, since podman copies an image's annotations and an identity must not be made of both."""


def identity_annotations(spec: port.ContainerSpec) -> dict[str, str]:
    """Return the annotations, without quotes and commas, percent-encoded: podman reads those of its options as CSV."""
    return {key: parse.quote(spec.labels[key], safe="/:") for key in _MARKS if key in spec.labels}


def create(spec: port.ContainerSpec, host: podman_host.Host, *, network: str, log_max_mib: int) -> list[str]:
    """Return the arguments of `podman` that create the container, held in podman's database only.

    Its standard input is what `env_lines` makes of `spec.secret_env`, where that is not empty.
    Args:    host: this machine's oddities.   network: podman network mode where `spec.network_of` is None.
             log_max_mib: where a log begins again, so that one container cannot fill the disk; 0: nowhere.
    Raises:  Invalid: a name, path or variable that podman's command line cannot carry.
    """
    checks.check_name(spec.name)
    checks.check_image(spec.image)
    _check_lines(spec.secret_env)
    return [
        *(("--runtime", spec.runtime) if spec.runtime else host.globals),
        "create",
        f"--name={spec.name}",
        *_STEADY,
        *([f"--log-opt=max-size={log_max_mib}mb"] if log_max_mib else []),
        *(f"--ulimit={limit}" for limit in ulimits(spec, host)),
        *_network(spec, network),
        *_user_namespace(spec),
        *(f"--label={key}={value}" for key, value in spec.labels.items()),
        *(f"--annotation={key}={value}" for key, value in identity_annotations(spec).items()),
        *(["--env-file=/dev/stdin"] if spec.secret_env else []),
        *_env(spec.env),
        *(f"--device={device}" for device in devices(spec)),
        *(argument for bind in binds(spec) for argument in _bind(bind)),
        *_limits(spec),
        *_rights(spec),
        *_process(spec),
        "--",
        spec.image,
        *spec.args,
    ]


_SILENT: Final = "--log-level=fatal"
"""Keeps podman's warnings from standard error where that is the container's own: podman 5 has one for cgroup v1."""


def execute(
    name: str, argv: Sequence[str], *, tty: bool, stdin: bool, options: ProcessOptions, env_file: str = ""
) -> list[str]:
    """Return the arguments of `podman` that run one more process.

    Args: env_file: has the variables that a file can hold (`in_lines`); the others are given as arguments.
    """
    flags = [flag for flag, wanted in (("--interactive", stdin), ("--tty", tty)) if wanted]
    where = [f"{flag}={value}" for flag, value in (("--user", options.user), ("--workdir", options.workdir)) if value]
    given = {key: options.env[key] for key in options.env.keys() - in_lines(options.env).keys()}
    variables = [f"--env-file={env_file}", *_env(given)] if env_file else _env(options.env)
    return [_SILENT, "exec", *flags, *where, *variables, "--", name, *argv]


def label_filters(labels: Mapping[str, str]) -> list[str]:
    """Return the `--filter` arguments that select containers carrying all labels; "" matches any value."""
    return [f"--filter=label={key}={value}" if value else f"--filter=label={key}" for key, value in labels.items()]


def ulimits(spec: port.ContainerSpec, host: podman_host.Host) -> list[str]:
    """Return the limits asked for, and those of this machine's own that nothing was asked about: `name=soft:hard`."""
    asked = {name: f"{name}={soft}:{hard}" for name, soft, hard in spec.ulimits}
    own = [limit for limit in host.ulimits if limit.partition("=")[0] not in asked]
    return [*own, *asked.values()]


def devices(spec: port.ContainerSpec) -> list[str]:
    """Return CDI devices and device nodes as podman names them. Raises: Invalid (`DevicePathInvalid`)."""
    return [*spec.cdi_devices, *(_colons(node) for node in spec.device_nodes)]


def binds(spec: port.ContainerSpec) -> list[port.Bind]:
    """Return the binds, each once: two plugins may answer with the same, and podman's service refuses a second one."""
    return list(dict.fromkeys(spec.binds))


def _network(spec: port.ContainerSpec, network: str) -> list[str]:
    # Who joins a network namespace shares its /etc/hosts; podman refuses another host name.
    if spec.network_of is not None:
        checks.check_name(spec.network_of)
        return [f"--network=container:{spec.network_of}", f"--uts=container:{spec.network_of}"]
    hosts = [
        *(f"--add-host={line}" for line in host_lines(spec)),
        *(f"--dns={one}" for one in spec.dns),
        *(f"--dns-search={one}" for one in spec.dns_searches),
        *(f"--dns-option={one}" for one in spec.dns_options),
    ]
    if spec.network is port.NetworkMode.HOST:
        return ["--network=host", *hosts]
    hostname = [f"--hostname={spec.hostname}"] if spec.hostname else []
    if spec.network is None and spec.network_name is not None:
        checks.check_name(spec.network_name)
        alias = [f"--network-alias={spec.hostname}"] if spec.hostname else []
        where = [f"--network={spec.network_name}", *alias]
    else:
        where = [f"--network={network if spec.network is None else spec.network.value}"]
    return [*where, *hosts, *hostname, *(f"--publish={_published(port)}" for port in spec.ports)]


def host_lines(spec: port.ContainerSpec) -> list[str]:
    """Return more lines of /etc/hosts as podman names them."""
    return [f"{name}:{address}" for address, name in spec.hosts]


def _user_namespace(spec: port.ContainerSpec) -> list[str]:
    if spec.first_user_id is None:
        return []
    # A network namespace is its user namespace's: /sys of another one could not be mounted. runsc enters no user
    # namespace that is there (setns(2) refuses a program of many threads), and mounts no /sys of the host's.
    if spec.network_of is not None and not spec.runtime:
        return [f"--userns=container:{spec.network_of}"]
    return [f"--{kind}map=0:{spec.first_user_id}:{port.USER_IDS}" for kind in ("uid", "gid")]


def _published(one: port.Port) -> str:
    # An IPv6 address stands in brackets, or its colons would part it from the ports.
    address = f"[{one.host_ip}]" if ":" in one.host_ip else one.host_ip
    listens = f"{address}:{one.host_port}" if address else str(one.host_port)
    return f"{listens}:{one.container_port}/{one.protocol}"


def env_lines(env: Mapping[str, str]) -> bytes:
    """Return variables as podman reads them from a file. Raises: Invalid (`EnvInvalid`), which says no value."""
    _check_lines(env)
    return "".join(f"{name}={value}\n" for name, value in env.items()).encode()


def in_lines(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that podman can read from a file."""
    # podman skips comments and leading spaces, and takes the host's value for a name without "=".
    return {name: value for name, value in env.items() if _PLAIN.fullmatch(name) and not set("\n\r\0") & set(value)}


def _check_lines(env: Mapping[str, str]) -> None:
    _check_names(env)
    plain = in_lines(env)
    for name in env:
        if name not in plain:
            message = (
                f'environment variable "{name}" cannot be given by a file: its name or value is not one plain line'
            )
            raise errors.Invalid(message, reason="EnvInvalid", hint="mount it as a file")


def _check_names(env: Mapping[str, str]) -> None:
    for name in env:
        if not name or "=" in name or "\0" in name:
            message = f'environment variable name "{name}" is empty or holds "="'
            raise errors.Invalid(message, reason="EnvInvalid", hint="choose another name")


def _env(env: Mapping[str, str]) -> list[str]:
    _check_names(env)
    return [f"--env={name}={value}" for name, value in env.items()]


def _colons(parts: Sequence[str]) -> str:
    for part in parts:
        if ":" in part:
            message = f'device path "{part}" holds a colon, which no option of podman can carry'
            raise errors.Invalid(message, reason="DevicePathInvalid", hint="use a path without colons")
    return ":".join(parts)


def _bind(bind: port.Bind) -> list[str]:
    paths = (bind.host_path, bind.container_path)
    for path in paths:
        if not path.startswith("/"):
            message = f'bind path "{path}" is not absolute'
            raise errors.Invalid(message, reason="BindInvalid", hint="write it from / on")
    options = ",".join(bind_options(bind))
    if not any(":" in path for path in paths):
        return [f"--volume={bind.host_path}:{bind.container_path}:{options}"]
    if any("," in path for path in paths):
        message = f'bind of "{bind.host_path}" holds both ":" and ",", which no option of podman can carry'
        raise errors.Invalid(message, reason="BindInvalid", hint="use paths without commas")
    read_only = str(bind.is_read_only).lower()
    more = "".join(f",{option}" for option in bind_options(bind)[1:])
    return [f"--mount=type=bind,src={bind.host_path},dst={bind.container_path},ro={read_only}{more}"]


def bind_options(bind: port.Bind) -> list[str]:
    """Return the mount options of a bind; `ro` or `rw` is the first."""
    device, untrusted = ["dev"] if bind.is_device else [], ["nosuid", "nodev"] if bind.is_untrusted else []
    return ["ro" if bind.is_read_only else "rw", *device, *untrusted]


def cpus(limit: float) -> str:
    """Return a limit of CPUs as podman takes it, within what the kernel allows: from 1 ms of each 100 ms on."""
    return f"{min(max(limit, 0.01), _MOST_CPUS):g}"


def _limits(spec: port.ContainerSpec) -> list[str]:
    found = []
    if spec.cpu_limit is not None:
        found.append(f"--cpus={cpus(spec.cpu_limit)}")
    if spec.memory_limit_bytes is not None:
        # Equal to the memory limit: no swap, as Kubernetes has it.
        found += [f"--memory={spec.memory_limit_bytes}b", f"--memory-swap={spec.memory_limit_bytes}b"]
    if spec.shares_host_ipc:
        found.append("--ipc=host")
    elif spec.ipc_of is not None:
        checks.check_name(spec.ipc_of)
        found.append(f"--ipc=container:{spec.ipc_of}")
    elif spec.shm_bytes is not None:
        found.append(f"--shm-size={spec.shm_bytes}b")
    return found


def _rights(spec: port.ContainerSpec) -> list[str]:
    # podman's own folders in memory would be writable where Kubernetes has none
    root = ["--read-only", "--read-only-tmpfs=false"] if spec.is_root_read_only else []
    gain = [] if spec.may_gain_privileges else ["--security-opt=no-new-privileges"]
    return [*root, *gain, *(f"--cap-drop={name}" for name in spec.dropped_capabilities)]


def _process(spec: port.ContainerSpec) -> list[str]:
    found = [f"--entrypoint={json.dumps(list(spec.command))}"] if spec.command else []
    if spec.working_dir:
        found.append(f"--workdir={spec.working_dir}")
    if spec.user:
        found.append(f"--user={spec.user}")
    found += [f"--group-add={group}" for group in spec.groups]
    if spec.stop_signal:
        found.append(f"--stop-signal={spec.stop_signal}")
    if spec.processes_of is not None:
        checks.check_name(spec.processes_of)
        found.append(f"--pid=container:{spec.processes_of}")
    return [*found, *(flag for flag, wanted in (("--tty", spec.tty), ("--interactive", spec.stdin)) if wanted)]


def grace(grace_s: float) -> int:
    """Return whole seconds for podman, never less than asked."""
    return max(0, math.ceil(grace_s))
