"""Which tests may run beside each other under `pytest -n 2`.

Tests of the machine itself (podman, mounts, device nodes, the one Fairlead that a machine may run) stay together: one
worker runs them in order. So do those of a file of the cluster ring, which share what they set up in the worker's own
cluster. Any other test goes to whichever worker is free. (xdist 3.8's own `--dist loadgroup` does nothing under pytest
9.2: node ids can no longer be changed.)

Where a failed test is repeated (`--reruns`, see `.ci/run`), the summary shows why it failed the first time.

And how long Hypothesis may take: a loaded machine is slow, and timings never fail a test (its own profile for CI, which
takes the same examples every time, stays in force there).

And each test ends with the log as a process begins with it: a verb that a test runs in this process may have set it up
for itself, after which no later test of the worker could read a line.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import hypothesis
import pytest
import structlog
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from fairlead import loglines

hypothesis.settings.register_profile("house", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("house")

_OF_THE_MACHINE: Final = ("tests/contract/", "tests/system/")


class Rings(LoadScopeScheduling):  # type: ignore[misc]
    """Sends what belongs together to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_OF_THE_MACHINE):
            return "the machine"
        return nodeid.partition("::")[0] if nodeid.startswith("tests/cluster/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Rings:
    """Tell xdist how to share out tests, whichever `--dist` was asked for."""
    return Rings(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None]:
    """Reset the log once a test and its fixtures are over, whoever configured it."""
    try:
        yield
    finally:
        structlog.reset_defaults()
        vars(loglines.log).pop("bind", None)  # where structlog keeps the first logger it made of a configuration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the failures that a second try has covered."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"first try of {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)
