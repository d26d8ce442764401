"""`fairlead status`: shows how the service is."""

from __future__ import annotations

import time
from collections.abc import Mapping

import click

from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.view import nodes
from fairlead.serve.backend.hardware import ClusterView, EngineView
from fairlead.serve.history.view import HistoryView
from fairlead.serve.v1.status.view import STARTING_S, Status
from fairlead.wire.text import timestamp


@click.command()
@options.json_option
@options.pass_client
def status(client: Client, *, form: str) -> None:
    """Show how the service is."""
    found = client.status()
    if form != "text":
        output.show_value(found, form=form)
        return
    for line in output.lines_of(status_rows(found)):
        plaintext.echo(line)
    for problem in found.problems:
        plaintext.echo(f"! {problem}", fg="yellow")


def status_rows(found: Status) -> list[list[str]]:
    """Return the status as rows of name and value."""
    if found.cluster is not None:
        return _cluster_rows(found, found.cluster)
    engine = found.engine or EngineView()
    age_s = age_of(found)
    simulated = f", SIMULATED ({found.profile})" if found.is_simulated else ""
    lost = f", {found.gpus['unreadable']} unreadable" if found.gpus.get("unreadable") else ""
    devices = [f"{node.name} {node.state}: " + nodes.device_counts(node.allocatable) for node in found.nodes]
    runtime = f"{engine.name} {engine.version} with {engine.runtime}, reads CDI up to {engine.cdi_ceiling}"
    return [
        ["service", f"fairlead {found.version} on {found.node}, up {output.span(age_s)}"],
        ["socket", found.socket],
        ["state", found.state_folder],
        ["cdi", found.cdi_folder],
        ["engine", engine.problem or runtime],
        ["gpus", f"{found.gpus.get('found', 0)} found{lost}{simulated}"],
        *(["node", text] for text in devices),
        *([["starting", f"{found.resource} is not offered yet"]] if is_starting(found, age_s) else []),
        ["containers", _counted(found.containers)],
        ["history", say_history(found.history)],
    ]


def say_history(found: HistoryView | None) -> str:
    """Return how figures over time are kept, in a few words."""
    if found is None:
        return "no figures over time (history.days)"
    if found.prometheus:
        return f"asks the Prometheus at {found.prometheus}"
    if found.problem:
        return f"nothing kept{' at the last sample' if found.days else ''}: {found.problem}"
    kept = (
        f"figures for {found.days:g} days, {output.size(found.size_bytes)} of at most {output.size(found.most_bytes)}"
    )
    return f"{kept}; a damaged file was set aside" if found.set_aside else kept


def age_of(found: Status) -> float:
    """Return for how many seconds the service has run."""
    return max(0.0, time.time() - timestamp.unix_seconds(found.started_at))


def is_starting(found: Status, age_s: float) -> bool:
    """Return whether the service is too young to be judged by what its node does not offer yet."""
    offers = any(found.resource in node.allocatable for node in found.nodes)
    return age_s < STARTING_S and bool(found.gpus.get("found")) and not offers


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()) if count) or "none"


def _cluster_rows(found: Status, cluster: ClusterView) -> list[list[str]]:
    simulated = ", SIMULATED" if found.is_simulated else ""
    health = {name: count for name, count in found.gpus.items() if name[0].isupper()}
    ready = sum(node.state == "ready" for node in found.nodes)
    with_gpus = [node for node in found.nodes if found.resource in node.allocatable]
    offered = [
        [
            "node",
            f"{node.name} {node.state}: {node.allocatable[found.resource]} of {node.capacity.get(found.resource, '?')} "
            f"{found.resource} offered, {node.used.get(found.resource, '0')} taken",
        ]
        for node in with_gpus
    ]
    return [
        ["cluster", f"{cluster.server}, Kubernetes {cluster.version or 'of unknown version'}"],
        ["client", f"fairlead {found.version}"],
        ["nodes", f"{len(found.nodes)}, {ready} ready, {len(with_gpus)} with {found.resource}"],
        ["gpus", f"{found.gpus.get('found', 0)} published ({_counted(health)}){simulated}"],
        *offered,
        ["containers", _counted(found.containers)],
    ]
