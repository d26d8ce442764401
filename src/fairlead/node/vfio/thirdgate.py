"""Keeps the VFIO nodes of GPUs open that nobody holds by the ledger, so that no virtual machine can use them.

The ledger refuses a second tenant (the first gate), and a GPU that is not held is in no CDI spec (the second). Neither
stops who has a path to its node already: a machine that outlived its pod, a container whose sandbox is made anew, a
program of an administrator's. The kernel does, as long as this process has the node open (`kernel.vfionode`).

A GPU's node is let go once the ledger says Held, on disk, and taken again before the ledger may say Dirty. That it
could be taken is the proof that the last machine is gone. When the agent dies the kernel closes what it had open, and
the other two gates stand.

An open waits for a reset that is under way, and for ever where the board does not come out of it. So each runs in a
thread of its own, is given up after `PATIENCE_S`, and costs no other GPU anything; what it brings late is kept if it is
still wanted, else closed. All that is remembered here is touched by the event loop alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from fairlead import daemonthread, errors, telemetry
from fairlead.model.driver import PassthroughGPU

PATIENCE_S: Final = 2.0
"""How long a round waits for one node; a reset at the close of the last user takes 0.1 s a function."""
HANGS: Final = "VFIONodeHangs"
CHANGED: Final = "VFIONodeChanged"


class Hold(Protocol):
    """What keeps a GPU from everybody else until it is closed."""

    def close(self) -> None:
        """Let go; idempotent."""
        ...


TakeHold = Callable[[PassthroughGPU], Hold]
"""Takes a GPU's nodes, called in a thread. Raises: Conflict: somebody has it; FairleadError: it cannot be taken."""


class ThirdGate:
    """Holds the nodes of this machine's passthrough GPUs."""

    def __init__(self, take_hold: TakeHold, *, patience_s: float = PATIENCE_S) -> None:
        """Hold none yet."""
        self._take_hold, self._patience_s = take_hold, patience_s
        self._gpus: Mapping[str, PassthroughGPU] = {}
        self._holds: Final[dict[str, Hold]] = {}
        self._given: frozenset[str] = frozenset()
        """Keys of GPUs that the ledger has given away: none of them is held here."""
        self._opening: Final[dict[str, asyncio.Future[Hold]]] = {}
        self._lent: set[str] = set()
        """Keys of GPUs that a machine of this node's own has: they are in our hands, and open by its emulator."""
        self._is_closed = False

    def update(self, gpus: Iterable[PassthroughGPU]) -> None:
        """Know these GPUs from now on. One whose nodes are others is let go of: what is held is not it any more."""
        known = {str(gpu.key): gpu for gpu in gpus}
        for key in [one for one in self._holds if _nodes(known.get(one)) != _nodes(self._gpus.get(one))]:
            self._holds.pop(key).close()
        self._gpus = known

    @property
    def known(self) -> tuple[str, ...]:
        """Return the keys of all GPUs that are passed through."""
        return tuple(self._gpus)

    def find(self, key: str) -> PassthroughGPU | None:
        """Return a GPU that is passed through; None: it is not."""
        return self._gpus.get(key)

    @property
    def gpus(self) -> tuple[PassthroughGPU, ...]:
        """Return this machine's GPUs that are passed through."""
        return tuple(self._gpus.values())

    @property
    def held(self) -> frozenset[str]:
        """Return the keys of the GPUs that are held now."""
        return frozenset(self._holds)

    def give(self, keys: Collection[str]) -> None:
        """Let go of the GPUs that the ledger has given away, and of no other; its transaction must be on disk.

        Args: keys: every GPU that a tenant has now.
        """
        self._given = frozenset(keys)
        for key in [one for one in self._holds if one in self._given]:
            telemetry.crash_point("vfio.before-let-go")
            self._holds.pop(key).close()
            telemetry.crash_point("vfio.after-let-go")

    async def take(self, keys: Iterable[str]) -> dict[str, errors.FairleadError]:
        """Hold GPUs; returns by key why one cannot be held. A GPU that is given away is left alone."""
        away = self._given | self._lent
        due = [key for key in keys if key in self._gpus and key not in self._holds and key not in away]
        told = await asyncio.gather(*map(self._take, due))
        return {key: error for key, error in zip(due, told, strict=True) if error is not None}

    @contextlib.asynccontextmanager
    async def lend(self, keys: Collection[str]) -> AsyncIterator[None]:
        """Let a machine of this node's own have GPUs that are held, for the length of a block.

        Raises: Conflict, FairleadError: one is not held, or cannot be taken back at the end.
        """
        if missing := sorted(frozenset(keys) - self._holds.keys()):
            message = f"{', '.join(missing)} is not in our hands, so no machine of ours may have it"
            raise errors.Conflict(message, reason=CHANGED, hint="it is tried again once its nodes are taken")
        for key in keys:
            self._lent.add(key)
            self._holds.pop(key).close()
        try:
            yield
        finally:
            self._lent -= frozenset(keys)
            refused = await self.take(keys)
        for key, error in refused.items():
            telemetry.log.warning("gpu not taken back from our machine", gpu=key, error=error.message)
            raise error

    async def _take(self, key: str) -> errors.FairleadError | None:
        gpu = self._gpus[key]
        pending = self._opening.get(key) or self._start(key, gpu)
        try:
            async with asyncio.timeout(self._patience_s):
                await asyncio.shield(pending)
        except TimeoutError:
            message = f"{gpu.address} was not opened within {self._patience_s:g} s"
            hint = "a reset of it hangs: see dmesg; the machine may have to be started anew"
            return errors.DeviceFault(message, reason=HANGS, hint=hint)
        except errors.FairleadError as error:
            telemetry.log.debug("gpu cannot be held", gpu=key, reason=error.reason, error=error.message)
            return error
        if key in self._holds or key in self._given:
            return None
        return errors.Conflict(f"{gpu.address} has other nodes than when it was opened", reason=CHANGED)

    def _start(self, key: str, gpu: PassthroughGPU) -> asyncio.Future[Hold]:
        call = daemonthread.start(f"vfio-{gpu.address}", lambda: self._take_hold(gpu), ended=lambda: None)
        self._opening[key] = pending = asyncio.wrap_future(call)
        pending.add_done_callback(lambda done: self._opened(key, gpu, done))
        return pending

    def _opened(self, key: str, gpu: PassthroughGPU, done: asyncio.Future[Hold]) -> None:
        """Keep what was opened, if it is wanted still: the GPU may have been given away or bound anew meanwhile."""
        self._opening.pop(key, None)
        if done.cancelled() or done.exception() is not None:
            return
        is_wanted = key not in self._given and not self._is_closed and _nodes(self._gpus.get(key)) == _nodes(gpu)
        if is_wanted and key not in self._holds:
            self._holds[key] = done.result()
            telemetry.crash_point("vfio.after-take")
        else:
            done.result().close()

    def close(self) -> None:
        """Let go of all, and of what is still being opened once it is."""
        self._is_closed = True
        while self._holds:
            self._holds.popitem()[1].close()


def _nodes(gpu: PassthroughGPU | None) -> tuple[str, ...]:
    return () if gpu is None else tuple(node.host_path for node in (*gpu.group_nodes, *gpu.iommufd_nodes))
