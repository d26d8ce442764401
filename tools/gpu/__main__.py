"""`tools/gpu/check` calls this: runs every part, writes report.json, report.md and nvml.json.

Exits with 0 where every required part passed, 1 where one did not, 6 where the check could not begin.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fairlead
from fairlead import errors
from fairlead.model.gpu import Inventory
from tools.gpu import context as contexts
from tools.gpu import masking, page, runner, stage

_CANNOT_BEGIN = 6


def main(arguments: Sequence[str]) -> int:
    """Run the check, or one part of it."""
    given = _parser().parse_args(arguments)
    if given.part:
        runner.run_part(given.part, contexts.load(Path(given.context)))
        return 0
    known = [part.name for part in runner.PARTS]
    if unknown := [name for name in given.only if name not in known]:
        print(f"no part is called {' or '.join(unknown)} (there are: {', '.join(known)})", file=sys.stderr)
        return 2
    output = Path(os.environ.get("GPU_CHECK_FROM", ".")) / given.output
    output.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="fairlead-gpu-check-"))
    work.chmod(0o755)  # users of containers must be able to pass it; what is in it has modes of its own
    try:
        return _check(given, output, work)
    finally:
        stage.take_down()
        shutil.rmtree(work, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools/gpu/check", description="check every layer on this machine's GPUs")
    parser.add_argument("--output", default="gpu-report", metavar="DIR", help="where the report goes")
    parser.add_argument("--simulate", default="", metavar="PROFILE", help="simulated silicon, to try the check itself")
    parser.add_argument("--smi", default="", metavar="FILE", help="the driver's nvidia-smi, where it is not found")
    parser.add_argument(
        "--with-names", action="store_true", help="leave host name, serial numbers and UUIDs in the report"
    )
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="this part alone, repeatable")
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    parser.add_argument("--context", default="", help=argparse.SUPPRESS)
    return parser


def _check(given: argparse.Namespace, output: Path, work: Path) -> int:
    surroundings = dict(os.environ)
    context = contexts.Context(
        work=str(work),
        output=str(output.resolve()),
        simulate=given.simulate,
        smi=given.smi or ("" if given.simulate else contexts.find_smi(surroundings)),
        nvcc="" if given.simulate else contexts.find_nvcc(surroundings),
        libraries="" if given.simulate else contexts.unusual_libraries(surroundings),
        tests=str(Path(__file__).resolve().parents[2]),
    )
    stage.set_up(work)
    began = time.monotonic()
    try:
        inventory = asyncio.run(context.scan())
    except errors.FairleadError as error:
        print(errors.sentence(error), file=sys.stderr)
        return _CANNOT_BEGIN
    if not inventory.gpus and not inventory.unreadable:
        print("no GPU was found on this machine: `--simulate h100x8` tries the check itself", file=sys.stderr)
        return _CANNOT_BEGIN
    chosen = [part for part in runner.PARTS if not given.only or part.name in given.only]
    results = runner.run_all(context, chosen)
    report = page.document(results, {**describe(inventory, context), "seconds": round(time.monotonic() - began, 1)})
    _write(report, given, output, work, inventory)
    for check in page.problems(results):
        print(f"  {page.line(check.document())}")
    for one in results:
        if one.end != "done":
            print(f"  {one.part.name}: {one.end}")
    print(f"report: {output / 'report.md'}, {output / 'report.json'}")
    return 0 if page.has_passed(results) else 1


def describe(inventory: Inventory, context: contexts.Context) -> dict[str, Any]:
    """Return what machine this is."""
    driver = next(iter(inventory.drivers), None)
    return {
        "fairlead": fairlead.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "simulated": inventory.is_simulated,
        "gpus": ", ".join(gpu.name for gpu in inventory.gpus),
        "driver": driver.version if driver else "",
        "cuda": ".".join(map(str, driver.cuda_version)) if driver and driver.cuda_version else "",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "nvidia-smi": context.smi or "not found",
        "nvcc": context.nvcc or "not found",
        "folders of libraries beside the usual ones": context.libraries or "none",
        "podman": contexts.find("podman", {}) or "not found",
        "runc": contexts.find("runc", {}) or "not found",
        "crun": contexts.find("crun", {}) or "not found",
        "tools": "this machine's own",
        **stage.SAID,
        "host": socket.gethostname(),
    }


def _write(report: dict[str, Any], given: argparse.Namespace, output: Path, work: Path, inventory: Inventory) -> None:
    serials = [gpu.serial for gpu in inventory.gpus if gpu.serial]
    mask = masking.Mask([socket.gethostname(), *serials])
    shown = report if given.with_names else mask.document(report)
    (output / "report.json").write_text(json.dumps(shown, indent=2) + "\n")
    (output / "report.md").write_text(page.page(shown))
    recorded = work / "nvml.json"
    if recorded.exists():
        record = json.loads(recorded.read_text())
        record = record if given.with_names else mask.record(record)
        (output / "nvml.json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    for log in sorted(work.glob("*.log")):
        text = log.read_text(errors="replace")
        if text.strip():
            (output / log.name).write_text(text if given.with_names else mask.text(text))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
