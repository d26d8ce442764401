"""A machine whose state disk is full or read-only says that it is not ready, why, and is ready again afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk of its own")

_PROGRAM = """
import asyncio, json, pathlib, subprocess, sys
from fairlead import errors, files
from fairlead.store.sqlite import store as sqlite
from fairlead.wire.kubernetes import core, meta

folder = pathlib.Path(sys.argv[1])

def ready():
    try:
        files.check_room(folder)
    except errors.Unavailable as error:
        return error.reason
    return "ready"

async def written(store, name):
    try:
        await store.create(core.Namespace(metadata=meta.ObjectMeta(name=name, annotations={"a": "x" * 100000})))
    except errors.FairleadError as error:
        return type(error).__name__
    return "written"

async def main():
    seen = []
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], check=True)
    with sqlite.SQLiteStore(folder / "state.db") as store:
        seen += [ready(), await written(store, "a")]
        try:
            (folder / "filler").write_bytes(b"x" * (8 << 20))
        except OSError:
            pass
        seen += [ready(), await written(store, "b")]
        (folder / "filler").unlink()
        seen += [ready(), await written(store, "c")]
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    seen.append(ready())
    print(json.dumps(seen))

asyncio.run(main())
"""


def test_a_full_state_disk_is_not_ready_and_recovers(tmp_path: Path) -> None:
    words = ["unshare", "-m", "--propagation", "private", sys.executable, "-c", _PROGRAM, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        *("ready", "written"),
        *("StateDiskFull", "Unavailable"),
        *("ready", "written"),
        "StateUnwritable",
    ]
