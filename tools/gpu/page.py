"""Writes the report: one JSON document, one page for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tools.gpu.outcome import BAD, Check, State
from tools.gpu.runner import PartResult

FORMAT: Final = 1


def document(results: Sequence[PartResult], machine: dict[str, Any]) -> dict[str, Any]:
    """Return the report as JSON. Args: machine: what `describe` found."""
    return {
        "format": FORMAT,
        "machine": machine,
        "passed": has_passed(results),
        "parts": [
            {
                "name": one.part.name,
                "title": one.part.title,
                "required": one.part.is_required,
                "passed": one.has_passed,
                "end": one.end,
                "seconds": round(one.seconds, 1),
                "checks": [check.document() for check in one.checks],
                "facts": one.facts,
            }
            for one in results
        ],
    }


def has_passed(results: Sequence[PartResult]) -> bool:
    """Return whether every required part has passed."""
    return all(one.has_passed for one in results if one.part.is_required)


def page(report: dict[str, Any]) -> str:
    """Return the report as a Markdown page."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: dict[str, Any]) -> Iterator[str]:
    machine = report["machine"]
    yield "# GPU check"
    yield ""
    for name, value in machine.items():
        yield f"- {name}: {value}"
    yield ""
    yield f"**{'Every required part passed.' if report['passed'] else 'Not every required part passed.'}**"
    yield ""
    yield "| part | result | seconds | ok | bad | skipped |"
    yield "|---|---|---|---|---|---|"
    for part in report["parts"]:
        states = [check["state"] for check in part["checks"]]
        bad = sum(State(state) in BAD for state in states)
        verdict = "passed" if part["passed"] else f"**not passed** ({part['end']})"
        extra = "" if part["required"] else " (not required)"
        counts = f"{states.count('ok')} | {bad} | {states.count('skipped')}"
        yield f"| {part['title']}{extra} | {verdict} | {part['seconds']} | {counts} |"
    for part in report["parts"]:
        yield ""
        yield f"## {part['title']}"
        yield ""
        if part["end"] != "done":
            yield f"This part was not carried to its end: {part['end']}."
            yield ""
        yield from _checks(part["checks"])
        figures = {name: value for name, value in part["facts"].items() if isinstance(value, int | float)}
        if figures:
            yield ""
            yield from (f"- {name}: {value}" for name, value in figures.items())


def _checks(checks: Sequence[dict[str, Any]]) -> Iterator[str]:
    fine = [check for check in checks if check["state"] == "ok"]
    other = [check for check in checks if check["state"] != "ok"]
    for check in (*other, *fine):
        yield f"- {line(check)}"


def line(check: dict[str, Any]) -> str:
    """Return one check as a line."""
    parts = [f"{check['state'].upper() if State(check['state']) in BAD else check['state']}: {check['name']}"]
    if check["ours"] or check["theirs"]:
        parts.append(f"ours {check['ours']}, theirs {check['theirs']}")
    if check["message"]:
        parts.append(" ".join(str(check["message"]).split()))
    if State(check["state"]) in BAD and not check["required"]:
        parts.append("(not required)")
    return "; ".join(parts)


def problems(results: Sequence[PartResult]) -> list[Check]:
    """Return the checks that keep a part from passing."""
    return [check for one in results for check in one.checks if check.is_required and check.state in BAD]
