"""A hundred kill -9 at random under eight churning clients: nothing held twice, lost, left over or broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import killloop
import pytest
from conftest import Home

pytestmark = pytest.mark.podman

LIMITS = ("--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
KILLS = 100
"""A tenth of what `killloop.py --kills 1000` does by hand."""


@pytest.mark.parametrize("is_let_go", [False, True])
def test_the_loop_sees_a_container_whose_monitor_and_books_are_gone(home: Home, is_let_go: bool) -> None:
    before = killloop.remains()
    line = ("podman", "--runtime=runc", "create", *LIMITS, home.image, "sleep", "1000")
    identity = subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()
    try:
        verb = "start" if is_let_go else "init"
        subprocess.run(("podman", "--runtime=runc", verb, identity), check=True, capture_output=True)
        for pid, _ in killloop.remains().keys() - before.keys():
            if b"conmon" in killloop.words(pid):
                os.kill(pid, signal.SIGKILL)

        [left] = [what for key, what in killloop.remains().items() if key not in before and "conmon" not in what]

        assert left.startswith(f"container {identity[:12]}: process ")
        assert ("sleep" if is_let_go else "init") in left
    finally:
        subprocess.run(("podman", "rm", "--force", "--time=0", identity), check=True, capture_output=True)
    assert not killloop.remains().keys() - before.keys()


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
    assert sum(found["kills"].values()) >= KILLS
