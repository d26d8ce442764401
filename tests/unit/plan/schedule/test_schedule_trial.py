"""Trials: what is taken back leaves nothing behind, whatever was done and in whatever order."""

from __future__ import annotations

import random

import pytest

from fairlead.plan.schedule.reference import NodeInfo, PodInfo
from fairlead.plan.schedule.trial import Running, WhatIf

_GPU = "nvidia.com/gpu"


def _nodes(*gpus: int) -> dict[str, NodeInfo]:
    return {f"n{at}": NodeInfo(name=f"n{at}", allocatable={_GPU: count * 1000}) for at, count in enumerate(gpus)}


def _running(uid: str, node: str, gpus: int = 1) -> Running:
    return Running(uid=uid, namespace="d", name=uid, node=node, need=PodInfo(requests={_GPU: gpus * 1000}))


def _seen(trial: WhatIf) -> dict[str, tuple[frozenset[str], int]]:
    return {name: (frozenset(trial.there[name]), trial.view(name).free(_GPU)) for name in trial.names}


@pytest.mark.parametrize("seed", range(20))
def test_a_rollback_restores_what_a_checkpoint_saw(seed: int) -> None:
    chance = random.Random(seed)
    trial = WhatIf(_nodes(4, 8, 8), [_running(f"p{at}", f"n{at % 3}") for at in range(9)])
    marks = [(trial.checkpoint(), _seen(trial))]
    for number in range(200):
        act = chance.random()
        here = [one for there in trial.there.values() for one in there.values()]
        if act < 0.4:
            trial.assume(_running(f"new{number}", f"n{chance.randrange(3)}", chance.randrange(3)))
        elif act < 0.7 and here:
            trial.end(chance.sample(here, min(len(here), 2)))
        elif act < 0.85:
            marks.append((trial.checkpoint(), _seen(trial)))
        else:
            at = chance.randrange(len(marks))
            del marks[at + 1 :]
            trial.rollback(marks[at][0])
            assert _seen(trial) == marks[at][1]
    trial.rollback()
    assert _seen(trial) == marks[0][1]


def test_what_was_committed_stays() -> None:
    trial = WhatIf(_nodes(4), [_running("a", "n0")])
    trial.end(tuple(trial.there["n0"].values()))
    trial.commit()
    trial.assume(_running("b", "n0", 2))
    trial.rollback()
    assert _seen(trial) == {"n0": (frozenset(), 4000)}
