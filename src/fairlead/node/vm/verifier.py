"""Verifies GPUs that are passed through in a virtual machine of the node's own, since no driver here could read them.

GPUs that come at about the same time go into one machine: booting it is most of the cost. They are let go of by the
third gate for as long as the machine has them; the ledger gives none of them away meanwhile. The machine boots an image
that is named with its digest, has no network, and writes one report, which is held against the functions that it got.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final

from fairlead import errors, telemetry
from fairlead.frozen import frozen
from fairlead.model.driver import PassthroughGPU
from fairlead.node.vm import emulator, options
from fairlead.plan.lease import guestevidence
from fairlead.wire.fairlead import guestreport
from fairlead.wire.fairlead.guestreport import GPUReport
from fairlead.wire.qemu import pcibuses
from fairlead.wire.qemu.machine import MOST_FUNCTIONS

TOGETHER_S: Final = 0.5
"""How long a first GPU waits for others of its slot to be announced; they are given back at about the same time."""
PATIENCE_S: Final = 30.0
"""How long it waits for those that were: each is reset before, in seconds or not at all."""

Lend = Callable[[Collection[str]], AbstractAsyncContextManager[None]]
"""Lets go of GPUs, by key, for the length of a block, at whose end they are in our hands again.

Raises: Conflict: one cannot be taken back.
"""


@frozen
class Options(options.Options):
    """How the machine is made and waited for."""

    limit_s: float
    """For one machine, from its start to its report."""


@frozen
class Reading:
    """What was read of one GPU."""

    reported: GPUReport
    driver: str
    """Of the guest."""
    image: str
    """Digest of the image."""
    seconds: float
    """That the machine ran, for all of its GPUs."""


class MachineVerifier:
    """Reads passed-through GPUs, several in one machine."""

    def __init__(self, options: Options, lend: Lend) -> None:
        """Start nothing yet."""
        self._options, self._lend = options, lend
        self._waiting: dict[str, tuple[PassthroughGPU, asyncio.Future[Reading]]] = {}
        self._expected: set[str] = set()
        """Keys of GPUs that are on their way here."""
        self._arrived = asyncio.Event()
        """Set whenever one of those has come, or will not."""
        self._turn = asyncio.Lock()

    @contextlib.contextmanager
    def expecting(self, key: str) -> Iterator[None]:
        """Have others wait for a GPU that will be read in this block, or whose block ends without."""
        self._expected.add(key)
        try:
            yield
        finally:
            self._drop(key)

    def _drop(self, key: str) -> None:
        self._expected.discard(key)
        self._arrived.set()

    async def _gather(self) -> None:
        """Wait until the GPUs that were announced are here."""
        await asyncio.sleep(TOGETHER_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while self._expected:
                    self._arrived.clear()
                    await self._arrived.wait()

    async def read(self, gpu: PassthroughGPU) -> Reading:
        """Return what a machine reads of a GPU that is clean and in our hands.

        Raises: FairleadError: it was not read. DeviceFault (`MachineStuck`): its machine has it still.
        """
        future: asyncio.Future[Reading] = asyncio.get_running_loop().create_future()
        self._waiting[str(gpu.key)] = gpu, future
        self._drop(str(gpu.key))
        try:
            await self._gather()
            async with self._turn:
                if not future.done():
                    await self._run(str(gpu.key))
            return future.result()
        finally:
            self._waiting.pop(str(gpu.key), None)

    async def _run(self, first: str) -> None:
        """Read the GPUs that wait, as many as one machine has places for; each is answered."""
        keys = sorted(self._waiting, key=lambda key: key != first)[:MOST_FUNCTIONS]
        batch = {key: self._waiting.pop(key) for key in keys}
        gpus = {key: gpu for key, (gpu, _) in batch.items()}
        try:
            found = await self._read_all(gpus)
        except errors.FairleadError as error:
            _answer(batch, error)
        except BaseException:
            # The first one's limit ends the machine of all, as does a fault of ours; the others are read again.
            message = "the verifier's machine was given up with that of another GPU"
            _answer(batch, errors.Unavailable(message, reason=emulator.SILENT, hint="it is tried again"))
            raise
        else:
            _answer(batch, found)

    async def _read_all(self, gpus: Mapping[str, PassthroughGPU]) -> Mapping[str, Reading]:
        made = await asyncio.to_thread(options.read_image, self._options)
        nonce = secrets.token_hex(16)
        describe = functools.partial(
            options.describe,
            self._options,
            made,
            name=f"fairlead-verifier-{nonce[:8]}",
            addresses=[one.address for one in gpus.values()],
            # Groups where there are some: several functions of one group go to one machine that way alone.
            with_iommufd=not all(one.group_nodes for one in gpus.values()),
            words=(f"fairlead.nonce={nonce}",),
        )
        begun = asyncio.get_running_loop().time()
        async with self._lend(gpus.keys()):

            async def use(running: emulator.Running) -> Mapping[str, Reading]:
                return await self._take_report(running, gpus, nonce, made.digest, begun)

            return await emulator.run_machine(lambda *ports: describe(ports), use, limit_s=self._options.limit_s)

    async def _take_report(
        self, running: emulator.Running, gpus: Mapping[str, PassthroughGPU], nonce: str, digest: str, begun: float
    ) -> Mapping[str, Reading]:
        line = await running.read_report(self._options.limit_s)
        seconds = asyncio.get_running_loop().time() - begun
        places = pcibuses.parse_places(await running.ask("query-pci"))
        at = {places.get(f"function{number}", ""): key for number, key in enumerate(gpus)}
        report = guestreport.parse(line)
        found = guestevidence.match(report, nonce, at)
        telemetry.log.info("gpus read by a machine", gpu=",".join(gpus), duration_s=round(seconds, 3))
        return {
            key: Reading(reported=one, driver=report.driver, image=digest, seconds=seconds)
            for key, one in found.items()
        }


def _answer(
    batch: Mapping[str, tuple[PassthroughGPU, asyncio.Future[Reading]]],
    found: Mapping[str, Reading] | errors.FairleadError,
) -> None:
    for key, (_, future) in batch.items():
        if future.done():
            continue
        if isinstance(found, errors.FairleadError):
            future.set_exception(found)
            future.exception()  # one that nobody waits for any more was cancelled: it is no error of the program
        else:
            future.set_result(found[key])
