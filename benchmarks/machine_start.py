"""Where the time of a start in a virtual machine goes: each phase between two stamps of one component.

Real: containerd with its shim, QEMU, the guest's kernel. What stands in for Kata is `tests/katastandin`. No GPU is in
the machine, and its processor is emulated, since KVM hangs on machines that only seem to have it: shares, not seconds,
say something. With GPUs `tests/system/test_hgx_kata.py` prints the same, on the emulated HGX node.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from typing import Final

import pytest

from benchmarks import frame
from tests.cluster import cripod, enginehost, katahost
from tests.katastandin import waterfall

NAME: Final = "vm: start in a machine"
_RUNS: Final = 3
_CALL_S: Final = 300.0


@frame.benchmark("vm")
def machine_start() -> Iterator[frame.Row | frame.Unmeasured]:
    """A pod's start in a machine, without a GPU, from the engine's first call to the container's first line."""
    if lacking := frame.needs(NAME, "qemu-system-x86_64", "gcc", "busybox", "nsenter"):
        yield lacking
        return
    try:
        with katahost.booted(accelerator="tcg") as host:
            runs = [asyncio.run(_start(host, f"bench-{turn}")) for turn in range(_RUNS)]
    except (pytest.skip.Exception, pytest.fail.Exception) as error:
        yield frame.Unmeasured(name=NAME, why=str(error))
        return
    phases, wall_s, _ = min(runs, key=lambda one: one[1])
    yield frame.Row(name=f"{NAME}, best of {_RUNS}", ours=wall_s * 1000, unit="ms")
    nameless = max(abs(wall - sum(seconds for _, seconds in found)) / wall for found, wall, _ in runs)
    yield frame.Row(name=f"{NAME}, share of it without a phase, worst of {_RUNS}", ours=nameless * 100, unit="%", bar=2)
    for phase, seconds in phases:
        yield frame.Row(name=f"{NAME}, {phase}", ours=seconds * 1000, unit="ms")
    yield frame.Row(
        name="vm: memory of a machine's emulator beside its guest's", ours=max(own for *_, own in runs), unit="MiB"
    )


async def _start(host: enginehost.Host, name: str) -> tuple[list[tuple[str, float]], float, float]:
    """Return the phases, the wall time, and the emulator's own memory in MiB."""
    async with host.kubelet(limit_s=_CALL_S) as kubelet:
        asked = time.time()
        pod = await cripod.run(
            kubelet.stub,
            name,
            handler=katahost.HANDLER,
            logs=f"/var/log/{name}",
            seen_at=host.one.disk / "var-log" / name,
            cgroup=f"/{host.one.cgroup}",
        )
        try:
            begin = time.time()
            calls = [("sandbox", asked, begin)]
            await pod.start("main", ["/bin/sh", "-c", "echo up; exec sleep 3600"])
            calls.append(("container", begin, time.time()))
            await pod.wait_log("main", "up")
            place = f"{katahost.STATE}/k8s.io/{pod.sandbox}"
            inner = json.loads(host.read(f"{place}/phases.json"))
            own = _own_mib(host.read(f"/proc/{host.read(f'{place}/emulator.pid')}/smaps"))
            output = waterfall.first_output((pod.logs / "main.log").read_text())
            return *waterfall.divide(calls, [tuple(one) for one in inner], output), own
        finally:
            await pod.remove()


def _own_mib(smaps: str) -> float:
    """Return the resident memory of a process in MiB, without its largest mapping, which is the guest's memory."""
    sizes = [int(one) for one in re.findall(r"^Size: +(\d+) kB", smaps, re.MULTILINE)]
    resident = [int(one) for one in re.findall(r"^Rss: +(\d+) kB", smaps, re.MULTILINE)]
    return (sum(resident) - resident[sizes.index(max(sizes))]) / 1024
