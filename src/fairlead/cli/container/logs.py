"""`fairlead logs`: copies what containers wrote, byte by byte, standard error to ours.

Of a group started from a manifest every container is shown, each line with its name before it, as docker compose does.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import queue
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import click

from fairlead import errors
from fairlead.cli.core import client as api
from fairlead.cli.core import options
from fairlead.cli.core.client import Client
from fairlead.client.session import follow
from fairlead.serve.v1.containers import view
from fairlead.wire.text import timestamp

_ALL: Final = "all"


class Moment(click.ParamType[str]):
    """A time as docker takes it: `10m` (ago), `2026-01-31`, an RFC 3339 time, or Unix seconds."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return an RFC 3339 time."""
        text = str(value)
        with contextlib.suppress(ValueError, OverflowError, OSError):
            return timestamp.emit(_seconds(text))
        self.fail(f'"{text}" is not a time: 10m, 2h30m, 2026-01-31T08:00:00 or Unix seconds', param, ctx)


def _seconds(text: str) -> float:
    """Return Unix seconds. Raises: ValueError; OverflowError."""
    if (ago_s := options.parse_span(text)) is not None:
        return dt.datetime.now(dt.UTC).timestamp() - ago_s
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text):
        return float(text)
    # Without a zone it is this machine's, as docker has it.
    return dt.datetime.fromisoformat(re.sub(r"(\.[0-9]{6})[0-9]+", r"\1", text)).timestamp()


@click.command()
@options.container_argument()
@options.namespace_option
@click.option("-f", "--follow", is_flag=True, help="wait for the start and go on to the end")
@click.option("--tail", metavar="N|all", help="only the last N lines; also -n N")
@click.option("--since", type=Moment(), help="only what was written since: 10m ago, or a time")
@click.option("--until", type=Moment(), help="only what was written until then")
@click.option("-t", "--timestamps", is_flag=True, help="put the time before each line")
@click.option("-c", "--container", default="", help="which container of a group  [default: all]")
@options.pass_client
def logs(client: Client, /, *, name: str, namespace: str, tail: str | None, container: str, **given: Any) -> None:
    """Show what a container wrote."""
    if tail is None and namespace.isdecimal():  # docker's -n is a number of lines, ours the namespace
        tail, namespace = namespace, client.namespace
    query = {
        "namespace": namespace,
        "follow": str(given["follow"]).lower(),
        "tail": line_count(tail),
        "timestamps": str(given["timestamps"]).lower(),
        "since": given["since"],
        "until": given["until"],
        "notices": "true",
    }
    names = client.named([name], namespace)
    each = [source for one in names for source in _sources(client, one, namespace, container, many=len(names) > 1)]
    count = copy_all(client, each, query)
    if given["follow"] and not count:
        for one in names:
            _explain_silence(client, one, namespace)


def line_count(text: str | None) -> int | None:
    """Return a number of lines. Raises: BadParameter."""
    if text is None or text in {_ALL, "-1"}:
        return None
    if not text.isdecimal() or len(text) > options.LONGEST_NUMBER:
        raise click.BadParameter(f'"{text[: options.LONGEST_NUMBER]}" is not a number of lines', param_hint="--tail")
    return int(text)


@dataclass(frozen=True, slots=True)
class Source:
    """Output to copy: what stands before its lines, and whose it is."""

    title: str
    name: str
    container: str


def _sources(client: Client, name: str, namespace: str, container: str, *, many: bool) -> list[Source]:
    """Return the output to show of one: of the container that is named, else of all that a group has.

    Args: many: it is one of several, and each line says which.
    """
    parts = [container]
    if not container:
        with contextlib.suppress(errors.NotFound):  # the service says what is wrong with the name
            parts = [part.name for part in client.container(name, namespace).containers]
        parts = parts if len(parts) > 1 else [""]
    return [Source("/".join(filter(None, (name if many else "", part))), name, part) for part in parts]


def _copy(client: Client, source: Source, query: dict[str, Any]) -> int:
    """Copy the output of one container to ours, each stream to its own; return how many bytes it was."""
    count = 0
    for stream, piece in _output(client, source.name, source.container, query):
        target = sys.stdout.buffer if stream == follow.OUTPUT else sys.stderr.buffer
        target.write(b"fairlead: " + piece if stream == follow.NOTICES else piece)
        target.flush()
        count += len(piece)
    return count


def _output(client: Client, name: str, container: str, query: dict[str, Any]) -> Iterator[tuple[int, bytes]]:
    return follow.output(client, f"{api.container_path(name)}/logs", {**query, "container": container or None})


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of one container, or that it has no more (`error` says why, where it broke)."""

    title: str
    data: bytes | None
    is_error: bool = False
    error: errors.FairleadError | None = None


def copy_all(client: Client, sources: list[Source], query: dict[str, Any], *, is_titled: bool = False) -> int:
    """Copy the output of one container, or of several with a title before each line; return how many bytes it was.

    Args:   is_titled: whether one alone has its title, too; an empty one is none.
    Raises: what reading one of them raised, once the others have ended; that one has not started is not an error.
    """
    if len(sources) == 1 and not is_titled:
        return _copy(client, sources[0], query)
    lines: queue.Queue[_Line] = queue.Queue(maxsize=1000)
    for one in sources:
        threading.Thread(target=_read, args=(client, one, query, lines), name=one.title, daemon=True).start()
    width = max(len(one.title) for one in sources)
    left, count = len(sources), 0
    failure: errors.FairleadError | None = None
    while left:
        line = lines.get()
        if line.data is None:
            left -= 1
            failure = failure or line.error
            continue
        target = sys.stderr.buffer if line.is_error else sys.stdout.buffer
        title = f"{line.title:<{width}} | " if width else ""
        target.write(title.encode() + line.data)
        target.flush()
        count += len(line.data)
    if failure is not None and (failure.reason != "ContainerNotStarted" or not count):
        raise failure
    return count


def _read(client: Client, source: Source, query: dict[str, Any], lines: queue.Queue[_Line]) -> None:
    """Put whole lines of one container into the queue; a line that never ends is put as it is at its end."""
    error: errors.FairleadError | None = None
    rest = {follow.OUTPUT: b"", follow.ERRORS: b"", follow.NOTICES: b""}
    try:
        for stream, piece in _output(client, source.name, source.container, query):
            *whole, rest[stream] = (rest[stream] + piece).split(b"\n")
            for line in whole:
                text = b"fairlead: " + line if stream == follow.NOTICES else line
                lines.put(_Line(source.title, text + b"\n", is_error=stream != follow.OUTPUT))
    except errors.FairleadError as failed:
        error = failed
    for stream, line in rest.items():
        if line:
            lines.put(_Line(source.title, line + b"\n", is_error=stream != follow.OUTPUT))
    lines.put(_Line(source.title, None, error=error))


def _explain_silence(client: Client, name: str, namespace: str) -> None:
    """Raise where a followed container ended without ever having started; a silent one is not an error."""
    shown = client.container(name, namespace)
    if shown.state in view.ENDED and shown.started_at is None:
        why = ": ".join(part for part in (shown.reason, shown.message) if part) or shown.state
        raise errors.Conflict(f"{name} never started ({why})", reason="ContainerNotStarted")
