"""The embedded product as a user runs it: a real `fairlead up` process, the real command line, real podman."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

BUSYBOX = shutil.which("busybox")
COMMAND = (sys.executable, "-m", "fairlead.cli.main")


@dataclass
class Result:
    """What one command left."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


class _Connection(http.client.HTTPConnection):
    """One connection to a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("fairlead", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@dataclass
class Home:
    """One state folder, with a service while it runs."""

    folder: Path
    image: str
    extra: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    prefix: tuple[str, ...] = ()
    """What every command is started with, the service too."""

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def env(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": "/root",
            "FAIRLEAD_STATE_FOLDER": str(self.state),
            "FAIRLEAD_STATE_RUN": str(self.folder / "run"),
            "FAIRLEAD_LOG_FORMAT": "json",
            # So that the ring can be run with possession as a machine's owner may set it.
            **{name: value for name, value in os.environ.items() if name.startswith("FAIRLEAD_LEASE_")},  # noqa: TID251
            **self.extra,
        }

    def up(self, *arguments: str, simulate: str = "h100x8", wait: bool = True, **more: str) -> None:
        """Start the service; with `wait` return once it is ready."""
        assert self.process is None or self.process.poll() is not None
        log = (self.folder / "up.log").open("ab")
        profile = ("--simulate", simulate) if simulate else ()
        self.process = subprocess.Popen(
            (*self.prefix, *COMMAND, "up", *profile, *arguments),
            env={**self.env, **more},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
        log.close()
        if wait:
            self.until(self.is_answering, what="the service answers", timeout_s=120)

    def is_answering(self) -> bool:
        """Return whether the service answers; fails where it has ended."""
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"fairlead up ended with {self.process.returncode}:\n{self.log()}")
        try:
            self.ask("/v1/status")
        except OSError:
            return False
        return self("status", "-o", "json").code == 0

    def ask(self, path: str) -> Any:
        """Return what the service answers: for waiting, in which a command line takes 100 times as long.

        Raises: OSError: nobody answers.
        """
        with contextlib.closing(_Connection(self.folder / "run/api.sock")) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        assert answer.status == 200, f"{path}: {answer.status} {body!r}"
        return json.loads(body)

    def log(self) -> str:
        return (self.folder / "up.log").read_text(errors="replace")

    def __call__(self, *arguments: str, timeout_s: float = 60, stdin: str | None = None) -> Result:
        """Run one command line to its end."""
        done = subprocess.run(
            (*self.prefix, *COMMAND, *arguments),
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            input=stdin,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def ok(self, *arguments: str, timeout_s: float = 60) -> Result:
        result = self(*arguments, timeout_s=timeout_s)
        assert result.code == 0, f"{arguments}: {result.code}\n{result.out}\n{result.err}\n{self.log()[-4000:]}"
        return result

    def run(self, *arguments: str, timeout_s: float = 60) -> Result:
        """`fairlead run` with the test image before `--`."""
        cut = arguments.index("--")
        options, command = arguments[:cut], arguments[cut + 1 :]
        return self("run", *options, self.image, "--", *command, timeout_s=timeout_s)

    def start(self, name: str, *options: str, command: tuple[str, ...] = ("sleep", "1000")) -> None:
        """Start a detached container and wait until it runs."""
        self.ok("run", "-d", "--name", name, *options, self.image, "--", *command)
        self.until_state(name, "running")

    def rm(self, *names: str) -> None:
        """Remove containers at once; returns when they are gone."""
        self.ok("rm", "-f", "--grace", "0", *names)

    def show(self, name: str) -> dict[str, Any]:
        items: list[dict[str, Any]] = self.ask("/v1/containers?all=true")["items"]
        found = [item for item in items if item["name"] == name]
        assert found, f"{name} is not listed: {[item['name'] for item in items]}"
        return {**found[0], "gpu_ids": granted(found[0])}

    def until_state(self, name: str, *states: str, timeout_s: float = 30) -> dict[str, Any]:
        shown: dict[str, Any] = {}

        def reached() -> bool:
            shown.clear()
            shown.update(self.show(name))
            return shown["state"] in states

        self.until(reached, what=f"{name} is {' or '.join(states)}", timeout_s=timeout_s, detail=lambda: str(shown))
        return shown

    def until(
        self, check: Callable[[], bool], *, what: str, timeout_s: float = 30, detail: Callable[[], str] = str
    ) -> None:
        """Look again until it is so: the outside of another process has no event to wait for."""
        deadline = time.monotonic() + timeout_s
        while not check():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout_s} s: {what}. {detail()}\n{self.log()[-6000:]}")
            time.sleep(0.05)

    def allocatable(self) -> int:
        nodes = self.ask("/v1/nodes")["items"]  # none: its kubelet has not written it yet
        return int(nodes[0]["allocatable"].get("nvidia.com/gpu", 0)) if nodes else 0

    def free_gpus(self) -> int:
        """GPUs no living container holds, by the product's own account."""
        held = [gpu for item in self.ask("/v1/containers")["items"] for gpu in granted(item)]
        assert len(held) == len(set(held)), f"a GPU is held twice: {held}"
        return self.allocatable() - len(held)

    def down(self, *options: str) -> None:
        """`fairlead down`, until the process itself is gone."""
        self.ok("down", *options)
        assert self.process is not None
        assert self.process.wait(10) == 0

    def kill(self) -> None:
        """kill -9 the service itself."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def kubelet_pid(self) -> int:
        """Pid of the kubelet's process, 0 while there is none."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in children:
            with contextlib.suppress(OSError):
                if b"kubelet" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                    return int(child)
        return 0

    def podman(self, *arguments: str) -> str:
        """Run podman; again where it met the namespace of some container of the machine that was just being removed."""
        deadline = time.monotonic() + 60
        while True:
            done = subprocess.run(
                ("podman", "--runtime", "runc", *arguments), capture_output=True, text=True, check=False, timeout=60
            )
            if "unknown FS magic" not in done.stderr or time.monotonic() > deadline:
                break
            time.sleep(0.25)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def containers(self) -> list[dict[str, Any]]:
        """What podman has of this home."""
        path = self.state / "kubelet" / "home-id"
        if not path.exists():
            return []
        text = self.podman(
            "ps", "-a", "--format", "json", "--filter", f"label=fairlead.dev/home={path.read_text().strip()}"
        )
        found: list[dict[str, Any]] = json.loads(text or "[]")
        return found

    def clear(self) -> None:
        """Remove every container through the service, so that a test can be repeated on what its first try left."""
        if self.process is None or self.process.poll() is not None:
            return
        # Over a socket nobody is verified: no authorities are read.
        transport = httpx.HTTPTransport(verify=False, uds=str(self.folder / "run" / "api.sock"))
        with httpx.Client(transport=transport, base_url="http://fairlead", timeout=30) as client:

            def is_clear() -> bool:
                for kind in ("cronjobs", "jobs", "deployments", "statefulsets", "services"):
                    for item in client.get(f"/v1/objects/{kind}").json()["items"]:
                        about = item["metadata"]
                        client.delete(f"/v1/objects/{kind}/{about['name']}", params={"namespace": about["namespace"]})
                left = client.get("/v1/containers", params={"all": "true"}).json()["items"]
                for item in left:
                    where = {"namespace": item["namespace"], "grace": 0}
                    client.delete(f"/v1/containers/{item['name']}", params=where)
                return not left

            self.until(is_clear, what="the containers of a test are gone", timeout_s=30)

    def mark(self) -> str:
        """Return what the names of this home's networks and chains have in them."""
        return (self.state / "kubelet" / "home-id").read_text().strip()[:8]

    def forget_networks(self) -> None:
        """Take away the networks that a service that failed has left."""
        with contextlib.suppress(OSError):
            for row in self.podman("network", "ls", "--format", "{{.Name}}").split():
                if row.startswith(f"fl-{self.mark()}-"):
                    subprocess.run(("podman", "network", "rm", "-f", row), check=False, capture_output=True)

    def close(self) -> None:
        """Leave nothing behind."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)
        # The sandbox of a pod last: the others join its network.
        for item in sorted(self.containers(), key=lambda item: "-sandbox-" in item["Names"][0]):
            self.podman("rm", "-f", "-t", "0", item["Id"])


def granted(item: dict[str, Any]) -> list[str]:
    """Ids of the devices a listed container was granted."""
    return [name for ids in item["devices"].values() for name in ids]


def make_image(folder: Path, name: str) -> None:
    root = folder / "root"
    for part in ("bin", "usr/bin", "etc", "tmp", "dev", "proc", "sys"):
        (root / part).mkdir(parents=True)
    assert BUSYBOX is not None
    shutil.copy(BUSYBOX, root / "bin/busybox")
    applets = subprocess.run((BUSYBOX, "--list"), capture_output=True, text=True, check=True).stdout.split()
    for applet in applets:
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    subprocess.run(("tar", "-C", str(root), "-cf", str(folder / "root.tar"), "."), check=True)
    subprocess.run(
        ("podman", "--runtime", "runc", "import", str(folder / "root.tar"), name), check=True, capture_output=True
    )


@contextlib.contextmanager
def machine_of_tenancies(image: str, **extra: str) -> Iterator[Home]:
    """Give a home for a module's tests; in the end its containers, tenancies, service and folder go, in that order.

    Args: extra: variables of the service's and the commands' environment.
    """
    home = make_home(image)
    home.extra |= extra
    try:
        yield home
    finally:
        if home.process is not None and home.process.poll() is None:
            home.clear()
            for name in home("tenancy", "list", "-o", "name").out.split():
                home("tenancy", "delete", name, timeout_s=300)  # each GPU is looked at before its tenancy is gone
        home.close()
        home.forget_networks()
        shutil.rmtree(home.folder, ignore_errors=True)


def make_home(image: str) -> Home:
    # Not tmp_path: a unix socket's path is limited to 107 bytes.
    return Home(folder=Path(tempfile.mkdtemp(prefix="fl-", dir="/tmp")), image=image)
