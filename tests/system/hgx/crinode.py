"""Runs in an HGX node: pods by containerd's CRI whose machines are made by Kata's stand-in, as a kubelet runs them.

No kubelet of Kubernetes is there. Devices come from the embedded one (`kubelet.py`), which the stand-in asks by
PodResources `Get`; what a kubelet does besides is here: it tries a sandbox again until the engine makes it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, "/stub")

SOCKET = Path("/run/containerd/containerd.sock")
STATE = Path("/run/kata/state/k8s.io")
LOGS = Path("/run/pods")
STOPS = Path("/run/kata/stops")
"""Where the stand-in halts at steps."""
_RETRY_S = 0.5
_CALL_S = 500.0

T = TypeVar("T")


def wait_ready(limit_s: float) -> None:
    """Wait for the engine."""

    async def work(stub: Any) -> None:
        until = time.monotonic() + limit_s
        while True:
            try:
                await stub.status()
            except Exception:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.2)
            else:
                return

    _with_engine(work)


def start(
    pod: str, resource: str, handler: str, command: list[str], device: str = "", kill_at: str = ""
) -> dict[str, Any]:
    """Have a pod admitted by the kubelet and run by the engine; returns what came of it.

    Args:    device: the id that it must have; others are given to pods that do nothing. Empty: any.
             kill_at: the step at which the stand-in's process is killed, once; the kubelet then tries again.
    Returns: `ids` of devices, `cdi` names, `sandbox`, `refused` (how each sandbox was that had to wait), `calls`:
             name, begin and end of each call, in Unix seconds.
    """
    from tests.cluster import cripod

    calls: list[tuple[str, float, float]] = []
    begin = time.time()
    kubelet = importlib.import_module("kubelet")
    ids, cdi = _split(kubelet.admit(pod, resource))
    while device and ids != [device]:
        kubelet.end(pod)
        kubelet.admit(f"filler-{ids[0]}", resource)
        ids, cdi = _split(kubelet.admit(pod, resource))
    calls.append(("admission", begin, time.time()))
    if kill_at:
        threading.Thread(target=_kill_at, args=(kill_at,), daemon=True).start()

    async def work(stub: Any) -> dict[str, Any]:
        from fairlead import errors

        refused = []
        while True:
            begin = time.time()
            try:
                made = await cripod.run(
                    stub, pod, handler=handler, logs=str(LOGS / pod), seen_at=LOGS / pod, namespace="team"
                )
            except errors.FairleadError as error:
                refused.append(error.message)
                if "unresolvable CDI" not in error.message and not kill_at:
                    raise
                calls.append(("slot", begin, time.time()))
                begin = time.time()
                await asyncio.sleep(_RETRY_S)
                calls.append(("slot", begin, time.time()))
            else:
                calls.append(("sandbox", begin, time.time()))
                break
        begin = time.time()
        await made.start("main", command, devices=cdi)
        calls.append(("container", begin, time.time()))
        shown = await made.inspect("main")
        return {"sandbox": made.sandbox, "refused": refused, "inspected": _part(shown), "container": shown["pid"]}

    found = _with_engine(work)
    return {"ids": ids, "cdi": cdi, "calls": calls, **found}


def _kill_at(step: str) -> None:
    """Kill the process of the stand-in that comes to a step, and go on."""
    asked, reached = STOPS / step, STOPS / f"{step}.reached"
    asked.touch()
    until = time.monotonic() + _CALL_S
    while not reached.exists() and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(int(reached.read_text()), signal.SIGKILL)
    asked.unlink()


def ended(sandbox: str, limit_s: float) -> list[Any]:
    """Return state, reason and exit code of a pod's container, once it has ended, in the engine's words."""
    from tests.cluster.proto import cri_pb2 as pb

    container = _container(sandbox)

    async def work(stub: Any) -> list[Any]:
        until = time.monotonic() + limit_s
        while True:
            found = (await stub.container_status(container)).status
            if found.state == pb.CONTAINER_EXITED or time.monotonic() > until:
                return [pb.ContainerState.Name(found.state), found.reason, found.exit_code]
            await asyncio.sleep(0.2)

    return _with_engine(work)


def _container(sandbox: str) -> str:
    """Return the id of a sandbox's one container, as the stand-in has it."""
    for path in STATE.glob("*/state.json"):
        if path.parent.name != sandbox and json.loads(path.read_text())["sandbox"] == sandbox:
            return path.parent.name
    raise LookupError(f"sandbox {sandbox} has no container")


def _split(answer: list[str]) -> tuple[list[str], list[str]]:
    return [one for one in answer if "=" not in one], [one for one in answer if "=" in one]


def _part(shown: dict[str, Any]) -> dict[str, Any]:
    """Return what the article looks at in `crictl inspect`."""
    return {
        "CDI_devices": shown["config"].get("CDI_devices"),
        "devices": shown["runtimeSpec"]["linux"].get("devices"),
        "runtimeType": shown["runtimeType"],
        "runtimeOptions": shown.get("runtimeOptions"),
    }


def try_container(pod: str, sandbox: str, device: str) -> str:
    """Return how the engine refuses a container in a sandbox that asks for a host's device."""
    from fairlead import errors
    from tests.cluster import cripod
    from tests.cluster.proto import cri_pb2 as pb

    async def work(stub: Any) -> str:
        spaces = pb.NamespaceOption(network=pb.NamespaceMode.NODE, pid=pb.NamespaceMode.CONTAINER)
        context = pb.LinuxSandboxSecurityContext(namespace_options=spaces)
        config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=pod, uid=f"uid-{pod}", namespace="team"),
            log_directory=str(LOGS / pod),
            linux=pb.LinuxPodSandboxConfig(cgroup_parent=f"/{pod}", security_context=context),
        )
        one = cripod.Pod(stub, config, LOGS / pod, sandbox)
        try:
            await one.start("thief", ["/bin/true"], host_devices={device: device})
        except errors.FairleadError as error:
            return error.message
        return ""

    return _with_engine(work)


def first_output(pod: str) -> float:
    """Return when the engine read the pod's first line, in Unix seconds; its own stamp."""
    from tests.katastandin import waterfall

    return waterfall.first_output((LOGS / pod / "main.log").read_text())


def kept(sandbox: str, name: str) -> Any:
    """Return one of the stand-in's files of a sandbox."""
    return json.loads((STATE / sandbox / name).read_text())


def remove(sandbox: str) -> None:
    """End a pod and forget it, as a kubelet does."""

    async def work(stub: Any) -> None:
        await stub.remove_sandbox(sandbox)

    _with_engine(work)


def _with_engine(work: Callable[[Any], Awaitable[T]]) -> T:
    import grpc.aio

    from fairlead.wire.kubelet import deviceplugin
    from tests.cluster import cri

    async def main() -> T:
        target = deviceplugin.target(SOCKET)
        async with grpc.aio.insecure_channel(target, options=deviceplugin.CHANNEL_OPTIONS) as channel:
            return await work(cri.RuntimeStub(channel, timeout_s=_CALL_S))

    return asyncio.run(main())
