"""The API on TLS under attack: what it holds in memory, and how long another tenant's requests take meanwhile."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import httpx

from benchmarks import attackers, frame, service
from benchmarks.frame import Row, Unmeasured

_PORT: Final = 18444
_SETTINGS: Final = {"FAIRLEAD_API_LISTEN": f"127.0.0.1:{_PORT}"}
_SECONDS: Final = 15.0
_REST_S: Final = 5.0
_EVERY_S: Final = 0.05
_FROM: Final = "127.0.0.9"
_MIB_BAR, _S_BAR = 512.0, 1.0


@frame.benchmark("api.attacks")
def api_attacks() -> Iterator[Row | Unmeasured]:
    """Each attack of `attackers` by a developer of one tenancy, then all together; another tenancy asks who it is."""
    if lacking := frame.needs("api under attack", "podman", "runc", "busybox"):
        yield lacking
        return
    with service.running(**_SETTINGS) as up:
        keys = {name: _join(up, name) for name in ("red", "blue")}
        up.ask("image", "demo", "localhost/fairlead-bench/attacked")
        up.ask("run", "-d", "-T", "red", "--name", "box", "localhost/fairlead-bench/attacked", "--", "sleep", "3600")
        each = {f"attacked by {kind}": (kind,) for kind in attackers.KINDS}
        # At rest as well: what a request takes on this machine while nothing attacks.
        for what, kinds in {"at rest": (), **each, "under all attacks": tuple(attackers.KINDS)}.items():
            peak, waits = _measure(up.pid, keys, kinds)
            yield Row(name=f"api {what}, resident", ours=peak, unit="MiB", bar=_MIB_BAR)
            p99 = frame.percentile(waits, 0.99)
            yield Row(name=f"api {what}, p99 of another tenant", ours=p99, unit="s", bar=_S_BAR)
            time.sleep(_REST_S)
    subprocess.run(("podman", "rmi", "-f", "localhost/fairlead-bench/attacked"), check=False, capture_output=True)


def _join(up: service.Service, tenancy: str) -> str:
    """Make a tenancy and a developer of it; return the developer's key."""
    up.ask("tenancy", "create", tenancy, "--network", "none")
    up.ask("user", "create", f"dev-{tenancy}")
    up.ask("user", "grant", f"dev-{tenancy}", "developer", "-T", tenancy)
    return up.ask("key", "create", "--user", f"dev-{tenancy}").split()[0]


def _measure(pid: int, keys: dict[str, str], kinds: Sequence[str]) -> tuple[float, list[float]]:
    """Return the most that the service had resident, in MiB, and how long each request of another tenant took, in s."""
    peak, waits = 0.0, list[float]()
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(_client(keys["blue"]))
        for kind in kinds:
            line = (sys.executable, "-m", "benchmarks.attackers", kind, str(_PORT), keys["red"], str(_SECONDS))
            attacker = stack.enter_context(subprocess.Popen(line))
            stack.callback(attacker.kill)  # closing sixty sockets that nothing is read from takes it a minute
        until = time.monotonic() + _SECONDS
        while time.monotonic() < until:
            begun = time.monotonic()
            client.get("/v1/self").raise_for_status()
            waits.append(time.monotonic() - begun)
            peak = max(peak, _resident_mib(pid))
            time.sleep(_EVERY_S)
    return peak, waits


def _client(key: str) -> httpx.Client:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    transport = httpx.HTTPTransport(verify=context, local_address=_FROM)
    headers = {"authorization": f"Bearer {key}"}
    return httpx.Client(transport=transport, base_url=f"https://127.0.0.1:{_PORT}", headers=headers, timeout=60)


def _resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024
