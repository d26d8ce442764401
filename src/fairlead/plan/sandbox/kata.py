"""Holds the configurations of kubelet, containerd and Kata against each other, for GPUs in virtual machines. Pure.

Kata's shim asks the kubelet which devices a pod has (PodResources `Get`) when it makes the sandbox, forms CDI names
from the answer, and plugs the devices in before the machine boots. Each of the three has settings without which this
fails, or is done by what a tenant writes: without the kubelet's socket the shim takes `cdi.k8s.io/*` annotations.
Source: kata-containers src/runtime/pkg/containerd-shim-v2/device_cold_plug.go and
src/runtime/config/configuration-qemu-nvidia-gpu.toml.in; GHSA-fmg6-v47x-52wr; Kubernetes feature gates.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

LEAST: Final = (4, 1, 0)
"""First release in which a sandbox's own container cannot have another's device (GHSA-fmg6-v47x-52wr)."""
_GET: Final = "KubeletPodResourcesGet"
_GET_SINCE: Final = (1, 34)
"""First Kubernetes where the gate is on by itself."""
_REQUEST_S: Final = 120.0
"""The kubelet's own `runtimeRequestTimeout`."""
NEEDED_S: Final = 1200.0
"""What the start of a machine with several GPUs may take: Kata's own `create_container_timeout` for GPUs."""
_SOCKET: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"
_MOST_PORTS: Final = 16
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A handler of Kata in an engine's configuration."""

    name: str
    config: str
    """Path of Kata's configuration; empty: Kata's own choice."""
    pod_annotations: tuple[str, ...] = ()
    """Patterns of pods' annotations that reach the shim."""
    keeps_host_devices_out: bool = False
    """`privileged_without_host_devices`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a node says of its kubelet, its engine and its Kata."""

    handlers: tuple[Handler, ...] = ()
    version: tuple[int, ...] | None = None
    """Of Kata's shim; None: not known."""
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Kata's configurations, parsed, by path."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Files that could not be read, and why."""
    kubelet: Mapping[str, Any] | None = None
    """The kubelet's configuration file; None: there is none."""
    kubelet_version: tuple[int, ...] | None = None
    has_socket: bool = True
    """Whether the kubelet's PodResources socket is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong, why it matters, and how to mend it."""

    what: str
    why: str
    fix: str
    is_fatal: bool = True
    """Whether a machine does not start, or what it is given is not safe; else it works with less."""


def problems(node: Node) -> Iterator[Problem]:
    """Yield what is wrong on a node that has a handler of Kata; nothing where there is none."""
    if not node.handlers:
        return
    yield from _version(node)
    for path, why in node.unread.items():
        fix = "install Kata there, or `fairlead runtime configure --engine containerd --kata --kata-folder FOLDER`"
        yield Problem(what=f"{path} cannot be read: {why}", why="no machine starts without it", fix=fix)
    for handler in node.handlers:
        yield from _handler(handler)
        if (config := node.configs.get(handler.config)) is not None:
            yield from _config(handler, config, node)
    yield from _kubelet(node)


def _version(node: Node) -> Iterator[Problem]:
    if node.version is None:
        yield Problem(
            what="the release of Kata is not known",
            why=f"before {_dotted(LEAST)} a sandbox could be given devices that are not its pod's",
            fix="`containerd-shim-kata-v2 --version` says it",
            is_fatal=False,
        )
    elif node.version < LEAST:
        yield Problem(
            what=f"Kata {_dotted(node.version)} is older than {_dotted(LEAST)}",
            why="a sandbox can be given devices that are not its pod's (GHSA-fmg6-v47x-52wr)",
            fix=f"install Kata {_dotted(LEAST)} or newer",
        )


def _handler(handler: Handler) -> Iterator[Problem]:
    for key, taken in (("cdi.k8s.io/x", "devices"), ("io.katacontainers.x", "its hypervisor, kernel and images")):
        if patterns := [one for one in handler.pod_annotations if _lets_through(one, key)]:
            yield Problem(
                what=f"containerd hands annotations {', '.join(patterns)} of pods on to {handler.name}",
                why=f"who writes a pod chooses {taken}",
                fix=f"take them out of pod_annotations of {handler.name}, and restart containerd",
            )
    if not handler.keeps_host_devices_out:
        yield Problem(
            what=f"{handler.name} has no privileged_without_host_devices",
            why="a privileged pod would be given every device of the node",
            fix=f"set privileged_without_host_devices = true for {handler.name}",
            is_fatal=False,
        )


def _config(handler: Handler, config: Mapping[str, Any], node: Node) -> Iterator[Problem]:
    path, machine, runtime = handler.config, _part(config, "hypervisor", "qemu"), _part(config, "runtime")
    cold, hot = str(machine.get("cold_plug_vfio", "no-port")), str(machine.get("hot_plug_vfio", "no-port"))
    if cold == "no-port":
        yield Problem(
            what=f"{path}: cold_plug_vfio is {cold}",
            why="the shim does not ask the kubelet for a pod's GPUs: its machine has none",
            fix='cold_plug_vfio = "root-port"',
        )
    if hot != "no-port":
        yield Problem(
            what=f"{path}: hot_plug_vfio is {hot}",
            why="a GPU that is plugged in later races with the firmware for its memory windows",
            fix='hot_plug_vfio = "no-port"',
            is_fatal=False,
        )
    socket = runtime.get("pod_resource_api_sock", _SOCKET)
    if not socket or (socket == _SOCKET and not node.has_socket):
        yield Problem(
            what=f"{path}: pod_resource_api_sock is empty" if not socket else f"{socket} is not there",
            why="the shim takes a pod's cdi.k8s.io/* annotations for its devices instead, which whoever made it wrote",
            fix=f'pod_resource_api_sock = "{_SOCKET}", and a kubelet that serves it',
        )
    if listed := [str(one) for one in _list(machine.get("enable_annotations"))]:
        yield Problem(
            what=f"{path}: enable_annotations has {', '.join(listed)}",
            why="a pod's annotation may change these of its machine, if one reaches the shim",
            fix="enable_annotations = []",
            is_fatal=False,
        )
    ports = machine.get("pcie_root_port", 0)
    if isinstance(ports, int) and ports > _MOST_PORTS:
        yield Problem(
            what=f"{path}: pcie_root_port is {ports}",
            why=f"QEMU's machine has {_MOST_PORTS} root ports at most",
            fix=f"pcie_root_port = 8, or {_MOST_PORTS} at most",
        )


def _kubelet(node: Node) -> Iterator[Problem]:
    if node.kubelet is None:
        return
    gate = _part(node.kubelet, "featureGates").get(_GET)
    is_old = node.kubelet_version is not None and node.kubelet_version[:2] < _GET_SINCE
    if gate is False or (gate is None and is_old):
        yield Problem(
            what=f"the kubelet's feature gate {_GET} is off",
            why="Kata's shim asks the kubelet by it which GPUs a pod has",
            fix=f"featureGates: {{{_GET}: true}} in the kubelet's configuration, or Kubernetes 1.34 or newer",
        )
    given = node.kubelet.get("runtimeRequestTimeout")
    kubelet_s = _seconds(given) or _REQUEST_S
    for handler in node.handlers:
        runtime = _part(node.configs.get(handler.config, {}), "runtime")
        kata_s = _number(runtime.get("create_container_timeout")) or NEEDED_S
        if kubelet_s < min(kata_s, NEEDED_S):
            yield Problem(
                what=f"the kubelet's runtimeRequestTimeout is {given or '2m'}, Kata's create_container_timeout "
                f"{kata_s:g} s",
                why="the shorter one counts: a machine of several GPUs is ended while it boots, and again and again",
                fix="runtimeRequestTimeout: 20m in the kubelet's configuration",
            )
            return


def _lets_through(pattern: str, key: str) -> bool:
    """Return whether containerd lets an annotation through; its `*` never reaches over a slash."""
    ours, theirs = key.split("/"), pattern.split("/")
    return len(ours) == len(theirs) and all(map(fnmatch.fnmatchcase, ours, theirs))


def _part(config: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    found: Any = config
    for key in keys:
        found = found.get(key, {}) if isinstance(found, Mapping) else {}
    return found if isinstance(found, Mapping) else {}


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _seconds(value: object) -> float:
    """Return a span as Kubernetes writes it, `2m0s`; 0: it is none."""
    text = value if isinstance(value, str) else ""
    parts = list(_SPAN.finditer(text))
    return sum(float(one[1]) * _UNITS[one[2]] for one in parts) if "".join(one[0] for one in parts) == text else 0.0


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
