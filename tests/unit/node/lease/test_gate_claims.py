"""Possession by ResourceClaims beside containers, on one ledger on disk: no door gives what the other gave."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.node.lease import ledgerfile
from fairlead.plan.lease import change
from fairlead.plan.lease.row import Claim, State
from tests.unit.node.lease.test_gate import RESOURCE, UUIDS, Node, device

DRIVER = "gpu.nvidia.com"


def ask(number: int, uid: str, *, share: str = "") -> change.Ask:
    name = f"gpu-{number}{share and f'/{share}'}"
    claim = Claim(device=name, resource=DRIVER, is_shared=bool(share), namespace="team", pod="a", uid="p1", holder=uid)
    return change.Ask(key=UUIDS[number], claims=(claim,))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_claim_has_its_gpu_from_prepare_to_unprepare_whatever_the_kubelet_lists(node: Node) -> None:
    async with node.agent() as gate:
        await gate.hold_for_claim("c1", "note", [ask(0, "c1")])
        assert gate.notes == {"c1": "note"}
        for _ in range(3):
            await gate._round()
        assert node.state(0) is State.HELD
    async with node.agent() as gate:
        await gate._round()
        assert node.state(0) is State.HELD
        assert gate.notes == {"c1": "note"}
        await gate.release_claim("c1")
        await node.until(0, State.FREE)
        assert gate.notes == {}


async def test_a_claim_of_a_group_of_pods_names_none_and_comes_back_all_the_same(node: Node) -> None:
    """A claim may be reserved for a PodGroup alone: it was noted anew with each look, and kept for two minutes."""
    nameless = Claim(device="gpu-0", resource=DRIVER, namespace="team", holder="c1")
    async with node.agent() as gate:
        await gate.hold_for_claim("c1", "note", [change.Ask(key=UUIDS[0], claims=(nameless,))])
        epoch = gate.rows.value[UUIDS[0]].epoch
        for _ in range(3):
            await gate._round()
        assert (node.state(0), gate.rows.value[UUIDS[0]].epoch) == (State.HELD, epoch)
        await gate.release_claim("c1")
        await node.until(0, State.FREE)


async def test_what_one_door_gave_the_other_refuses(node: Node) -> None:
    async with node.agent() as gate:
        await gate.hold_for_claim("c1", "note", [ask(0, "c1")])
        with pytest.raises(errors.Conflict, match="is held"):
            await gate.hold(RESOURCE, [device(0)])
        await node.give(1)
        with pytest.raises(errors.Conflict, match="is held"):
            await gate.hold_for_claim("c2", "other", [ask(1, "c2")])
        assert gate.notes == {"c1": "note"}
        with pytest.raises(errors.Conflict, match="is held"):
            await gate.hold_for_claim("c2", "other", [ask(0, "c2")])


async def test_of_several_gpus_a_claim_gets_all_or_none(node: Node) -> None:
    async with node.agent() as gate:
        await node.give(1)
        with pytest.raises(errors.Conflict):
            await gate.hold_for_claim("c1", "note", [ask(0, "c1"), ask(1, "c1")])
        assert node.state(0) is State.FREE
        assert gate.notes == {}


async def test_a_claim_that_begins_again_finds_its_own_gpu(node: Node) -> None:
    async with node.agent() as gate:
        await gate.hold_for_claim("c1", "begun", [ask(0, "c1")])
    async with node.agent() as gate:
        await gate.hold_for_claim("c1", "begun again", [ask(0, "c1")])
        await gate.note_claim("c1", "done")
        assert gate.notes == {"c1": "done"}
        assert [one.holder for one in node.row(0).claims] == ["c1"]


async def test_a_gpu_that_a_process_has_open_is_not_freed_by_unprepare(node: Node) -> None:
    async with node.agent() as gate:
        await gate.hold_for_claim("c1", "note", [ask(0, "c1")])
        node.openers[0] = "python"
        await gate.release_claim("c1")
        assert node.state(0) is State.RELEASING
        with pytest.raises(errors.FairleadError, match=r"python|not verified"):
            await gate.hold_for_claim("c2", "note", [ask(0, "c2")])
        assert gate.notes == {}
        del node.openers[0]
        await gate.hold_for_claim("c2", "note", [ask(0, "c2")])
        assert [one.holder for one in node.row(0).claims] == ["c2"]


async def test_claims_that_share_a_gpu_come_and_go_by_themselves(node: Node) -> None:
    async with node.agent() as gate:
        await gate.hold_for_claim("c1", "one", [ask(0, "c1", share="s1")])
        await gate.hold_for_claim("c2", "two", [ask(0, "c2", share="s2")])
        with pytest.raises(errors.Conflict):
            await gate.hold_for_claim("c3", "whole", [ask(0, "c3")])
        await gate.release_claim("c1")
        assert node.state(0) is State.HELD
        assert [one.holder for one in node.row(0).claims] == ["c2"]
        await gate.release_claim("c2")
        await node.until(0, State.FREE)


async def test_a_claim_that_only_looks_possesses_nothing(node: Node) -> None:
    async with node.agent() as gate:
        await node.give(0)
        await gate.hold_for_claim("monitor", "note", [])
        assert gate.notes == {"monitor": "note"}
        await gate.release_claim("monitor")
        assert node.state(0) is State.HELD


async def test_note_and_possession_are_written_together_or_not_at_all(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node.agent() as gate:
        await node.until(0, State.FREE)

        def full(*_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(ledgerfile, "_entry", full)
            with pytest.raises(errors.Unavailable, match="disk is full"):
                await gate.hold_for_claim("c1", "note", [ask(0, "c1")])
        assert gate.notes == {}
        assert node.state(0) is State.FREE
        await gate.hold_for_claim("c1", "note", [ask(0, "c1")])
    assert ledgerfile.read_notes(node.folder / "lease" / ledgerfile.NAME) == {"c1": "note"}


async def test_a_ledger_of_an_earlier_version_has_no_notes_and_gets_some(node: Node) -> None:
    async with node.agent():
        pass
    path = node.folder / "lease" / ledgerfile.NAME
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE note")
    connection.close()
    assert ledgerfile.read_notes(path) == {}
    async with node.agent() as gate:
        await gate.hold_for_claim("c1", "note", [ask(0, "c1")])
        assert gate.notes == {"c1": "note"}


async def race(node: Node, rounds: int) -> dict[str, int]:
    """Ask both doors for one GPU at the same moment, again and again; returns how often each got it."""
    won = {"plugin": 0, "claim": 0}
    async with node.agent() as gate:
        await node.until(0, State.FREE)
        for number in range(rounds):
            uid = f"c{number}"
            doors = [gate.hold(RESOURCE, [device(0)]), gate.hold_for_claim(uid, "note", [ask(0, uid)])]
            by_plugin, by_claim = await asyncio.gather(*doors[:: 1 if number % 2 else -1], return_exceptions=True)
            if not number % 2:
                by_plugin, by_claim = by_claim, by_plugin
            assert (by_plugin is None) is not (by_claim is None), (by_plugin, by_claim)
            won["plugin" if by_plugin is None else "claim"] += 1
            holders = [one.holder for one in node.row(0).claims]
            assert holders == ([""] if by_plugin is None else [uid])
            assert bool(gate.notes) is (by_claim is None)
            if by_claim is None:
                await gate.release_claim(uid)
            else:
                node.holders[UUIDS[0]] = "a"
                await node.until_named(0)
                node.forget(0)
            await node.until(0, State.FREE)
    return won


async def test_of_two_doors_raced_for_one_gpu_one_gets_it(node: Node) -> None:
    won = await race(node, 40)
    assert min(won.values()) > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_of_two_doors_raced_a_thousand_times_one_gets_it(node: Node) -> None:
    assert sum((await race(node, 1000)).values()) == 1000
