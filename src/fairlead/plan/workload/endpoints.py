"""Says where a Service leads: which pods stand behind it, under which names they are known, and by which ports. Pure.

A name stands for the addresses of the pods themselves, as a headless Service does on a cluster: one machine has no
address of its own for a Service. Where `port` is not the port that a pod listens on, a relay in the pod leads there.
Source: kubernetes pkg/controller/endpointslice; the DNS specification of Kubernetes (kubernetes/dns, docs).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.plan.workload import podset
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.workloads.service import Service, ServicePort

_ZONE: Final = "svc.cluster.local"
PROJECT, ALIASES = "com.docker.compose.project", "com.docker.compose.aliases"
"""Docker compose's label of a project, and the short names that a Service of it has there."""
GATEWAY_NAMES: Final = "com.docker.compose.host-gateway"
"""Annotation of a pod of such a project: by which names it knows the machine."""
_GATEWAY: Final = "host-gateway"
_MACHINE: Final = re.compile(r"^(\S+)\s+.*\bhost\.containers\.internal\b", re.MULTILINE)
"""The line by which podman tells a container the machine's address."""
_ALIAS: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_LONGEST_ALIASES, _MOST_ALIASES = 4096, 20
BEGIN, END = "# fairlead: services", "# fairlead: end of services"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """A port that leads to another one of the same pod."""

    port: int
    target: int


def behind(service: Service, pods: Iterable[core.Pod]) -> list[core.Pod]:
    """Return the pods that a Service leads to, in the order of their names."""
    found = [
        pod
        for pod in pods
        if pod.metadata.namespace == service.metadata.namespace
        and podset.matches(service.spec.selector, pod.metadata.labels)
        and pod.status.pod_ip
        and pod.status.phase == "Running"
        and pod.metadata.deletion_timestamp is None
        and (podset.is_ready(pod) or service.spec.publish_not_ready_addresses)
    ]
    return sorted(found, key=lambda pod: pod.metadata.name)


def lines(services: Sequence[Service], pods: Sequence[core.Pod], reader: core.Pod | None = None) -> list[str]:
    """Return the lines of /etc/hosts that the pods of one namespace have.

    Args: reader: whose file it is. Where it is of a Compose project, the short names of the project's Services are in
          it too, and before all others: two projects of a namespace have a `db` each.
    """
    found = list[str]()
    own = reader.metadata.labels.get(PROJECT, "") if reader is not None else ""

    def is_fellow(service: Service) -> bool:
        return bool(own) and service.metadata.labels.get(PROJECT) == own

    for service in sorted(services, key=lambda one: (not is_fellow(one), one.metadata.name)):
        about = service.metadata
        short = aliases(service) if is_fellow(service) else tuple[str, ...]()
        for pod in behind(service, pods):
            found.append(f"{pod.status.pod_ip}\t{' '.join((*short, *_names(about.name, about.namespace)))}")
            if pod.spec.hostname and service.spec.cluster_ip == "None":
                numbered = _names(f"{pod.spec.hostname}.{about.name}", about.namespace)
                found.append(f"{pod.status.pod_ip}\t{' '.join(numbered)}")
    if own and reader is not None and (gateways := _fit(reader.metadata.annotations.get(GATEWAY_NAMES, ""))):
        found.append(f"{_GATEWAY}\t{' '.join((*gateways, f'host-gateway.{_ZONE}'))}")
    return found


def aliases(service: Service) -> tuple[str, ...]:
    """Return the short names of a Compose project's Service; what is not a host's name is none."""
    return _fit(service.metadata.annotations.get(ALIASES, ""))


def _fit(listed: str) -> tuple[str, ...]:
    """Return those of a list that are names of hosts, a bounded number of them."""
    words = listed[:_LONGEST_ALIASES].split(",")
    return tuple(one for one in words if _ALIAS.fullmatch(one) and one != "localhost")[:_MOST_ALIASES]


def _names(name: str, namespace: str) -> tuple[str, ...]:
    return name, f"{name}.{namespace}", f"{name}.{namespace}.svc", f"{name}.{namespace}.{_ZONE}"


def with_lines(text: str, wanted: Sequence[str]) -> str:
    """Return a hosts file with Fairlead's lines replaced; what else is in it stays.

    Ours are known by their last name and not by comments alone: podman drops those when a container joins the pod.
    """
    kept = "".join(line for line in text.splitlines(keepends=True) if not _is_ours(line))
    machine = _MACHINE.search(kept)
    wanted = [
        one.replace(_GATEWAY, machine[1], 1) if machine is not None and one.startswith(f"{_GATEWAY}\t") else one
        for one in wanted
        if machine is not None or not one.startswith(f"{_GATEWAY}\t")
    ]
    if not wanted:
        return kept
    gap = "" if not kept or kept.endswith("\n") else "\n"
    return kept + gap + "\n".join((BEGIN, *wanted, END, ""))


def _is_ours(line: str) -> bool:
    return line.strip() in {BEGIN, END} or line.rstrip().endswith(f".{_ZONE}")


def target(port: ServicePort, pod: core.Pod) -> int | None:
    """Return the port of a pod that a Service's port means; None: the pod has none of that name."""
    wanted = port.port if port.target_port is None else port.target_port
    if isinstance(wanted, int):
        return wanted
    every = (one for item in (*pod.spec.containers, *pod.spec.init_containers) for one in item.ports)
    return next((one.container_port for one in every if one.name == wanted), None)


def relays(services: Iterable[Service], pod: core.Pod) -> Iterator[Relay]:
    """Yield the ports of a pod that have to lead to other ones."""
    seen = set[int]()
    for service in services:
        if pod not in behind(service, (pod,)):
            continue
        for port in service.spec.ports:
            found = target(port, pod)
            is_needed = found is not None and found != port.port and (port.protocol or "TCP") == "TCP"
            if is_needed and found is not None and port.port not in seen and not _listens(pod, port.port):
                seen.add(port.port)
                yield Relay(port=port.port, target=found)


def _listens(pod: core.Pod, number: int) -> bool:
    """Return whether a pod says that it has a port itself: nothing else may listen there."""
    return any(one.container_port == number for item in pod.spec.containers for one in item.ports)
