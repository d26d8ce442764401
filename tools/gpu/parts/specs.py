"""Generates CDI specs by NVML, and holds them against the disk, the linker's cache and the driver's own files."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tools.gpu import context as contexts
from tools.gpu.outcome import Log

_CACHED: Final = re.compile(r"^\s*(\S+) \(.*x86-64.*\) => (\S+)$")
_DRIVER_LIBRARY: Final = re.compile(
    r"^lib(cuda|nvidia|nvcuvid|nvoptix|GLX_nvidia|EGL_nvidia|GLESv\w+_nvidia|vdpau_nvidia)"
)


def run(context: contexts.Context, log: Log) -> None:
    """Write both profiles; the tenant's is what the containers of the next part get."""
    for profile in ("full", "tenant"):
        folder = context.folder / f"cdi-{profile}"
        specs = generate(context, log, profile, folder)
        if not specs:
            continue
        _validate(context, log, profile, folder)
        for path, document in specs.items():
            _hold_against_disk(log, profile, path.name, document)
        if profile == "full":
            _hold_against_linker(log, list(specs.values()))
            log.fact("spec, full", {path.name: document for path, document in specs.items()})


def generate(context: contexts.Context, log: Log, profile: str, folder: Path) -> dict[Path, dict[str, Any]]:
    """Have `fairlead cdi generate` write specs; returns them by path, without its stamps."""
    folder.mkdir(mode=0o755, exist_ok=True)
    simulated = ("--simulate", context.simulate) if context.simulate else ("--mode", "nvml")
    where = [part for place in context.libraries.split(":") if place for part in ("--library-search-path", place)]
    policy = ("--runtime-config", str(context.folder / "no-shim.json"))
    with log.timed(f"cdi generate, {profile}"):
        done = context.fairlead(
            *("cdi", "generate", *simulated, "--profile", profile, "--format", "json", "--output", str(folder)),
            *("--device-name-strategy", "uuid", "--device-name-strategy", "index", *where, *policy),
        )
    if not log.judge(f"{profile}: generated", done.returncode == 0, (done.stderr or done.stdout).strip()[-600:]):
        return {}
    if done.stderr.strip():
        log.note(f"{profile}: what generate said", done.stderr.strip()[-600:])
    found = {}
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text())
        if "cdiVersion" in document:
            found[path] = document
        else:
            log.note(f"{profile}: stamp", json.dumps(document)[:300])
    log.judge(f"{profile}: specs", bool(found), f"{len(found)} in the folder")
    return found


def _validate(context: contexts.Context, log: Log, profile: str, folder: Path) -> None:
    files = [str(path) for path in sorted(folder.glob("*.json"))]
    for verb in ("validate", "lint"):
        done = context.fairlead("cdi", verb, *files)
        log.judge(f"{profile}: cdi {verb}", done.returncode == 0, (done.stdout + done.stderr).strip()[-600:])


def edits_of(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the edits of every container of a spec, then those of each device."""
    yield document.get("containerEdits", {})
    for device in document.get("devices", []):
        yield device.get("containerEdits", {})


def _hold_against_disk(log: Log, profile: str, name: str, document: dict[str, Any]) -> None:
    """Every file of a spec is there, every node has the numbers that it says."""
    missing, wrong, count = [], [], 0
    for edits in edits_of(document):
        for mount in edits.get("mounts", []):
            count += 1
            if not Path(mount["hostPath"]).exists():
                missing.append(mount["hostPath"])
        for node in edits.get("deviceNodes", []):
            count += 1
            place = Path(node.get("hostPath") or node["path"])
            if not place.exists():
                missing.append(str(place))
                continue
            found = place.stat()
            numbers = os.major(found.st_rdev), os.minor(found.st_rdev)
            told = node.get("major", numbers[0]), node.get("minor", numbers[1])
            if not stat.S_ISCHR(found.st_mode) or numbers != told:
                wrong.append(f"{place} is {numbers}, the spec says {told}")
    log.judge(f"{profile}: files of {name} exist", not missing, f"{count} looked at; missing: {missing or 'none'}")
    log.judge(f"{profile}: nodes of {name}", not wrong, "; ".join(wrong))


def _hold_against_linker(log: Log, documents: list[dict[str, Any]]) -> None:
    """Name what of the driver the linker's cache knows and the full profile leaves out."""
    mounted = {
        Path(mount["containerPath"]).name
        for document in documents
        for edits in edits_of(document)
        for mount in edits.get("mounts", [])
    }
    done = contexts.run(("ldconfig", "-p"), timeout_s=10)
    known = [found.groups() for line in done.stdout.splitlines() if (found := _CACHED.match(line))]
    driver = {name: Path(path) for name, path in known if _DRIVER_LIBRARY.match(name)}
    log.fact("driver's libraries in the linker's cache", {name: str(path) for name, path in driver.items()})
    if not driver:
        log.note("linker's cache", "it names no library of the driver: they are found by folder alone")
        return
    left_out = sorted(
        f"{name} ({path.resolve().name})"
        for name, path in driver.items()
        if path.resolve().name not in mounted and name not in mounted
    )
    log.note("libraries that the full profile leaves out", ", ".join(left_out) or "none")
    needed = [name for name in ("libcuda.so.1", "libnvidia-ml.so.1") if name in driver and driver[name].exists()]
    lacking = [name for name in needed if driver[name].resolve().name not in mounted and name not in mounted]
    log.judge("what CUDA needs is in the spec", not lacking, f"missing: {lacking or 'none'}")
