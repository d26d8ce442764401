"""An agent in a container runs the node's MPS daemon in the node's root, which it has mounted read-only.

The test is a process with mounts of its own: its root is the container's, and the same tree, read-only below a folder,
is the node's. The daemon is the stand-in.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import command
from fairlead.kernel.programs import mpscontrol
from fairlead.model.ids import GPUUUID
from fairlead.node.sharing import mpsdaemon
from fairlead.plan.sharing import mps
from fairlead.silicon.port import MPSProgram

GPU = GPUUUID("GPU-12345678-aaaa-bbbb-cccc-0123456789ab")
_MOUNT = 'mount --rbind / "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


async def carry_out(base: Path, node: Path) -> dict[str, object]:
    """Start, ask and end a daemon in the root of a node. Returns: what was seen."""
    program = MPSProgram(argv=(sys.executable, "-I", "-S", str(mpscontrol.__file__)), root=str(node))
    folders = mpsdaemon.folders_of(base, GPU)
    # The agent's image has Python and no other program: no sh, unshare, mount or chroot.
    command.PATH = str(base.parent / "no-programs")  # type: ignore[misc]
    control = mpsdaemon.Control(GPU, folders, program)
    await control.start()
    pid = mpsdaemon.find_daemon(folders)
    await control.set_limits(mps.Daemon(gpu=GPU, memory_mib=100, percent=25))
    Path(f"/proc/{pid}/root/dev/shm/of-a-client").write_text("x")
    seen = {
        "root": str(Path(f"/proc/{pid}/root").readlink()),
        "percent": float(await control.ask("get_default_active_thread_percentage")),
        "memory": await control.ask("get_default_device_pinned_mem_limit 0"),
        "shm": [path.name for path in folders.shm.iterdir()],
        "leaked": Path("/dev/shm/of-a-client").exists(),
    }
    await control.end()
    return {**seen, "left": mpsdaemon.find_daemon(folders) or folders.base.exists()}


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose sockets' paths are short enough."""
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting and chroot take root")
def test_a_daemon_runs_in_the_nodes_root_with_its_pipes_and_memory_in_the_agents_folder(short: Path) -> None:
    node, base = short / "node", short / "mps"
    node.mkdir()
    work = (sys.executable, "-m", "tests.contract.test_mps_in_root", str(base), str(node))
    done = subprocess.run(
        ("unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _MOUNT, str(node), *work),
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "root": str(node),
        "percent": 25.0,
        "memory": "100M",
        "shm": ["of-a-client"],
        "leaked": False,
        "left": False,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(carry_out(Path(sys.argv[1]), Path(sys.argv[2])))))  # noqa: T201
