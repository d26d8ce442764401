"""Takes a person's request for a GPU on a unix socket that only its owner may open, and makes one.

One line of JSON each way. The ledger has one writer, the agent; while none runs, the request is carried out on the file
itself, under the same lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors
from fairlead.node.lease import ledger as ledgers
from fairlead.plan.lease import intent
from fairlead.plan.lease.change import Change
from fairlead.plan.lease.row import Facts, Row
from fairlead.wire.text import typedjson

SOCKET: Final = "admin.sock"
_LINE: Final = 64 << 10
_PATIENCE_S: Final = 10.0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a person wants of a GPU."""

    verb: str
    gpu: str
    """Its UUID, a part of it, or the index that the driver gives it now."""
    by: str
    why: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: a row, or an error's class name, reason, message and hint."""

    row: Row | None = None
    kind: str = ""
    reason: str = ""
    message: str = ""
    hint: str | None = None


Act = Callable[[ledgers.Decision], Awaitable[tuple[Change, ...]]]


async def serve(
    folder: Path, act: Act, rows: Callable[[], dict[str, Row]], indices: Callable[[], Mapping[int, str]]
) -> None:
    """Serve for ever; the socket is removed at the end.

    Args:    rows: the ledger's, by key.   indices: keys of the GPUs that the driver lists now, by its index.
    """
    path = folder / SOCKET
    path.unlink(missing_ok=True)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError):  # a client that hangs up, a line without end
            line = await reader.readline()
            writer.write(msgspec.json.encode(await _answer(line, act, rows, indices())) + b"\n")
            await writer.drain()
        writer.close()

    # Not started here: to be cancelled while it starts would leave its socket open.
    server = await asyncio.start_unix_server(answer, path, limit=_LINE, start_serving=False)
    try:
        path.chmod(0o600)  # its folder is 0700 already
        await server.serve_forever()
    finally:
        server.close()
        path.unlink(missing_ok=True)


async def _answer(line: bytes, act: Act, rows: Callable[[], dict[str, Row]], indices: Mapping[int, str]) -> Answer:
    try:
        request = typedjson.decode(line, type=Request)
    except msgspec.MsgspecError as error:
        return Answer(kind="RequestError", reason="RequestMalformed", message=str(error))
    try:
        name = intent.by_index(request.gpu, indices)
        await act(lambda now: intent.plan_intent(now, request.verb, name, _facts(request)))
        return Answer(row=intent.find_row(rows(), name))
    except errors.FairleadError as error:
        return Answer(kind=type(error).__name__, reason=error.reason, message=error.message, hint=error.hint)


def ask(folder: Path, request: Request) -> Row:
    """Have a request carried out by the agent, or on the ledger itself where no agent runs; returns the GPU's row.

    Raises: what `intent.plan_intent` raises; Unavailable: there is no ledger, or an agent that does not answer.
    """
    if not (folder / "ledger.db").exists():
        message = f"there is no ledger in {folder}"
        hint = "the agent keeps one with lease.ledger=on; --state-folder says where"
        raise errors.Unavailable(message, reason="LedgerMissing", hint=hint)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_PATIENCE_S)
            client.connect(str(folder / SOCKET))
            client.sendall(msgspec.json.encode(request) + b"\n")
            with client.makefile("rb") as file:
                return _row(file.readline(_LINE))
    except (FileNotFoundError, ConnectionRefusedError):
        return asyncio.run(_alone(folder, request))
    except OSError as error:
        message = f"the agent does not answer on {folder / SOCKET}: {error}"
        raise errors.Unavailable(message, reason="AgentSilent", hint="run as root, on the GPU's node") from error


def _row(line: bytes) -> Row:
    try:
        found = typedjson.decode(line, type=Answer)
    except msgspec.MsgspecError as error:
        raise errors.ProtocolError(f"the agent's answer cannot be read: {error}", reason="AnswerMalformed") from error
    if found.row is not None:
        return found.row
    kinds = {kind.__name__: kind for kind in errors.TABLE}
    raise kinds.get(found.kind, errors.Unavailable)(found.message, reason=found.reason, hint=found.hint)


async def _alone(folder: Path, request: Request) -> Row:
    ledger = ledgers.Ledger(folder)
    try:
        await ledger.act(lambda now: intent.plan_intent(now, request.verb, request.gpu, _facts(request)))
        return intent.find_row(ledger.rows.value, request.gpu)
    finally:
        ledger.close()


def _facts(request: Request) -> Facts:
    reason = intent.BY_HAND if request.verb == intent.QUARANTINE else ""
    return Facts(at=time.time(), by=request.by or "unknown", reason=reason, message=request.why)
