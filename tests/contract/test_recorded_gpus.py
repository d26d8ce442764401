"""Simulated silicon says of a model what a real board of it has said, by records of NVML's answers.

Records of real boards lie in tests/data/gpu. The machinery is shown on a record of simulated silicon: it comes back
whole, and whatever is changed in it is named.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import ctypes
import json
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from fairlead.silicon.nvidia import nvml
from fairlead.silicon.sim import host
from tools.gpu import masking, recorded, recording

_RECORDS = sorted((Path(__file__).parents[1] / "data/gpu").glob("*.json"))


def record(folder: Path, name: str = "h100x8") -> dict[str, Any]:
    """A record as the check makes it, of simulated silicon."""
    made = host.SimulatedHost(folder, name)
    recorder = recording.RecordingNVML(made.library)

    async def scan() -> None:
        silicon = nvml.NVMLSilicon(made.tree.path, Path("/"), call_timeout_s=20, library=recorder)
        await silicon.scan()
        await silicon.sample(within_s=20)
        await silicon.partitioner().list_partitions()
        await silicon.close()

    asyncio.run(scan())
    document: dict[str, Any] = json.loads(json.dumps(recorder.document()))
    return document


@pytest.mark.parametrize("path", _RECORDS, ids=lambda path: path.stem)
def test_the_simulation_says_what_the_real_board_said(path: Path) -> None:
    assert recorded.differences(json.loads(path.read_text())) == ()


def test_a_record_comes_back_whole(tmp_path: Path) -> None:
    document = record(tmp_path)
    replayed, simulated = recorded.read_record(document), recorded.read_simulated("h100x8")
    assert [gpu.uuid for gpu in replayed.inventory.gpus] == [gpu.uuid for gpu in simulated.inventory.gpus]
    assert replayed.partitions == simulated.partitions
    assert replayed.inventory.links != ()
    assert recorded.differences(document) == ()


def put(document: dict[str, Any], name: str, number: int, *, place: int) -> dict[str, Any]:
    """A record in which a call gives another number in one of its outputs, for every GPU."""
    changed = copy.deepcopy(document)
    for asked, answers in changed["calls"].items():
        if asked.startswith(f"{name}("):
            for answer in answers.values():
                size = len(base64.b64decode(answer["out"][place]))
                answer["out"][place] = base64.b64encode(number.to_bytes(size, "little")).decode()
    assert changed != document
    return changed


def test_what_the_real_board_says_otherwise_is_named(tmp_path: Path) -> None:
    document = record(tmp_path)
    major = put(document, "nvmlDeviceGetCudaComputeCapability", 12, place=0)
    assert recorded.differences(major) == ("NVIDIA H100 80GB HBM3: compute_capability: simulated (9, 0), real (12, 0)",)
    limit = put(document, "nvmlDeviceGetEnforcedPowerLimit", 350_000, place=0)
    assert any("power_limit_mw: simulated 700000, real 350000" in line for line in recorded.differences(limit))


def test_a_reading_that_the_real_board_lacks_is_named(tmp_path: Path) -> None:
    document = record(tmp_path)
    calls = {asked: answer for asked, answer in document["calls"].items() if "TotalEnergyConsumption" not in asked}
    lines = recorded.differences({**document, "calls": calls})
    assert lines == ("NVIDIA H100 80GB HBM3: tells energy_mj: simulated True, real False",)


def test_a_record_without_a_gpu_or_of_another_format_is_no_proof(tmp_path: Path) -> None:
    none = put(record(tmp_path), "nvmlDeviceGetCount_v2", 0, place=0)
    assert recorded.differences(none) == ("the record has no GPU that answered",)
    with pytest.raises(ValueError, match="a record of format 7 cannot be replayed"):
        recorded.differences({"format": 7, "calls": {}})
    with pytest.raises(errors.Unavailable):
        recorded.differences({"format": 1, "calls": {}})


def test_a_masked_record_has_no_name_of_the_board_and_says_the_same(tmp_path: Path) -> None:
    document = record(tmp_path)
    inventory = recorded.read_record(document).inventory
    serials = [gpu.serial for gpu in inventory.gpus if gpu.serial]
    masked = masking.Mask(serials).record(document)
    shown = recorded.read_record(masked).inventory
    assert {gpu.uuid for gpu in shown.gpus}.isdisjoint(gpu.uuid for gpu in inventory.gpus)
    assert {gpu.serial for gpu in shown.gpus}.isdisjoint(serials)
    assert len({gpu.uuid for gpu in shown.gpus}) == len(inventory.gpus)
    assert recorded.differences(masked) == ()
    text = json.dumps(masked)
    for gpu in inventory.gpus:
        for name in (gpu.uuid, gpu.serial or gpu.uuid):
            assert base64.b64encode(name.encode()).decode()[:-4] not in text


def test_handles_are_told_apart_and_functions_that_are_missing_stay_missing(tmp_path: Path) -> None:
    document = record(tmp_path)
    uuids = {
        json.dumps(answer["last"]["out"])
        for asked, answer in document["calls"].items()
        if asked.startswith("nvmlDeviceGetUUID(handle")
    }
    assert len(uuids) == 8
    replayed = recording.ReplayedNVML(document)
    with pytest.raises(AttributeError):
        replayed.nvmlDeviceNeverAsked  # noqa: B018 - the look-up is what is tried
    assert replayed.nvmlErrorString(ctypes.c_uint(3)) == b"recorded NVML error 3"
