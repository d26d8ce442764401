"""Tables on a narrow terminal: no line is wider than it, columns go by rank, a pipe reads everything."""

from __future__ import annotations

import dataclasses

import pytest

from fairlead.cli.core import output
from fairlead.model.gpu import GPU, GPUHealth, Inventory, UnreadableGPU
from fairlead.model.ids import GPUUUID
from fairlead.model.sample import Sample
from tests.unit.cli.conftest import Service
from tests.unit.serve.world import inventory

_LISTS = (
    ("gpus",),
    ("ps", "-a"),
    ("nodes",),
    ("capacity",),
    ("events",),
    ("topology",),
    ("image", "ls"),
    ("simulate", "faults"),
    ("simulate", "profiles"),
    ("quota", "list"),
)


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("verb", _LISTS, ids=" ".join)
def test_no_line_of_a_list_is_wider_than_the_terminal(service: Service, verb: tuple[str, ...], columns: int) -> None:
    service.fairlead("run", "-d", "--name", "a-container-with-a-long-name-of-its-own", "-g", "3", "demo", "sleep", "60")
    service.env["COLUMNS"] = str(columns)
    result = service.fairlead(*verb)
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.splitlines()), default=0) <= columns


def test_a_pipe_reads_every_column(service: Service) -> None:
    title = service.fairlead("gpus").stdout.splitlines()[0].split()
    assert title[-2:] == ["PCI", "UUID"]
    service.env["COLUMNS"] = "80"
    assert "UUID" not in service.fairlead("gpus").stdout


@pytest.mark.parametrize(("width", "kept"), [(40, "ABC"), (12, "AC"), (5, "A")])
def test_columns_leave_by_rank(width: int, kept: str) -> None:
    columns = [
        output.Column[str]("A", lambda _: "a" * 4),
        output.Column[str]("B", lambda _: "b" * 4, rank=2),
        output.Column[str]("C", lambda _: "c" * 4, rank=1),
    ]
    rows = [[column.title for column in columns], [column.text("") for column in columns]]
    left, _ = output.fitting(rows, [column.rank for column in columns], width)
    assert "".join(rows[0][at] for at in left) == kept


def test_no_column_is_left_out_for_a_sentence_that_can_stand_below() -> None:
    rows = [
        ["GPU", "STATE", "WHY"],
        ["GPU-88535201", "Quarantined", "row remap failed twice, and nobody knows why yet"],
    ]
    assert output.fitting(rows, [0, 1, 0], 40, is_folded=True) == ([0, 1, 2], [])
    assert output.fitting(rows, [0, 1, 0], 40) == ([0, 2], ["STATE"])


@pytest.mark.parametrize("width", [40, 80])
def test_a_sentence_goes_on_below_and_loses_no_word(width: int) -> None:
    sentence = "Successfully assigned default/train to vm: 8 of 8 GPUs were free, and two of them are neighbours"
    rows = [["AGE", "REASON", "MESSAGE"], ["3s", "Scheduled-by-a-scheduler", sentence], ["2s", "Short", "done"]]
    lines = list(output.folded(rows, width))
    assert max(map(len, lines)) <= width
    assert " ".join(lines[1:-1]).split() == ["3s", "Scheduled-by-a-scheduler", *sentence.split()]
    assert lines[-1].endswith("done")


def test_an_event_is_read_whole_at_80_columns(service: Service) -> None:
    service.fairlead("run", "-d", "--wait", "--name", "a-container-with-a-long-name", "-g", "9", "demo", "sleep", "60")
    service.env["COLUMNS"] = "80"
    said = service.fairlead("events")
    assert "…" not in said.stdout
    assert "accepted, asking for 9 x nvidia.com/gpu" in " ".join(said.stdout.split())


def _broken() -> Inventory:
    found = inventory()
    lost = UnreadableGPU(index=2, pci_bus_id="0000:02:00.0", uuid=GPUUUID("GPU-2"), reason="Lost", message="no answer")
    warm = dataclasses.replace(found.gpus[0], health=GPUHealth(temperature_c=41, utilization_percent=5))
    gpus: tuple[GPU, ...] = (warm, found.gpus[1], found.gpus[3])
    return dataclasses.replace(found, gpus=gpus, unreadable=(lost,))


def test_a_gpu_shows_what_it_does_now_and_a_lost_one_has_a_row(service: Service) -> None:
    busy = Sample(gpu=GPUUUID("GPU-1"), utilization_percent=93, memory_used_bytes=61 << 30, power_mw=640_000)
    service.world.inventory, service.world.samples = _broken(), (busy,)
    rows = [line.split() for line in service.fairlead("gpus").stdout.splitlines()]
    assert [row[0] for row in rows] == ["GPU", "0", "1", "2", "3"]
    assert rows[1][4] == "5%"
    assert rows[2][4:9] == ["93%", "61/80", "GiB", "640", "W"]
    assert "Lost" in rows[3]
