"""Decides what becomes of the claims of pods: made from templates, reserved, given back, removed. Pure.

A claim of a template has a name that follows from its pod's uid: a process that makes it twice finds the first one. A
claim is given back with its last user, named ones too, so that the next user may have it on another node.
Source: kubernetes 1.37 pkg/controller/resourceclaim/controller.go; dynamic-resource-allocation v0.37.2 resourceclaim
(behaviour).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec

from fairlead.plan.claim.validate.resourceclaim import RESERVED_MOST
from fairlead.plan.pod import tenantrule
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource.resourceclaim import (
    ADMIN_ACCESS,
    FINALIZER,
    POD_CLAIM_NAME,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimSpec,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
)

SHARED: Final = "fairlead.dev/shared-claim"
"""Finalizer of a template that requests for containers share: it goes once no pod has named it for a while."""
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Of random names: none that make words, or look alike."""
_SUFFIX: Final = 5
_LONGEST: Final = 63 - _SUFFIX - 1
"""Characters of a claim's name before its last dash."""


def admin_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return the labels of a namespace as they count for admin access on one machine.

    Namespaces have no such label there: one that is no tenant's is the administrator's, who may see every device.
    """
    return labels if tenantrule.TENANCY in labels else {ADMIN_ACCESS: "true", **labels}


def is_done(pod: core.Pod) -> bool:
    """Return whether no container of a pod runs, or ever will."""
    about = pod.metadata
    return pod.status.phase in core.ENDED_PHASES or (about.deletion_timestamp is not None and not pod.spec.node_name)


def owning_pod(claim: ResourceClaim) -> meta.OwnerReference | None:
    """Return the pod that a claim was made for; None: a person made it."""
    owners = (one for one in claim.metadata.owner_references if one.controller and one.kind == core.Pod.KIND)
    return next(owners, None)


def is_for(claim: ResourceClaim, pod: core.Pod, name: str = "") -> bool:
    """Return whether a claim was made for a pod. Args: name: the pod's for it; empty: any."""
    owner = owning_pod(claim)
    if owner is None or owner.uid != pod.metadata.uid or claim.metadata.namespace != pod.metadata.namespace:
        return False
    return not name or claim.metadata.annotations.get(POD_CLAIM_NAME) == name


def templated(pod: core.Pod) -> Iterator[tuple[core.PodResourceClaim, str | None]]:
    """Yield the references of a pod to templates, each with the claim that its status names.

    An empty name is one that no claim has yet; None: the pod needs none there.
    """
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    for one in pod.spec.resource_claims:
        if one.resource_claim_name is None and one.resource_claim_template_name is not None:
            yield one, made.get(one.name, "")


def has_claims(pod: core.Pod) -> bool:
    """Return whether a pod has claims; that which a scheduler made for its extended resources is one."""
    return bool(pod.spec.resource_claims) or pod.status.extended_resource_claim_status is not None


def met_by_claim(pod: core.Pod, container: str) -> Mapping[str, tuple[str, ...]]:
    """Return the requests of the claim that meets a container's extended resources, by resource.

    A resource that is not among them is the device plugin's to give.
    """
    found: dict[str, tuple[str, ...]] = {}
    told = pod.status.extended_resource_claim_status
    for one in (told.request_mappings or ()) if told is not None else ():
        if one.container_name == container:
            found[one.resource_name] = (*found.get(one.resource_name, ()), one.request_name)
    return found


def claim_names(pod: core.Pod) -> tuple[str, ...]:
    """Return the claims of a pod that are known by name, each once; that of its extended resources last."""
    named = [one.resource_claim_name for one in pod.spec.resource_claims]
    extended = pod.status.extended_resource_claim_status
    more = (extended.resource_claim_name,) if extended is not None else ()
    return tuple(dict.fromkeys(name for name in (*named, *(made for _, made in templated(pod)), *more) if name))


def claim_name(pod: core.Pod, name: str, attempt: int = 0) -> str:
    """Return the name of the claim that is made for a pod under one of its names.

    Args: attempt: counts those before that other objects had already.
    """
    parts = [pod.metadata.name, name]
    if (length := len("-".join(parts))) > _LONGEST:
        # Both lose the same share: none is lost as a whole.
        parts = [one[: len(one) * _LONGEST // length].rstrip("-.") for one in parts]
    seed = hashlib.sha256(f"{pod.metadata.uid}/{name}/{attempt}".encode()).digest()
    suffix = "".join(_LETTERS[byte % len(_LETTERS)] for byte in seed[:_SUFFIX])
    return "-".join([*(one for one in parts if one), suffix])


def from_template(
    pod: core.Pod, reference: core.PodResourceClaim, template: ResourceClaimTemplate, *, attempt: int = 0
) -> ResourceClaim:
    """Return the claim of a pod that a template describes."""
    about, wanted = pod.metadata, template.spec
    owner = meta.OwnerReference(
        api_version=pod.API_VERSION, kind=pod.KIND, name=about.name, uid=about.uid, controller=True
    )
    return ResourceClaim(
        metadata=meta.ObjectMeta(
            name=claim_name(pod, reference.name, attempt),
            namespace=about.namespace,
            labels=wanted.metadata.labels,
            annotations={**wanted.metadata.annotations, POD_CLAIM_NAME: reference.name},
            owner_references=(owner,),
        ),
        spec=wanted.spec,
    )


def shared_name(spec: ResourceClaimSpec, attempt: int = 0) -> str:
    """Return the name of the template that pods share which ask alike. Args: attempt: see `claim_name`."""
    digest = hashlib.sha256(msgspec.json.encode((spec, attempt))).hexdigest()
    return f"fairlead-{digest[:16]}"


def shared_template(spec: ResourceClaimSpec, namespace: str, attempt: int = 0) -> ResourceClaimTemplate:
    """Return the template that pods share which ask alike."""
    about = meta.ObjectMeta(name=shared_name(spec, attempt), namespace=namespace, finalizers=(SHARED,))
    return ResourceClaimTemplate(metadata=about, spec=ResourceClaimTemplateSpec(spec=spec))


def with_claims(pod: core.Pod, made: Mapping[str, str]) -> core.Pod:
    """Return a pod whose status names the claims that were made for it. Args: made: by the pod's name for each."""
    if not made:
        return pod
    known = {one.name: one for one in pod.status.resource_claim_statuses}
    known |= {name: core.PodResourceClaimStatus(name=name, resource_claim_name=claim) for name, claim in made.items()}
    statuses = tuple(known[name] for name in sorted(known))
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, resource_claim_statuses=statuses))


def reserved(claim: ResourceClaim, pod: core.Pod) -> ResourceClaim | None:
    """Return a claim reserved for a pod that has a node already; None: it is, cannot be, or is not allocated."""
    users = claim.status.reserved_for
    has_room = len(users) < RESERVED_MOST and claim.metadata.deletion_timestamp is None
    if claim.status.allocation is None or not has_room or any(one.uid == pod.metadata.uid for one in users):
        return None
    user = ResourceClaimConsumerReference(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)
    status = msgspec.structs.replace(claim.status, reserved_for=(*users, user))
    return msgspec.structs.replace(claim, status=status)


def pod_users(claim: ResourceClaim) -> tuple[ResourceClaimConsumerReference, ...]:
    """Return the pods that a claim is reserved for; whether other users live is not known here."""
    return tuple(one for one in claim.status.reserved_for if not one.api_group and one.resource == "pods")


def without_users(claim: ResourceClaim, gone: Collection[str]) -> ResourceClaim:
    """Return a claim without users that are gone, and without its devices where the last one went.

    A claim that never had a user keeps its devices, unless it is being deleted: a driver or a person gave them.
    Args: gone: uids.
    """
    status, about = claim.status, claim.metadata
    left = tuple(one for one in status.reserved_for if one.uid not in gone)
    is_over = not left and (status.reserved_for or about.deletion_timestamp is not None)
    if not is_over or FINALIZER not in about.finalizers:
        return msgspec.structs.replace(claim, status=msgspec.structs.replace(status, reserved_for=left))
    freed = msgspec.structs.replace(status, reserved_for=(), allocation=None, devices=())
    return msgspec.structs.replace(claim, status=freed)


def unprotected(claim: ResourceClaim) -> ResourceClaim:
    """Return a claim that may go at once, if it has no devices."""
    if claim.status.allocation is not None or claim.status.reserved_for:
        return claim
    left = tuple(one for one in claim.metadata.finalizers if one != FINALIZER)
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, finalizers=left))
