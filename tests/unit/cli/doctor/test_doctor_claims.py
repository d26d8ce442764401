"""What doctor says of ResourceClaims on a node: cause and fix of each, and nothing where there is nothing to say."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

from fairlead.cli.doctor.held import claims
from fairlead.node.dra import journal
from fairlead.node.lease import ledgerfile
from fairlead.plan.dra.offered import DRIVER, Kind
from fairlead.plan.dra.preparation import Preparation, PreparedDevice, Stage

RECORDED = Path(__file__).parents[3] / "data" / "claim" / "checkpoint"


def prepared(name: str, stage: Stage) -> Preparation:
    device = PreparedDevice(request="r", reference="r", pool="here", device="gpu-0", kind=Kind.GPU, gpu="GPU-0")
    return Preparation(uid=f"uid-{name}", namespace="team", name=name, devices=(device,), stage=stage)


def collect(root: Path, *, is_wanted: bool = False) -> claims.Facts:
    return claims.collect(root / "lease", root / "kubelet", root / "cdi", is_wanted=is_wanted)


def said(facts: claims.Facts) -> list[tuple[str, str]]:
    found = list(claims.check(facts))
    assert all(one.fix and one.why for one in found if one.level != "ok")
    return [(one.level, one.what) for one in found]


def note(root: Path, **documents: str) -> None:
    file = ledgerfile.LedgerFile(root / "lease" / ledgerfile.NAME)
    file.commit([], documents)
    file.close()


def test_where_no_claim_has_anything_nothing_is_said(tmp_path: Path) -> None:
    assert said(collect(tmp_path)) == []


def test_a_driver_that_is_wanted_and_does_not_answer_is_a_failure() -> None:
    with tempfile.TemporaryDirectory(prefix="fl-") as name, socket.socket(socket.AF_UNIX) as listening:
        tmp_path = Path(name)  # a socket's path has 107 bytes
        assert said(collect(tmp_path, is_wanted=True)) == [
            ("fail", f"claims are to get GPUs, and no driver {DRIVER} answers in the kubelet's plugins_registry")
        ]
        registry = tmp_path / "kubelet" / "plugins_registry"
        registry.mkdir(parents=True)
        listening.bind(str(registry / f"{DRIVER}-1-reg.sock"))
        assert said(collect(tmp_path, is_wanted=True))[0][0] == "fail"
        listening.listen()
        assert said(collect(tmp_path, is_wanted=True)) == []


def test_what_is_begun_unshown_or_unreadable_is_named(tmp_path: Path) -> None:
    one, two = prepared("one", Stage.BEGUN), prepared("two", Stage.DONE)
    note(tmp_path, **{one.uid: journal.emit(one), two.uid: journal.emit(two), "uid-odd": '{"version": 99}'})
    assert said(collect(tmp_path)) == [
        ("warn", "claim uid-odd was prepared by another version of fairlead, whose note this one does not read"),
        ("warn", "preparing was begun and not finished: team/one"),
        ("fail", "the CDI file of prepared claims is gone: team/two"),
        ("ok", "claims prepared: 2"),
    ]


def test_another_driver_of_the_name_is_named_with_its_claims(tmp_path: Path) -> None:
    folder = tmp_path / "kubelet" / "plugins" / DRIVER
    folder.mkdir(parents=True)
    path = folder / "checkpoint.json"
    path.write_bytes((RECORDED / "v2.json").read_bytes())
    assert said(collect(tmp_path)) == []  # claims get nothing here: it is that driver's node
    (found,) = [what for level, what in said(collect(tmp_path, is_wanted=True)) if level == "warn"]
    names = "team/begun, team/mps, team/part, team/slices, team/whole"
    assert found == f"another driver {DRIVER} has been here: {path} has claims prepared: {names}"
    path.write_bytes((RECORDED / "v1.json").read_bytes())
    assert "has claims prepared: uid-of-mps" in said(collect(tmp_path, is_wanted=True))[1][1]
    path.write_bytes((RECORDED / "v2-empty.json").read_bytes())
    assert "has no claims prepared" in said(collect(tmp_path, is_wanted=True))[1][1]
    for damaged in ("{", "[]", '{"v2": 3}', '{"v2": {"preparedClaims": [1]}}', "\0"):
        path.write_text(damaged)
        assert "cannot be read (the checkpoint of" in said(collect(tmp_path, is_wanted=True))[1][1]


def test_a_checkpoint_that_was_set_aside_is_named_until_somebody_removes_it(tmp_path: Path) -> None:
    folder = tmp_path / "kubelet" / "plugins" / DRIVER
    folder.mkdir(parents=True)
    for word in ("adopted", "damaged", "newer"):
        (folder / f"checkpoint.json.{word}-1").write_text("{")
    assert [what.rpartition(" as ")[2] for _, what in said(collect(tmp_path))] == [
        str(folder / "checkpoint.json.damaged-1"),
        str(folder / "checkpoint.json.newer-1"),
    ]
