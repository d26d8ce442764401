"""Holds our CEL to Kubernetes' own library, which a small program in Go asks: value, error, estimate and cost.

The program is built from `tests/oracle/cel`; its modules are fetched where they are not yet. What is left out is what
the reference itself calls an internal error.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from fairlead import errors
from fairlead.plan.cel import compile as cel
from fairlead.plan.cel.problem import CELError
from tests.unit.plan.cel.generated import Generator
from tests.unit.plan.cel.samples import DEVICE

_SOURCE: Final = Path(__file__).parents[3] / "oracle/cel"
_COUNT: Final = 10_000
_SEED: Final = 20261128
_UNBOUNDED: Final = 2**64 - 1
_ATTRIBUTES: Final = {
    "text": {"string": "fish"},
    "count": {"int": 2},
    "flag": {"bool": True},
    "version": {"version": "1.2.3"},
    "numbers": {"ints": [3, 1, 2]},
    "names": {"strings": ["b", "a"]},
    "other.com/text": {"string": "bird"},
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(shutil.which("go") is None, reason="not installed: go"),
]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("oracle") / "cel"
    done = subprocess.run(["go", "build", "-o", program, "."], cwd=_SOURCE, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the reference cannot be built here: {done.stderr[-300:]}")
    return program


def test_ten_thousand_expressions_are_answered_as_by_kubernetes(oracle: Path) -> None:
    generator = Generator(_SEED)
    texts = [generator.expression() for _ in range(_COUNT)]
    answers = _asked(oracle, texts)
    compiled = sum(not answer["compileError"] for answer in answers)
    failed = sum(bool(answer["matchError"]) for answer in answers)
    assert compiled > _COUNT // 2
    assert failed > _COUNT // 10
    pairs = zip(texts, answers, strict=True)
    differing = [(text, theirs, ours) for text, theirs in pairs if _differs(theirs, ours := _ours(text))]
    assert differing == []


def _asked(oracle: Path, texts: list[str]) -> list[dict[str, Any]]:
    device = {"driver": "d.com", "attributes": _ATTRIBUTES, "capacity": {"memory": "1Gi"}}
    lines = "\n".join(json.dumps({"expression": text, **device}) for text in texts)
    done = subprocess.run([oracle], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _ours(text: str) -> dict[str, Any]:
    try:
        selector = cel.compile_selector(text)
    except errors.Invalid:
        return {"compiles": False}
    estimated = selector.estimate()
    said: dict[str, Any] = {"compiles": True, "maxCost": _UNBOUNDED if estimated is None else estimated, "fails": False}
    try:
        said["cost"] = selector.evaluate(DEVICE).cost
        said["match"] = selector.matches(DEVICE)
    except CELError as error:
        said |= {"fails": True, "match": False}
        said.setdefault("cost", error.context.get("cost"))
    return said


def _differs(theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    if theirs["matchError"].startswith(("internal error", "panic")):
        return False
    if theirs["compileError"] or not ours["compiles"]:
        return bool(theirs["compileError"]) is ours["compiles"]
    same = (theirs["maxCost"], theirs["match"]) == (ours["maxCost"], ours["match"])
    if bool(theirs["matchError"]) is not ours["fails"] or not same:
        return True
    return "cost limit" not in theirs["matchError"] and theirs["cost"] != ours["cost"]
