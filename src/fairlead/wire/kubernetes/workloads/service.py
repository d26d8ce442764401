"""Declares Services: names for pods that come and go.

Source: k8s.io/api/core/v1 types.go, ServiceSpec.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from fairlead.wire.kubernetes.meta import Condition, ObjectMeta, Wire


class ServicePort(Wire, frozen=True):
    """One port of a Service."""

    port: int
    target_port: int | str | None = None
    """Number, or name of a port of the pods; None: `port`."""
    node_port: int = 0
    """Port of the machine that leads there; 0: one is chosen, where the type asks for one."""
    protocol: str = ""
    """`TCP` or `UDP`; empty is `TCP`."""
    name: str = ""
    app_protocol: str | None = None


class ServiceSpec(Wire, frozen=True):
    """Desired state of a Service."""

    selector: Mapping[str, str] = {}
    ports: tuple[ServicePort, ...] = ()
    type: str = ""
    """`ClusterIP`, `NodePort` or `LoadBalancer`; empty is `ClusterIP`."""
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    publish_not_ready_addresses: bool = False


class ServiceStatus(Wire, frozen=True):
    """Where a Service leads now."""

    endpoints: tuple[str, ...] = ()
    """Addresses of the pods; ours, since one machine keeps no EndpointSlices."""
    conditions: tuple[Condition, ...] = ()


class Service(Wire, frozen=True):
    """A name for the pods that a selector finds."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "Service"
    PLURAL: ClassVar[str] = "services"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()
