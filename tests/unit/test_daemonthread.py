"""A call that hangs costs its own thread and nothing else."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from fairlead import daemonthread


def test_the_future_ends_with_what_the_call_returns() -> None:
    assert daemonthread.start("one", lambda: 7, ended=lambda: None).result(10) == 7


def test_an_error_is_raised_where_the_result_is_asked_for() -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        daemonthread.start("one", fail, ended=lambda: None).result(10)


@pytest.mark.parametrize("is_failing", [False, True])
def test_what_is_to_be_done_at_the_end_is_done_before_the_future_ends(is_failing: bool) -> None:
    said: list[str] = []

    def call() -> None:
        if is_failing:
            raise ValueError

    future = daemonthread.start("one", call, ended=lambda: said.append("ended"))
    future.exception(10)

    assert said == ["ended"]


def test_where_no_thread_can_be_started_the_end_is_told_and_the_error_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    said: list[str] = []

    with pytest.raises(RuntimeError, match="new thread"):
        daemonthread.start("one", lambda: 7, ended=lambda: said.append("ended"))

    assert said == ["ended"]


def test_the_end_of_a_wait_ends_no_call() -> None:
    go = threading.Event()
    future = daemonthread.start("one", lambda: go.wait(10), ended=lambda: None)

    assert not future.cancel()
    go.set()

    assert future.result(10)


def test_a_process_ends_though_a_call_hangs() -> None:
    program = (
        "import time; from fairlead import daemonthread as one; one.start('x', lambda: time.sleep(600), ended=int)"
    )
    subprocess.run((sys.executable, "-c", program), check=True, timeout=60)
