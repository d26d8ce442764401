"""Whether gVisor knows a driver, by what its own program prints."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.plan.sandbox import nvproxy

PRINTED = "535.129.03\n535.183.06\n550.90.12\n570.124.06\n570.133.20\n620.06.00\n"
KNOWN = nvproxy.parse_drivers(PRINTED)


def found(told: str = "", *, is_trusting: bool = False, drivers: tuple[str, ...] = KNOWN) -> nvproxy.GVisor:
    return nvproxy.GVisor(program="/x/runsc", version="20260905.0", drivers=drivers, told=told, is_trusting=is_trusting)


def test_every_release_that_is_printed_is_read_and_nothing_else() -> None:
    assert tuple(PRINTED.split()) == KNOWN
    assert nvproxy.parse_drivers("W1129 warning: 1.2.3\n\x1b[1m550.90.12\n 550.54.14 \n" + "9" * 10_000) == (
        "550.54.14",
    )


@pytest.mark.parametrize(
    ("gvisor", "driver"),
    [
        (found(), "570.133.20"),
        (found(), ""),
        (found(told="550.90.12"), "550.163.01"),
        (found(is_trusting=True), "595.10"),
        (found(drivers=()), ""),
    ],
)
def test_a_driver_that_gvisor_knows_or_is_told_to_take_passes(gvisor: nvproxy.GVisor, driver: str) -> None:
    assert nvproxy.refusal(gvisor, driver) is None


@pytest.mark.parametrize(
    ("gvisor", "driver", "says"),
    [
        (found(), "550.163.01", "driver 550.163.01 is none that gVisor 20260905.0 knows (closest: 550.90.12, "),
        (found(), "571.1", "closest: 570.124.06"),
        (found(told="550.1"), "570.133.20", "driver 550.1 is none"),
        (found(), "no.number", "closest: 535"),
        (found(drivers=()), "570.133.20", "has no nvproxy"),
    ],
)
def test_one_that_it_does_not_know_is_refused_with_the_closest(gvisor: nvproxy.GVisor, driver: str, says: str) -> None:
    refused = nvproxy.refusal(gvisor, driver)
    assert isinstance(refused, errors.Unavailable)
    assert refused.reason == "DriverUnsupported"
    assert says in refused.message


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('exec runsc --nvproxy-driver-version=570.133.20 "$@"', ("570.133.20", False)),
        ("exec runsc '--nvproxy-driver-version' '570.1' x", ("", False)),
        ("exec runsc --nvproxy-driver-version '570.1' x", ("570.1", False)),
        ("exec runsc --nvproxy-allow-unsupported-driver x", ("", True)),
        ("exec runsc --nvproxy-allow-unsupported-driver=false x", ("", False)),
        ("", ("", False)),
    ],
)
def test_options_of_a_handlers_script_are_read(text: str, read: tuple[str, bool]) -> None:
    assert nvproxy.parse_options(text) == read
