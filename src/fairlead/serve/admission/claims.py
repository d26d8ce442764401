"""Reads what a request for one container says of claims: those that are there, templates, and one made with it."""

from __future__ import annotations

import contextlib

import msgspec

from fairlead import errors
from fairlead.plan.claim import where
from fairlead.plan.claim.life import lifecycle
from fairlead.plan.claim.validate.resourceclaim import RESULTS_MOST
from fairlead.plan.pod import resourceclaim
from fairlead.serve.admission.context import Context
from fairlead.serve.admission.request import ContainerRequest, Quantity
from fairlead.wire.kubernetes import core, names
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimSpec, ResourceClaimTemplate


def own_spec(request: ContainerRequest) -> ResourceClaimSpec | None:
    """Return the claim that is made with a container; None: it asks for none.

    Raises: Invalid (`GPUsInvalid`, `WhereInvalid`).
    """
    if not request.device_class and not request.where:
        return None
    if (whole := _count(request.gpus)) is None:
        message = "`gpus` is not a number of devices that one claim can have"
        raise errors.Invalid(message, reason="GPUsInvalid", hint=f"from 1 to {RESULTS_MOST}")
    if request.device_class and not resourceclaim.is_name(request.device_class):
        message = f'"{errors.readable(request.device_class)}" is not the name of a DeviceClass'
        hint = 'lower case letters, digits, "-" and ".", such as gpu.nvidia.com'
        raise errors.Invalid(message.replace("\0", "\\0"), reason="DeviceClassInvalid", hint=hint)
    return where.claim_spec(whole, request.device_class, where.parse(request.where))


def _count(gpus: Quantity | None) -> int | None:
    """Return how many devices a claim has, one where it is not said; None: a claim can have no such number."""
    if gpus is None:
        return 1
    if isinstance(gpus, str):  # digits, and not so many that reading them takes long
        gpus = int(gpus) if gpus.isascii() and gpus.isdecimal() and len(gpus) <= len(str(RESULTS_MOST)) else 0
    return gpus if isinstance(gpus, int) and 1 <= gpus <= RESULTS_MOST else None


def with_claims(pod: core.Pod, request: ContainerRequest, own: ResourceClaimSpec | None) -> core.Pod:
    """Return a pod whose containers have the devices of the claims that a request names, and of its own."""
    found = [_reference(at, one.name, one.template) for at, one in enumerate(request.claims)]
    if own is not None:
        found.append(own_reference(lifecycle.shared_name(own)))
    if not found:
        return pod
    claims = tuple(core.ContainerResourceClaim(name=one.name) for one in found)
    containers = tuple(
        msgspec.structs.replace(item, resources=msgspec.structs.replace(item.resources, claims=claims))
        for item in pod.spec.containers
    )
    spec = msgspec.structs.replace(pod.spec, containers=containers, resource_claims=tuple(found))
    return msgspec.structs.replace(pod, spec=spec)


def own_reference(template: str) -> core.PodResourceClaim:
    """Return how a pod refers to the claim that is made with it."""
    return core.PodResourceClaim(name=where.REQUEST, resource_claim_template_name=template)


def sharing(pod: core.Pod, template: str) -> core.Pod:
    """Return a pod whose own claim is made from a template of this name."""
    references = (own_reference(template) if one.name == where.REQUEST else one for one in pod.spec.resource_claims)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, resource_claims=tuple(references)))


async def check_there(context: Context, request: ContainerRequest, namespace: str) -> None:
    """Refuse claims and templates that are not there: a container would wait for them; a manifest's does.

    Raises: Invalid (`ClaimNotFound`); what the caller may not see.
    """
    for one in request.claims:
        name, kind = (one.template, ResourceClaimTemplate) if one.template else (one.name, ResourceClaim)
        with contextlib.suppress(errors.Denied):  # of a cluster, whose user may not read them
            try:
                await context.store.get(kind, name, namespace)
            except errors.NotFound as error:
                shown = errors.readable(name).replace("\0", "\\0")
                message = f'{kind.KIND} "{shown}" is not there'
                hint = "make it: `fairlead run -f FILE`; or ask for devices with --where, which makes a claim"
                raise errors.Invalid(message, reason="ClaimNotFound", hint=hint) from error


def _reference(at: int, name: str, template: str) -> core.PodResourceClaim:
    if template:
        return core.PodResourceClaim(name=name, resource_claim_template_name=template)
    # The pod's own name for it is a label; the claim's may be longer, and have dots.
    label = name if names.is_dns_label(name) and name != where.REQUEST else f"claim-{at}"
    return core.PodResourceClaim(name=label, resource_claim_name=name)
