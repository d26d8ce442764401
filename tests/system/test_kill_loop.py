"""A hundred kill -9 that count, under eight churning clients: nothing held twice, lost, left over or broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import kernelseen
import killloop
import pytest
from home import Home

pytestmark = pytest.mark.podman

LIMITS = ("--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
KILLS = 100
"""A tenth of what `killloop.py --kills 1000` does by hand."""


def remains_of(identity: str) -> dict[tuple[int, str], str]:
    """Return what the loop sees of one container, beside those of other tests."""
    return {key: what for key, what in kernelseen.remains().items() if kernelseen.container_of(key[0]) == identity}


@pytest.mark.parametrize("is_let_go", [False, True])
def test_the_loop_sees_a_container_whose_monitor_and_records_are_gone(home: Home, is_let_go: bool) -> None:
    line = ("podman", "--runtime=runc", "create", *LIMITS, home.image, "sleep", "1000")
    identity = subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()
    try:
        verb = "start" if is_let_go else "init"
        subprocess.run(("podman", "--runtime=runc", verb, identity), check=True, capture_output=True)
        until = time.monotonic() + 10
        while is_let_go and not any("sleep" in what for what in remains_of(identity).values()):
            assert time.monotonic() < until  # runc returns before its process became the program
            time.sleep(0.01)
        for pid, _ in remains_of(identity):
            if b"conmon" in kernelseen.words(pid):
                os.kill(pid, signal.SIGKILL)

        [left] = [what for what in remains_of(identity).values() if "conmon" not in what]

        assert left.startswith(f"container {identity[:12]}: process ")
        assert ("sleep" if is_let_go else "init") in left
    finally:
        subprocess.run(("podman", "rm", "--force", "--time=0", identity), check=True, capture_output=True)
    assert not remains_of(identity)


def test_the_loop_leaves_out_containers_of_others(home: Home, tmp_path: Path) -> None:
    loop = killloop.Loop(tmp_path, home.image, seed=0)
    identities = []
    try:
        for name in (f"ft-other-{os.getpid()}", f"fl-{loop.mark}left"):
            line = ("podman", "--runtime=runc", "create", *LIMITS, f"--name={name}", home.image, "sleep", "1000")
            identities.append(subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip())
            subprocess.run(("podman", "--runtime=runc", "start", name), check=True, capture_output=True)
        found = [what for what in loop.orphans() if any(one in what for one in identities)]
        own = [what for what in found if identities[1] in what or identities[1][:12] in what]
        assert own
        assert found == own
    finally:
        subprocess.run(("podman", "rm", "--force", "--time=0", *identities), check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_kills_lose_no_gpu_and_leave_nothing(home: Home) -> None:
    program = Path(killloop.__file__)
    line = (sys.executable, str(program), "--state", str(home.folder), "--image", home.image, "--kills", str(KILLS))
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.stdout, f"{done.stderr[-4000:]}\n{home.log()[-4000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    wrong = {key: found[key] for key in ("held_twice", "orphans", "lost") if found[key]}
    assert (wrong, found["free"], found["whole"]) == ({}, killloop.GPUS, True), f"{found}\n{home.log()[-4000:]}"
    assert sum(found["counted"].values()) >= KILLS, found
