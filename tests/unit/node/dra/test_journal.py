"""Notes of prepared claims over up- and downgrades: recorded ones are read, newer ones left, damaged ones set aside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from fairlead.node.dra import journal
from fairlead.plan.dra.offered import Kind
from fairlead.plan.dra.passthrough import Backend
from fairlead.plan.dra.preparation import VERSION, Preparation, Stage

NOTES = Path(__file__).parents[3] / "data" / "claim" / "note"
RECORDED, PASSED = ((NOTES / name).read_text() for name in ("v1.json", "v2.json"))
UID = "uid-of-mixed"


class Kept:
    """Notes as the ledger gives them."""

    def __init__(self, document: str) -> None:
        self.notes: Mapping[str, str] = {UID: document}


def found(folder: Path, document: str) -> Preparation | None:
    return journal.Journal(Kept(document), folder).find(UID)


def changed(**more: Any) -> str:
    return json.dumps({**json.loads(RECORDED), **more})


def test_a_recorded_note_is_read_and_written_the_same(tmp_path: Path) -> None:
    one = found(tmp_path, RECORDED)
    assert one is not None
    assert (one.stage, one.version, one.words) == (Stage.DONE, 1, "team/mixed")
    assert [device.kind for device in one.devices] == [Kind.GPU, Kind.PARTITION, Kind.GPU]
    # An earlier release of this version reads what is written: fields are added, and none is renamed.
    before, after = json.loads(RECORDED), json.loads(journal.emit(one))
    for old, new in zip(before.pop("devices"), after.pop("devices"), strict=True):
        assert old.items() <= new.items()
    assert before.items() <= after.items()


def test_a_recorded_note_of_a_gpu_for_a_machine_is_of_a_form_that_older_versions_leave_alone(tmp_path: Path) -> None:
    one = found(tmp_path, PASSED)
    assert one is not None
    assert (one.stage, one.version, VERSION) == (Stage.DONE, 2, 2)
    assert [(device.kind, device.backend, device.has_api_device) for device in one.devices] == [
        (Kind.VFIO, Backend.IOMMUFD, False)
    ]
    written = json.loads(journal.emit(one))
    # What was added since is nothing here, and an earlier release passes it over.
    assert [device.pop("consumed") for device in written["devices"]] == [[]]
    assert written == json.loads(PASSED)


@pytest.mark.parametrize("field", ["pod_claim", "pods", "at", "version", "stage"])
def test_a_note_that_an_earlier_release_wrote_has_the_usual_values(tmp_path: Path, field: str) -> None:
    document = json.loads(RECORDED)
    del document[field]
    assert found(tmp_path, json.dumps(document)) is not None


def test_what_a_later_release_of_this_version_adds_is_passed_over(tmp_path: Path) -> None:
    assert found(tmp_path, changed(colour="blue")) == found(tmp_path, RECORDED)


def test_a_note_of_a_newer_version_is_left_and_its_claim_refused(tmp_path: Path) -> None:
    kept = Kept(changed(version=VERSION + 1, devices={"of": "another shape"}))
    read = journal.Journal(kept, tmp_path)
    with pytest.raises(errors.ProtocolError) as refused:
        read.find(UID)
    assert (refused.value.reason, bool(refused.value.hint)) == ("ClaimNoteNewer", True)
    assert read.all() == ()
    assert read.uids() == {UID}
    assert not (tmp_path / journal.ASIDE).exists()


@pytest.mark.parametrize(
    "document", ["", "{", "[]", '{"version": "x"}', RECORDED[: len(RECORDED) // 2], changed(uid="another"), "[" * 9999]
)
def test_a_damaged_note_is_set_aside_whole_and_counts_as_begun(tmp_path: Path, document: str) -> None:
    assert found(tmp_path, document) is None
    (aside,) = (tmp_path / journal.ASIDE).iterdir()
    assert aside.read_text() == document
