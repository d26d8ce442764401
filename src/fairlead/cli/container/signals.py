"""Sends signals to containers: `fairlead kill`, and those that `run` passes on while it follows a process."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

import click

from fairlead import errors
from fairlead.cli.core import options, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.terminal import starting, unbuffered

_PASSED_ON: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_LEAVE_AFTER: Final = 3
"""After so many SIGINT or SIGTERM `run` ends without the process, as docker's does."""


class Left(Exception):
    """Raised for the last of `_LEAVE_AFTER` signals; `run` catches it and leaves the process running."""


@contextlib.contextmanager
def proxied(client: Client, name: str, namespace: str) -> Iterator[None]:
    """Pass signals on to a container's first process for a block.

    A process that is number 1 and has no handler for a signal does not get it from the kernel: that is said once.
    Raises: Left: after the third SIGINT or SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # another thread gets no signals
        return
    waiting: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    ends = 0

    def caught(number: int, _frame: FrameType | None) -> None:
        nonlocal ends
        ends += number in {signal.SIGINT, signal.SIGTERM}
        if ends >= _LEAVE_AFTER:
            raise Left
        waiting.put(number)

    def send() -> None:
        is_said = False
        while (number := waiting.get()) is not None:
            with contextlib.suppress(errors.FairleadError):  # it has just ended, or the service has
                client.signal(name, namespace, str(number))
            if not is_said and number in {signal.SIGINT, signal.SIGTERM}:
                word = signal.Signals(number).name
                unbuffered.say(f"{word} sent to {name}; two more leave it running, `fairlead stop {name}` ends it")
                is_said = True

    sender = threading.Thread(target=send, name="signals", daemon=True)
    before = {number: signal.signal(number, caught) for number in _PASSED_ON}
    sender.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        waiting.put(None)


@click.command()
@options.container_argument("names", many=True)
@options.namespace_option
@click.option("-s", "--signal", "text", default="KILL", show_default=True, help="its name or number")
@options.pass_client
def kill(client: Client, *, names: tuple[str, ...], namespace: str, text: str) -> None:
    """Send a signal to the first process of containers."""
    for name in client.named(names, namespace):
        starting.await_running(client, name, namespace)
        client.signal(name, namespace, text)
        plaintext.echo(name)
