"""What Kata's shim serves to its monitor: the metrics of a sandbox, on a socket in the sandbox's folder.

Of Kata's metrics those are served that say when the guest's kernel and agent began; they are asked of the guest when
they are read, as Kata's shim does.

Source: kata-containers src/runtime/pkg/containerd-shim-v2/shim_management.go; docs/design/kata-2-0-metrics.md.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

PLACE: Final = "run/vc/sbs"
_ITEMS: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")


def text(said: bytes) -> str:
    """Return the metrics. Args: said: the guest's line of /proc/stat for processor 0, then when its agent began."""
    times, began = said.decode().splitlines()
    lines = [
        f'kata_guest_cpu_time{{cpu="0",item="{item}"}} {ticks}'
        for item, ticks in zip(_ITEMS, times.split(), strict=False)
    ]
    return "\n".join([*lines, f"kata_agent_process_start_time_seconds {began}", ""])


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, ask: Callable[[], bytes]) -> None:
        self.ask = ask
        super().__init__(path, _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.path != "/metrics":
            self.send_error(404)
            return
        answer = text(self.server.ask()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        """Write nothing: the log is the sandbox's."""


@contextlib.contextmanager
def serving(root: str, sandbox: str, ask: Callable[[], bytes]) -> Any:
    """Serve a sandbox's metrics during a block. Args: root: of the node.   ask: returns what the guest says now."""
    folder = Path(f"{root}/{PLACE}") / sandbox
    folder.mkdir(parents=True, exist_ok=True)
    here = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        # The path itself may be longer than a socket's may be.
        server = _Server(f"/proc/self/fd/{here}/shim-monitor.sock", ask)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()
        server.server_close()
    finally:
        os.close(here)
        shutil.rmtree(folder, ignore_errors=True)


def join(cgroup: str, sandbox: str, pid: int) -> None:
    """Put the emulator below its pod's cgroup, as Kata does with `sandbox_cgroup_only`, where that is there.

    Args: cgroup: `cgroupsPath` of the sandbox's specification; systemd's form is left alone.
    """
    if not cgroup.startswith("/"):
        return
    for mount in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
        pod = Path(f"{mount}{cgroup}").parent
        if "pod" in pod.name and pod.is_dir() and (pod / "cgroup.procs").exists():
            folder = pod / f"kata_{sandbox}"
            folder.mkdir(exist_ok=True)
            with contextlib.suppress(OSError):
                (folder / "cgroup.procs").write_text(str(pid))
            return
