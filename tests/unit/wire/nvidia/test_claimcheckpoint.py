"""Checkpoints of NVIDIA's DRA driver: each view is read, and what is damaged, cut or newer is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import errors
from fairlead.wire.nvidia import claimcheckpoint

RECORDED = Path(__file__).parents[3] / "data" / "claim" / "checkpoint"


def test_the_checksum_is_kubernetes_own() -> None:
    assert claimcheckpoint.emit_checksum(b"{}") == 1558789936  # of Go's checksum.New


@pytest.mark.parametrize("name", ["v2.json", "v2-versioned.json"])
def test_the_newest_view_has_names_stages_and_the_boot(name: str) -> None:
    found = claimcheckpoint.read((RECORDED / name).read_bytes())
    claims = {one.words: one for one in found.claims}
    assert found.boot_id == "boot-1"
    assert sorted(claims) == ["team/begun", "team/mps", "team/part", "team/slices", "team/whole"]
    assert [one.name for one in found.claims if not one.is_completed] == ["begun"]
    assert [one.name for one in claims["team/whole"].devices] == ["gpu-0", "gpu-1"]
    assert claims["team/part"].devices[0].uuid.startswith("MIG-")
    assert claims["team/mps"].daemon == "uid-of-mps-1a2b3"
    allocation = claims["team/slices"].status.allocation
    assert allocation is not None
    assert [one.device for one in allocation.devices.results] == ["gpu-2"]


def test_the_early_view_has_completed_claims_without_names() -> None:
    found = claimcheckpoint.read((RECORDED / "v1.json").read_bytes())
    assert sorted(one.words for one in found.claims) == ["uid-of-mps", "uid-of-part", "uid-of-slices", "uid-of-whole"]
    assert all(one.is_completed for one in found.claims)
    assert found.boot_id == ""


def test_a_view_that_a_later_release_adds_is_left_out() -> None:
    data = (RECORDED / "v2.json").read_bytes()
    assert claimcheckpoint.read(data[:-1] + b',"v3":{"claims":7}}') == claimcheckpoint.read(data)


@pytest.mark.parametrize("name", ["v1.json", "v2.json"])
def test_one_changed_letter_is_found(name: str) -> None:
    data = (RECORDED / name).read_bytes()
    with pytest.raises(errors.ProtocolError, match="its checksum is") as refused:
        claimcheckpoint.read(data.replace(b"gpu-1", b"gpu-7"))
    assert refused.value.reason == claimcheckpoint.DAMAGED
    assert refused.value.hint


def test_half_a_file_is_damaged_wherever_it_is_cut() -> None:
    data = (RECORDED / "v2.json").read_bytes()
    for end in range(0, len(data) - 1, 97):
        with pytest.raises(errors.ProtocolError) as refused:
            claimcheckpoint.read(data[:end])
        assert refused.value.reason == claimcheckpoint.DAMAGED


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"[]", b"{}", b'{"v2":3}', b'{"v2":{"preparedClaims":[1]}}', b'{"v1":' * 5000, b"\xff{}"]
)
def test_whatever_is_no_checkpoint_is_damaged(data: bytes) -> None:
    with pytest.raises(errors.ProtocolError) as refused:
        claimcheckpoint.read(data)
    assert refused.value.reason == claimcheckpoint.DAMAGED


def test_a_file_of_a_newer_release_alone_is_named_so() -> None:
    with pytest.raises(errors.ProtocolError, match="v3") as refused:
        claimcheckpoint.read(b'{"version":"v3","checksum":0,"v3":{"preparedClaims":{}}}')
    assert refused.value.reason == claimcheckpoint.NEWER
