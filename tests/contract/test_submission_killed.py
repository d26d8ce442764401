"""kill -9 of the API at each step of a submission: the same `Idempotency-Key` finds the one container."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.store.sqlite import store as sqlite
from fairlead.wire.fairlead.podrequest import PodRequest
from fairlead.wire.kubernetes import core

POINTS = (
    "submission.after-volumes",
    "submission.before-store",
    "store-committed",
    "submission.after-store",
    "submission.after-record",
)
REQUEST = {"image": "demo", "volumes": [{"name": "data", "container_path": "/data"}]}
_ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def _serving(folder: Path, point: str = "") -> Iterator[subprocess.Popen[str]]:
    """Serve until the block ends, or the point is reached; clients can connect."""
    command = [sys.executable, "-m", "tests.contract.apiprocess", str(folder), *([point] if point else [])]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def _sent(folder: Path, key: str, request: dict[str, Any]) -> httpx.Response:
    """Send a request. Raises httpx.TransportError where it broke off."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(folder / "api.sock")), base_url="http://x") as client:
        return client.post("/v1/containers", json=request, headers={"idempotency-key": key}, timeout=60)


def _killed_at(folder: Path, point: str, key: str, request: dict[str, Any]) -> None:
    with _serving(folder, point) as process:
        with pytest.raises(httpx.RemoteProtocolError):
            _sent(folder, key, request)
        assert process.wait(60) == -signal.SIGKILL


async def _stored(folder: Path) -> tuple[list[str], list[str]]:
    with sqlite.SQLiteStore(folder / "state.db") as store:
        pods = [pod.metadata.uid for pod in (await store.list(core.Pod)).items]
        return pods, [one.spec.pod_uid for one in (await store.list(PodRequest)).items]


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
async def test_a_request_repeated_after_the_kill_finds_the_one_container(tmp_path: Path, point: str) -> None:
    # Its first commit is the pod's own where no volume is made before it.
    request = {"image": "demo"} if point == "store-committed" else REQUEST
    _killed_at(tmp_path, point, "k", request)
    before, _ = await _stored(tmp_path)
    with _serving(tmp_path):
        again = _sent(tmp_path, "k", request)
        assert again.status_code == 201, again.text
        assert _sent(tmp_path, "k", request).json() == again.json()
        assert _sent(tmp_path, "k", {"image": "other"}).status_code == 422
    pods, records = await _stored(tmp_path)
    assert pods == records == [again.json()["uid"]]
    assert before in ([], pods)
    # Where the pod was stored before the kill its answer was too.
    assert bool(before) == (again.headers.get("idempotency-replayed") == "true")


@pytest.mark.slow
def test_fairlead_run_makes_one_container_though_the_service_is_killed_in_the_middle(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "fairlead"), "--url", str(tmp_path / "api.sock"), "run", "-d", "demo"]
    with (
        _serving(tmp_path, "submission.after-store") as first,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running,
    ):
        assert first.wait(60) == -signal.SIGKILL
        with _serving(tmp_path):
            shown, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    pods, _ = asyncio.run(_stored(tmp_path))
    assert (len(pods), shown.count("\n")) == (1, 1)
