"""The API on TLS under many clients: wrk asks with a key over 100 connections, as consoles and scripts do."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx

from benchmarks import frame, service
from benchmarks.frame import Row, Unmeasured

_CLIENTS = 100
_SECONDS = 15
_CONTAINERS = 20
_LISTEN = "127.0.0.1:18443"
_SETTINGS = {"FAIRLEAD_API_LISTEN": _LISTEN, "FAIRLEAD_API_KEY_RATE": "0"}
_SHARE = re.compile(r"^ +(50|99)% +([\d.]+)(us|ms|s) *$", re.MULTILINE)
_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_RATE = re.compile(r"^Requests/sec: +([\d.]+)$", re.MULTILINE)
_ERRORS = re.compile(r"^ +(Non-2xx or 3xx responses|Socket errors: (?!connect 0, read 0, write 0)).*$", re.MULTILINE)
"""Not its timeouts: wrk counts connections that are still shaking hands among them."""


@frame.benchmark("api.clients")
def api_clients() -> Iterator[Row | Unmeasured]:
    """Requests a second, how long they take, and what they leave in memory; each answer must be a success."""
    if lacking := frame.needs("api, 100 clients", "wrk", "podman", "runc"):
        yield lacking
        return
    with service.running(**_SETTINGS) as up:
        _submit(up.socket)
        up.ask("user", "create", "bench", "--administrator")
        key = up.ask("key", "create", "--user", "bench").split()[0]
        for path in ("/v1/containers", "/v1/gpus"):
            _load(key, path)  # the first look at everything is not of interest
            before = _resident_mib(up.pid)
            told = _load(key, path)
            grown = _resident_mib(up.pid) - before
            if failed := _ERRORS.search(told):
                raise RuntimeError(f"{path}: {failed[0].strip()}")
            shares = {share: float(value) * _MS[unit] for share, value, unit in _SHARE.findall(told)}
            rate = _RATE.search(told)
            assert rate, told
            named = f"api on TLS, {_CLIENTS} clients, GET {path}"
            yield Row(name=f"{named}, requests", ours=float(rate[1]), unit="1/s")
            yield Row(name=f"{named}, p50", ours=shares["50"], unit="ms")
            yield Row(name=f"{named}, p99", ours=shares["99"], unit="ms")
            yield Row(name=f"{named}, memory grown", ours=grown, unit="MiB", bar=8.0)


def _submit(socket: Path) -> None:
    """Make containers that wait: each asks for more GPUs than there are."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://fairlead", timeout=60) as api:
        for number in range(_CONTAINERS):
            body = {"name": f"bench-{number}", "image": "localhost/none:1", "args": ["true"], "gpus": 9}
            api.post("/v1/containers", json=body).raise_for_status()


def _load(key: str, path: str) -> str:
    line = (
        "wrk",
        "--latency",
        "-t",
        "2",
        "-c",
        str(_CLIENTS),
        "-d",
        f"{_SECONDS}s",
        "-H",
        f"Authorization: Bearer {key}",
    )
    return subprocess.run((*line, f"https://{_LISTEN}{path}"), check=True, capture_output=True, text=True).stdout


def _resident_mib(pid: int) -> float:
    """Return the resident memory of a process and all that it started, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024 + sum(_resident_mib(int(child)) for child in children)
