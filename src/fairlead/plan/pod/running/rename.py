"""Decides whether a pod may get another name. Pure.

A name is free to change while nothing outside the store has it: before a pod is placed, and after it has ended. A
process that runs carries it in its engine's labels, and the ledger of GPUs and PodResources name who has a GPU by it.
"""

from __future__ import annotations

from fairlead import errors
from fairlead.plan.pod import podstate
from fairlead.wire.kubernetes import core, names


def refusal(pod: core.Pod, name: str) -> errors.FairleadError | None:
    """Return why a pod keeps its name; None: it may have another."""
    about = pod.metadata
    if not names.is_object_name(name):
        message = f'Pod "{about.name}" is not renamed: metadata.name: Invalid value: "{errors.readable(name[:200])}"'
        return errors.Invalid(f"{message}: {names.SUBDOMAIN_RULE}", reason="InvalidMetadata")
    if owner := next(iter(about.owner_references), None):
        message = f'"{about.name}" belongs to {owner.kind} "{owner.name}", which names its pods itself'
        return errors.Conflict(message, reason="PodOwned", hint=f"give the {owner.kind} another name in its manifest")
    if names.ARRAY in about.labels:
        message = f'"{about.name}" is one of the array "{about.labels[names.ARRAY]}", whose members go by its name'
        return errors.Conflict(message, reason="PodOwned", hint="run the array again under another name")
    if about.deletion_timestamp is not None:
        message = f'"{about.name}" is being removed'
        return errors.Conflict(message, reason="ContainerGone", hint=f"`fairlead run --name {name}` makes a new one")
    if pod.spec.node_name and not podstate.is_final(pod):
        message = (
            f'"{about.name}" is {podstate.state_of(pod)}: what runs is known by its name to the engine and the ledger'
        )
        again = f"fairlead stop {about.name}; fairlead rename {about.name} {name}; fairlead start {name}"
        return errors.Conflict(message, reason="ContainerRuns", hint=f"`{again}`")
    return None
