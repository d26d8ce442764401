"""Writes what podman's service is asked to create: the container that `args.create` describes, in podman's JSON. Pure.

Both are made of one `ContainerSpec`, and a test creates every kind of container both ways and holds podman's and the
OCI runtime's records against each other. What podman's command line fills in by itself and its service leaves out is
written here: systemd mode and notification as `podman create` has them.

Leaves the refusal of names, paths and variables to `args`, which is asked first.

Source: podman 4.3 and 5.4 API reference, `POST /libpod/containers/create` (SpecGenerator).
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlead.engine import port
from fairlead.engine.podman import args
from fairlead.engine.podman import host as podman_host
from fairlead.model.container import stopsignal

_UNLIMITED: Final = 2**64 - 1
_MEGABYTE: Final = 10**6
"""What `mb` is to `podman create --log-opt=max-size`."""
_CPU_PERIOD_US: Final = 100_000


def encode(spec: port.ContainerSpec, host: podman_host.Host, *, network: str, log_max_mib: int) -> bytes:
    """Return the body of the request; the secret variables are in it. Arguments are those of `args.create`."""
    asked: dict[str, object] = {
        "name": spec.name,
        "image": spec.image,
        "raw_image_name": spec.image,
        "entrypoint": spec.command,
        "command": spec.args,
        "env": {**spec.env, **spec.secret_env},
        "labels": spec.labels,
        "annotations": args.identity_annotations(spec),
        "devices": [{"path": device} for device in args.devices(spec)],
        "mounts": [_mount(bind) for bind in args.binds(spec)],
        "resource_limits": _limits(spec),
        "r_limits": [_ulimit(limit) for limit in args.ulimits(spec, host)],
        "shm_size": None if spec.shares_host_ipc or spec.ipc_of else spec.shm_bytes,
        "ipcns": _ipc(spec),
        "work_dir": spec.working_dir,
        "user": spec.user,
        "groups": spec.groups,
        "stop_signal": stopsignal.number(spec.stop_signal),
        "pidns": {"nsmode": "container", "value": spec.processes_of} if spec.processes_of else None,
        "cap_drop": spec.dropped_capabilities,
        "log_configuration": {"driver": "k8s-file", "size": log_max_mib * _MEGABYTE},
        "healthconfig": {"Test": ["NONE"]},
        "systemd": "true",
        "sdnotifyMode": "container",
        **_network(spec, network),
        **_user_namespace(spec),
    }
    flags = {
        "terminal": spec.tty,
        "stdin": spec.stdin,
        "read_only_filesystem": spec.is_root_read_only,
        "no_new_privileges": not spec.may_gain_privileges,
        "httpproxy": False,
        "read_write_tmpfs": False,
    }
    return msgspec.json.encode({**{key: value for key, value in asked.items() if value}, **flags})


def _network(spec: port.ContainerSpec, network: str) -> dict[str, object]:
    if spec.network_of is not None:
        return {kind: {"nsmode": "container", "value": spec.network_of} for kind in ("netns", "utsns")}
    resolver = {"dns_server": spec.dns, "dns_search": spec.dns_searches, "dns_option": spec.dns_options}
    names: dict[str, object] = {
        "hostadd": args.host_lines(spec),
        **{key: found for key, found in resolver.items() if found},
    }
    if spec.network is port.NetworkMode.HOST:
        return {"netns": {"nsmode": "host"}, **names}
    own: dict[str, object] = {
        **names,
        "hostname": spec.hostname,
        "portmappings": [_port(one) for one in spec.ports],
    }
    if spec.network is None and spec.network_name is not None:
        aliases = [spec.hostname] if spec.hostname else []
        return {**own, "netns": {"nsmode": "bridge"}, "networks": {spec.network_name: {"aliases": aliases}}}
    return {**own, "netns": {"nsmode": network if spec.network is None else spec.network.value}}


def _ipc(spec: port.ContainerSpec) -> dict[str, object] | None:
    if spec.shares_host_ipc:
        return {"nsmode": "host"}
    return {"nsmode": "container", "value": spec.ipc_of} if spec.ipc_of else None


def _user_namespace(spec: port.ContainerSpec) -> dict[str, object]:
    if spec.first_user_id is None:
        return {}
    if spec.network_of is not None:
        return {"userns": {"nsmode": "container", "value": spec.network_of}}
    ids = [{"container_id": 0, "host_id": spec.first_user_id, "size": port.USER_IDS}]
    return {"userns": {"nsmode": "private"}, "idmappings": {"UIDMap": ids, "GIDMap": ids}}


def _port(one: port.Port) -> dict[str, object]:
    return {
        "host_ip": one.host_ip,
        "host_port": one.host_port,
        "container_port": one.container_port,
        "protocol": one.protocol,
    }


def _mount(bind: port.Bind) -> dict[str, object]:
    return {
        "type": "bind",
        "source": bind.host_path,
        "destination": bind.container_path,
        "options": args.bind_options(bind),
    }


def _limits(spec: port.ContainerSpec) -> dict[str, object]:
    found: dict[str, object] = {}
    if spec.cpu_limit is not None:
        quota = int(float(args.cpus(spec.cpu_limit)) * _CPU_PERIOD_US)
        found["cpu"] = {"period": _CPU_PERIOD_US, "quota": quota}
    if spec.memory_limit_bytes is not None:
        found["memory"] = {"limit": spec.memory_limit_bytes, "swap": spec.memory_limit_bytes}
    return found


def _ulimit(limit: str) -> dict[str, object]:
    """Return `name=soft:hard` as the service has it."""
    name, _, numbers = limit.partition("=")
    soft, hard = (_UNLIMITED if number == "-1" else int(number) for number in numbers.split(":"))
    return {"type": name, "soft": soft, "hard": hard}
