"""Which tests may run beside each other under `pytest -n 3`.

With `--machines` each worker has a machine of its own (`tests/machine.sh`): podman, mounts, the network, the one
Fairlead that a machine may run. Without, or where that cannot be had, tests of the machine itself stay together: one
worker runs them in order. Those of a file always do: they share fixtures, and after each test xdist looks through all
units that a worker ever had (one unit a test: a minute of a processor). Files of a few long tests are given out test by
test. (xdist 3.8's own `--dist loadgroup` does nothing under pytest 9.2: node ids can no longer be changed.)

Where a failed test is repeated (`--reruns`, see `.ci/run`), the summary shows why it failed the first time.

Each worker collects all files, and begins with others than its siblings: pytest compiles a test's file when it is
imported first, and keeps that for whoever comes next. In a clean clone that is half a minute of a processor a worker.

And how long Hypothesis may take: a loaded machine is slow, and timings never fail a test (its own profile for CI, which
takes the same examples every time, stays in force there).

And programs that tests start take Ctrl-C even where the tests were started in the background of a shell, which has them
ignore it.

And compiled modules are kept, also where `PYTHONDONTWRITEBYTECODE` says otherwise (`make` takes it out too): pytest
would write the assertions of every file anew in each worker, half the time of collecting, and each of the thousands of
programs that tests start would compile what it imports.

And what was collected is left out of the search for garbage, which is not made meanwhile: all of it stays to the end,
and going through it over and over was two fifths of collecting, in each worker.

And each test ends with the log as a process begins with it: a verb that a test runs in this process may have set it up
for itself, after which no later test of the worker could read a line.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final

import execnet
import hypothesis
import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from fairlead import loglines

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # noqa: TID251  (no setting of ours: programs inherit it)
sys.dont_write_bytecode = False

hypothesis.settings.register_profile("house", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("house")

_ONE_BY_ONE: Final = ("tests/fuzz/", "tests/house/test_tools.py")
_OWN_MACHINE: Final = (
    *("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"),
    str(Path(__file__).parent / "machine.sh"),
)
_CLONE_NEWNET: Final = 0x40000000


class ScopeScheduler(LoadScopeScheduling):  # type: ignore[misc]
    """Sends the tests of one file to one worker, and those that share the machine's podman to the same one."""

    def _split_scope(self, nodeid: str) -> str:
        with_podman = nodeid.startswith("tests/contract/") and "podman" in nodeid  # a file's or a parameter's name
        if (with_podman or nodeid.startswith("tests/system/")) and not self.config.getoption("machines"):
            return "the machine"
        return nodeid if nodeid.startswith(_ONE_BY_ONE) else nodeid.partition("::")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare `--machines`."""
    parser.addoption("--machines", action="store_true", help="give each worker of -n a machine of its own (as root)")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without a search for garbage, and spare later ones what was collected."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[execnet.XSpec]) -> None:
    """Have workers started in machines of their own, as far as that was asked for and can be had."""
    if not config.getoption("machines"):
        return
    tried = subprocess.run((*_OWN_MACHINE, "true"), capture_output=True, text=True, check=False)
    if tried.returncode:
        config.option.machines = False
        why = tried.stderr.strip().rpartition("\n")[2]
        config.issue_config_time_warning(pytest.PytestWarning(f"one machine for all workers: {why}"), stacklevel=2)
    for spec in specs if not tried.returncode else ():
        spec.python = shlex.join((*_OWN_MACHINE, sys.executable))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Leave the network of the machine, where this is a worker with one of its own and has reached whom it reports to.

    Source: unshare(2): this thread and what it starts; connections that are open stay.
    """
    if session.config.getoption("machines") and hasattr(session.config, "workerinput"):
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "no network of its own")
        for words in ("link set lo up", "link add eth0 type veth peer name nowhere"):  # as a machine has: two at least
            subprocess.run(("ip", *words.split()), check=True)


def pytest_configure(config: pytest.Config) -> None:
    """Take back what a shell gives to what it starts in the background (a SIGINT that is ignored); order the files."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _begin_with_own_files(config)


def _begin_with_own_files(config: pytest.Config) -> None:
    whole = Path(__file__).parent
    worker = getattr(config, "workerinput", None)
    if worker is not None and [config.invocation_params.dir / one for one in config.args] == [whole]:
        files = [str(path) for path in sorted(whole.rglob("test_*.py")) if not _is_ignored(path, config)]
        number = int(worker["workerid"].removeprefix("gw"))
        begin = len(files) * number // worker["workercount"]
        config.args = [*files[begin:], *files[:begin]]


def _is_ignored(path: Path, config: pytest.Config) -> bool:
    ignored = (config.invocation_params.dir / one for one in config.getoption("ignore") or ())
    return any(path.is_relative_to(one) for one in ignored)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files in one order, whichever a worker has begun with: workers must have the same list."""
    items.sort(key=lambda item: item.path)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ScopeScheduler:
    """Tell xdist how to share out tests, whichever `--dist` was asked for."""
    return ScopeScheduler(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None]:
    """Reset the log once a test and its fixtures are over, whoever configured it."""
    try:
        yield
    finally:
        loglines.configure_default(logging.NOTSET)
        vars(loglines.log).pop("bind", None)  # where structlog keeps the first logger it made of a configuration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the failures that a second try has covered."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"first try of {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)
