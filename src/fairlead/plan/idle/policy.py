"""Finds the policy for idle GPUs that binds a container: its queue's, those above it, the settings'. Pure.

Each field comes from the nearest queue that gives it, and from the settings where none does. Exemptions add up: only
administrators write queues and settings, and nothing that a container says of itself exempts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.plan.schedule.fairshare.tree import DEFAULT, Tree
from fairlead.settings.idling import ACTIONS, IdleSettings
from fairlead.wire.kubernetes.scheduling.queue import IdleSpec

OFF, WARN, STOP, REQUEUE = ACTIONS
_STRICTNESS: Final = {OFF: 0, WARN: 1, REQUEUE: 2, STOP: 3}
LEAST_S: Final = 60.0
"""Shortest time of idleness that is judged: six samples."""


@frozen
class Policy:
    """What becomes of a container whose GPUs are idle."""

    action: str
    below_percent: float
    after_s: float
    warn_s: float
    cpu_percent: float = 0.0
    """0: CPUs do not count."""
    io_bytes_s: float = 0.0
    """0: input and output do not count."""
    exempt: frozenset[str] = frozenset()
    source: str = "idle.action"
    """Who says so, for a person: a setting, or a queue."""

    @property
    def ends(self) -> bool:
        """Whether it ends containers."""
        return self.action in {STOP, REQUEUE}


def of_settings(given: IdleSettings) -> Policy:
    """Return the policy of the settings. Raises: Invalid (`SettingInvalid`)."""
    if not 0 < given.below_percent <= 100 or given.after_min * 60 < LEAST_S:
        message = f"idle.below_percent is {given.below_percent:g} and idle.after_min {given.after_min:g}"
        hint = "a share above 0 and up to 100, and a minute or more"
        raise errors.Invalid(message, reason="SettingInvalid", hint=hint)
    return Policy(
        action=given.action,
        below_percent=given.below_percent,
        after_s=given.after_min * 60,
        warn_s=given.warn_min * 60,
        cpu_percent=given.cpu_percent,
        io_bytes_s=given.io_kib * 1024,
        exempt=frozenset(name for one in given.exempt.split(",") if (name := one.strip())),
    )


def resolve(path: Iterable[tuple[str, IdleSpec]], default: Policy) -> Policy:
    """Return what holds in a queue. Args: path: names and specs, the queue first and the topmost last."""
    action, source = "", default.source
    numbers = {"below_percent": 0.0, "after_seconds": 0.0, "warn_seconds": 0.0, "cpu_percent": 0.0, "io_bytes": 0.0}
    exempt = set(default.exempt)
    for name, spec in path:
        if not action and spec.action:
            action, source = spec.action, f'queue "{name}"'
        numbers = {field: value or float(getattr(spec, field)) for field, value in numbers.items()}
        exempt |= set(spec.exempt)
    return Policy(
        action=action or default.action,
        below_percent=numbers["below_percent"] or default.below_percent,
        after_s=numbers["after_seconds"] or default.after_s,
        warn_s=numbers["warn_seconds"] or default.warn_s,
        cpu_percent=numbers["cpu_percent"] or default.cpu_percent,
        io_bytes_s=numbers["io_bytes"] or default.io_bytes_s,
        exempt=frozenset(exempt),
        source=source,
    )


class Policies:
    """The policies of all queues, rebuilt when one changes."""

    def __init__(self, tree: Tree, specs: Mapping[str, IdleSpec], default: Policy) -> None:
        """Take the queues. Args: specs: by name of the queue; one that is not there gives nothing."""
        self._tree, self._specs, self._default = tree, specs, default
        self._known: dict[str, Policy] = {}

    @property
    def is_off(self) -> bool:
        """Whether no policy anywhere does anything."""
        return self._default.action == OFF and all(one.action in {"", OFF} for one in self._specs.values())

    def of(self, namespace: str, named: str) -> Policy:
        """Return the policy that binds a container.

        A queue that is open to every namespace may be chosen by anybody, so it does not free its containers from the
        policy of their own namespace's queue: the stricter of the two binds.
        Args: named: the queue that the container names; empty: none.
        """
        own = self._of_queue(self._tree.find(namespace, "")[0])
        queue, problem = self._tree.find(namespace, named)
        if not named or problem:
            return own
        chosen = self._of_queue(queue)
        return chosen if self._tree.specs[queue].namespaces else stricter(own, chosen)

    def _of_queue(self, name: str) -> Policy:
        if name not in self._known:
            path = () if name == DEFAULT else self._tree.path(name)
            given = [(one, self._specs[one]) for one in path if one in self._specs]
            self._known[name] = resolve(given, self._default)
        return self._known[name]


def stricter(one: Policy, other: Policy) -> Policy:
    """Return which of two policies acts more, or sooner; what only one of them exempts is not exempt."""
    found = max(one, other, key=lambda each: (_STRICTNESS[each.action], -(each.after_s + each.warn_s)))
    return Policy(
        action=found.action,
        below_percent=found.below_percent,
        after_s=found.after_s,
        warn_s=found.warn_s,
        cpu_percent=found.cpu_percent,
        io_bytes_s=found.io_bytes_s,
        exempt=one.exempt & other.exempt,
        source=found.source,
    )


def is_exempt(policy: Policy, namespace: str, name: str, others: Sequence[str] = ()) -> bool:
    """Return whether a container is left alone. Args: others: names that its namespace is known by besides."""
    spaces = (namespace, *(one for one in others if one))
    return any(space in policy.exempt or f"{space}/{name}" in policy.exempt for space in spaces)


def words(policy: Policy) -> str:
    """Return a policy in a cell of a table: `stop <5% 60m+30m`."""
    if policy.action == OFF:
        return OFF
    until = f"+{_span(policy.warn_s)}" if policy.ends else ""
    return f"{policy.action} <{policy.below_percent:g}% {_span(policy.after_s)}{until}"


def _span(seconds: float) -> str:
    return f"{seconds / 60:g}m" if seconds < 3600 or seconds % 3600 else f"{seconds / 3600:g}h"
