"""dcgm-exporter's list of counters is read as it is, and what is wrong with it is named by its line."""

from __future__ import annotations

import re

import pytest

from fairlead.wire.nvidia import counters

LIST = b"""# Format
# DCGM FIELD, Prometheus metric type, help message

# Clocks
DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder utilization (in %).
DCGM_FI_DEV_XID_ERRORS, gauge, "Value of the last XID error, if any."
DCGM_FI_DRIVER_VERSION,        label, Driver Version
DCGM_EXP_XID_ERRORS_COUNT, gauge, Count of XID errors
"""


def test_the_vendors_way_to_write_a_list_is_read() -> None:
    found, problems = counters.read(LIST)
    assert not problems
    assert [(one.field, one.kind) for one in found] == [
        ("DCGM_FI_DEV_SM_CLOCK", "gauge"),
        ("DCGM_FI_DEV_DEC_UTIL", "gauge"),
        ("DCGM_FI_DEV_XID_ERRORS", "gauge"),
        ("DCGM_FI_DRIVER_VERSION", "label"),
        ("DCGM_EXP_XID_ERRORS_COUNT", "gauge"),
    ]
    assert found[2].text == "Value of the last XID error, if any."
    assert counters.is_list(LIST)
    assert not counters.is_list(b"version: v1\nsharing: {}\n")
    assert not counters.is_list(b"")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"DCGM_FI_DEV_GPU_TEMP, gauge", "line 1: .*1 columns"),
        (b"DCGM_FI_DEV_GPU_TEMP, gauge, a, b", "line 1: .*3 columns"),
        (b"# x\nDCGM_FI_DEV_GPU_TEMP, meter, T", 'line 2: type "meter"'),
        (b"gpu_temp, gauge, T", 'line 1: "gpu_temp" is not the name of a field'),
        (b"DCGM_FI_DEV_GPU_TEMP, gauge, T\nDCGM_FI_DEV_GPU_TEMP, gauge, T", "line 2: .*on line 1 already"),
        (b"DCGM_FI_DEV_GPU_TEMP, gauge, \x1b[31m", "line 1: .*printed"),
        (b'DCGM_FI_DEV_GPU_TEMP, gauge, "open', "line 1"),
        (b"\xff\xfe", "UTF-8"),
        (b"x" * (counters.LARGEST_BYTES + 1), "larger"),
    ],
)
def test_what_is_wrong_is_named_by_its_line(text: bytes, problem: str) -> None:
    found, problems = counters.read(text)
    assert len(problems) == 1
    assert re.search(problem, problems[0])
    assert len(found) == text.startswith(b"DCGM_FI_DEV_GPU_TEMP, gauge, T\n")
