"""Breaks simulated silicon: this machine's, or a cluster node's through the container of its agent.

On a cluster the fault is a program run in the agent's container, by the API server's exec and with the caller's own
rights: no object, label or annotation carries it, so only who may exec there can break anything. The agent serves it
on a socket of its own (`serve.v1.gpus.faultsocket`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from fairlead import errors
from fairlead.silicon import port
from fairlead.store import subresource
from fairlead.store.port import Selector, Store
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.gpudevice import GPUDevice

AGENT: Final = {"app.kubernetes.io/part-of": "fairlead", "app.kubernetes.io/component": "agent"}
CONTAINER: Final = "agent"
_MOST: Final = 16 << 10
"""Bytes of the program's output that are kept."""


class FaultInjection(Protocol):
    """Simulated silicon that can be broken."""

    async def inject(self, fault: str, *, gpu: int | None, value: str | None, node: str | None) -> str:
        """Apply one fault and return a line saying what was done.

        Args:    node: whose silicon; None: the only one there is.
        Raises:  Invalid: unknown fault, GPU or value, or several nodes to choose from; NotFound: no such node;
                 Conflict (`SiliconReal`); Denied: the caller may not run programs in the agent's container.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFaults:
    """A `FaultInjection` on this machine."""

    faults: port.Faults
    node: str

    async def inject(self, fault: str, *, gpu: int | None, value: str | None, node: str | None) -> str:
        """See `FaultInjection.inject`."""
        if node and node != self.node:
            message = f'node "{node}" is not this one, which is "{self.node}"'
            raise errors.NotFound(message, reason="NodeUnknown", hint="leave --node out")
        return await asyncio.to_thread(self.faults.inject, fault, gpu=gpu, value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFaults:
    """A `FaultInjection` through the agents of a cluster."""

    store: Store
    streams: subresource.Streams

    async def inject(self, fault: str, *, gpu: int | None, value: str | None, node: str | None) -> str:
        """See `FaultInjection.inject`."""
        chosen = await self._choose_node(node)
        agent = await self._find_agent(chosen)
        index = () if gpu is None else ("--gpu", str(gpu))
        argv = ("fairlead", "simulate", "fault", *index, "--", fault, *(() if value is None else (value,)))
        session = await self.streams.exec(agent, CONTAINER, argv, tty=False, stdin=False)
        try:
            said = await _read(session)
            code = await session.wait()
        finally:
            await session.close()
        if code:
            message = f"the agent of node {chosen} did not do it: {said or f'exit code {code}'}"
            raise errors.Invalid(message, reason="FaultRefused", hint="`fairlead simulate faults` lists what there is")
        return f"{chosen}: {said}"

    async def _choose_node(self, node: str | None) -> str:
        """Return the node whose silicon is meant, which is simulated. Raises: NotFound, Invalid, Conflict."""
        devices = (await self.store.list(GPUDevice)).items
        simulated = {one.spec.node_name: one.spec.simulated for one in devices}
        nodes = ", ".join(sorted(name for name, is_simulated in simulated.items() if is_simulated)) or "none"
        if node is None:
            if len(simulated) != 1:
                message = f"--node says whose silicon: {len(simulated)} nodes have GPUs (simulated: {nodes})"
                raise errors.Invalid(message, reason="NodeNeeded", hint="`fairlead nodes` lists them")
            (node,) = simulated
        if node not in simulated:
            message = f'no GPUs are published of node "{node}" (simulated: {nodes})'
            raise errors.NotFound(message, reason="NodeUnknown", hint="`fairlead nodes` lists them")
        if not simulated[node]:
            message = f"the silicon of node {node} is real: it is not broken on command"
            hint = "`helm upgrade --set silicon.simulate=h100x8` on a cluster for trying"
            raise errors.Conflict(message, reason="SiliconReal", hint=hint)
        return node

    async def _find_agent(self, node: str) -> core.Pod:
        pods = (await self.store.list(core.Pod, Selector(labels=AGENT, fields={"spec.nodeName": node}))).items
        for pod in pods:
            if any(one.name == CONTAINER and one.state.running is not None for one in pod.status.container_statuses):
                return pod
        message = f"no agent runs in a pod of node {node}"
        hint = "`kubectl get pods -A -l app.kubernetes.io/component=agent -o wide`; on the node: `fairlead simulate …`"
        raise errors.Unavailable(message, reason="AgentMissing", hint=hint)


async def _read(session: subresource.Session) -> str:
    said = b""
    while chunk := await session.read():
        said = (said + chunk)[:_MOST]
    return said.decode("utf-8", "replace").strip()
