"""Carrying MIG changes out: no step is passed over."""

from __future__ import annotations

from typing import cast

import pytest

from fairlead.model.ids import GPUUUID
from fairlead.model.mig import Partition
from fairlead.node.mig import apply
from fairlead.plan.mig import change
from fairlead.silicon.port import Partitioner


async def test_a_step_that_nothing_carries_out_is_an_error() -> None:
    gpu = Partition(
        gpu=GPUUUID("GPU-0"),
        index=0,
        name="NVIDIA H100 80GB HBM3",
        pci_bus_id="0000:19:00.0",
        device_filter="0x233010DE",
        profiles=(),
        is_enabled=True,
        is_pending=True,
        instances=(),
    )
    step = change.Step(act=change.Act.DESTROY_INSTANCE)  # of which instance?
    nothing = cast(Partitioner, object())
    with pytest.raises(AssertionError, match="lacks what its act needs"):
        await apply.apply_changes(nothing, (change.Change(gpu=gpu, steps=(step,)),))
