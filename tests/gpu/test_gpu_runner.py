"""Parts of the GPU check: one that hangs or breaks is ended and named, and the others go on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.gpu import context as contexts
from tools.gpu import masking, outcome, page, runner

_HANGS = "import os, subprocess, time; subprocess.Popen(['sleep', '977'], start_new_session=True); time.sleep(978)"
_PARTS = {
    "hangs": f"def run(context, log):\n    log.ok('begun')\n    exec({_HANGS!r})\n",
    "breaks": "def run(context, log):\n    log.ok('begun')\n    raise RuntimeError('the driver said no')\n",
    "finds": "def run(context, log):\n    log.compare('memory', 1, 2)\n    log.fact('scan_ms', 3.5)\n",
    "passes": "def run(context, log):\n    log.ok('all')\n    log.fail('extra', 'not so', required=False)\n",
}


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> contexts.Context:
    """A check whose parts are those above, found by their processes as well."""
    root = tmp_path / "shadow"
    (root / "tools/gpu/parts").mkdir(parents=True)
    for name in ("__init__", "__main__", "context", "outcome", "runner", "page", "masking", "stage"):
        source = Path(runner.__file__).with_name(f"{name}.py")
        (root / "tools/gpu" / source.name).write_text(source.read_text())
    for name, text in {"__init__": "", **_PARTS}.items():
        (root / f"tools/gpu/parts/{name}.py").write_text(text)
    monkeypatch.chdir(root)
    (tmp_path / "work").mkdir()
    return contexts.Context(work=str(tmp_path / "work"), output=str(tmp_path), simulate="h100x8")


def part(name: str, *, limit_s: float = 30, required: bool = True) -> runner.Part:
    return runner.Part(name=name, title=name, limit_s=limit_s, is_required=required)


def run_alone(context: contexts.Context, *parts: runner.Part, total_s: float = 60) -> list[runner.PartResult]:
    """Run parts in a process of their own: a subreaper stays one, and ends whatever is below it."""
    words = repr([(one.name, one.limit_s) for one in parts])
    code = (
        "import json, sys; from pathlib import Path; from tools.gpu import context, runner, page;"
        f"c = context.Context(**json.loads(sys.argv[1]));"
        f"ps = [runner.Part(name=n, title=n, limit_s=l) for n, l in {words}];"
        f"r = runner.run_all(c, ps, total_s={total_s});"
        "Path(sys.argv[2]).write_text(json.dumps(page.document(r, {})))"
    )
    target = Path(context.output) / "results.json"
    given = json.dumps({"work": context.work, "output": context.output, "simulate": context.simulate})
    subprocess.run((sys.executable, "-c", code, given, str(target)), check=True, timeout=50)
    found = json.loads(target.read_text())["parts"]
    return [
        runner.PartResult(
            part=one,
            checks=tuple(outcome.read_check(check) for check in result["checks"]),
            facts=result["facts"],
            seconds=result["seconds"],
            end=result["end"],
        )
        for one, result in zip(parts, found, strict=True)
    ]


def test_a_part_that_hangs_is_ended_with_all_it_started_and_the_next_runs(context: contexts.Context) -> None:
    hung, after = run_alone(context, part("hangs", limit_s=2), part("passes"))
    assert hung.end == "ended after its limit of 2 s"
    assert [check.name for check in hung.checks] == ["begun"]
    assert not hung.has_passed
    assert after.has_passed
    assert not [one for one in Path("/proc").iterdir() if one.name.isdigit() and _words(one) == ["sleep", "977"]]


def _words(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_text().strip("\0").split("\0")
    except OSError:
        return []


def test_a_part_that_breaks_says_why_and_keeps_what_it_found(context: contexts.Context) -> None:
    (broken,) = run_alone(context, part("breaks"))
    assert broken.end == "failed: RuntimeError: the driver said no"
    assert [check.name for check in broken.checks] == ["begun"]
    assert not broken.has_passed


def test_only_what_is_required_decides(context: contexts.Context) -> None:
    finds, passes = run_alone(context, part("finds"), part("passes"))
    assert not finds.has_passed
    assert finds.facts == {"scan_ms": 3.5}
    assert passes.has_passed
    assert not page.has_passed([finds, passes])
    extra = runner.PartResult(part=part("finds", required=False), checks=finds.checks, facts={}, seconds=1, end="done")
    assert page.has_passed([extra, passes])


def test_no_part_begins_once_the_time_of_all_is_over(context: contexts.Context) -> None:
    (result,) = run_alone(context, part("passes"), total_s=0)
    assert result.end == "not begun: no time was left"
    assert not result.has_passed


def test_a_line_that_a_kill_cut_short_hides_no_other(tmp_path: Path) -> None:
    log = outcome.Log(tmp_path / "log")
    log.ok("one")
    with log.path.open("a") as file:
        file.write('{"check": {"name": "tw')
    assert [check.name for check in outcome.read_log(log.path)[0]] == ["one"]


def test_the_page_names_what_is_bad_before_what_is_right(tmp_path: Path) -> None:
    checks = (
        outcome.Check(name="fine", state=outcome.State.OK),
        outcome.Check(name="memory", state=outcome.State.DIFFERS, ours="1", theirs="2"),
        outcome.Check(name="clock", state=outcome.State.DIFFERS, ours="3", theirs="4", is_required=False),
    )
    result = runner.PartResult(part=part("x"), checks=checks, facts={"a_ms": 2.5, "raw": "text"}, seconds=1, end="done")
    text = page.page(page.document([result], {"gpus": "one"}))
    assert "**Not every required part passed.**" in text
    assert "| x | **not passed** (done) | 1 | 1 | 2 | 0 |" in text
    assert text.index("- DIFFERS: memory; ours 1, theirs 2") < text.index("- ok: fine")
    assert "- DIFFERS: clock; ours 3, theirs 4; (not required)" in text
    assert "- a_ms: 2.5" in text
    assert "raw" not in text


def test_names_are_replaced_everywhere_by_the_same_ones() -> None:
    mask = masking.Mask(["gpu-node-17", "1650000000000", "vm"])
    uuid = "GPU-AAAAAAAA-bbbb-cccc-dddd-eeeeeeeeeeee"
    report = {"host": "gpu-node-17", uuid: [f"see {uuid[:4]}{uuid[4:].lower()} of 1650000000000", 7, None], "vm": True}
    shown = mask.document(report)
    assert shown["host"] != "gpu-node-17"
    (key,) = [key for key in shown if key.startswith("GPU-")]
    assert key == "GPU-00000000-0000-4000-8000-000000000001"
    assert shown[key] == [f"see {key} of 0000000000002", 7, None]
    assert shown["vm"] is True  # two letters would be found inside other words


def test_a_compared_number_may_differ_by_its_tolerance_and_no_more(tmp_path: Path) -> None:
    log = outcome.Log(tmp_path / "log")
    log.compare("near", 30, 34.0, within=5)
    log.compare("far", 30, 36.0, within=5)
    log.compare("absent", None, 36.0, within=5)
    states = [check.state for check in outcome.read_log(log.path)[0]]
    assert states == [outcome.State.OK, outcome.State.DIFFERS, outcome.State.DIFFERS]


def test_a_limit_is_for_the_part_and_not_for_the_wait(context: contexts.Context) -> None:
    began = time.monotonic()
    (result,) = run_alone(context, part("hangs", limit_s=2))
    assert result.seconds >= 2
    assert time.monotonic() - began < 45
