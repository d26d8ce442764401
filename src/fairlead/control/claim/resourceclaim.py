"""Makes the claims of pods from their templates, and gives back and removes those that no pod needs any more.

What kube-controller-manager does on a cluster, for one machine. Everything is read from the store before it is written,
at the version that was read: a process that is killed anywhere leaves work, and neither loses nor doubles a claim.
Source: kubernetes 1.37 pkg/controller/resourceclaim/controller.go (behaviour).
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from fairlead import errors, telemetry
from fairlead.control.claim import checkedclaims
from fairlead.control.manager import Watch
from fairlead.model.container.step import TraceStep
from fairlead.plan.claim.life import lifecycle
from fairlead.plan.claim.validate import door, request
from fairlead.store import retry, tracerecorder
from fairlead.store.port import AdmittingStore, Change, ChangeKind, Reader, Selector
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.resourceclaim import (
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimTemplate,
)

_POD, _CLAIM, _TEMPLATE = "pod:", "claim:", "template:"
IDLE_S: Final = 3600.0
"""How long a shared template is kept that no pod names: a pod that is restarted comes back to it."""
_ATTEMPTS: Final = 8
"""Names that are tried for one claim; two of a namespace seldom have the same one."""
_RULES: Final = request.Rules(check_selector=lambda _text: None)
"""Of a claim that is made: its expressions were checked with its template."""
_TELLER: Final = "claim"


class ResourceClaims:
    """Keeps the claims of pods."""

    name = "resourceclaim"

    def __init__(
        self, store: AdmittingStore, *, user_devices: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take where objects are.

        Args: user_devices: of a class for one user of the machine at once; 0: any.   clock: monotonic seconds.
        """
        self._store, self._user_devices, self._clock = store, user_devices, clock
        self._idle: dict[str, float] = {}
        """By uid of a shared template: since when no pod names it."""
        self._pods: dict[str, core.Pod] = {}
        """By uid: pods that claim."""
        self._users: dict[tuple[str, str], dict[str, None]] = {}
        """By namespace, and claim or template: uids of pods that name it."""
        self._owned: dict[str, dict[str, ResourceClaim]] = {}
        """By pod's uid and name: claims that were made for it."""
        self._told: dict[str, str] = {}
        """By pod's uid: what was said last of a claim that cannot be made."""

    def watches(self) -> tuple[Watch, ...]:
        """Follow pods, claims and templates."""
        return (
            Watch(kind=core.Pod, keys=self._pod_changed, reset=self._forget_pods),
            Watch(kind=ResourceClaim, keys=self._claim_changed, reset=self._owned.clear),
            Watch(kind=ResourceClaimTemplate, keys=self._template_changed),
        )

    def _forget_pods(self) -> None:
        self._pods.clear()
        self._users.clear()

    def _pod_changed(self, change: Change[core.Pod]) -> Iterable[str]:
        pod, uid = change.object, change.object.metadata.uid
        if change.renamed_to or (not lifecycle.has_claims(pod) and uid not in self._owned):
            return ()
        for key in _named(self._pods.get(uid, pod)):
            self._users.get(key, {}).pop(uid, None)
            if not self._users.get(key, True):
                del self._users[key]
        claims = {*lifecycle.claim_names(pod), *self._owned.get(uid, ())}
        keys = [_key(_CLAIM, pod.metadata.namespace, name) for name in sorted(claims)]
        if change.kind is ChangeKind.DELETED:
            self._pods.pop(uid, None)
            self._told.pop(uid, None)
            templates = {one.resource_claim_template_name or "" for one, _ in lifecycle.templated(pod)}
            return [*keys, *(_key(_TEMPLATE, pod.metadata.namespace, name) for name in sorted(templates))]
        self._pods[uid] = pod
        for key in _named(pod):
            self._users.setdefault(key, {})[uid] = None
        return keys if lifecycle.is_done(pod) else (_key(_POD, pod.metadata.namespace, pod.metadata.name),)

    def _claim_changed(self, change: Change[ResourceClaim]) -> Iterable[str]:
        about, owner = change.object.metadata, lifecycle.owning_pod(change.object)
        is_gone = change.kind is ChangeKind.DELETED
        if owner is not None:
            owned = self._owned.setdefault(owner.uid, {})
            owned.pop(about.name, None) if is_gone else owned.update({about.name: change.object})
            if not owned:
                del self._owned[owner.uid]
        keys = [] if is_gone else [_key(_CLAIM, about.namespace, about.name)]
        users = {*self._users.get((about.namespace, about.name), ()), *([owner.uid] if owner else [])}
        return [*keys, *self._pod_keys(users)]

    def _template_changed(self, change: Change[ResourceClaimTemplate]) -> Iterable[str]:
        about = change.object.metadata
        pods = self._pod_keys(self._users.get((about.namespace, _of_template(about.name)), ()))
        if change.kind is ChangeKind.DELETED:
            self._idle.pop(about.uid, None)
        return [
            *pods,
            *([_key(_TEMPLATE, about.namespace, about.name)] if lifecycle.SHARED in about.finalizers else ()),
        ]

    def _pod_keys(self, uids: Iterable[str]) -> list[str]:
        found = (self._pods[uid].metadata for uid in uids if uid in self._pods)
        return sorted(_key(_POD, about.namespace, about.name) for about in found)

    async def reconcile(self, key: str) -> float | None:
        """Bring the claims of a pod, or one claim, to where they should be."""
        kind, _, place = key.partition(":")
        namespace, _, name = place.partition("/")
        with contextlib.suppress(errors.NotFound):
            if f"{kind}:" == _TEMPLATE:
                return await self._keep_template(await self._store.get(ResourceClaimTemplate, name, namespace))
            if f"{kind}:" == _POD:
                await self._keep_pod(await self._store.get(core.Pod, name, namespace))
            else:
                await self._keep_claim(await self._store.get(ResourceClaim, name, namespace))
        return None

    # a pod's claims

    async def _keep_pod(self, pod: core.Pod) -> None:
        if pod.metadata.deletion_timestamp is not None or lifecycle.is_done(pod):
            return
        made = {}
        for reference, name in lifecycle.templated(pod):
            if name is not None and (found := await self._ensure(pod, reference, name)):
                made[reference.name] = found
        telemetry.crash_point("claim.before-pod-status")

        def named(fresh: core.Pod) -> core.Pod | None:
            return lifecycle.with_claims(fresh, made) if fresh.metadata.uid == pod.metadata.uid else None

        about = pod.metadata
        pod = await retry.change_status(self._store, core.Pod, about.name, named, namespace=about.namespace)
        if pod.spec.node_name:
            for name in lifecycle.claim_names(pod):
                await self._reserve(pod, name)

    async def _ensure(self, pod: core.Pod, reference: core.PodResourceClaim, named: str) -> str:
        """Return the claim of a pod that stands behind a template, made where there is none; empty: it cannot be."""
        if named and (there := await self._find(named, pod)) is not None and lifecycle.is_for(there, pod):
            return named
        for known in self._owned.get(pod.metadata.uid, {}).values():
            if lifecycle.is_for(known, pod, reference.name):
                return known.metadata.name
        try:
            return await self._make(pod, reference)
        except (errors.NotFound, errors.Invalid, errors.Denied) as error:
            await self._tell(pod, f"claim {reference.name}: {error.message}")
            return ""

    async def _make(self, pod: core.Pod, reference: core.PodResourceClaim) -> str:
        """Return a claim that is made now, or was by a process that ended since. Raises: NotFound, Invalid."""
        namespace = pod.metadata.namespace
        template = await self._store.get(ResourceClaimTemplate, reference.resource_claim_template_name or "", namespace)
        labels = await self._labels(namespace)
        for attempt in range(_ATTEMPTS):
            wanted = lifecycle.from_template(pod, reference, template, attempt=attempt)
            admitted = door.admit_claim(wanted, _RULES, namespace_labels=labels).item
            name = admitted.metadata.name
            try:
                await self._store.create_checked(admitted, functools.partial(self._check_quota, admitted))
            except errors.Conflict:
                there = await self._find(name, pod)
                if there is None or not lifecycle.is_for(there, pod, reference.name):
                    continue
            telemetry.crash_point("claim.after-create")
            return name
        message = f'no name is free for claim {reference.name} of pod "{pod.metadata.name}"'
        raise errors.Conflict(message, reason="AlreadyExists", hint="it is tried again")

    def _check_quota(self, claim: ResourceClaim, seen: Reader) -> None:
        checkedclaims.check_quota(claim, seen, user_devices=self._user_devices)

    async def _find(self, name: str, pod: core.Pod) -> ResourceClaim | None:
        with contextlib.suppress(errors.NotFound):
            return await self._store.get(ResourceClaim, name, pod.metadata.namespace)
        return None

    async def _labels(self, namespace: str) -> Mapping[str, str]:
        with contextlib.suppress(errors.NotFound):
            return lifecycle.admin_labels((await self._store.get(core.Namespace, namespace)).metadata.labels)
        return {}

    async def _reserve(self, pod: core.Pod, name: str) -> None:
        claim = await self._find(name, pod)
        is_own = claim is not None and (lifecycle.owning_pod(claim) is None or lifecycle.is_for(claim, pod))
        if claim is not None and is_own and (wanted := lifecycle.reserved(claim, pod)) is not None:
            await self._store.update_status(wanted)

    async def _tell(self, pod: core.Pod, message: str) -> None:
        """Record why a pod's claim cannot be made, once until it changes."""
        if self._told.get(pod.metadata.uid) == message:
            return
        self._told[pod.metadata.uid] = message
        step = TraceStep(
            layer=_TELLER, reason="FailedResourceClaimCreation", message=message, at=time.time(), is_warning=True
        )
        await tracerecorder.record(self._store, tracerecorder.reference(pod), step)

    # shared templates

    async def _keep_template(self, template: ResourceClaimTemplate) -> float | None:
        """Remove a shared template that no pod has named for a while; returns the seconds that are left of it.

        It is marked first: from then on no request for a container takes it, so that the list of pods that is read
        afterwards is complete.
        """
        about = template.metadata
        if lifecycle.SHARED not in about.finalizers:
            return None
        if self._users.get((about.namespace, _of_template(about.name))):
            self._idle.pop(about.uid, None)
            return None
        now = self._clock()
        if about.deletion_timestamp is None:
            if (left_s := self._idle.setdefault(about.uid, now) + IDLE_S - now) > 0:
                return left_s
            await self._store.delete(ResourceClaimTemplate, about.name, about.namespace, uid=about.uid)
            telemetry.crash_point("claim.template-marked")
            template = await self._store.get(ResourceClaimTemplate, about.name, about.namespace)
        pods = (await self._store.list(core.Pod, Selector(namespace=about.namespace))).items
        if any(one.resource_claim_template_name == about.name for pod in pods for one, _ in lifecycle.templated(pod)):
            return None
        left = tuple(one for one in template.metadata.finalizers if one != lifecycle.SHARED)
        bare = msgspec.structs.replace(template.metadata, finalizers=left)
        await self._store.update(msgspec.structs.replace(template, metadata=bare))
        return None

    # one claim

    async def _keep_claim(self, claim: ResourceClaim) -> None:
        gone = [user.uid for user in lifecycle.pod_users(claim) if await self._is_over(user, claim.metadata.namespace)]
        freed = lifecycle.without_users(claim, gone)
        if freed != claim:
            telemetry.crash_point("claim.before-release")
            claim = await self._store.update_status(freed)
            telemetry.crash_point("claim.after-release")
            if (open_ := lifecycle.unprotected(claim)) != claim:
                claim = await self._store.update(open_)
        elif claim.metadata.deletion_timestamp is not None and (open_ := lifecycle.unprotected(claim)) != claim:
            await self._store.update(open_)
            return
        if not claim.status.reserved_for and claim.metadata.deletion_timestamp is None and await self._is_left(claim):
            about = claim.metadata
            with contextlib.suppress(errors.Conflict):
                await self._store.delete(ResourceClaim, about.name, about.namespace, uid=about.uid)

    async def _is_over(self, user: ResourceClaimConsumerReference, namespace: str) -> bool:
        """Return whether a pod needs its claims no more, asked of the store where it is not known here."""
        pod = self._pods.get(user.uid)
        if pod is None:
            with contextlib.suppress(errors.NotFound):
                pod = await self._store.get(core.Pod, user.name, namespace)
        return pod is None or pod.metadata.uid != user.uid or lifecycle.is_done(pod)

    async def _is_left(self, claim: ResourceClaim) -> bool:
        """Return whether a claim's pod has ended or is gone; the store collects those that went before their pod."""
        owner = lifecycle.owning_pod(claim)
        if owner is None:
            return False
        user = ResourceClaimConsumerReference(resource="pods", name=owner.name, uid=owner.uid)
        return await self._is_over(user, claim.metadata.namespace)


def _key(kind: str, namespace: str, name: str) -> str:
    return f"{kind}{namespace}/{name}"


def _of_template(name: str) -> str:
    return f"{name}/template"  # no object's name has a slash


def _named(pod: core.Pod) -> Iterator[tuple[str, str]]:
    """Yield the claims and templates that a pod names, as keys of `_users`."""
    namespace = pod.metadata.namespace
    for name in lifecycle.claim_names(pod):
        yield namespace, name
    for reference, _ in lifecycle.templated(pod):
        yield namespace, _of_template(reference.resource_claim_template_name or "")
