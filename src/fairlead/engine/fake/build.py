"""Reads as much of a Containerfile as the fake engine's builds need. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_VARIABLE: Final = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<bare>\w+))")


def stage(text: str, target: str) -> list[str] | None:
    """Return the lines of one stage, by its name or number; none is named: the last. None: it is not there."""
    stages: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["FROM"]:
            name = words[3] if len(words) > 3 and words[2].upper() == "AS" else str(len(stages))
            stages.append((name, []))
        if stages:
            stages[-1][1].append(line)
    if not target:
        return stages[-1][1] if stages else []
    return next((lines for number, (name, lines) in enumerate(stages) if target in {name, str(number)}), None)


def expanded(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the variables that are known in their places."""
    return _VARIABLE.sub(lambda found: values.get(found["braced"] or found["bare"], ""), text)
