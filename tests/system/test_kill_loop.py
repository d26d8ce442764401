"""A hundred kill -9 at random under eight churning clients: nothing held twice, lost, left over or broken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import killloop
import pytest
from conftest import Home

pytestmark = [pytest.mark.podman, pytest.mark.slow]

KILLS = 100
"""A tenth of what `killloop.py --kills 1000` does by hand."""


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
