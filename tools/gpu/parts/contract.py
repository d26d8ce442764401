"""Runs the silicon contract's tests on this machine's libnvidia-ml.so.1: they read, and set nothing."""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from fairlead.silicon.nvidia.files import driver
from tools.gpu import context as contexts
from tools.gpu.outcome import Log

_SUITE = "tests/contract/test_silicon_contract.py"


def run(context: contexts.Context, log: Log) -> None:
    """Run the suite and write each test's verdict."""
    if not Path(context.tests, _SUITE).exists():
        log.fail("suite", f"{context.tests}/{_SUITE} is not here: the pack lacks it")
        return
    subject = f"simulated-{context.simulate}" if context.simulate else "real-nvml"
    found = driver.find_nvml(Path("/"), Path("/"), driver.search_of(context.silicon_settings))
    report = context.folder / "contract.xml"
    argv = [sys.executable, "-m", "pytest", _SUITE, "-q", "-k", subject, "-p", "no:cacheprovider"]
    env = {name: value for name, value in context.env.items() if not name.startswith("FAIRLEAD_")}
    env["FAIRLEAD_TEST_NVML"] = str(found or "libnvidia-ml.so.1")
    env["FAIRLEAD_TEST_NVML_LIBRARIES"] = context.libraries
    if linker := os.environ.get("LD_LIBRARY_PATH"):
        env["LD_LIBRARY_PATH"] = linker
    done = contexts.run((*argv, f"--junitxml={report}", f"--rootdir={context.tests}"), env=env, timeout_s=55)
    if not report.exists():
        log.fail("suite", f"pytest did not run: {(done.stderr or done.stdout).strip()[-400:]}")
        return
    cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - written by pytest just now
    for case in cases:
        name = case.get("name", "")
        bad = [child for child in case if child.tag in ("failure", "error")]
        skipped = case.find("skipped")
        if bad:
            log.fail(name, (bad[0].get("message") or "")[:400])
        elif skipped is not None:
            log.skip(name, skipped.get("message") or "")
        else:
            log.ok(name)
    log.judge("suite", bool(cases), f"{len(cases)} tests of {subject}")
