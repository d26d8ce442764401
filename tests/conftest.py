"""Which tests may run beside each other under `pytest -n 2 --dist loadgroup`.

Tests of the machine itself (podman, mounts, device nodes, the one Fairlead that a machine may run) form one group: one
worker runs them in order. A file of the cluster ring is a group, since its tests share what they set up in the worker's
own cluster. Every other test goes to whichever worker is free.

And how long Hypothesis may take: a loaded machine is slow, and timings never fail a test (its own profile for CI, which
takes the same examples every time, stays in force there).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("house", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("house")

_TESTS = Path(__file__).parent
_OF_THE_MACHINE = frozenset({"contract", "system"})


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Name each test's group."""
    for item in items:
        ring = item.path.relative_to(_TESTS).parts[0]
        if ring in _OF_THE_MACHINE:
            item.add_marker(pytest.mark.xdist_group("machine"))
        elif ring == "cluster":
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
