"""What the tests of selectors share: a device, and what an expression gives for it."""

from __future__ import annotations

from typing import Final

from fairlead.plan.cel import compile as cel
from fairlead.plan.cel.device import DeviceView, Version
from fairlead.plan.cel.value import Value

A: Final = 'device.attributes["d.com"]'
C: Final = 'device.capacity["d.com"]'
DEVICE: Final = DeviceView(
    driver="d.com",
    attributes={
        "text": "fish",
        "count": 2,
        "flag": True,
        "version": Version("1.2.3"),
        "numbers": [3, 1, 2],
        "names": ["b", "a"],
        "other.com/text": "bird",
    },
    capacity={"memory": "1Gi"},
)


def value(text: str, release: str = "1.37", device: DeviceView = DEVICE) -> Value:
    """Return what an expression gives."""
    return cel.compile_selector(text, release=release).evaluate(device).value


def cost(text: str, release: str = "1.37") -> int:
    """Return what evaluating an expression costs."""
    return cel.compile_selector(text, release=release).evaluate(DEVICE).cost
