"""Which processes end with a command that was left in a container: by their environment, in a /proc of the test's."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fairlead.engine.podman import exec as podman_exec


def process(root: Path, pid: int, *, namespace: str, environment: bytes = b"") -> Path:
    folder = root / "proc" / str(pid)
    (folder / "ns").mkdir(parents=True)
    (folder / "ns/pid").symlink_to(namespace)
    (folder / "environ").write_bytes(environment)
    return folder


def test_a_marked_process_ends_whatever_others_have_the_kernel_show_as_their_environment(tmp_path: Path) -> None:
    marked = f"A=1\0{podman_exec.MARK}=m1\0".encode()
    with subprocess.Popen(["sleep", "60"]) as own, subprocess.Popen(["sleep", "60"]) as other:
        process(tmp_path, 1, namespace="pid:[1]")
        process(tmp_path, own.pid, namespace="pid:[1]", environment=marked)
        process(tmp_path, other.pid, namespace="pid:[2]", environment=marked)
        for pid, namespace in ((3, "pid:[1]"), (4, "pid:[2]")):
            with (process(tmp_path, pid, namespace=namespace) / "environ").open("wb") as file:
                file.truncate(1 << 40)
        try:
            assert podman_exec.kill_marked(1, "m1", root=tmp_path) == 1
            assert own.wait(10) == -9
            assert other.poll() is None
        finally:
            own.kill()
            other.kill()
