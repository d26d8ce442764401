"""dcgm-exporter's list of counters decides which of DCGM's metrics stand on the page, and nothing about ours."""

from __future__ import annotations

from fairlead.plan.metrics import chosen
from fairlead.wire.nvidia import counters
from fairlead.wire.text import exposition

UTIL, POWER, OWN = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", "fairlead_gpu_holders"


def family(name: str) -> exposition.Family:
    return exposition.Family(name=name, kind="gauge", text=f"text of {name}", series=[("gpu=0", 1.0)])


def listed(text: str) -> tuple[counters.Counter, ...]:
    found, problems = counters.read(text.encode())
    assert problems == ()
    return found


def test_a_list_chooses_order_types_and_texts_and_our_own_metrics_stay() -> None:
    wanted = listed(f"{POWER}, counter, watts\n{UTIL}, gauge,\n{chosen.DRIVER_VERSION}, label, driver\n")
    shown = list(chosen.choose([family(UTIL), family(OWN), family(POWER)], wanted))
    assert [(one.name, one.kind, one.text) for one in shown] == [
        (POWER, "counter", "watts"),
        (UTIL, "gauge", f"text of {UTIL}"),
        (OWN, "gauge", f"text of {OWN}"),
    ]


def test_what_a_list_leaves_out_or_nothing_measures_has_no_series() -> None:
    shown = chosen.choose(
        [family(UTIL), family(POWER)], listed(f"DCGM_FI_DEV_VGPU_MEMORY_USAGE, gauge, x\n{UTIL}, gauge, y\n")
    )
    assert [one.name for one in shown] == [UTIL]


def test_lines_that_show_nothing_are_named() -> None:
    wanted = listed(f"{UTIL}, gauge, x\nDCGM_FI_DEV_NOSUCH, gauge, y\n{UTIL[:-4]}NAME, label, z\n")
    assert [one.line for one in chosen.find_unknown(wanted)] == [2, 3]
    assert chosen.find_unknown(listed(f"{chosen.DRIVER_VERSION}, label, driver\n")) == ()
