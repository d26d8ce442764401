"""`fairlead simulate fault` beside an agent: its own door is found, also where the environment means a cluster."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.serve import server
from fairlead.serve.v1.gpus import faultsocket
from tests.unit.cli.conftest import fairlead
from tests.unit.serve.world import Faulty


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a unix socket's has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        yield Path(name)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of an agent's container."""
    return {
        "FAIRLEAD_STATE_FOLDER": str(folder),
        "FAIRLEAD_STATE_RUN": str(folder / "run"),
        "FAIRLEAD_CONFIG": "/dev/null",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "KUBERNETES_SERVICE_PORT": "443",
    }


@pytest.fixture
def silicon(folder: Path) -> Iterator[Faulty]:
    """An agent's door on its socket."""
    ready, faulty, stop = threading.Event(), Faulty(), list[Callable[[], object]]()

    async def serve() -> None:
        listening, ending = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        door = faultsocket.create_app(faulty, "worker-1")
        async with asyncio.TaskGroup() as group:
            path = folder / "silicon" / "faults.sock"
            task = group.create_task(server.serve_unix(door, path, ready=listening))
            await listening.wait()
            stop.append(lambda: loop.call_soon_threadsafe(ending.set))
            ready.set()
            await ending.wait()
            task.cancel()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    yield faulty
    stop[0]()
    thread.join(10)
    assert not thread.is_alive()


def test_in_an_agents_container_a_fault_reaches_that_agent(silicon: Faulty, folder: Path) -> None:
    done = fairlead("simulate", "fault", "xid", "79", "-g", "3", "--node", "worker-1", env=environment(folder))
    assert (done.exit_code, done.stdout) == (0, "xid injected\n"), done.output
    assert silicon.asked == [("xid", 3, "79")]
    other = fairlead("simulate", "fault", "xid", "79", "-g", "3", "--node", "worker-2", env=environment(folder))
    assert other.exit_code != 0
    assert 'node "worker-2" is not this one' in other.stderr
    unknown = fairlead("simulate", "fault", "--gpu", "3", "--", "--fire", env=environment(folder))
    assert 'unknown fault "--fire"' in unknown.stderr


def test_where_no_agent_takes_faults_the_cluster_must_be_named(folder: Path) -> None:
    env = environment(folder) | {"KUBECONFIG": str(folder / "kubeconfig")}
    (folder / "kubeconfig").write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],"
        " clusters: [{name: k, cluster: {server: 'http://127.0.0.1:9'}}], users: [{name: u, user: {token: x}}]}"
    )
    done = fairlead("simulate", "fault", "xid", "79", "-g", "3", env=env)
    assert done.exit_code != 0
    assert "name it: `fairlead --kubeconfig FILE" in done.stderr
