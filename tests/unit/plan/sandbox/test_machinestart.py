"""Parts of a machine's start: they add up, whatever was seen, and a guest's words move nothing that the host saw."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.sandbox import machinestart
from fairlead.plan.sandbox.machinestart import MachineTimes

SEEN = MachineTimes(began_at=10, runs_at=12, kernel_at=15, driver_at=17, agent_at=20)


def shown(times: MachineTimes, begin: float = 8, end: float = 25) -> list[tuple[str, float]]:
    return [(name, until - at) for name, at, until in machinestart.parts(times, begin, end)]


def test_each_part_ends_where_the_next_begins() -> None:
    assert shown(SEEN) == [
        *(("engine", 2), ("QEMU", 2), ("firmware", 3), ("kernel and init", 2), ("driver", 3), ("container", 5)),
    ]


def test_a_part_whose_end_was_not_seen_is_in_the_one_after_it() -> None:
    emulated = MachineTimes(began_at=10, kernel_at=15, agent_at=20)
    assert shown(emulated) == [("engine", 2), ("firmware", 5), ("kernel and init", 5), ("container", 5)]
    assert shown(MachineTimes(began_at=10)) == [("engine", 2), ("container", 15)]
    assert shown(MachineTimes(began_at=10, driver_at=17)) == [("engine", 2), ("kernel and init", 7), ("container", 8)]
    assert shown(MachineTimes(began_at=5, runs_at=26)) == [("container", 17)]


_AT = st.none() | st.floats(min_value=-1e12, max_value=1e12)


@given(st.floats(0, 100), _AT, _AT, _AT, _AT)
def test_parts_add_up_and_keep_their_order(
    began: float, runs: float | None, kernel: float | None, driver: float | None, agent: float | None
) -> None:
    times = MachineTimes(began_at=began, runs_at=runs, kernel_at=kernel, driver_at=driver, agent_at=agent)
    found = list(machinestart.parts(times, 5, 95))
    assert sum(until - at for _, at, until in found) == pytest.approx(90)
    assert [one[1] for one in found[1:]] == [one[2] for one in found[:-1]]
    names = [one[0] for one in found]
    assert names == [name for name in machinestart.NAMES if name in names]


def test_facts_are_read_back_and_others_facts_are_none() -> None:
    assert machinestart.of_facts(SEEN.facts()) == SEEN
    assert machinestart.of_facts({}) is None
    assert machinestart.of_facts({"began_at": "nan", "agent_at": 3}) is None
    assert machinestart.of_facts({"began_at": 1, "agent_at": [], "runs_at": True, "x": 2}) == MachineTimes(began_at=1)


METRICS = """\
# HELP kata_guest_cpu_time Guest CPU stat.
# TYPE kata_guest_cpu_time gauge
kata_guest_cpu_time{cpu="0",item="user"} 100
kata_guest_cpu_time{cpu="0",item="guest"} 100
kata_guest_cpu_time{cpu="0",item="idle"} 900
kata_guest_cpu_time{cpu="1",item="idle"} 5000
kata_guest_cpu_time{cpu="total",item="idle"} 5900
kata_agent_process_start_time_seconds 1016.5
"""


def test_the_guests_kernel_began_as_long_ago_as_its_first_processor_has_counted() -> None:
    assert machinestart.parse_guest(METRICS, asked_at=1020, began_at=1005) == (1010, 1016.5)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", (None, None)),
        (METRICS.replace(" 900", " 90000"), (None, 1016.5)),
        (METRICS.replace(" 900", " NaN"), (1019, 1020)),
        (METRICS.replace(" 900", " -1e300"), (1019, 1020)),
        (METRICS.replace("1016.5", "1e308"), (1010, 1020)),
        (METRICS.replace("1016.5", "1009"), (1010, 1020)),
        (METRICS.replace("1016.5", "\x1b[31m"), (1010, None)),
        ("\0" * 100 + METRICS.replace("\n", "\r"), (1010, 1016.5)),
        ("x{" * 100_000, (None, None)),
    ],
)
def test_a_time_that_cannot_be_is_left_out(text: str, found: tuple[float | None, float | None]) -> None:
    assert machinestart.parse_guest(text, asked_at=1020, began_at=1005) == found


@given(st.text(max_size=300))
def test_a_guest_may_say_anything(text: str) -> None:
    for at in machinestart.parse_guest(METRICS + text, asked_at=1020, began_at=1005):
        assert at is None or 1005 <= at <= 1020
