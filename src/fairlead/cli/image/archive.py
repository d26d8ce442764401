"""`fairlead image pull|tag|save|load`: fetches, names and moves images."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import click
import msgspec

from fairlead import errors
from fairlead.cli.core import options, plaintext, progress
from fairlead.cli.core.client import Client
from fairlead.client import transport
from fairlead.client.session import process
from fairlead.serve.v1.images.view import PullRequest, TagRequest
from fairlead.wire.fairlead import problem

_PATH: Final = "/v1/images/archive"
_CHUNK: Final = 1 << 16


@click.command("pull")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-q", "--quiet", is_flag=True, help="print the name only")
@options.pass_client
def pull(client: Client, *, names: tuple[str, ...], quiet: bool) -> None:
    """Fetch images from their registry."""
    for name in names:
        made = ""
        with progress.Progress() as waiting:
            for line in client.lines("POST", "/v1/images:pull", body=PullRequest(name=name)):
                for said in line.get("output", "").splitlines():
                    if quiet or not said.strip():
                        continue
                    waiting.clear()
                    plaintext.echo(said, err=True)
                    waiting.show(f"pulling {name}")
                made = line.get("image", made)
        if not made:
            raise errors.Unavailable("the pull broke off", reason="ServiceBrokeOff", hint="the service's log says why")
        plaintext.echo(made)


@click.command("tag")
@click.argument("name", shell_complete=options.complete_images)
@click.argument("new")
@options.pass_client
def tag(client: Client, *, name: str, new: str) -> None:
    """Give an image one more name."""
    client.call("POST", "/v1/images:tag", TagRequest, body=TagRequest(name=name, new=new))


@click.command("save")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=options.complete_images)
@click.option("-o", "--output", "file", type=click.Path(path_type=Path, dir_okay=False), help="file to write")
@options.pass_client
def save(client: Client, *, names: tuple[str, ...], file: Path | None) -> None:
    """Write images as an archive that docker and podman read, to a file or to standard output."""
    if file is None and sys.stdout.isatty():
        raise click.UsageError("an archive is not for a terminal: -o FILE, or a pipe")
    with client.connect(_PATH, [("name", name) for name in names]) as connection, _target(file) as target:
        _finish(_take(connection, target), "save")


@contextlib.contextmanager
def _target(file: Path | None) -> Iterator[BinaryIO]:
    """Give a temporary file that replaces `file` once it is written whole; a failure leaves `file` as it was."""
    if file is None:
        yield sys.stdout.buffer
        return
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as target:
            yield target
        part.replace(file)
    except OSError as error:
        message = f"cannot write {file}: {error.strerror}"
        raise errors.Invalid(message, reason="CopyFailed", hint="is the folder there, and yours to write?") from error
    finally:
        part.unlink(missing_ok=True)


@click.command("load")
@click.option("-i", "--input", "file", type=click.File("rb"), default="-", help="file to read; - reads standard input")
@options.pass_client
def load(client: Client, *, file: BinaryIO) -> None:
    """Read images from an archive that docker or podman wrote."""
    if file is sys.stdin.buffer and sys.stdin.isatty():
        raise click.UsageError("an archive is not typed: -i FILE, or a pipe")
    with client.connect(_PATH, []) as connection:
        ends: queue.SimpleQueue[_End] = queue.SimpleQueue()
        threading.Thread(target=lambda: ends.put(_take(connection, None)), name="load", daemon=True).start()
        while data := file.read(_CHUNK):
            connection.send(data)
        connection.send(json.dumps({"eof": True}))
        end = ends.get()
    _finish(end, "load")
    for line in end.said.decode(errors="replace").splitlines():
        plaintext.echo(line)


class _End(msgspec.Struct, frozen=True):
    """How a session ended, and what it said."""

    last: dict[str, object] | None
    said: bytes
    failures: bytes


def _take(connection: transport.Session, target: BinaryIO | None) -> _End:
    """Take what a session gives to its end: output to a file, or kept."""
    said = failures = b""
    for frame in connection.frames():
        if isinstance(frame, str):
            return _End(json.loads(frame), said, failures)
        if frame[:1] == process.ERRORS:
            failures += frame[1:]
        elif target is None:
            said += frame[1:]
        else:
            target.write(frame[1:])
    return _End(None, said, failures)


def _finish(end: _End, act: str) -> None:
    """Raises: what the service's problem says; Unavailable; Invalid (`ArchiveFailed`)."""
    if end.last is None:
        raise errors.Unavailable(f"the service broke off the {act}", reason="ServiceBrokeOff", hint="its log says why")
    if "problem" in end.last:
        raise problem.error_of(msgspec.convert(end.last["problem"], problem.Problem))
    if end.last.get("exit_code"):
        lines = end.failures.decode(errors="replace").strip().splitlines()
        why = lines[-1].removeprefix("Error: ") if lines else f"it ended with {end.last['exit_code']}"
        hint = "an archive is what docker save, podman save or fairlead image save wrote"
        raise errors.Invalid(f"cannot {act} images: {why}", reason="ArchiveFailed", hint=hint)
