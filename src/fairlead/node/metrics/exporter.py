"""Exposes this node's GPUs under DCGM's metric names, with the containers that hold them.

Samples are taken when a scraper asks, at most once a second: nothing runs where none does. Who holds what is the
kubelet's list that the agent keeps anyway (one connection); each page asks for a newer list, so a pod's series end with
the page after its end. A GPU that hangs is missing from the page and delays it by two seconds at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fairlead import errors, files, telemetry
from fairlead.model.gpu import EventKind, GPUEvent
from fairlead.model.ids import GPUUUID
from fairlead.model.sample import Sample
from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import latest
from fairlead.plan.gpu import deviceids
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.metrics import chosen, dcgm, holder
from fairlead.silicon.port import Sampler
from fairlead.wire.nvidia import counters
from fairlead.wire.nvidia.counters import Counter
from fairlead.wire.text import exposition

FRESH_S: Final = 1.0
WITHIN_S: Final = 2.0
"""How long a page waits for a GPU."""
_MOST_CODES: Final = 64
"""XID codes kept of each GPU, the newest ones; the catalogue has some 150, of which a GPU reports a handful."""


class XIDCounts:
    """How often each GPU reported each XID error since the agent began."""

    def __init__(self) -> None:
        self.by_gpu: dict[GPUUUID, dict[int, int]] = {}
        """The newest code stands last."""

    def note(self, event: GPUEvent) -> None:
        """Count an event, if it is an XID error of a GPU."""
        if event.kind is not EventKind.XID or event.uuid is None or event.xid is None:
            return
        codes = self.by_gpu.setdefault(event.uuid, {})
        count = codes.pop(event.xid, 0)  # taken out and put in again: so it stands last
        codes[event.xid] = count + 1
        if len(codes) > _MOST_CODES:
            del codes[next(iter(codes))]


class Exporter:
    """Makes the page."""

    def __init__(
        self,
        node: str,
        sampler: Sampler,
        *,
        snapshots: latest.Latest[Snapshot],
        holdings: podresources.Holdings,
        xids: XIDCounts,
        listed: Path | None = None,
        host_label: str = "hostname",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask nothing yet.

        Args:    node: the node's name.   listed: file of what of DCGM's the page shows; None: all.
                 host_label: as `dcgm.Node.host_label`.   clock: monotonic seconds.
        Raises:  as `read_counters`.
        """
        self._node, self._sampler, self._clock = node, sampler, clock
        self._host_label = host_label
        self._snapshots, self._holdings = snapshots, holdings
        self._xids, self._counters = xids, read_counters(listed)
        self._sampling = asyncio.Lock()
        self._samples: tuple[Sample, ...] = ()
        self._sampled_at = -FRESH_S

    async def expose(self) -> bytes:
        """Return the page in Prometheus' text format."""
        self._holdings.ask()
        async with self._sampling:
            if self._clock() - self._sampled_at >= FRESH_S:
                self._samples = await self._sampler.sample(within_s=WITHIN_S)
                self._sampled_at = self._clock()
        snapshot = self._snapshots.value
        table = deviceids.make_table(snapshot.known.values())
        node = dcgm.Node(
            name=self._node,
            gpus=snapshot.inventory.gpus,
            unreadable=snapshot.inventory.unreadable,
            drivers=snapshot.inventory.drivers,
            verdicts=snapshot.verdicts,
            holders=holder.find_holders(self._holdings.latest.value or (), table),
            xids=self._xids.by_gpu,
            host_label=self._host_label,
        )
        families = dcgm.families(node, self._samples)
        if self._counters is not None:
            families = list(chosen.choose(families, self._counters))
        return exposition.emit(families).encode()


def read_counters(path: Path | None) -> tuple[Counter, ...] | None:
    """Read dcgm-exporter's list of counters, None: there is none; what shows nothing here is logged.

    Raises: NotFound: it cannot be read.   Invalid: it is not such a list.
    """
    if path is None:
        return None
    try:
        data = files.read_bounded(path)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        hint = "set FAIRLEAD_NODE_METRICS_COUNTERS to dcgm-exporter's list, or leave it out"
        raise errors.NotFound(message, reason="CountersUnreadable", hint=hint) from error
    found, problems = counters.read(data)
    if problems:
        hint = "`fairlead agent check FILE` says what a list shows"
        raise errors.Invalid(f"{path}: {'; '.join(problems)}", reason="CountersInvalid", hint=hint)
    if unknown := chosen.find_unknown(found):
        names = ", ".join(one.field for one in unknown)
        telemetry.log.warning("counters not shown", path=str(path), error=f"not read from NVML: {names}")
    return found
