"""Runs the parts, each as a process of its own with a limit, and gathers what they wrote.

A part may leave daemons behind that have a session of their own (containers, the service, MPS). This process is their
subreaper: what a part leaves becomes its child, and is ended before the next part begins.
Source: prctl(2), PR_SET_CHILD_SUBREAPER.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.gpu import context as contexts
from tools.gpu import outcome

_SUBREAPER: Final = 36
_GRACE_S: Final = 5.0
_TOTAL_S: Final = 540.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One layer's check: `run(context, log)` of the module of its name in `tools.gpu.parts`."""

    name: str
    title: str
    limit_s: float
    is_required: bool = True


PARTS: Final = (
    Part(name="inventory", title="GPUs as NVML and nvidia-smi tell of them", limit_s=40),
    Part(name="contract", title="the silicon contract on this driver", limit_s=60),
    Part(name="specs", title="CDI specs and the driver's files", limit_s=40),
    Part(name="containers", title="containers by runc and crun", limit_s=90),
    Part(name="service", title="agent, embedded kubelet, metrics, trace", limit_s=120),
    Part(name="lifecycle", title="attach, a killed service, replicas, verification", limit_s=120),
    Part(name="holders", title="who has a GPU open", limit_s=25),
    Part(name="timings", title="time and memory", limit_s=40, is_required=False),
    Part(name="peer", title="CDI specs beside nvidia-ctk", limit_s=30, is_required=False),
    Part(name="sharing", title="MPS, and MIG as it is", limit_s=40, is_required=False),
)
"""In this order; what is not required is a figure or an extra of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """How a part ended and what it found until then."""

    part: Part
    checks: tuple[outcome.Check, ...]
    facts: dict[str, Any]
    seconds: float
    end: str
    """`done`, `ended after its limit of 40 s`, `failed: …`."""

    @property
    def has_passed(self) -> bool:
        """Whether it came to its end and nothing that is required is bad."""
        return self.end == "done" and not any(check.is_required and check.state in outcome.BAD for check in self.checks)


def run_all(context: contexts.Context, chosen: Sequence[Part], *, total_s: float = _TOTAL_S) -> list[PartResult]:
    """Run parts one after another; none keeps another from running but by the time that all have together."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    contexts.save(context, context.folder / "context.json")
    end = time.monotonic() + total_s
    results = []
    for part in chosen:
        left = end - time.monotonic()
        print(f"{part.name}: {part.title} ... ", end="", flush=True)
        result = _run(context, part, min(part.limit_s, left))
        results.append(result)
        print(f"{'passed' if result.has_passed else 'NOT PASSED'} ({result.seconds:.1f} s)", flush=True)
    return results


def _run(context: contexts.Context, part: Part, limit_s: float) -> PartResult:
    log = context.folder / f"{part.name}.jsonl"
    if limit_s <= 1:
        return PartResult(part=part, checks=(), facts={}, seconds=0, end="not begun: no time was left")
    argv = (sys.executable, "-m", "tools.gpu", "--part", part.name, "--context", str(context.folder / "context.json"))
    began = time.monotonic()
    with (context.folder / f"{part.name}.log").open("wb") as said:
        # The caller's variables stay: they say where a driver's libraries are.
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
        try:
            code = child.wait(limit_s)
            end = "done" if code == 0 else f"failed: {_last_line(Path(said.name)) or f'exit code {code}'}"
        except subprocess.TimeoutExpired:
            end = f"ended after its limit of {limit_s:.0f} s"
        _end_all()
    checks, facts = outcome.read_log(log)
    return PartResult(part=part, checks=checks, facts=facts, seconds=time.monotonic() - began, end=end)


def _last_line(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _end_all() -> None:
    """End every process below this one: first kindly, then not."""
    end = time.monotonic() + _GRACE_S
    sent = signal.SIGTERM
    while pids := _descendants(os.getpid()):
        if time.monotonic() > end:
            sent = signal.SIGKILL
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sent)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > end + _GRACE_S:
            return  # a process that the kernel does not end: a driver call that hangs
        time.sleep(0.05)


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def run_part(name: str, context: contexts.Context) -> None:
    """Run one part in this process."""
    module = importlib.import_module(f"tools.gpu.parts.{name}")
    module.run(context, outcome.Log(context.folder / f"{name}.jsonl"))
