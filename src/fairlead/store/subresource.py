"""Declares the ports to pods' subresources: what an API server offers of a pod beside the object itself.

Five ports, cut by capability: `Placement` (bind, evict), `Trial` (dry run), `Recreation` (replace), `Logs`, `Streams`
(exec, attach, port-forward). `store.kubernetes.subresource` implements all of them over a Kubernetes API server; on one
machine the embedded stores bind and evict, and `serve.backend` has logs and streams, over the engine. One contract
suite holds those that both have: `tests/contract/test_subresource_contract.py`.

Source: Kubernetes API reference, "Pod" (subresources binding, eviction, log, exec, attach, portforward).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from fairlead import errors
from fairlead.model.container.output import LogQuery
from fairlead.model.process import AS_THE_CONTAINER, ProcessOptions
from fairlead.wire.kubernetes import core


def not_on_cluster(asked: str, instead: str, *, address: str = "") -> errors.RequestError:
    """Return the refusal of what one machine offers and Kubernetes does not.

    Args: asked: as a person names it.   instead: what does the same on a cluster.   address: of the cluster.
    """
    where = f"the cluster at {address}" if address else "a cluster"
    message = f"{asked}: one machine that runs `fairlead up` offers it, {where} does not"
    return errors.RequestError(message, reason="NotOnCluster", hint=instead)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(LogQuery):
    """How much of which run's output."""

    previous: bool = False
    """Of the run before the newest one."""


class Session(Protocol):
    """The streams of one process in a container."""

    async def read(self) -> bytes:
        """Return the next output, standard error as `ErrorOutput` where there is no terminal; b"" at its end."""
        ...

    async def write(self, data: bytes) -> None:
        """Feed its standard input; b"" closes it. Raises: Unavailable: this end cannot be carried to the process."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Set its terminal's size; nothing without a terminal."""
        ...

    async def wait(self) -> int:
        """Return its exit code, once its output has ended. Raises: Unavailable: the connection broke."""
        ...

    async def close(self) -> None:
        """End the session. Idempotent."""
        ...


class Connection(Protocol):
    """Bytes to and from one port of a pod."""

    async def read(self) -> bytes:
        """Return the next bytes, b"" at the end. Raises: Unavailable: no process listens, or the connection broke."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        ...

    async def close(self) -> None:
        """Close both directions. Idempotent."""
        ...


class Placement(Protocol):
    """Which node a pod is on, and its removal from there."""

    async def bind(self, pod: core.Pod, node: str) -> None:
        """Bind a pod to a node.

        Raises: Conflict: it is bound, or another pod has its name; NotFound: it is gone.
        """
        ...

    async def evict(self, pod: core.Pod, *, grace_s: int | None, why: str = "", reason: str = "Preempted") -> None:
        """Delete a pod unless a disruption budget forbids it.

        Args:    grace_s: seconds between SIGTERM and SIGKILL; None: the pod's own.   why: for what; on one machine the
                 pod then ends with this message and a reason, and its record stays, since no controller recreates it.
        Raises:  Denied (`DisruptionBudget`); Conflict: another pod has its name; NotFound: it is gone.
        """
        ...


class Trial(Protocol):
    """What a server would do with a pod."""

    async def judge(self, pod: core.Pod) -> core.Pod:
        """Return a pod as it would be stored, and store nothing.

        Raises: Invalid; Denied: a quota, a policy; Conflict: its name; NotFound: its namespace.
        """
        ...


class Recreation(Protocol):
    """Pods recreated."""

    async def recreate(self, pod: core.Pod, *, grace_s: int | None) -> core.Pod:
        """End a pod and make one of the same manifest and name; returns the new one.

        What would be refused is refused first, and the old pod left as it is.
        Raises: Conflict (`PodOwned`): a controller keeps it; NotFound; Invalid; Denied.
        """
        ...


class Logs(Protocol):
    """What containers wrote."""

    def logs(self, pod: core.Pod, container: str, options: LogOptions) -> AsyncGenerator[bytes, None]:
        """Yield a run's output.

        Raises: Conflict (`ContainerNotStarted`); NotFound; Denied; Unavailable: its kubelet does not answer.
        """
        ...


class Streams(Protocol):
    """Connections into running containers."""

    async def exec(
        self,
        pod: core.Pod,
        container: str,
        argv: tuple[str, ...],
        *,
        tty: bool,
        stdin: bool,
        options: ProcessOptions = AS_THE_CONTAINER,
    ) -> Session:
        """Run one more process.

        Raises: NotFound; Conflict (`ContainerNotRunning`); Denied; Invalid: no such program; RequestError
        (`NotOnCluster`): a user, which an API server cannot be asked for.

        Closing the session ends the process where the kubelet is ours; others leave it to notice its closed streams.
        """
        ...

    async def attach(self, pod: core.Pod, container: str, *, stdin: bool, replay: bool = False) -> Session:
        """Join a container's first process: its output from now on, its input where it has one (`stdin`).

        Closing the session leaves the process running; without a terminal its input ends.
        Args:   replay: what it wrote before comes first, where the node is ours; one that has ended is replayed too.
        Raises: as `exec`; Conflict (`StdinClosed`): its standard input is not open.
        """
        ...

    async def port_forward(self, pod: core.Pod, port: int) -> Connection:
        """Connect to a port on the pod's own loopback. Raises: NotFound; Conflict (`ContainerNotRunning`); Denied."""
        ...
