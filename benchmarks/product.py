"""The embedded product from outside: how fast the command line starts, how long a submitted container takes to run."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks import frame, service
from benchmarks.frame import Row
from fairlead.model import cdikind
from tools.cluster import build

_RUNS = 11
_IMAGE = "localhost/fairlead-bench/box:1"


@frame.benchmark("cli.help")
def cli_help() -> Iterator[Row]:
    """`fairlead --help`, process start included."""
    samples = [
        _timed(lambda: subprocess.run((*service.COMMAND, "--help"), check=True, capture_output=True))
        for _ in range(_RUNS)
    ]
    yield Row(name="fairlead --help", ours=frame.percentile(samples, 0.5) * 1e3, unit="ms", bar=150.0)


@frame.benchmark("cli.ps")
def cli_ps() -> Iterator[Row | frame.Unmeasured]:
    """`fairlead ps` against a service that runs, process start included."""
    if lacking := frame.needs("fairlead ps", "podman"):
        yield lacking
        return
    with service.running() as up:
        samples = [_timed(lambda: up.ask("ps")) for _ in range(_RUNS)]
    yield Row(name="fairlead ps", ours=frame.percentile(samples, 0.5) * 1e3, unit="ms", bar=250.0)


@frame.benchmark("run.submit")
def submit_to_running() -> Iterator[Row | frame.Unmeasured]:
    """A container from the request to its process running, in turns with `podman run -d` of the same image.

    podman is given the same CDI devices from the same specs, so that both starts hold the hook.
    """
    if lacking := frame.needs("submit -> running", "podman", "runc", "busybox"):
        yield lacking
        return
    with service.running() as up:
        _make_image(up.folder)
        ours, peers = _measure(up.socket)
    subprocess.run(("podman", "rmi", "-f", _IMAGE), check=False, capture_output=True)
    for what, samples in ours.items():
        peer = frame.percentile(peers[what], 0.5) * 1e3
        yield Row(
            name=f"submit -> running, {what}, p50",
            ours=frame.percentile(samples, 0.5) * 1e3,
            unit="ms",
            peer=peer,
            peer_name=f"podman run -d, {what}, side by side",
            peer_source="this run",
            bar=1.25 * peer,
        )


_KNOWN: Final = "550.90.12"
"""A driver that the ring's gVisor knows."""


@frame.benchmark("run.gvisor")
def gvisor_to_running() -> Iterator[Row | frame.Unmeasured]:
    """A container on gVisor from the request to its process running, in turns with the same one on runc."""
    name = "submit -> running on gVisor"
    runsc = build.folder_of(build.GVISOR) / "runsc"
    if not runsc.exists():
        yield frame.Unmeasured(name=name, why="gVisor has not been built: tests/system/gvisor/setup.sh")
        return
    if lacking := frame.needs(name, "podman", "runc", "busybox", "unshare"):
        yield lacking
        return
    with service.running(lambda folder: _with_gvisor(folder, runsc)) as up:
        _make_image(up.folder)
        taken: dict[tuple[str, str], list[float]] = {}
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(up.socket)), base_url="http://fairlead", timeout=60
        ) as api:
            for turn in range(_RUNS):
                for what, gpus in (("no GPU", 0), ("2 GPUs", 2)):
                    for isolation in ("none", "gvisor"):
                        took = _submit(api, f"bench-{isolation}-{turn}-{gpus}", gpus, isolation=isolation)
                        taken.setdefault((what, isolation), []).append(took)
    subprocess.run(("podman", "rmi", "-f", _IMAGE), check=False, capture_output=True)
    for what in ("no GPU", "2 GPUs"):
        yield Row(
            name=f"{name}, {what}, p50",
            ours=frame.percentile(taken[what, "gvisor"], 0.5) * 1e3,
            unit="ms",
            peer=frame.percentile(taken[what, "none"], 0.5) * 1e3,
            peer_name=f"the same on runc, {what}, side by side",
            peer_source="this run",
        )


def _with_gvisor(folder: Path, runsc: Path) -> tuple[str, ...]:
    """Configure podman for gVisor in a copy of its configuration, which the service alone sees."""
    own, where = folder / "containers", "/etc/containers"
    shutil.copytree(where, own, symlinks=True)
    inside = f'mount --make-private / && mount --bind {own} {where} && exec "$@"'
    words = ("unshare", "-m", "--propagation", "unchanged", "sh", "-c", inside, "sh")
    places = ("--folder", str(folder / "libexec"), "--policy", str(folder / "runtime.json"))
    nodes = ("--gvisor-dev", str(folder / "state/silicon/root/dev"))
    options = ("--gvisor", "--gvisor-program", str(runsc), "--gvisor-flag", f"nvproxy-driver-version={_KNOWN}")
    line = (*words, *service.COMMAND, "runtime", "configure", "--engine", "podman", *places, *nodes, *options)
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "FAIRLEAD_STATE_FOLDER": str(folder / "state")}
    subprocess.run(line, env=env, check=True, capture_output=True)
    return words


def _measure(socket: Path) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    ours: dict[str, list[float]] = {"no GPU": [], "2 GPUs": []}
    peers: dict[str, list[float]] = {"no GPU": [], "2 GPUs": []}
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://fairlead", timeout=60) as api:
        # A spec names a GPU for as long as a container has it: this one keeps podman's from going with ours.
        held = _start(api, "bench-held", 2)
        names = [f"{cdikind.ALLOCATED['nvidia']}={one}" for one in held["devices"]["nvidia.com/gpu"]]
        for turn in range(_RUNS):
            for what, gpus in (("no GPU", 0), ("2 GPUs", 2)):
                ours[what].append(_submit(api, f"bench-{turn}-{gpus}", gpus))
                devices = [word for name in names[:gpus] for word in ("--device", name)]
                line = ("run", "-d", "--rm", "--name", "fl-bench", *devices, _IMAGE, "sleep", "1000")
                peers[what].append(_timed(lambda line=line: _podman(*line)))
                _podman("rm", "-f", "-t", "0", "fl-bench")
        _remove(api, "bench-held")
    return ours, peers


def _submit(api: httpx.Client, name: str, gpus: int, *, isolation: str = "") -> float:
    took = _timed(lambda: _start(api, name, gpus, isolation=isolation))
    _remove(api, name)
    return took


def _start(api: httpx.Client, name: str, gpus: int, *, isolation: str = "") -> dict[str, Any]:
    body = {"name": name, "image": _IMAGE, "args": ["sleep", "1000"], "gpus": gpus, "isolation": isolation}
    api.post("/v1/containers", json=body).raise_for_status()
    shown: dict[str, Any] = (
        api.get(f"/v1/containers/{name}/wait", params={"state": "started", "timeout": 60}).raise_for_status().json()
    )
    if shown["state"] != "running":
        raise SystemExit(f"{name} is {shown['state']}: {shown['reason']} {shown['message']}")
    return shown


def _remove(api: httpx.Client, name: str) -> None:
    api.delete(f"/v1/containers/{name}", params={"grace": 0}).raise_for_status()
    api.get(f"/v1/containers/{name}/wait", params={"state": "gone", "timeout": 60}).raise_for_status()


def _make_image(folder: Path) -> None:
    busybox = shutil.which("busybox")
    if busybox is None:
        raise SystemExit("busybox-static is needed")
    (folder / "root/bin").mkdir(parents=True)
    shutil.copy(busybox, folder / "root/bin/busybox")
    (folder / "root/bin/sleep").symlink_to("busybox")
    subprocess.run(("tar", "-C", str(folder / "root"), "-cf", str(folder / "root.tar"), "."), check=True)
    _podman("import", str(folder / "root.tar"), _IMAGE)


def _podman(*arguments: str) -> None:
    # The same working round of this machine's limits that the product found for itself.
    limits = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096") if arguments[0] == "run" else ()
    verb, *rest = arguments
    subprocess.run(("podman", "--runtime", "runc", verb, *limits, *rest), check=True, capture_output=True)


def _timed(run: object) -> float:
    begun = time.perf_counter()
    assert callable(run)
    run()
    return time.perf_counter() - begun
