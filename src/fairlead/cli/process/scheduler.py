"""`fairlead scheduler`: binds a cluster's pods; one replica works, the others wait."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fairlead import errors, settings, telemetry
from fairlead.cli.core import cluster, options, output, plaintext, sections

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlead.control.manager import Controller
    from fairlead.control.scheduler import snapshot as snapshots
    from fairlead.plan.schedule.preempt import movable
    from fairlead.plan.schedule.rankings import Rankings
    from fairlead.store.kubernetes.store import KubernetesStore


_COMMON: Final = (
    "snapshot",
    "replay",
    "plan_moves",
    "form",
    "control_scheduler_name",
    "control_policy",
    "control_preemption",
    "control_defragment",
    "cluster_kubeconfig",
    "cluster_monitor",
    "log_level",
)


@click.command(cls=sections.SectionedCommand, common=_COMMON)
@options.settings_options("control", "cluster", "log", "debug")
@click.option(
    "--snapshot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="write what decisions are made from into a file, and end",
)
@click.option(
    "--replay",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="print what would be decided on the pods of such a file, without any cluster, and end",
)
@click.option(
    "--plan-moves",
    is_flag=True,
    help="print which running pods would be moved so that larger ones fit, of the cluster or a --replay FILE, and end",
)
@options.json_option
def scheduler(
    config: settings.Settings, *, snapshot: Path | None, replay: Path | None, plan_moves: bool, form: str
) -> None:
    """Bind a cluster's pods that name this scheduler (spec.schedulerName: fairlead)."""
    from fairlead.control.scheduler.controller import Scheduler
    from fairlead.plan.claim import gate
    from fairlead.plan.schedule.policy import podclass
    from fairlead.plan.schedule.shard import pool, running
    from fairlead.store.kubernetes import rights

    if snapshot is not None:
        asyncio.run(_save(config, snapshot))
        return
    if plan_moves:
        telemetry.configure("error", config.log.format)  # what would be moved is printed
        _show_moves(planned(replay, config), form)
        return
    if replay is not None:
        telemetry.configure("error", config.log.format)  # what is decided is printed
        _show(replayed(replay, config.control), form)
        return
    if config.control.extender:
        asyncio.run(_extend(config))
        return

    def make(store: KubernetesStore, meter: telemetry.Meter) -> tuple[Controller, ...]:
        rankings = rankings_of(config.control.policy)
        return (Scheduler(store, store.pods, config.control, rankings=rankings, meter=meter),)

    podclass.classes_of(config.control.pod_policies)  # what cannot be is said before the lease is waited for
    gate.of_setting(config.control.feature_gates)
    shard = pool.Shard(config.control.shard_label, config.control.shard)
    marks = running.marks(shard, config.control.scheduler_name)
    asyncio.run(cluster.lead(config, shard.lease("fairlead-scheduler"), make, rights.SCHEDULER, marks))


async def _save(config: settings.Settings, path: Path) -> None:
    """Write a snapshot of the cluster, readable by its owner alone."""
    from fairlead import files
    from fairlead.control.scheduler import snapshot

    taken = await _taken(config)
    files.write_atomic(path, snapshot.emit(taken), mode=0o600)
    plaintext.echo(f"{path}: {len(taken.items)} objects")


async def _taken(config: settings.Settings) -> snapshots.Snapshot:
    from fairlead.control.scheduler import snapshot
    from fairlead.wire.kubernetes import meta

    async with cluster.opened(config) as store:
        return await snapshot.take(store, config.control, meta.now())


def _read(path: Path) -> snapshots.Snapshot:
    """Return a snapshot of a file. Raises: Invalid: it cannot be read."""
    from fairlead import files
    from fairlead.control.scheduler import snapshot

    try:
        return snapshot.parse(files.read_bounded(path, limit_bytes=snapshot.LARGEST_BYTES))
    except OSError as error:
        raise errors.Invalid(f"{path}: {error.strerror}", reason="SnapshotUnreadable") from error


def _control_of(taken: snapshots.Snapshot, control: settings.ControlSettings) -> settings.ControlSettings:
    """Return the settings with the policy of a snapshot, or another that was chosen, and whose pods it is about."""
    import dataclasses

    chosen = control.policy if control.policy != settings.ControlSettings().policy else taken.policy
    classes = control.pod_policies or taken.pod_policies
    return dataclasses.replace(control, policy=chosen, pod_policies=classes, scheduler_name=taken.scheduler_name)


def replayed(path: Path, control: settings.ControlSettings) -> tuple[snapshots.Decision, ...]:
    """Return what the policy of a snapshot, or another that was chosen, decides on its pods.

    Raises: Invalid: it cannot be read.
    """
    from fairlead.control.scheduler import snapshot

    taken = _read(path)
    asked = _control_of(taken, control)
    return asyncio.run(snapshot.replay(taken, asked, rankings_of(asked.policy)))


def planned(path: Path | None, config: settings.Settings) -> movable.Plan:
    """Return the moves that are proved in a snapshot, or in the cluster as it is now.

    Raises: Invalid: the file cannot be read.   Unavailable, Denied: the cluster does not answer.
    """
    from fairlead.control.scheduler import snapshot

    taken = asyncio.run(_taken(config)) if path is None else _read(path)
    asked = _control_of(taken, config.control)
    return asyncio.run(snapshot.plan_moves(taken, asked, rankings_of(asked.policy)))


def _show_moves(plan: movable.Plan, form: str) -> None:
    if form != "text":
        output.show_value(_plain_moves(plan), form=form)
        return
    for step in plan.steps:
        about, moves = step.goal.metadata, step.proposal.moves
        who = (
            f"{about.namespace}/{about.name}"
            if step.is_waiting
            else f"one more pod like {about.namespace}/{about.name}"
        )
        plaintext.echo(f"{who} would fit on {step.proposal.node} after {len(moves)} move{'s' * (len(moves) > 1)}:")
        for one in moves:
            plaintext.echo(f"  {one.pod.namespace}/{one.pod.name}: {one.pod.node} -> {one.node}")
    for pod in plan.unhelped:
        about = pod.metadata
        plaintext.echo(f"{about.namespace}/{about.name}: no moves make room for its like")
    if not plan.steps:
        plaintext.echo("nothing is to be moved")
    for why, count in plan.kept.items():
        plaintext.echo(
            f"{count} pod{'s' * (count > 1)} with devices stay{'s' * (count == 1)} where they are: {why}", err=True
        )


def _plain_moves(plan: movable.Plan) -> dict[str, object]:
    return {
        "steps": [
            {
                "namespace": step.goal.metadata.namespace,
                "name": step.goal.metadata.name,
                "waiting": step.is_waiting,
                "node": step.proposal.node,
                "moves": [
                    {"namespace": one.pod.namespace, "name": one.pod.name, "from": one.pod.node, "to": one.node}
                    for one in step.proposal.moves
                ],
            }
            for step in plan.steps
        ],
        "unhelped": [{"namespace": pod.metadata.namespace, "name": pod.metadata.name} for pod in plan.unhelped],
        "kept": dict(plan.kept),
    }


def _show(decisions: Sequence[snapshots.Decision], form: str) -> None:
    if form != "text":
        output.show_value([_plain(one) for one in decisions], form=form)
        return
    for one in decisions:
        said = one.step.message if one.step is not None else "not looked at: its scheduling gates hold it"
        plaintext.echo(f"{one.namespace}/{one.name}: {f'node {one.node}' if one.node else said}")


def _plain(one: snapshots.Decision) -> dict[str, object]:
    facts = {} if one.step is None else {"reason": one.step.reason, "message": one.step.message, **one.step.facts}
    return {"namespace": one.namespace, "name": one.name, "node": one.node, **facts}


async def _extend(config: settings.Settings) -> None:
    """Answer a kube-scheduler on this machine; several may be asked at once, so no lease is held.

    Raises: Invalid: the address is not this machine's alone: a caller can have pods bound.
    """
    import dataclasses
    import ipaddress

    from fairlead.control.scheduler.extender import Extender
    from fairlead.serve import calls, plainserver, sockets
    from fairlead.store.kubernetes import rights

    address = config.control.extender
    try:
        is_local = ipaddress.ip_address(address.rpartition(":")[0].strip("[]")).is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        hint = "run it beside each kube-scheduler, at 127.0.0.1:PORT"
        message = f'control.extender "{address}" is not a loopback address: a caller can have pods bound'
        raise errors.Invalid(message, reason="AddressInvalid", hint=hint)
    listener, judges = sockets.listen_at(address), rankings_of(config.control.policy)
    answering: dict[str, calls.Call] = {}
    made: list[Extender] = []

    def make(store: KubernetesStore, _meter: telemetry.Meter) -> tuple[Controller, ...]:
        one = Extender(store.pods, judges)
        answering.update(one.calls)
        made.append(one)
        return (one,)

    def problem() -> str:
        return made[0].problem() if made else "the extender is starting"

    alone = dataclasses.replace(config, control=dataclasses.replace(config.control, leader_elect=False))
    async with asyncio.TaskGroup() as tasks:
        app = calls.create_app(answering, problem)
        serving = tasks.create_task(plainserver.serve_at(app, listener), name="extender")
        await cluster.lead(alone, "fairlead-extender", make, rights.SCHEDULER)
        serving.cancel()


def rankings_of(policy: str) -> Rankings:
    """Return what judges nodes: by arrays where numpy is there, else node by node, with the same figures."""
    from fairlead.plan.schedule.rankings import PlainRankings

    try:
        from fairlead.plan.schedule.engine.rankings import EngineRankings
    except ModuleNotFoundError:
        telemetry.log.warning("nodes are judged one by one, slower than with fairlead[engine]", reason="NoNumpy")
        return PlainRankings(policy)
    return EngineRankings(policy)
