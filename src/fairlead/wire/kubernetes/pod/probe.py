"""Declares what a kubelet does with a running container by itself: probes, and hooks at its start and its end.

Source: k8s.io/api/core/v1 types.go: Probe, ProbeHandler, Lifecycle, LifecycleHandler.
"""

from __future__ import annotations

from fairlead.wire.kubernetes.meta import Wire


class ExecAction(Wire, frozen=True):
    """A command in the container; it has to end with 0."""

    command: tuple[str, ...] = ()


class HTTPHeader(Wire, frozen=True):
    """One header of a request."""

    name: str
    value: str = ""


class HTTPGetAction(Wire, frozen=True):
    """An HTTP request; the answer has to be one of 200 to 399."""

    port: int | str
    """Number, or name of a port of the container."""
    path: str = ""
    host: str = ""
    """Empty: the pod's own address."""
    scheme: str = ""
    """`HTTP` or `HTTPS`, whose certificate is not checked; empty is `HTTP`."""
    http_headers: tuple[HTTPHeader, ...] = ()


class TCPSocketAction(Wire, frozen=True):
    """A connection, which has to be accepted."""

    port: int | str
    host: str = ""
    """Empty: the pod's own address."""


class GRPCAction(Wire, frozen=True):
    """A question to the standard gRPC health service."""

    port: int
    service: str = ""


class SleepAction(Wire, frozen=True):
    """A wait, of hooks only."""

    seconds: int = 0


class Handler(Wire, frozen=True):
    """One act: exactly one field is set."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    sleep: SleepAction | None = None


class Probe(Wire, frozen=True):
    """An act that is repeated while a container runs: exactly one of its four kinds is set."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: GRPCAction | None = None
    initial_delay_seconds: int = 0
    timeout_seconds: int = 0
    """0 is 1."""
    period_seconds: int = 0
    """0 is 10."""
    success_threshold: int = 0
    """0 is 1."""
    failure_threshold: int = 0
    """0 is 3."""
    termination_grace_period_seconds: int | None = None
    """Of the stop after a failure; None: the pod's."""


class Lifecycle(Wire, frozen=True):
    """What is done once a container runs, and before it is stopped."""

    post_start: Handler | None = None
    pre_stop: Handler | None = None
    stop_signal: str = ""
    """What a stop sends first, `SIGUSR1`; empty: the image's own, else SIGTERM."""
