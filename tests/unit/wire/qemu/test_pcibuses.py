"""Addresses of functions in a guest, from an answer to query-pci as QEMU 7.2 gives it, and from what is none."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import errors
from fairlead.wire.qemu import pcibuses

_ID: Any = {"device": 9008, "vendor": 4318}


def _device(bus: int, slot: int, name: str, **more: Any) -> dict[str, Any]:
    shown = {"class": 770, "desc": "3D controller"}
    return {
        "bus": bus,
        "slot": slot,
        "function": 0,
        "id": _ID,
        "class_info": shown,
        "regions": [],
        "qdev_id": name,
    } | more


ANSWER = [
    {
        "bus": 0,
        "devices": [
            _device(0, 0, ""),
            _device(0, 4, "port0", pci_bridge={"bus": {"number": 0}, "devices": [_device(1, 0, "function0")]}),
            _device(0, 5, "port1", pci_bridge={"bus": {"number": 0}, "devices": [_device(26, 0, "function1")]}),
            _device(0, 6, "port2", pci_bridge={"bus": {"number": 0}}),
        ],
    }
]


def test_functions_are_found_behind_their_ports() -> None:
    found = pcibuses.parse_places(ANSWER)
    assert found["function0"] == "0000:01:00.0"
    assert found["function1"] == "0000:1a:00.0"
    assert found["port2"] == "0000:00:06.0"
    assert "" not in found


def test_a_chain_of_bridges_ends() -> None:
    device = _device(9, 0, "last")
    for depth in range(200):
        device = _device(1, 0, f"bridge{depth}", pci_bridge={"devices": [device]})
    assert "last" not in pcibuses.parse_places([{"devices": [device]}])


@pytest.mark.parametrize(
    "answer",
    [None, 3, {"devices": []}, [{"devices": [{"bus": 300, "slot": 0, "function": 0}]}], [{"devices": [{"bus": "1"}]}]],
    ids=["nothing", "a-number", "no-list", "bus-300", "text"],
)
def test_anything_else_is_refused(answer: Any) -> None:
    with pytest.raises(errors.ProtocolError) as refused:
        pcibuses.parse_places(answer)
    assert refused.value.reason == "QMPMalformed"
