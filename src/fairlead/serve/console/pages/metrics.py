"""Shows figures over time: the tab of a container's page, and a GPU's page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

import litestar
from litestar import params

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve.accounts.roles import Action
from fairlead.serve.backend.hardware import GPUListing
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import claimfacts, gpumap, lines, tone
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.history.view import MetricsView
from fairlead.serve.v1.claims.view import ClaimList, ClaimView
from fairlead.serve.v1.containers.view import ContainerView, Explanation
from fairlead.serve.v1.events.view import EventView
from fairlead.wire.text import timestamp

_RANGES: Final = (("1h", "Last hour", "1h"), ("1d", "Last day", "1d"), ("life", "Whole life", ""))
_LENGTHS: Final = {"1h": 3600, "1d": 86400}
_MOST_CLAIMS: Final = 50
_GPU_RANGES: Final = (("1h", "Last hour", "1h"), ("1d", "Last day", "1d"), ("7d", "Last week", "7d"))


@frozen
class Shown:
    """What a page shows of figures over time."""

    figures: tuple[lines.Figure, ...]
    ranges: tuple[tuple[str, str], ...]
    """Word in the address, and what it is called."""
    range: str
    problem: str = ""
    """Why there are none; empty: there are."""
    hint: str = ""
    notes: tuple[str, ...] = ()


async def of_container(
    visit: Visit, path: str, one: ContainerView, explanation: Explanation, events: Sequence[EventView]
) -> Shown:
    """Return what a container's page shows, with its phases and events as marks."""
    chosen = _chosen(visit, _RANGES)
    begin = one.started_at or one.created_at
    age_s = time.time() - (timestamp.parse(begin or "") or 0.0)
    is_younger = age_s < _LENGTHS.get(chosen[0], 0)  # the chart begins with the container
    since = begin if is_younger or not chosen[2] else chosen[2]
    asked: dict[str, object] = {"namespace": one.namespace, "since": since}
    if one.finished_at:
        asked = _until(asked, one, chosen[0])
    return await _shown(visit, f"{path}/metrics", asked, _RANGES, chosen[0], _marks(explanation, events))


def _until(asked: dict[str, object], one: ContainerView, word: str) -> dict[str, object]:
    """Return the question about a container that has ended: its last hour is before its end."""
    end = timestamp.parse(one.finished_at or "")
    if end is None:
        return asked
    begin = timestamp.parse(str(asked["since"])) if word == "life" else end - _LENGTHS[word]
    last = end + 10
    begin = max(begin or end, timestamp.parse(one.started_at or one.created_at or "") or 0.0)
    return {**asked, "since": timestamp.emit(min(begin, end - 10)), "until": timestamp.emit(last)}


def _chosen(visit: Visit, ranges: Sequence[tuple[str, str, str]]) -> tuple[str, str, str]:
    word = visit.query.get("range", "")
    return next((one for one in ranges if one[0] == word), ranges[0])


async def _shown(
    visit: Visit,
    path: str,
    asked: dict[str, object],
    ranges: Sequence[tuple[str, str, str]],
    chosen: str,
    marks: Sequence[lines.Mark] = (),
) -> Shown:
    named = tuple((word, title) for word, title, _ in ranges)
    found = await visits.tried(visit.api.get(MetricsView, path, **asked))
    if isinstance(found, errors.FairleadError):
        return Shown(figures=(), ranges=named, range=chosen, problem=found.message, hint=found.hint or "")
    return Shown(figures=lines.figures(found, marks), ranges=named, range=chosen, notes=found.notes)


def _marks(explanation: Explanation, events: Sequence[EventView]) -> list[lines.Mark]:
    """Return what happened, in order: where phases began, and events."""
    named = [(phase.started_at, f"{phase.name} begins") for phase in explanation.phases]
    named += [(event.at or "", event.reason) for event in events]
    timed = [(timestamp.parse(text), what) for text, what in named]
    return sorted((lines.Mark(at=at, text=what) for at, what in timed if at is not None), key=lambda one: one.at)


@litestar.get("/console/gpus/{gpu:str}", include_in_schema=False)
async def gpu(visit: Visitor, gpu: Annotated[str, params.PathParameter()]) -> litestar.Response[bytes]:
    """Show one GPU."""
    listing = await visit.api.get(GPUListing, "/v1/gpus")
    boards = [board for node in gpumap.nodes(listing) for board in node.boards if board.uuid == gpu]
    if not boards:
        raise errors.NotFound(f'there is no GPU "{errors.readable(gpu)}"', reason="GPUUnknown")
    chosen = _chosen(visit, _GPU_RANGES)
    shown = await _shown(visit, f"/v1/gpus/{client.part(gpu)}/metrics", {"since": chosen[2]}, _GPU_RANGES, chosen[0])
    facts: dict[str, Any] = {"metrics": shown, "here": f"/console/gpus/{gpu}"}
    may_read = visit.may(Action.CONTAINER_READ)
    facts |= {"claims": await _claims(visit, gpu) if may_read else (), "claim_address": claimfacts.address}
    return visit.page("gpu", board=boards[0], tone=tone, may_read=may_read, **facts)


async def _claims(visit: Visit, gpu: str) -> tuple[ClaimView, ...]:
    """Return the claims that have a GPU or a part of it, of those that the caller sees."""
    found = await visits.tried(visit.api.get(ClaimList, "/v1/claims", gpu=gpu))
    return () if isinstance(found, errors.FairleadError) else found.items[:_MOST_CLAIMS]


ROUTES: Final = (gpu,)
