"""Whether GPUs are idle: only what was measured counts, and a warning has its whole time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fairlead.plan.history.figure import Row, Value
from fairlead.plan.idle import judge
from fairlead.plan.idle.judge import Measured, Verdict, Warned, Window
from fairlead.plan.idle.policy import Policy

_STOP = Policy(action="stop", below_percent=5, after_s=600, warn_s=300)
_WINDOW = Window(since=1000, until=1600)


def _loads(*values: Value, begin: int = 1000) -> list[Row]:
    return [Row(at=begin + 10 * number, weight=1, means=(one,), peaks=(one,)) for number, one in enumerate(values)]


def _judge(container: Sequence[Row] = (), given: Policy = _STOP, **devices: Sequence[Row]) -> Verdict:
    return judge.judge(Measured(devices=devices, container=container), _WINDOW, given)


def test_gpus_that_did_nothing_are_idle() -> None:
    assert _judge(a=_loads(*[0.0] * 60), b=_loads(*[4.9] * 60)).is_idle


def test_one_busy_sample_of_one_gpu_is_use() -> None:
    assert _judge(a=_loads(*[0.0] * 60), b=_loads(*[0.0] * 30, 5.0, *[0.0] * 29)).busy == "b: 5 %"


def test_a_peak_within_a_coarse_bucket_is_use() -> None:
    rows = [
        Row(at=1000 + 60 * n, weight=6, means=(0.1,), peaks=(80.0 if n == 3 else 0.0,), step_s=60) for n in range(10)
    ]
    assert _judge(a=rows).busy


def test_what_another_did_before_is_not_this_ones_use() -> None:
    assert _judge(a=[*_loads(90.0, begin=990), *_loads(*[0.0] * 60)]).is_idle


@pytest.mark.parametrize(
    "rows",
    [
        [],
        _loads(*[None] * 60),
        _loads(*[0.0] * 30, *[None] * 30),
        _loads(*[0.0] * 40, begin=1200)[:20],
        _loads(*[0.0] * 50),
    ],
    ids=["none", "gaps", "half", "short", "stale"],
)
def test_a_lack_of_figures_is_never_idle(rows: Sequence[Row]) -> None:
    found = _judge(a=rows)
    assert not found.is_idle
    assert found.unknown == "no figures of the load of a for all of that time"


def test_a_busy_gpu_counts_where_another_has_no_figures() -> None:
    assert _judge(a=[], b=_loads(*[50.0] * 60)).busy


def _container(cpu: Value, read: Value = 0.0) -> list[Row]:
    values = (cpu, 1e9, 0.0, 0.0, read, 0.0)
    return [Row(at=1000 + 10 * n, weight=1, means=values, peaks=values) for n in range(60)]


def test_work_of_cpus_and_disks_counts_where_that_is_set() -> None:
    idle = _loads(*[0.0] * 60)
    careful = Policy(action="stop", below_percent=5, after_s=600, warn_s=300, cpu_percent=50, io_bytes_s=1e6)
    assert _judge(_container(80.0), a=idle).is_idle
    assert _judge(_container(80.0), careful, a=idle).busy == "it uses 80 % of a CPU"
    assert _judge(_container(1.0, 5e6), careful, a=idle).busy.startswith("it uses 5000000 bytes/s")
    assert _judge(_container(1.0), careful, a=idle).is_idle
    assert _judge(_container(None), careful, a=idle).unknown == "no figures of a CPU of it for all of that time"
    assert _judge((), careful, a=idle).unknown


_IDLE = Verdict()


def test_a_warning_comes_first_and_then_its_whole_time() -> None:
    first = judge.plan(_IDLE, _STOP, None, clock=50.0)
    assert first.warn
    assert first.left_s == 300
    assert not judge.plan(_IDLE, _STOP, Warned(at=50.0), clock=349.9).end
    assert judge.plan(_IDLE, _STOP, Warned(at=50.0), clock=350.0).end


@pytest.mark.parametrize("verdict", [Verdict(busy="a: 9 %"), Verdict(unknown="no figures"), None], ids=str)
def test_what_is_not_idle_any_more_is_never_ended(verdict: Verdict | None) -> None:
    found = judge.plan(verdict, _STOP, Warned(at=0.0), clock=1e9)
    assert found.clear
    assert not found.end
    assert not judge.plan(verdict, _STOP, None, clock=1e9).warn


def test_a_policy_that_warns_ends_nobody() -> None:
    warn = Policy(action="warn", below_percent=5, after_s=600, warn_s=0)
    assert judge.plan(_IDLE, warn, None, clock=0).left_s is None
    assert not judge.plan(_IDLE, warn, Warned(at=0.0), clock=1e9).end
