"""Declares what nodes say of their container runtimes: a subset of Node, so that listing nodes decodes nothing else.

Source: k8s.io/api/core/v1 types.go, NodeStatus.runtimeHandlers.
"""

from __future__ import annotations

from typing import ClassVar

from fairlead.wire.kubernetes.meta import ObjectMeta, Wire


class HandlerFeatures(Wire, frozen=True):
    """What one handler can do."""

    user_namespaces: bool | None = None


class RuntimeHandler(Wire, frozen=True):
    """One handler; the empty name is the default one."""

    name: str = ""
    features: HandlerFeatures = HandlerFeatures()


class RuntimeState(Wire, frozen=True):
    """The handlers that a node reports."""

    runtime_handlers: tuple[RuntimeHandler, ...] = ()


class NodeRuntimes(Wire, frozen=True):
    """One machine; read only."""

    API_VERSION: ClassVar[str] = "v1"
    KIND: ClassVar[str] = "Node"
    PLURAL: ClassVar[str] = "nodes"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    status: RuntimeState = RuntimeState()

    @property
    def lacks_user_namespaces(self) -> bool:
        """Whether it says that pods cannot have user namespaces; a node that says nothing may."""
        default = [one for one in self.status.runtime_handlers if not one.name]
        return any(not one.features.user_namespaces for one in default)
