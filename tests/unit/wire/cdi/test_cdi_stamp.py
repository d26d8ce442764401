"""Where a spec was made: noted without raising its version, and believed only for the very bytes it was noted for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.wire.cdi import stamp
from fairlead_cdi import emit, parse
from fairlead_cdi import spec as cdi

GPUS = {"/dev/nvidia0": ("9.0", "nvidia"), "/dev/nvidia1": ("", ""), "/dev/nvidia2": ("7.5", "")}
MARK = stamp.Stamp(boot_id="b-1", driver="nvidia", version="550.1", cuda="12.4", gpus=GPUS)
SPEC = cdi.Spec(
    cdi_version="",
    kind="vendor.com/gpu",
    devices=(cdi.Device(name="gpu0", edits=cdi.ContainerEdits(env=("A=b",))),),
)
DATA = emit.emit_json(SPEC)


def test_a_stamp_beside_a_spec_speaks_for_these_bytes_only() -> None:
    mark = stamp.emit_stamp(MARK, DATA)
    assert stamp.find({}, DATA, mark) == MARK
    assert stamp.find({}, DATA + b" ", mark) is None
    assert stamp.find({}, DATA, None) is None


@pytest.mark.parametrize("mark", [b"", b"{", b"[]", b'{"sha256": 1}', b"\xff"])
def test_a_damaged_stamp_says_nothing(mark: bytes) -> None:
    assert stamp.find({}, DATA, mark) is None


def test_a_stamp_in_annotations_costs_a_version_and_needs_no_file(tmp_path: Path) -> None:
    spec = parse.parse_spec(emit.emit_json(stamp.annotate(SPEC, MARK)))
    assert (parse.parse_spec(DATA).cdi_version, spec.cdi_version) == ("0.3.0", "0.6.0")
    assert stamp.read(tmp_path / "a.json", spec.annotations) == MARK


def test_a_stamp_is_read_from_beside_its_spec(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(DATA)
    assert stamp.read(path, {}) is None
    stamp.beside(path).write_bytes(stamp.emit_stamp(MARK, DATA))
    assert stamp.beside(path).name == "a.yaml.stamp"
    assert stamp.read(path, {}) == MARK


@pytest.mark.parametrize(
    ("boot_id", "versions", "count"),
    [
        ("b-1", {"nvidia": "550.1"}, 0),
        ("b-2", {"nvidia": "550.1"}, 1),
        ("b-1", {"nvidia": "560.2"}, 1),
        ("b-2", {"nvidia": "560.2"}, 2),
        ("", {}, 0),
        ("b-1", {"amd": "6.8"}, 0),
    ],
)
def test_a_spec_is_stale_in_another_boot_or_under_another_driver(
    boot_id: str, versions: dict[str, str], count: int
) -> None:
    assert len(MARK.staleness(boot_id, versions)) == count
    assert stamp.Stamp().staleness(boot_id, versions) == ()


def test_requirements_hear_of_nvidias_driver_and_gpus_only() -> None:
    assert MARK.facts() == {"driver": ["550.1", "12.4"], **{node: list(pair) for node, pair in GPUS.items()}}
    assert stamp.Stamp(driver="amd", version="6.8").facts() == {}


def test_a_stamp_of_before_gpus_were_noted_knows_none() -> None:
    old = stamp.Stamp(boot_id="b-1", driver="nvidia", version="550.1")
    assert b"gpus" not in stamp.emit_stamp(old, DATA)
    found = stamp.find({}, DATA, stamp.emit_stamp(old, DATA))
    assert found == old
    assert found.facts() == {"driver": ["550.1", ""]}
