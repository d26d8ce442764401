"""Holds our CDI spec of this machine against the one that NVIDIA's own generator makes, where that is installed."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any, Final

from tools.gpu import context as contexts
from tools.gpu.outcome import Log
from tools.gpu.parts import specs

_ROUNDS: Final = 5


def run(context: contexts.Context, log: Log) -> None:
    """Generate by both, compare what a container would get, and time both."""
    program = contexts.find("nvidia-ctk", {})
    if context.simulate or not program:
        why = "simulated GPUs have no NVML for it" if context.simulate else "nvidia-ctk is not on this machine"
        log.skip("nvidia-ctk", why)
        return
    folder = context.folder / "cdi-peer"
    ours = list(specs.generate(context, log, "full", folder).values())
    where = [f"--library-search-path={place}" for place in context.libraries.split(":") if place]
    argv = (program, "cdi", "generate", "--mode=nvml", "--format=json", *where)
    log.fact("nvidia-ctk", contexts.run((program, "--version"), timeout_s=10).stdout.strip())
    took = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        done = contexts.run(argv, timeout_s=20)
        took.append((time.perf_counter() - began) * 1000)
    if done.returncode:
        log.fail("nvidia-ctk", done.stderr.strip()[-600:], required=False)
        return
    log.fact("nvidia-ctk cdi generate_ms", round(statistics.median(took), 1))
    theirs = [json.loads(done.stdout)]
    log.fact("nvidia-ctk's spec", theirs[0])
    _compare(log, "device nodes", _nodes(ours), _nodes(theirs))
    _compare(log, "files", _files(ours), _files(theirs))
    _compare(log, "names of devices", _names(ours), _names(theirs))


def _compare(log: Log, what: str, ours: set[str], theirs: set[str]) -> None:
    """Judge whether ours has all that the peer gives, and tell what only ours has."""
    log.judge(
        f"{what} that nvidia-ctk gives", theirs <= ours, f"missing: {sorted(theirs - ours) or 'none'}", required=False
    )
    log.note(f"{what} that only we give", ", ".join(sorted(ours - theirs)) or "none")


def _nodes(documents: list[dict[str, Any]]) -> set[str]:
    return {
        node["path"]
        for document in documents
        for one in specs.edits_of(document)
        for node in one.get("deviceNodes", [])
    }


def _files(documents: list[dict[str, Any]]) -> set[str]:
    """Return the names of what is mounted; its folder may be another, as where a script stands for a program."""
    found = (
        mount["hostPath"]
        for document in documents
        for one in specs.edits_of(document)
        for mount in one.get("mounts", [])
    )
    return {Path(path).resolve().name for path in found}


def _names(documents: list[dict[str, Any]]) -> set[str]:
    return {device["name"] for document in documents for device in document.get("devices", [])}
