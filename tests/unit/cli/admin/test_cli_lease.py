"""`fairlead leases` and `fairlead lease …` on a ledger that no agent has open."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click.testing
import pytest

from fairlead.node.lease.ledger import Ledger
from fairlead.plan.lease import change, settle
from fairlead.plan.lease.row import Claim, Facts, Row
from tests.unit.cli import liveservice

HELD, FREE = "GPU-0000000a-a1b2-4c3d-9e8f-0123456789ab", "GPU-0000000b-a1b2-4c3d-9e8f-0123456789ab"


async def fill(folder: Path) -> None:
    ledger = Ledger(folder)
    for key in (HELD, FREE):
        row = Row(key=key, boot_id="b")
        steps = settle.plan_steps(row, settle.Seen(), at=5, boot_id="b")
        await ledger.act(lambda _, steps=steps: steps)  # type: ignore[misc]  # bound now
    ask = change.Ask(key=HELD, claims=(Claim(device=HELD),))
    await ledger.act(lambda rows: change.plan_hold(rows, [ask], facts=Facts(at=9, boot_id="b")))
    named = settle.Seen(claims=(Claim(device=HELD, namespace="team", pod="train", container="main"),))
    await ledger.act(lambda rows: settle.plan_steps(rows[HELD], named, at=9, boot_id="b"))
    ledger.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    asyncio.run(fill(tmp_path / "lease"))
    return tmp_path


def fairlead(state: Path, *words: str) -> click.testing.Result:
    return liveservice.fairlead(*words, env={"FAIRLEAD_STATE_FOLDER": str(state)})


def test_leases_say_who_has_which_gpu(state: Path) -> None:
    found = {one["gpu"]: one for one in json.loads(fairlead(state, "leases", "-o", "json").stdout)}
    assert (found[HELD]["state"], found[HELD]["holders"], found[HELD]["lease"]) == ("Held", ["team/train/main"], 3)
    assert (found[FREE]["state"], found[FREE]["verified_by"]) == ("Free", "quick")
    assert fairlead(state, "leases", "-o", "name").stdout.split() == [HELD, FREE]


def test_a_gpu_goes_into_quarantine_and_comes_back_dirty_with_its_history(state: Path) -> None:
    assert fairlead(state, "lease", "quarantine", "0000000b", "--why", "smells").stdout == f"{FREE} is in quarantine\n"
    assert "Quarantined" in fairlead(state, "leases").stdout
    assert fairlead(state, "lease", "release", "0000000b").stdout.startswith(f"{FREE} is Dirty")
    events = [one["event"] for one in json.loads(fairlead(state, "lease", "history", "0000000b", "-o", "json").stdout)]
    assert events[-2:] == ["quarantined", "pardoned"]


def test_a_held_gpu_is_condemned_and_stays_with_its_pod(state: Path) -> None:
    assert "when it comes back" in fairlead(state, "lease", "quarantine", "0000000a").stdout
    assert "Held, condemned" in fairlead(state, "leases").stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("release", "0000000b"), "only a GPU that is kept back"),
        (("quarantine", "0000000"), "is a part of several GPUs"),
        (("quarantine", ""), "is none of the GPUs"),
        (("history", "../etc"), "is none of the GPUs"),
        (("quarantine", "0000000b", "--why", "a\x1b[31mred"), "control character"),
    ],
)
def test_a_wish_that_cannot_be_is_refused_with_the_next_step(state: Path, words: tuple[str, ...], reason: str) -> None:
    done = fairlead(state, "lease", *words)
    assert done.exit_code != 0
    assert reason in done.stderr
    assert "\x1b" not in done.stderr


def test_where_there_is_no_ledger_the_message_says_how_there_is_one(tmp_path: Path) -> None:
    done = fairlead(tmp_path, "leases")
    assert "there is no ledger" in done.stderr
