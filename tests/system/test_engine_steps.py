"""A million random steps of the scheduling engine: no GPU is given twice, and nothing is lost."""

from __future__ import annotations

import pytest

from tests.unit.plan.schedule.engine import test_engine


@pytest.mark.slow
def test_a_million_random_steps_give_no_gpu_twice() -> None:
    test_engine.take_random_steps(1_000_000)
