"""Judges probes, hooks and termination messages before a pod is stored, in the API server's words. Pure.

Source: kubernetes pkg/apis/core/validation (validateProbe, validateHandler, validateLifecycle, validateInitContainers).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Final

from fairlead import errors
from fairlead.model.container import stopsignal
from fairlead.plan.pod.life import restart
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.pod.probe import Handler, HTTPGetAction, Probe, TCPSocketAction

_PORT_NAME: Final = re.compile(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
_MOST_PORT: Final = 65535
_MOST_NUMBER: Final = 2**31 - 1
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_POLICIES: Final = ("File", "FallbackToLogsOnError")
PROBES: Final = ("startupProbe", "readinessProbe", "livenessProbe")


def problems(path: str, item: core.Container, *, is_init: bool, grace_s: int) -> Iterator[str]:
    """Yield what is wrong with a container's probes and hooks.

    Args: is_init: it is an init container.   grace_s: of its pod, between SIGTERM and SIGKILL.
    """
    is_sidecar = is_init and item.restart_policy == "Always"
    yield from restart.problems(path, item)
    given = dict(zip(PROBES, (item.startup_probe, item.readiness_probe, item.liveness_probe), strict=True))
    if is_init and not is_sidecar:
        found = [name for name, probe in given.items() if probe is not None]
        found += ["lifecycle"] if item.lifecycle is not None else []
        why = "may not be set for init containers without restartPolicy=Always"
        yield from (f"{path}.{name}: Forbidden: {why}" for name in found)
        given = {}
    yield from (text for name, probe in given.items() if probe for text in _probe(f"{path}.{name}", name, probe))
    if item.lifecycle is not None:
        if item.lifecycle.stop_signal and stopsignal.number(item.lifecycle.stop_signal) is None:
            shown = errors.readable(item.lifecycle.stop_signal[:80])
            yield f'{path}.lifecycle.stopSignal: Unsupported value: "{shown}": the name of a signal, SIGUSR1'
        hooks = {"postStart": item.lifecycle.post_start, "preStop": item.lifecycle.pre_stop}
        for name, hook in hooks.items():
            if hook is not None:
                yield from _handler(f"{path}.lifecycle.{name}", hook, grace_s)
    yield from _last_word(path, item)


def _last_word(path: str, item: core.Container) -> Iterator[str]:
    if item.termination_message_policy not in {"", *_POLICIES}:
        shown = errors.readable(item.termination_message_policy[:80])
        offered = ", ".join(f'"{one}"' for one in _POLICIES)
        yield f'{path}.terminationMessagePolicy: Unsupported value: "{shown}": supported values: {offered}'
    place = item.termination_message_path
    if place and (not place.startswith("/") or ".." in place.split("/") or place.endswith("/")):
        yield f"{path}.terminationMessagePath: Invalid value: must be the absolute path of a file"


def _probe(path: str, name: str, probe: Probe) -> Iterator[str]:
    kinds = {"exec": probe.exec, "httpGet": probe.http_get, "tcpSocket": probe.tcp_socket, "grpc": probe.grpc}
    found = [kind for kind, given in kinds.items() if given is not None]
    if len(found) != 1:
        yield f"{path}: Required value: must specify exactly one handler type ({', '.join(kinds)})"
    numbers = {
        "initialDelaySeconds": probe.initial_delay_seconds,
        "timeoutSeconds": probe.timeout_seconds,
        "periodSeconds": probe.period_seconds,
        "successThreshold": probe.success_threshold,
        "failureThreshold": probe.failure_threshold,
    }
    for key, number in numbers.items():
        if not 0 <= number <= _MOST_NUMBER:
            yield f"{path}.{key}: Invalid value: {number}: must be greater than or equal to 0"
    if name != "readinessProbe" and probe.success_threshold > 1:
        yield f"{path}.successThreshold: Invalid value: {probe.success_threshold}: must be 1"
    yield from _grace(path, name, probe.termination_grace_period_seconds)
    if probe.exec is not None and not probe.exec.command:
        yield f"{path}.exec.command: Required value"
    yield from _network(path, probe.http_get, probe.tcp_socket)
    if probe.grpc is not None:
        yield from _port(f"{path}.grpc.port", probe.grpc.port)
        if len(probe.grpc.service) > 1024:
            yield f"{path}.grpc.service: Too long: may not be more than 1024 bytes"


def _grace(path: str, name: str, grace_s: int | None) -> Iterator[str]:
    if grace_s is not None:
        if name == "readinessProbe":
            yield f"{path}.terminationGracePeriodSeconds: Invalid value: {grace_s}: must not be set for readinessProbes"
        elif not 1 <= grace_s <= _MOST_NUMBER:
            yield f"{path}.terminationGracePeriodSeconds: Invalid value: {grace_s}: must be greater than 0"


def _handler(path: str, hook: Handler, grace_s: int) -> Iterator[str]:
    kinds = {"exec": hook.exec, "httpGet": hook.http_get, "tcpSocket": hook.tcp_socket, "sleep": hook.sleep}
    found = [kind for kind, given in kinds.items() if given is not None]
    if len(found) != 1:
        yield f"{path}: Required value: must specify exactly one handler type ({', '.join(kinds)})"
    if hook.exec is not None and not hook.exec.command:
        yield f"{path}.exec.command: Required value"
    yield from _network(path, hook.http_get, hook.tcp_socket)
    if hook.sleep is not None and not 0 <= hook.sleep.seconds <= grace_s:
        shown = f"must be between 0 and terminationGracePeriodSeconds ({grace_s})"
        yield f"{path}.sleep.seconds: Invalid value: {hook.sleep.seconds}: {shown}"


def _network(path: str, asked: HTTPGetAction | None, connected: TCPSocketAction | None) -> Iterator[str]:
    if asked is not None:
        yield from _port(f"{path}.httpGet.port", asked.port)
        yield from _host(f"{path}.httpGet.host", asked.host)
        if asked.scheme not in {"", "HTTP", "HTTPS"}:
            shown = errors.readable(asked.scheme[:80])
            yield f'{path}.httpGet.scheme: Unsupported value: "{shown}": supported values: "HTTP", "HTTPS"'
        if not _is_line(asked.path):
            yield f"{path}.httpGet.path: Invalid value: must be one line without spaces"
        for index, header in enumerate(asked.http_headers):
            where = f"{path}.httpGet.httpHeaders[{index}]"
            if not _TOKEN.fullmatch(header.name):
                yield f'{where}.name: Invalid value: "{errors.readable(header.name[:80])}": not the name of a header'
            if any(ord(letter) < 32 and letter != "\t" for letter in header.value):
                yield f"{where}.value: Invalid value: must be one line"
    if connected is not None:
        yield from _port(f"{path}.tcpSocket.port", connected.port)
        yield from _host(f"{path}.tcpSocket.host", connected.host)


def _is_line(text: str) -> bool:
    return all(ord(letter) > 32 and ord(letter) != 127 for letter in text)


def _port(path: str, port: int | str) -> Iterator[str]:
    if isinstance(port, int):
        if not 1 <= port <= _MOST_PORT:
            yield f"{path}: Invalid value: {port}: must be between 1 and {_MOST_PORT}, inclusive"
    elif not _PORT_NAME.fullmatch(port) or "--" in port:
        yield f'{path}: Invalid value: "{errors.readable(port[:80])}": not the name of a port'


def _host(path: str, host: str) -> Iterator[str]:
    """Yield what is wrong with a host: it is reached from the container's own network, which resolves no names here."""
    if host in {"", "localhost"}:
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        shown = errors.readable(host[:80])
        yield f'{path}: Invalid value: "{shown}": only an IP address or localhost is reached here; leave it out'
