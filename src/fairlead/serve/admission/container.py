"""Takes a request for one container from its JSON to the store: completed, judged, stored with its volumes."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from fairlead import errors, telemetry
from fairlead.plan.claim.life import lifecycle
from fairlead.plan.tenancy import baseline
from fairlead.serve.admission import budget, claims, freeport, request
from fairlead.serve.admission.context import Context
from fairlead.serve.admission.request import ContainerRequest, SecretGrant
from fairlead.serve.backend import idempotency
from fairlead.serve.backend.place import Place
from fairlead.serve.backend.port import find, require
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaimSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request stands for."""

    pod: core.Pod
    for_tenancy: bool
    """Whether its namespace was asked for by a tenancy's name, where tenancies are not kept."""
    volumes: tuple[str, ...]
    """Made where there are none of these names."""
    claim: ResourceClaimSpec | None = None
    """Made for it; None: none."""

    @property
    def namespace(self) -> str:
        """Where it is asked for; its caller's part of the machine may mean another."""
        return self.pod.metadata.namespace


async def complete(context: Context, wanted: ContainerRequest) -> Asked:
    """Return what a request stands for, with what it does not say: its tenancy's namespace, the keys of secrets.

    Raises: NotFound (`TenancyUnknown`); Invalid: `request.pod_of`, `claims.own_spec`, and a secret, a key of one or a
            claim that is not there.
    """
    wanted = await _with_keys(context, await _in_namespace(context, wanted))
    wanted = await freeport.chosen(wanted, context.store, is_here=context.is_machine)
    await claims.check_there(context, wanted, request.namespace_of(wanted))
    own = claims.own_spec(wanted)
    bare = wanted if own is None else msgspec.structs.replace(wanted, gpus=0)
    pod = request.pod_of(bare, resource=context.resource, scheduler_name=context.scheduler_name)
    return Asked(
        pod=claims.with_claims(pod, wanted, own),
        claim=own,
        for_tenancy=bool(wanted.tenancy),
        volumes=tuple(named.name for named in wanted.volumes),
    )


async def judge(context: Context, asked: Asked) -> core.Pod:
    """Return the pod as `store` would store it, and store nothing. Raises: as `store`."""
    await budget.check(context, asked.namespace)
    place = context.backend.places.new(asked.namespace, for_tenancy=asked.for_tenancy)
    await _judge_claim(context, asked, place)
    (judged,) = await context.backend.lifecycle.judge([place.submission(asked.pod)], claims=asked.volumes)
    return judged


async def store(context: Context, asked: Asked, once: idempotency.Once | None) -> core.Pod:
    """Store the pod, and its volumes before.

    Args:    once: see `port.Lifecycle.submit`.
    Raises:  Denied (`BudgetExceeded`); what the caller's part of the machine refuses; as `port.Lifecycle.submit`.
    """
    await budget.check(context, asked.namespace)
    place = context.backend.places.new(asked.namespace, for_tenancy=asked.for_tenancy)
    submission = place.submission(asked.pod)
    if asked.volumes or asked.claim is not None:
        # Volumes outlive a refusal: none is made for a pod that would be refused.
        await context.backend.lifecycle.judge([submission], claims=asked.volumes)
    if asked.claim is not None:
        template = await require(context.backend.claims).share(asked.claim, place)
        submission = place.submission(claims.sharing(asked.pod, template))
    for name in asked.volumes:
        await context.backend.volumes.create(name, place, labels={}, size="")
    telemetry.crash_point("submission.after-volumes")
    return await context.backend.lifecycle.submit(submission, once=once)


async def _judge_claim(context: Context, asked: Asked, place: Place) -> None:
    """Refuse a claim that would be made for a container as an API server would. Raises: Invalid, Denied."""
    if asked.claim is not None:
        template = lifecycle.shared_template(asked.claim, place.namespace)
        bare = msgspec.structs.replace(template, metadata=msgspec.structs.replace(template.metadata, finalizers=()))
        await require(context.backend.claims).judge(bare, place)


async def _in_namespace(context: Context, wanted: ContainerRequest) -> ContainerRequest:
    """Return the request with the namespace of its tenancy. Where tenancies are not kept, it names a namespace.

    Raises: NotFound (`TenancyUnknown`): nothing of that name is isolated.
    """
    if not wanted.tenancy or find(context.backend.tenancies) is None:
        return wanted
    try:
        found = await context.store.get(Tenancy, wanted.tenancy)
    except errors.NotFound as error:
        raise baseline.unknown(wanted.tenancy) from error
    return msgspec.structs.replace(wanted, tenancy="", namespace=baseline.namespace_name(found))


async def _with_keys(context: Context, wanted: ContainerRequest) -> ContainerRequest:
    """Return the request with the key of each secret that names none.

    Raises: Invalid (`SecretNotFound`, `SecretKeyUnknown`): a container would wait for it; a manifest's does.
    """
    if not wanted.secrets:
        return wanted
    namespace = request.namespace_of(wanted)
    found = tuple([await _with_key(context, one, namespace) for one in wanted.secrets])
    return msgspec.structs.replace(wanted, secrets=found)


async def _with_key(context: Context, one: SecretGrant, namespace: str) -> SecretGrant:
    try:
        keys = (await context.backend.secrets.find(one.name, namespace)).note.digests
    except errors.NotFound as error:
        raise errors.Invalid(error.message, reason=error.reason, hint=error.hint) from error
    key = one.key or (next(iter(keys)) if len(keys) == 1 else "")
    if key not in keys:
        which = f'has no key "{errors.readable(key)}"' if key else "has several keys"
        message = f'secret "{one.name}" {which} (it has {", ".join(keys)})'
        raise errors.Invalid(message, reason="SecretKeyUnknown", hint=f"name one: `--secret {one.name}/KEY`")
    return msgspec.structs.replace(one, key=key)
