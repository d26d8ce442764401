"""Pods on one machine: from objects to running, what each weighs in the service, and what a probe costs.

The real store (SQLite on disk), admission and kubelet run in a process of their own (`python -m benchmarks.pods`) over
the fake engine, whose containers are no processes: what an engine takes is `run.submit`'s. The pods name their node, so
that no scheduler is in the figure: its rate is `scheduler`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks import frame
from fairlead import settings as configuration
from fairlead.engine.fake.engine import FakeEngine
from fairlead.node.kubelet.kubelet import Kubelet
from fairlead.node.kubelet.probing import check
from fairlead.plan.pod import admission
from fairlead.store.port import Store
from fairlead.store.sqlite import store as sqlite
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.pod.probe import ExecAction, HTTPGetAction, Probe, TCPSocketAction

APPLIED: Final = 200
HELD: Final = 500
PROBES: Final = 200
_IMAGE, _NODE, _PATIENCE_S = "localhost/bench:1", "here", 300.0
_SAID: Final = {
    "httpGet": "an httpGet probe",
    "tcpSocket": "a tcpSocket probe",
    "exec": "an exec probe, without the engine's part",
}
_SERVER: Final = """
import http.server
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def _pod(number: int) -> core.Pod:
    item = core.Container(name="main", image=_IMAGE, command=("sleep", "1000"))
    about = meta.ObjectMeta(name=f"bench-{number:04}", namespace="default")
    spec = core.PodSpec(containers=(item,), node_name=_NODE, restart_policy="Never")
    return admission.admit(core.Pod(metadata=about, spec=spec))


async def _until_running(store: Store, count: int) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            found = (await store.list(core.Pod)).items
            if sum(one.status.phase == "Running" for one in found) == count:
                return
            await asyncio.sleep(0.05)


async def _apply(store: Store, first: int, count: int) -> float:
    """Return how long pods take from the first object to the last one running, in seconds."""
    begun = time.perf_counter()
    for number in range(first, first + count):
        await store.create(_pod(number))
    await _until_running(store, first + count)
    return time.perf_counter() - begun


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _measure(folder: Path) -> dict[str, float]:
    settings = configuration.Settings(
        state=configuration.StateSettings(folder=folder / "state", run=folder / "run"),
        kubelet=configuration.KubeletSettings(max_pods=HELD + 1),
        node=configuration.NodeSettings(cdi_folder=folder / "cdi"),
    )
    settings.state.folder.mkdir(parents=True)
    engine, ready = FakeEngine(), asyncio.Event()
    engine.add_image(_IMAGE, command=("true",))
    with sqlite.SQLiteStore(settings.state.folder / "state.db") as store:
        kubelet = Kubelet(store=store, engine=engine, images=engine, settings=settings, node=_NODE)
        async with engine, asyncio.TaskGroup() as tasks:
            task = tasks.create_task(kubelet.run(ready.set))
            await ready.wait()
            before = _resident_bytes()
            applied_s = await _apply(store, 0, APPLIED)
            await _apply(store, APPLIED, HELD - APPLIED)
            grown = _resident_bytes() - before
            with _probed() as every:
                probes = {name: await _probe(engine, one) for name, one in every.items()}
            task.cancel()
    return {"applied_s": applied_s, "grown_bytes": grown, **probes}


@contextlib.contextmanager
def _probed() -> Iterator[dict[str, Probe]]:
    """Serve HTTP in a process of its own, whose work is not the service's."""
    with subprocess.Popen((sys.executable, "-c", _SERVER), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        number = int(server.stdout.readline())
        try:
            yield {
                "httpGet": Probe(http_get=HTTPGetAction(host="127.0.0.1", port=number, path="/")),
                "tcpSocket": Probe(tcp_socket=TCPSocketAction(host="127.0.0.1", port=number)),
                "exec": Probe(exec=ExecAction(command=("true",))),
            }
        finally:
            server.kill()


async def _probe(engine: FakeEngine, wanted: Probe) -> float:
    """Return the processor time that a probe takes of the service, in seconds.

    Its target is this process, so that the way into a network namespace is in it; exec is the fake engine's.
    """
    item = core.Container(name="main", image=_IMAGE)
    name = next(one.name for one in await engine.list_containers({}) if one.pid)
    target = check.Target(item=item, engine_name=name, pid=os.getpid())
    begun = time.process_time()
    for _ in range(PROBES):
        done = await check.probe(engine, target, wanted, 5.0)
        assert done.is_good, done.text
    return (time.process_time() - begun) / PROBES


@frame.benchmark("pods")
def pods_rows() -> Iterator[frame.Row]:
    """Make 200 pods, then 500, and probe."""
    done = subprocess.run((sys.executable, "-m", "benchmarks.pods"), check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    yield frame.Row(
        name=f"apply, {APPLIED} pods, objects -> running (store, admission, kubelet; engine fake)",
        ours=APPLIED / found["applied_s"],
        unit="pods/s",
    )
    yield frame.Row(
        name=f"memory grown by {HELD} running pods, service without API, each",
        ours=found["grown_bytes"] / HELD / 1024,
        unit="KiB",
    )
    for kind in _SAID:
        yield frame.Row(name=f"{_SAID[kind]}, processor time of the service", ours=found[kind] * 1e3, unit="ms")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(asyncio.run(_measure(Path(place)))))
