"""Says where a caller may make something, and by which rules: what a request cannot say of itself.

A `Place` is minted by the caller's part of the machine (`Backend.places`) and goes with what is made as far as the
store. No other file mints one, so no route and no backend decides by itself whose a pod is.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from fairlead import errors
from fairlead.plan.pod import mountable, tenantrule, userrule
from fairlead.wire.kubernetes import core, names
from fairlead.wire.kubernetes.devicechange import PodReplacementSpec

ASK_ROOT: Final = "ask root to do it"
"""Hint of refusals of what root alone may do."""


def _unruled(pod: core.Pod) -> core.Pod:
    return pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A namespace as one caller may use it for something new."""

    namespace: str
    makes_namespace: bool = False
    """Whether it is made with the first pod, if that is ours to do."""
    is_tenants: bool = False
    """Whether what is made there is a tenant's, whatever the namespace says of itself."""
    most_devices: int = 0
    """Of each resource at once, where no quota there counts it; 0: no limit."""
    account: str = ""
    """Whose key asks; empty: who asks has no account."""
    rule: Callable[[core.Pod], core.Pod] = _unruled
    """Returns a pod as the caller may have it there. Raises: Denied."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Of the namespace, where it is made for this: a tenant's, if what is made or its name says so."""
        is_tenants = self.is_tenants or userrule.uid_of(self.namespace) is not None
        return {tenantrule.TENANCY: self.namespace} if is_tenants else {}

    def submission(self, pod: core.Pod, written: Mapping[str, Any] | None = None) -> Submission:
        """Return a pod as it is asked for here. Args: written: see `Submission`. Raises: Denied: the caller's rule."""
        about = msgspec.structs.replace(pod.metadata, namespace=self.namespace)
        return Submission(pod=self.rule(msgspec.structs.replace(pod, metadata=about)), place=self, written=written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A pod that a caller asks for, in its place; `Place.submission` makes it."""

    pod: core.Pod
    place: Place
    written: Mapping[str, Any] | None = None
    """The manifest, with the fields that are not carried out; None: the pod says everything."""
    is_workloads: bool = False
    """Whether one of Fairlead's controllers asks for it, which takes the pod's finalizers away itself."""


class Places(Protocol):
    """Mints the places of one caller."""

    def new(self, namespace: str, *, for_tenancy: bool = False) -> Place:
        """Return the place that is meant for something new.

        Args:    for_tenancy: it was asked for by a tenancy's name.
        Raises:  Denied, NotFound, Invalid: the caller may make nothing there.
        """
        ...

    def again(self, old: core.Pod) -> Place:
        """Return the place of a pod that is to follow another one. Raises: as `new`."""
        ...


class Part(Protocol):
    """What is left of a machine: one user's namespace, or the namespaces of an account's tenancies."""

    @property
    def account(self) -> str:
        """Whose key it is; empty: who asks has no account."""
        ...

    @property
    def most_devices(self) -> int:
        """Of one resource at once, where no quota of the namespace says otherwise; 0: no limit."""
        ...

    @property
    def mounts(self) -> tuple[str, ...]:
        """Folders of the machine that its containers may mount read-only."""
        ...

    @property
    def makes_namespace(self) -> bool:
        """Whether a namespace that is not there is made with the first pod."""
        ...

    @property
    def names_others(self) -> bool:
        """Whether it may be known whose the containers are that may not be known by name."""
        ...

    def place(self, namespace: str | None) -> str:
        """Return the namespace that is meant; raises what its refusal says."""
        ...

    def place_new(self, namespace: str | None) -> str:
        """Return the namespace that is meant for something new. Raises: as `place`; why nothing is accepted there."""
        ...

    def sees(self, namespace: str) -> bool:
        """Whether its containers may be known by name."""
        ...

    def sees_since(self, namespace: str) -> float | None:
        """Return since when what a namespace held is this caller's to see, in Unix seconds; None: it is not."""
        ...


@dataclass(frozen=True, slots=True)
class Everywhere:
    """The `Places` of who has the whole machine, or of a cluster, whose API server judges its user."""

    account: str = ""
    """The administrator whose key asks; empty: root, who has none."""

    def new(self, namespace: str, *, for_tenancy: bool = False) -> Place:
        """See `Places.new`. A request by tenancy comes from a tenant, also in a namespace that a quota made before."""
        return Place(namespace=namespace, makes_namespace=for_tenancy, is_tenants=for_tenancy, account=self.account)

    def again(self, old: core.Pod) -> Place:
        """See `Places.again`. A tenant's pod stays one: its mark is the stored pod's, which callers cannot set."""
        place = self.new(old.metadata.namespace, for_tenancy=names.TENANT in old.metadata.annotations)
        return dataclasses.replace(place, account=old.metadata.annotations.get(names.ACCOUNT, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """The `Places` of a caller who has a part of the machine: all that they make is a tenant's."""

    part: Part

    def new(self, namespace: str, *, for_tenancy: bool = False) -> Place:  # noqa: ARG002 all of it is a tenant's
        """See `Places.new`."""
        return Place(
            namespace=self.part.place_new(namespace),
            makes_namespace=self.part.makes_namespace,
            is_tenants=True,
            most_devices=self.part.most_devices,
            account=self.part.account,
            rule=functools.partial(_ruled, mounts=self.part.mounts),
        )

    def again(self, old: core.Pod) -> Place:
        """See `Places.again`. Notices go to the account that started it, not to the one that restarts it."""
        place = self.new(old.metadata.namespace)
        return dataclasses.replace(place, account=old.metadata.annotations.get(names.ACCOUNT, place.account))


def recorded(spec: PodReplacementSpec) -> Submission:
    """Return what was stored of a submission whose pod waits for the end of another one."""
    place = Place(
        namespace=spec.pod.metadata.namespace,
        makes_namespace=spec.is_tenants,
        is_tenants=spec.is_tenants,
        most_devices=spec.most_devices,
        account=spec.account,
    )
    return place.submission(spec.pod)


def _ruled(pod: core.Pod, *, mounts: tuple[str, ...]) -> core.Pod:
    """Return a pod whose mounts of the machine's folders are marked. Raises: Denied: it asks for what is root's."""
    if problems := userrule.problems(pod, mounts):
        name = pod.metadata.name or pod.metadata.generate_name
        message = f'container "{name}" asks for what only root may: {"; ".join(problems)}'
        raise errors.Denied(message, reason="UserPodForbidden", hint=f"leave it out, or {ASK_ROOT}")
    return mountable.marked(pod)
