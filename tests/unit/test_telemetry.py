"""Telemetry: one line an event, a clock, and a process that dies where it was told to."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import structlog

from fairlead import loglines, telemetry

_LOGS = """
from fairlead import telemetry
telemetry.configure({level!r}, {form!r})
telemetry.log.debug("claim looked at", pod="a")
telemetry.log.info("claim prepared", pod="a", duration_s=0.5)
try:
    1 / 0
except ZeroDivisionError:
    telemetry.log.error("claim lost", exc_info=True)
"""

_UNCONFIGURED = """
from fairlead import telemetry
telemetry.log.debug("claim looked at", pod="a")
telemetry.log.warning("claim waits", pod="a")
"""

_CONFIGURED_BY_THE_CALLER = """
import structlog
structlog.configure(processors=[lambda logger, method, event: "mine: " + event["event"]])
from fairlead import telemetry
telemetry.log.debug("claim looked at", pod="a")
"""

_CRASHES = """
from fairlead import telemetry
telemetry.arm_crash_point({armed!r})
telemetry.crash_point("before")
telemetry.arm_crash_point({then!r})
telemetry.crash_point("before")
print("alive")
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)


def test_logs_are_one_json_object_a_line_on_standard_error_where_no_terminal_is() -> None:
    done = _run(_LOGS.format(level="info", form="auto"))
    assert (done.returncode, done.stdout) == (0, "")
    prepared, lost = (json.loads(line) for line in done.stderr.splitlines())
    assert (prepared["event"], prepared["level"], prepared["pod"]) == ("claim prepared", "info", "a")
    assert prepared["timestamp"].endswith("Z")
    assert lost["exception"][0]["exc_type"] == "ZeroDivisionError"


def test_a_process_that_configures_no_log_says_warnings_alone_and_on_standard_error() -> None:
    """Its standard output is its own: `-o json`, a notebook's cell."""
    done = _run(_UNCONFIGURED)
    assert (done.returncode, done.stdout) == (0, "")
    assert [line.split()[1:] for line in done.stderr.splitlines()] == [["[warning", "]", "claim", "waits", "pod=a"]]


def test_a_program_that_configured_structlog_keeps_its_own_log() -> None:
    done = _run(_CONFIGURED_BY_THE_CALLER)
    assert (done.returncode, done.stdout, done.stderr) == (0, "mine: claim looked at\n", "")


@pytest.mark.parametrize(("level", "count"), [("debug", 3), ("info", 2), ("warning", 1), ("error", 1)])
def test_the_level_is_the_least_severe_that_is_shown(level: str, count: int) -> None:
    assert len(_run(_LOGS.format(level=level, form="json")).stderr.splitlines()) == count


def test_the_console_form_is_for_people() -> None:
    done = _run(_LOGS.format(level="info", form="console"))
    first = done.stderr.splitlines()[0]
    assert "claim prepared" in first
    assert not first.startswith("{")


@pytest.mark.parametrize("form", ["json", "console", "plain"])
def test_a_traceback_in_the_log_holds_no_values(form: str) -> None:
    code = _LOGS.format(level="info", form=form).replace("1 / 0", "token = 'pass' + 'word'; 1 / 0")
    done = _run(code)
    assert "ZeroDivisionError" in done.stderr
    assert "password" not in done.stderr


def test_a_timed_block_reports_how_long_it_took() -> None:
    with structlog.testing.capture_logs() as logged, telemetry.timed("claim prepared", pod="a") as timing:
        assert timing.duration_s == 0.0
    assert timing.duration_s > 0
    assert logged == [
        {"event": "claim prepared", "pod": "a", "log_level": "debug", "duration_s": round(timing.duration_s, 6)}
    ]


def test_a_timed_block_that_fails_is_timed_too() -> None:
    with pytest.raises(KeyError), telemetry.timed("claim prepared") as timing:
        raise KeyError
    assert timing.duration_s > 0


@pytest.mark.parametrize(
    ("armed", "then", "status"), [("before", "", -9), ("", "before", -9), ("", "", 0), ("after", "bef", 0)]
)
def test_a_process_dies_by_sigkill_at_the_armed_point_and_at_no_other(armed: str, then: str, status: int) -> None:
    done = _run(_CRASHES.format(armed=armed, then=then))
    assert done.returncode == status
    assert done.stdout == ("alive\n" if status == 0 else "")


def test_structlog_is_loaded_by_the_first_line_and_brings_no_library_for_coloured_tracebacks_along() -> None:
    check = (
        "import sys; from fairlead import telemetry; assert 'structlog' not in sys.modules; "
        "telemetry.configure('info', 'console'); telemetry.log.info('still works'); "
        "assert not [name for name in sys.modules if name.split('.')[0] in {'rich', 'pygments'}]; import rich"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, "still works" in done.stderr) == (0, True), done.stderr


def test_a_phrase_that_comes_too_often_is_counted_and_each_gpu_has_its_own_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    limit = loglines.LineLimit(lines=3, window_s=60, clock=lambda: now[0])
    told: list[dict[str, object]] = []

    class Log:
        def warning(self, event: str, **facts: object) -> None:
            told.append({"event": event, **limit(None, "warning", {"event": event, **facts})})

    monkeypatch.setattr(loglines, "log", Log())

    def passes(phrase: str, gpu: str) -> bool:
        try:
            limit(None, "info", {"event": phrase, "gpu": gpu})
        except structlog.DropEvent:
            return False
        return True

    assert [passes("gpu event", "GPU-0") for _ in range(5)] == [True, True, True, False, False]
    assert passes("gpu event", "GPU-1")
    assert passes("another", "GPU-0")
    now[0] = 61
    assert passes("something else", "")
    assert told == [{"event": "log lines left out", "reason": "gpu event", "gpu": "GPU-0", "count": 2}]
    assert passes("gpu event", "GPU-0")


def test_phrases_and_gpus_without_end_take_no_memory_without_end() -> None:
    limit = loglines.LineLimit(clock=lambda: 0.0)
    for number in range(20_000):
        limit(None, "info", {"event": "gpu event", "gpu": f"GPU-{number}"})
    assert len(limit._windows) <= loglines._MOST_WINDOWS


@pytest.mark.parametrize("_time", ["once", "again", "and on the other of two workers"])
def test_a_log_that_a_test_sets_up_is_reset_for_the_next_test(_time: str) -> None:
    with structlog.testing.capture_logs() as logged:
        telemetry.log.debug("claim looked at")
    assert [line["event"] for line in logged] == ["claim looked at"]
    telemetry.configure("error", "console")
    telemetry.log.info("claim prepared")
