"""`fairlead explain`: says why a container waits, failed or runs where it does."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Final

import click

from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.model.container import isolation
from fairlead.plan.pod import personwords
from fairlead.plan.sandbox import machinestart
from fairlead.serve.v1.claims.view import ClaimedDevice, ClaimView
from fairlead.serve.v1.containers import view
from fairlead.serve.v1.containers.view import ContainerView, Explanation


@click.command()
@options.container_argument()
@options.namespace_option
@options.json_option
@options.pass_client
def explain(client: Client, *, name: str, namespace: str, form: str) -> None:
    """Say why a container waits, failed or runs where it does."""
    found = client.explain(name, namespace)
    if form != "text":
        output.show_value(found, form=form)
        return
    for line in explanation_lines(found):
        plaintext.echo(line)


_DEVICES: Final = 8
"""Devices of a claim that are named; the others are counted."""
_STATES: Final[Mapping[str, str]] = {
    "prepared": "prepared",
    "preparing": "being prepared",
    "failed": "not prepared",
    "unreported": "allocated, and their driver says nothing of them",
}


def explanation_lines(found: Explanation) -> list[str]:
    """Return an explanation as lines: the state and why, what holds now, the best nodes, why others did not fit."""
    # Left out where the summary is the waiting message already, which says what holds now.
    now = found.diagnosis if found.waiting is None or found.waiting.message != found.summary else ""
    lines = [f"{found.name} is {found.state}: {found.summary}"] + [f"  now: {now}"] * bool(now)
    if found.waiting is not None and (found.priority or found.priority_class):
        lines.append(f"  its priority is {priority(found)}: higher goes first")
    if found.time_limit_s is not None and found.state not in view.ENDED:
        lines.append(f"  its time limit is {output.span(found.time_limit_s)}{_left(found)}")
    if found.resize:
        lines.append(f"  it keeps its CPU and memory for now: {found.resize}")
    if found.idle is not None:
        lines.append(f"  {found.idle.message}")
    if found.isolation != isolation.NONE:
        lines.append(f"  its isolation is {found.isolation}")
    lines += [f"  {line}" for line in output.lines_of(decision_rows(found.facts))]
    lines += [f"  {line}" for one in found.claims for line in claim_lines(one)]
    return lines + [f"  {line}" for line in life_lines(found)]


def claim_lines(found: ClaimView) -> list[str]:
    """Return how far a claim is prepared as lines: one for the devices that are alike, with the next step."""
    if not found.prepared:
        return [f"claim {found.name}: {found.message or 'it has no devices'}"]
    alike: dict[tuple[str, str | None, str, str], list[ClaimedDevice]] = {}
    for one in found.prepared:
        told = one.message if one.state != "prepared" else ""
        alike.setdefault((one.state, one.since, told, one.enforced_by), []).append(one)
    lines = []
    for (state, since, told, enforced_by), devices in alike.items():
        names = ", ".join(
            one.device.split("/", 2)[-1] for one in devices[:_DEVICES]
        )  # driver and pool go without saying
        more = f" and {len(devices) - _DEVICES} more" if len(devices) > _DEVICES else ""
        when = f" for {output.age(since)}" if since else ""
        said = _STATES.get(state, state)
        lines.append(f"claim {found.name}: {names}{more} {said}{when}{f': {told}' if told else ''}")
        lines += [f"  share held by: {enforced_by}"] if enforced_by else []
    return lines


def life_lines(found: ContainerView | Explanation) -> list[str]:
    """Return a container's phases, its cost and what verified its GPUs as lines; none of what is not known."""
    lines = []
    if found.phases:
        lines.append("phases: " + ", ".join(f"{one.name} {output.span(one.duration_s)}" for one in found.phases))
    lines += start_lines(found)
    if (cost := found.cost) is not None and cost.gpu_seconds:
        rate = f", {price(cost.hourly)} {cost.currency} an hour" if price(cost.hourly) != "0" else ""
        priced = f"{price(cost.amount)} {cost.currency} so far{rate}"
        told = priced if cost.unpriced_seconds < cost.gpu_seconds else "its GPUs have no price (metering.prices)"
        lines.append(f"held GPUs for {output.span(cost.gpu_seconds)}: {told}")
    for one in found.gpu_leases:
        by = {"": "no report is known", "quick": "found clean by its readings"}.get(one.verified_by)
        before = by or f"found clean by report {one.verified_by}"
        after = f", and after it by {one.report}" if one.report else ""
        lines.append(f"{one.gpu}: {before} before it was given away{after}")
    return lines


def start_lines(found: ContainerView | Explanation) -> list[str]:
    """Return the phases of a container's start as a line, and which took longest; none where it has not begun."""
    if not found.start:
        return []
    each = [part for one in found.start for part in one.parts or (one,)]
    longest = max(each, key=lambda one: one.duration_s)
    shown = ", ".join(f"{one.name} {output.moment(one.duration_s)}" for one in found.start)
    parts = ", ".join(f"{part.name} {output.moment(part.duration_s)}" for one in found.start for part in one.parts)
    what = "virtual machine" if any(part.name in machinestart.BOOT for part in each) else "sandbox"
    lines = [f"start: {shown}; {longest.name} took longest"]
    return [*lines, f"its {what}: {parts}"] if parts else lines


def price(text: str) -> str:
    """Return an amount of money as a person reads it: without the zeros at its end, cents at least."""
    whole, _, rest = text.partition(".")
    shown = rest.rstrip("0")
    return f"{whole}.{shown:0<2}" if shown else whole


def _left(found: Explanation) -> str:
    """Return how much of the time limit is left to one that has started."""
    if found.time_limit_s is None or found.started_at is None:
        return ", from its start on"
    ran = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(found.started_at)
    return f"; {output.span(max(0.0, found.time_limit_s - ran.total_seconds()))} of it left"


def priority(item: ContainerView | Explanation) -> str:
    """Return a priority as a person reads it, `10` or `1000 (urgent)`; empty for 0 without a name."""
    name = f" ({item.priority_class})" if item.priority_class else ""
    return f"{item.priority}{name}" if item.priority or name else ""


_SAY_NOTHING: Final = frozenset({"ContainerCreating", "PodInitializing", "Completed"})
"""Kubernetes' reasons that repeat the state."""


def waiting_line(shown: ContainerView, why: str) -> str:
    """Return what a terminal shows while a container is waited for; words that say how it waits stand alone."""
    if why.startswith(("waiting", "will never")):
        return f"{shown.name}: {why}"
    if why in _SAY_NOTHING:
        why = ""
    return f"{shown.name}: {shown.state}" + (f", {why}" if why else "")


def decision_rows(facts: Mapping[str, object]) -> list[list[str]]:
    """Return what a scheduler's step keeps of the nodes as columns: those that fit best, then reasons with counts."""
    rows = []
    for node in _mappings(facts.get("best")):
        score = node.get("score")
        told = f"score {score:g}" if isinstance(score, int | float) else ""
        rows.append([str(node.get("name", "?")), "fits", told])
    for reason in _mappings(facts.get("refused")):
        count, example = reason.get("nodes", "?"), reason.get("example", "?")
        which = str(example) if count == 1 else f"{count} nodes, such as {example}"
        why = personwords.reason(str(reason.get("why", "")))
        rows.append([which, "does not fit" if count == 1 else "do not fit", why])
    return rows


def _mappings(found: object) -> list[Mapping[str, object]]:
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list | tuple) else []
