"""Divides the start of a pod in a machine by the stamps of those who worked on it; nothing here runs or waits."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from typing import Final

Span = tuple[str, float, float]
"""Name, begin and end, in Unix seconds."""
SUBPHASES: Final = ("devices", "QEMU", "firmware", "kernel", "init")
"""What the stand-in tells of a sandbox."""
ENGINE: Final = "engine"
"""What is left of the engine's call for it: containerd, its shim, the runtime's start."""


def divide(calls: Sequence[Span], inner: Sequence[Span], output: float) -> tuple[list[tuple[str, float]], float]:
    """Return the phases with their seconds, and the wall time: from the first call until the container has written.

    Args: calls: of the engine's client, one of them `sandbox`.   inner: the stand-in's `phases.json`.
          output: when the engine read the first line.
    Raises: ValueError: the stamps contradict each other.
    """
    (sandbox,) = (one for one in calls if one[0] == "sandbox")
    if tuple(name for name, _, _ in inner) != SUBPHASES:
        raise ValueError(f"the stand-in tells of {[name for name, _, _ in inner]}")
    if any(end != begin for (_, _, end), (_, begin, _) in itertools.pairwise(inner)):
        raise ValueError("the stand-in's phases do not follow each other")
    if not sandbox[1] <= inner[0][1] <= inner[-1][2] <= sandbox[2]:
        raise ValueError("the runtime does not work within the engine's call")
    found = [(name, end - begin) for name, begin, end in calls if name != "sandbox"]
    found += [(name, end - begin) for name, begin, end in inner]
    found.append((ENGINE, sandbox[2] - sandbox[1] - sum(end - begin for _, begin, end in inner)))
    found.append(("first output", max(0.0, output - calls[-1][2])))
    return found, max(output, calls[-1][2]) - calls[0][1]


def first_output(log: str) -> float:
    """Return when the engine read the first line of a container's log, in Unix seconds; its own stamp.

    Source: Kubernetes, CRI logging format.
    """
    head, _, rest = log.split(" ", 1)[0].partition(".")
    digits = rest.rstrip("Z").partition("+")[0]
    return datetime.datetime.fromisoformat(f"{head}+00:00").timestamp() + float(f"0.{digits}")
