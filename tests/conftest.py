"""Which tests may run beside each other under `pytest -n 3`.

Tests of the machine itself (podman, mounts, the one Fairlead that a machine may run) stay together: one worker runs
them in order. Those of any other file go to whichever worker is free, and stay together too: they share fixtures, and
after each test xdist looks through all units that a worker ever had (one unit a test: a minute of a processor). Files
of a few long tests are given out test by test. (xdist 3.8's own `--dist loadgroup` does nothing under pytest 9.2: node
ids can no longer be changed.)

Where a failed test is repeated (`--reruns`, see `.ci/run`), the summary shows why it failed the first time.

And how long Hypothesis may take: a loaded machine is slow, and timings never fail a test (its own profile for CI, which
takes the same examples every time, stays in force there).

And programs that tests start take Ctrl-C even where the tests were started in the background of a shell, which has them
ignore it.

And each test ends with the log as a process begins with it: a verb that a test runs in this process may have set it up
for itself, after which no later test of the worker could read a line.
"""

from __future__ import annotations

import signal
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

_ONE_BY_ONE: Final = ("tests/fuzz/", "tests/house/")


class Rings(LoadScopeScheduling):  # type: ignore[misc]
    """Sends what belongs together to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        with_podman = nodeid.startswith("tests/contract/") and "podman" in nodeid  # a file's or a parameter's name
        if with_podman or nodeid.startswith("tests/system/"):
            return "the machine"
        return nodeid if nodeid.startswith(_ONE_BY_ONE) else nodeid.partition("::")[0]


def pytest_configure() -> None:
    """Take back what a shell gives to what it starts in the background: a SIGINT that is ignored, and inherited so."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
