"""What a Fabric Manager, the agent beside it and the file of its partitions say: answers, calls, lists in bytes."""

from __future__ import annotations

import ctypes
from pathlib import Path

from fairlead import errors
from fairlead.node.fabric import memory
from fairlead.silicon.fabric import abi, message, nvfm
from tests.fabricstub.manager import Manager
from tests.fuzz.doors.text import plain
from tests.fuzz.harness import Door

_GPU = {"module": 1, "uuid": "GPU-1", "pci": "0000:0f:00.0", "links": 18, "most_links": 18, "link_mbps": 26562}
_ANSWER = {
    "partitions": [{"id": 3, "gpus": [_GPU, {**_GPU, "module": 3}], "is_active": True}],
    "failed": [{"is_switch": True, "uuid": "", "pci": "0000:07:00.0", "ports": [1, 2]}],
    "unsupported": [{"id": 1, "modules": [1, 2]}],
}
_ERROR = {"error": {"kind": "Conflict", "reason": "FabricResourceInUse", "message": "m", "hint": "h", "code": -12}}
_SIZE = ctypes.sizeof(abi.PartitionList)
_HEAD, _PARTITION = 12, 2060
_KEPT = {"boot_id": "b", "partitions": {"3": [1, 3]}, "active": [3], "doubtful": []}


def _answer(data: bytes, _: Path) -> None:
    found = message.parse_answer(data)
    for one in message.partitions_of(found):
        assert len(one.gpus) <= abi.MOST_GPUS
    message.failed_of(found)
    message.unsupported_of(found)


def _list(data: bytes, _: Path) -> None:
    filled = abi.PartitionList.from_buffer_copy(data[:_SIZE].ljust(_SIZE, b"\0"))
    for one in nvfm.read_partitions(filled):
        assert all(1 <= module <= abi.MOST_GPUS for module in one.modules)


def _remembered(data: bytes, folder: Path) -> None:
    (folder / memory.FILE).write_bytes(data)
    found = memory.FabricMemory(folder, "b")
    assert found.linked <= found.active | found.doubtful


def _call(data: bytes, _: Path) -> None:
    assert len(message.parse_request(data).partitions) <= abi.MOST_PARTITIONS


DOORS = (
    Door(
        name="fabric agent's answer",
        opened=plain(_answer),
        specimens=(("list", _ANSWER), ("error", _ERROR)),
        refusals=(errors.FairleadError,),
        refuses_specimens=True,
    ),
    Door(
        name="fabric agent's call",
        opened=plain(_call),
        specimens=(("call", {"call": "set", "partitions": [1, 2]}),),
        refusals=(errors.FairleadError,),
    ),
    Door(
        name="fabric manager's list",
        opened=plain(_list),
        binary=(("list", Manager({40: (1, 2, 3), 51: (4, 5)}, 18).list_bytes()[: _HEAD + 2 * _PARTITION]),),
        documents=False,
        refusals=(errors.FairleadError,),
    ),
    Door(
        name="fabric's partitions on disk",
        opened=plain(_remembered),
        specimens=(("kept", _KEPT),),
        refusals=(errors.FairleadError,),
    ),
)
