"""Keeps the verification reports: signed lines, each with the hash of the one before, appended and flushed.

A line that was changed, taken out or put in breaks the chain or a signature; that the newest are missing shows in the
ledger, whose rows name the report by which a GPU became free. A line is on disk before the ledger says free. What a
crash left of a line without its end was never answered and is cut off.
"""

from __future__ import annotations

import base64
import collections
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from fairlead import errors, files, telemetry
from fairlead.model.evidence import Evidence
from fairlead.plan.lease.check import Finding
from fairlead.plan.lease.row import Row
from fairlead.wire.text import typedjson

NAME: Final = "reports.jsonl"
LARGEST: Final = 8 << 20
"""Bytes after which the file goes aside, as reports-N.jsonl, and the chain goes on in a new one."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One verification of one GPU."""

    id: str
    previous: str
    """SHA-256 of the report before, in hexadecimal; empty: it is the first."""
    node: str
    gpu: str
    epoch: int
    """The row's epoch meanwhile: the token without which the ledger takes no verdict."""
    boot_id: str
    reuse: str
    """Level of `lease.reuse`."""
    verdict: str
    """pass, fail, wait or error; nothing but pass makes a GPU free."""
    reason: str
    message: str
    at: str
    """When it began, RFC 3339."""
    seconds: Mapping[str, float]
    """What each step took."""
    findings: Sequence[Finding]
    before: Evidence | None
    after: Evidence | None

    @property
    def total_s(self) -> float:
        """What it took in all."""
        return sum(self.seconds.values())


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the file: a report as the bytes that were signed."""

    body: str
    key: str
    signature: str


class Signs(Protocol):
    """What signs (`node.lease.signing`)."""

    name: str

    def sign(self, data: bytes) -> bytes:
        """Return the signature."""
        ...


class Verifies(Protocol):
    """What knows a signature."""

    name: str

    def is_signed(self, data: bytes, signature: bytes) -> bool:
        """Return whether it is of these bytes."""
        ...


class Reports:
    """The file, for its one writer."""

    def __init__(self, folder: Path, signer: Signs) -> None:
        """Find the chain's end. Raises: OSError."""
        self._folder, self._signer = folder, signer
        _cut_torn(folder / NAME)
        newest = collections.deque((line for _, line in _lines(folder)), maxlen=1)
        self._previous = digest(newest[0]) if newest else ""

    def append(self, report: Report) -> Report:
        """Write a report and flush it; returns it with its place in the chain. Raises: Unavailable."""
        placed = msgspec.structs.replace(report, previous=self._previous)
        body = msgspec.json.encode(placed).decode()
        line = Line(
            body=body,
            key=self._signer.name,
            signature=base64.b64encode(self._signer.sign(body.encode())).decode(),
        )
        path = self._folder / NAME
        try:
            self._make_room(path)
            with path.open("ab") as file:
                start = file.tell()
                try:
                    file.write(msgspec.json.encode(line) + b"\n")
                    file.flush()
                    os.fdatasync(file.fileno())
                except OSError:
                    file.truncate(start)
                    raise
            path.chmod(0o600)
        except OSError as error:
            message = f"cannot write report {report.id} to {path}: {error}"
            hint = "no GPU is verified until it can be written: look at its disk"
            raise errors.Unavailable(message, reason="ReportsUnusable", hint=hint) from error
        telemetry.crash_point("reports.after-append")
        self._previous = digest(line)
        return placed

    def _make_room(self, path: Path) -> None:
        if path.exists() and path.stat().st_size > LARGEST:
            numbers = [_number(one) for one in self._folder.glob("reports-*.jsonl")]
            path.rename(path.with_name(f"reports-{max(numbers, default=0) + 1}.jsonl"))
            files.flush_folder(self._folder)


def digest(line: Line) -> str:
    """Return what the next report names as its previous."""
    return hashlib.sha256(line.body.encode()).hexdigest()


def read(folder: Path) -> tuple[Report, ...]:
    """Return all reports, oldest first, without looking at signatures. Raises: ProtocolError."""
    return tuple(_report(path, line) for path, line in _lines(folder))


def named(rows: Mapping[str, Row]) -> dict[str, str]:
    """Return the reports that a ledger names, by GPU; a verdict of `lease.reuse=look` has none."""
    return {key: row.verdict for key, row in rows.items() if "-" in row.verdict}


def verify(folder: Path, key: Verifies, *, known: Mapping[str, str]) -> tuple[Report, ...]:
    """Return all reports, oldest first, once each signature and the chain hold.

    Args:    known: ids of reports that the ledger names, by GPU: they must be there.
    Raises:  ProtocolError (`ReportForged`, `ChainBroken`, `ReportMissing`): with the place.
    """
    found: list[Report] = []
    previous: str | None = None
    for number, (path, line) in enumerate(_lines(folder), 1):
        if not key.is_signed(line.body.encode(), _signature(line)):
            message = f"report {number} in {path} is not signed by key {key.name}"
            hint = "it was changed, or another key signed it: --key names that key's public half"
            raise errors.ProtocolError(message, reason="ReportForged", hint=hint)
        report = _report(path, line)
        if previous is not None and report.previous != previous:
            message = f"the chain breaks before report {report.id} in {path}: one is missing, or was put in"
            raise errors.ProtocolError(message, reason="ChainBroken", hint="keep the files and ask who had root here")
        previous = digest(line)
        found.append(report)
    there = {one.id for one in found}
    for gpu, name in known.items():
        if name not in there:
            message = f"the ledger names report {name} of {gpu}, and it is not in {folder}"
            raise errors.ProtocolError(message, reason="ReportMissing", hint="the newest reports were taken away")
    return tuple(found)


def _signature(line: Line) -> bytes:
    try:
        return base64.b64decode(line.signature, validate=True)
    except ValueError:
        return b""


def _report(path: Path, line: Line) -> Report:
    try:
        return typedjson.decode(line.body, type=Report)
    except msgspec.MsgspecError as error:
        raise errors.ProtocolError(f"{path} holds what is not a report: {error}", reason="ReportsDamaged") from error


def _number(path: Path) -> int:
    text = path.stem.partition("-")[2]
    return int(text) if text.isdecimal() else 0


def _lines(folder: Path) -> Iterator[tuple[Path, Line]]:
    older = sorted(folder.glob("reports-*.jsonl"), key=_number)
    for path in (*older, folder / NAME):
        if not path.exists():
            continue
        for text in path.read_bytes().splitlines():
            try:
                yield path, typedjson.decode(text, type=Line)
            except msgspec.MsgspecError as error:
                message = f"{path} holds a line that is not a report: {error}"
                raise errors.ProtocolError(message, reason="ReportsDamaged", hint="keep the file aside") from error


def _cut_torn(path: Path) -> None:
    """Cut off what a crash left without an end; nothing was answered by it."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        telemetry.log.warning("report cut short by a crash, cut off", path=str(path))
        os.truncate(path, whole)
