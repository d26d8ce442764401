"""The CDI reader under coverage-guided fuzzing for a bounded time, from every document the tests know."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.fairlead_cdi import test_cdi_yaml
from tests.unit.fairlead_cdi.parse import test_cdi_regressions, test_cdi_verdicts

TARGET = Path(__file__).parents[1] / "fuzz" / "cdi_reader.py"
GOLDEN = Path(__file__).parents[1] / "unit" / "silicon" / "nvidia" / "files" / "golden"
SECONDS = 20


def seeds() -> list[bytes]:
    """Return the conformance vectors, earlier findings, and one generated spec of each mode."""
    found = [*test_cdi_verdicts.REJECT.values(), *(data for data, _ in test_cdi_verdicts.ACCEPT.values())]
    found += [test_cdi_yaml.SPEC.encode(), *test_cdi_regressions.REGRESSIONS.values()]
    return found + [path.read_bytes() for path in sorted(GOLDEN.glob("*.json"))]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris has no build for this platform")
def test_no_bytes_make_the_reader_fail(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, data in enumerate(seeds()):
        (corpus / str(number)).write_bytes(data)
    command = [
        # A process begins with the peak memory of the one that starts it, which the fuzzer counts as its own: a small
        # shell starts it, and not this worker, which may be larger than the limit by now.
        *("sh", "-c", '"$@"; exit $?', "sh", sys.executable),
        str(TARGET),
        str(corpus),
        f"-max_total_time={SECONDS}",
        "-timeout=10",
        "-rss_limit_mb=1024",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS * 6, check=False)
    crashes = {path.name: path.read_bytes() for path in tmp_path.glob("*-*") if path.is_file()}
    assert (done.returncode, crashes) == (0, {}), done.stderr[-4000:]
    assert "DONE" in done.stderr
