"""One dockerd of any release in a machine of its own, told what to do over its own API: no client program is needed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster import enginehost, pods
from tools.cluster import build, image

CONFIG = "/etc/docker/daemon.json"
HOOKS = "/run/hooks"
"""A folder on dockerd's PATH."""
HOOK = f"{HOOKS}/nvidia-cdi-hook"
_DEBIAN = Path.home() / ".cache" / "fairlead" / "debian" / "docker-20.10" / "usr" / "sbin"
_API = {"20.10": "v1.41", "29": "v1.44"}
"""Version of the API each speaks at least."""


class Refused(Exception):
    """The daemon's own words."""


@dataclass
class Docker(enginehost.Node):
    """A machine with one dockerd."""

    release: str
    engine = "docker"
    folder = "/etc/docker"
    # What this kind of machine has no use for or no right to; everything a node's owner decides is in the file.
    command = (
        "/bin/sh",
        "-c",
        f'PATH={HOOKS}:$PATH; exec dockerd "$@"',
        "dockerd",
        "--bridge=none",
        "--iptables=false",
        "--ip6tables=false",
        "--userland-proxy=false",
        "--storage-driver=vfs",
    )

    @property
    def options(self) -> tuple[str, ...]:
        return (f"--cgroup-parent=/{self.one.cgroup}/docker", f"--config-file={CONFIG}")

    @property
    def socket(self) -> Path:
        return self.one.disk / "run" / "docker.sock"

    def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """Ask the API; raises Refused."""
        transport = httpx.HTTPTransport(uds=str(self.socket))
        with httpx.Client(transport=transport, base_url=f"http://docker/{_API[self.release]}", timeout=60) as client:
            answer = client.request(method, path, **arguments)
        if answer.status_code >= 400:
            raise Refused(answer.json()["message"])
        return answer

    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = self.request("GET", "/info").json()
        return found

    def reload(self) -> None:
        """Have it read its file again, as `systemctl reload docker` does; it tells of the end of that as an event."""
        assert self.process is not None
        now = time.time_ns()
        since = f"{now // 10**9}.{now % 10**9:09}"  # also what comes before it listens
        query = {"filters": json.dumps({"type": ["daemon"], "event": ["reload"]}), "since": since}
        transport = httpx.HTTPTransport(uds=str(self.socket))
        with (
            httpx.Client(transport=transport, base_url="http://docker", timeout=60) as client,
            client.stream("GET", "/events", params=query) as events,
        ):
            os.kill(self.process.pid, signal.SIGHUP)
            next(events.iter_lines())

    def load_image(self) -> None:
        path = self.one.folder / "busybox.tar"
        image.write_busybox(path)
        self.request("POST", "/images/load", content=path.read_bytes())

    def run(
        self,
        script: str = pods.LOOK,
        *,
        runtime: str = "",
        env: Mapping[str, str] | None = None,
        asks: Sequence[Mapping[str, object]] = (),
        annotations: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Run a container to its end, as `docker run --rm`, and return what it printed.

        Args:    asks: what `--device KIND=NAME` and `--gpus` send (`cdi` and `gpus` below).
        Raises:  Refused: it could not be made or started.
        """
        settings = {
            "Image": image.BUSYBOX,
            "Cmd": ["/bin/sh", "-c", script],
            "Env": [f"{name}={value}" for name, value in (env or {}).items()],
            "Tty": True,  # otherwise the log comes in frames
            "HostConfig": {
                "Runtime": runtime,
                "NetworkMode": "none",
                "DeviceRequests": list(asks),
                "Annotations": annotations or {},
            },
        }
        path = f"/containers/{self.request('POST', '/containers/create', json=settings).json()['Id']}"
        try:
            self.request("POST", f"{path}/start")
            self.request("POST", f"{path}/wait")
            return self.request("GET", f"{path}/logs", params={"stdout": 1}).text.splitlines()
        finally:
            self.request("DELETE", path, params={"force": 1})

    def sight(self, **arguments: Any) -> pods.Sight:
        """Return what a container sees of the machine's GPUs; arguments as for `run`."""
        return pods.parse_sight(self.run(**arguments))


def cdi(*names: str) -> dict[str, object]:
    """Return what the client sends for `--device NAME`."""
    return {"Driver": "cdi", "DeviceIDs": list(names)}


def gpus(*names: str) -> dict[str, object]:
    """Return what the client sends for `--gpus device=NAME`; no name: for `--gpus all`."""
    return {"Capabilities": [["gpu"]], **({"DeviceIDs": list(names)} if names else {"Count": -1})}


@contextlib.contextmanager
def booted(release: str) -> Iterator[Docker]:
    """Boot a machine with the programs of a release (20.10, 29); nothing is configured and nothing runs."""
    with enginehost.machine_with(*programs(release)) as one:
        yield Docker(one, release)


def programs(release: str) -> tuple[Path, ...]:
    """Return the folders with the programs of a release."""
    if release == "20.10":
        if not _DEBIAN.is_dir():
            pytest.skip("no docker 20.10: tests/cluster/setup.sh unpacks Debian 12's")
        return (_DEBIAN, enginehost.programs("1.6"))
    folder = build.folder_of(next(module for module in build.OLDER if module.name == "docker"))
    if not folder.is_dir():
        pytest.fail(f"run tests/cluster/setup.sh first: {folder} is not built")
    return (folder, enginehost.programs("2"))
