"""Runs a call that may hang in a daemon thread of its own: nothing else waits for it, not even the end of the process.

Drivers, /proc and cgroups hang where hardware does. A pool's threads would be used up by them, and joined at the end.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def start(name: str, call: Callable[[], T], *, ended: Callable[[], object]) -> concurrent.futures.Future[T]:
    """Start a call.

    Args:    name: of the thread.   ended: called in the thread once the call has ended, before the future ends.
    Returns: a future that ends with the call and cannot be cancelled.
    Raises:  RuntimeError: no thread can be started; `ended` has been called.
    """
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()
    try:
        threading.Thread(target=_run, args=(future, call, ended), name=name, daemon=True).start()
    except RuntimeError:
        ended()
        raise
    return future


def _run(future: concurrent.futures.Future[T], call: Callable[[], T], ended: Callable[[], object]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - carried to the waiter, nothing is swallowed
        ended()
        future.set_exception(error)
    else:
        ended()
        future.set_result(result)
