"""Finds which container engine and release serves this node's kubelet.

Three can, in this order: the Node object, where the kubelet itself wrote it; the operator, by a setting; the engine, on
the socket of its container runtime interface. An answer without a release is no answer. Sockets are asked only while
neither of the others says anything, and again every minute, since an engine may be replaced under a running agent.
Where several engines answer, each may be the kubelet's: all of them are the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fairlead import errors, telemetry
from fairlead.node.inventory import latest
from fairlead.plan.gpu.allocation import enginesupport
from fairlead.wire.kubelet import engineversion

SOCKETS: Final = (
    "run/containerd/containerd.sock",
    "run/k3s/containerd/containerd.sock",
    "run/crio/crio.sock",
    "run/cri-dockerd.sock",
)
"""Where engines serve kubelets, below the node's root. Source: kubernetes.io, "Container Runtimes"; docs.k3s.io."""
_TIMEOUT_S: Final = 2.0
_UNKNOWN_WAIT_S: Final = 2.0
_KNOWN_WAIT_S: Final = 60.0


class KubeletEngine:
    """What is known of the engine, live."""

    def __init__(self, stated: str = "", *, root: Path = Path("/")) -> None:
        """Take what the operator or the caller says (empty: nothing), and where the node's root is seen."""
        self._by_node = self._by_operator = ""
        self._by_socket: tuple[str, ...] = ()
        self._sockets = tuple(root / socket for socket in SOCKETS)
        self._by_operator = stated if enginesupport.has_release(stated) else ""
        self.engines: latest.Latest[tuple[str, ...]] = latest.Latest(())
        """In the words of a Node's `containerRuntimeVersion`; empty: not known."""
        self._judge()

    async def run(self, node: latest.Latest[str] | None) -> None:
        """Find out for ever. Args: node: what the Node object says; None: there is no API server to ask."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ask_sockets(), name="engine: sockets")
            if node is not None:
                async for said in node.changes():
                    self._by_node = said if enginesupport.has_release(said) else ""
                    self._judge()

    async def _ask_sockets(self) -> None:
        while True:
            if not self._by_node and not self._by_operator:
                self._by_socket = await ask(self._sockets)
                self._judge()
            await asyncio.sleep(_KNOWN_WAIT_S if self.engines.value else _UNKNOWN_WAIT_S)

    def _judge(self) -> None:
        said = self._by_node or self._by_operator
        self.engines.set((said,) if said else self._by_socket)


async def ask(sockets: Sequence[Path]) -> tuple[str, ...]:
    """Return every engine that answers and names its release."""
    found: list[str] = []
    for socket in sockets:
        if not await asyncio.to_thread(socket.is_socket):
            continue
        try:
            found.append(await engineversion.ask(socket, timeout_s=_TIMEOUT_S))
        except errors.FairleadError as error:
            telemetry.log.debug("engine does not say its version", path=str(socket), error=error.message)
    return tuple(dict.fromkeys(one for one in found if enginesupport.has_release(one)))
