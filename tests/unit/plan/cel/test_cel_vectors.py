"""The known cases of Kubernetes' own tests: value, error, estimate and cost of each.

Their costs are those of 1.36; `includes` costs otherwise on 1.37, where v1.37.2 itself was asked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from fairlead import errors
from fairlead.plan.cel import compile as cel
from fairlead.plan.cel.device import DeviceView, Version
from fairlead.plan.cel.problem import CELError

_ROOT: Final = Path(__file__).parents[4]
_PLACES: Final = (_ROOT / "shared", _ROOT.parent / "shared")
_FILE: Final = next((file for place in _PLACES if (file := place / "data/dra/cel.jsonl").exists()), None)
_CASES: Final[list[dict[str, Any]]] = (
    [] if _FILE is None else [json.loads(line) for line in _FILE.read_text().splitlines()]
)
_INCLUDES: Final = {
    "includes-function-can-evaluate": (68, 4),
    "includes-function-compilation-and-eval-success": (68, 4),
    "includes-function-on-bool-list-positive": (68, 6),
    "includes-function-on-bool-scalar-positive": (68, 5),
    "includes-function-on-int-list-negative": (68, 6),
    "includes-function-on-int-scalar-positive": (68, 5),
    "includes-function-on-semver-list-negative": (69, 7),
    "includes-function-on-semver-scalar-negative": (69, 6),
    "includes-function-on-semver-scalar-positive": (69, 6),
    "includes-function-on-string-scalar-positive": (68, 4),
    "includes-function-on-very-long-list-positive": (68, 4),
}
_NAMES: Final = [f"{case['name']}-{case['listTypeAttributes']}" for case in _CASES]
pytestmark = pytest.mark.skipif(not _CASES, reason="the shared data is not here")


def test_all_cases_are_here() -> None:
    assert len(_CASES) == 83


@pytest.mark.parametrize("release", ["1.36", "1.37"])
@pytest.mark.parametrize("case", _CASES, ids=_NAMES)
def test_a_case_is_as_in_kubernetes(case: dict[str, Any], release: str) -> None:
    if case["expectCompileError"]:
        with pytest.raises(errors.Invalid, match=case["expectCompileError"]) as refused:
            cel.compile_selector(case["expression"], release=release)
        assert refused.value.reason == "CELInvalid"
        return
    selector = cel.compile_selector(case["expression"], release=release)
    estimated, actual = case["maxCost"], case["actualCost"]
    if release == "1.37":
        estimated, actual = _INCLUDES.get(case["name"], (estimated, actual))
    assert selector.estimate() == estimated
    assert _cost(selector, _device(case)) == actual
    if case["expectMatchError"]:
        with pytest.raises(CELError) as failed:
            selector.matches(_device(case))
        assert case["expectMatchError"] in failed.value.message
    else:
        assert selector.matches(_device(case)) is case["expectMatch"]


def _cost(selector: cel.Selector, device: DeviceView) -> object:
    try:
        return selector.evaluate(device).cost
    except CELError as failed:
        return failed.context["cost"]


def _device(case: dict[str, Any]) -> DeviceView:
    return DeviceView(
        driver=case["driver"],
        attributes={name: _plain(*next(iter(one.items()))) for name, one in (case["attributes"] or {}).items()},
        capacity={name: one["value"] for name, one in (case["capacity"] or {}).items()},
        allow_multiple_allocations=case["allowMultipleAllocations"],
    )


def _plain(kind: str, given: Any) -> Any:
    if kind in {"version", "versions"}:
        return Version(given) if kind == "version" else [Version(one) for one in given]
    return given
