"""Call threads: a call that hangs costs its own target, once, and no other."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from fairlead import errors
from fairlead.silicon.nvidia import asynccalls


class CodedError(Exception):
    """An error of the called library."""


async def test_results_and_errors_come_back_in_order_of_the_calls() -> None:
    def fail() -> int:
        raise CodedError("no")

    answers = await asynccalls.AsyncCallThreads("t").run_all({"a": lambda: 1, "b": fail, "c": lambda: 3}, timeout_s=5)
    assert list(answers) == ["a", "b", "c"]
    assert (answers["a"], answers["c"]) == (1, 3)
    assert isinstance(answers["b"], CodedError)


async def test_a_hanging_call_times_out_and_occupies_only_its_lane() -> None:
    lanes, release = asynccalls.AsyncCallThreads("t"), threading.Event()
    with pytest.raises(errors.DeviceFault) as caught:
        await lanes.run("slow", release.wait, timeout_s=0.02)
    assert caught.value.reason == "Timeout"
    answers = await lanes.run_all({"slow": lambda: 1, "fast": lambda: 2}, timeout_s=5)
    assert isinstance(answers["slow"], errors.DeviceFault)
    assert answers["fast"] == 2
    assert list(answers) == ["slow", "fast"]
    release.set()


async def test_a_lane_is_free_again_once_its_call_returns() -> None:
    lanes, release, left = asynccalls.AsyncCallThreads("t"), threading.Event(), threading.Event()

    def hang() -> None:
        release.wait()
        left.set()

    with pytest.raises(errors.DeviceFault):
        await lanes.run("one", hang, timeout_s=0.02)
    release.set()
    await asyncio.to_thread(left.wait)
    async with asyncio.timeout(50):
        while True:
            try:
                assert await lanes.run("one", lambda: 7, timeout_s=5) == 7
            except errors.DeviceFault:
                await asyncio.sleep(0)
            else:
                break


async def test_a_hung_lane_starts_no_second_thread() -> None:
    lanes, release = asynccalls.AsyncCallThreads("leak"), threading.Event()
    for _ in range(20):
        with pytest.raises(errors.DeviceFault):
            await lanes.run("one", release.wait, timeout_s=0.01)
    assert sum(thread.name.startswith("leak-") for thread in threading.enumerate()) == 1
    release.set()


def test_an_ordinary_thread_waits_with_the_same_limit() -> None:
    lanes, release = asynccalls.AsyncCallThreads("t"), threading.Event()
    assert lanes.run_here("one", lambda: 5, timeout_s=5) == 5
    with pytest.raises(errors.DeviceFault):
        lanes.run_here("one", release.wait, timeout_s=0.01)
    release.set()


def test_a_process_ends_while_a_call_hangs() -> None:
    program = """
import asyncio, threading
from fairlead import errors
from fairlead.silicon.nvidia import asynccalls
async def main():
    try:
        await asynccalls.AsyncCallThreads("t").run("one", threading.Event().wait, timeout_s=0.05)
    except errors.DeviceFault as error:
        print(error.reason)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    assert (done.stdout, done.stderr) == ("Timeout\n", "")
