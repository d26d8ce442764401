"""Every benchmark still measures what it says: a change of the product breaks rows that no quick ring runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks.__main__  # noqa: F401  it fills the registry
from benchmarks import frame

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.podman
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(frame.REGISTRY))
def test_a_benchmark_measures_its_rows(name: str) -> None:
    line = (sys.executable, "-m", "benchmarks", name, "--json")
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode in {0, 1}, done.stderr[-4000:]  # 1: a bar did not hold, which fails nothing
    rows = json.loads(done.stdout)
    assert rows, "no row"
    assert [row for row in rows if row.get("unmeasured", "").startswith("failed")] == [], done.stderr[-4000:]
