"""Decides what a tenancy consists of: its names, its namespace, its quota, its conditions. Pure.

The namespace's name ends in the tenancy's uid: a tenancy that is made again under an old name finds nothing of the one
before, and names that are put together of parts cannot meet. A namespace is a tenancy's where its label says this uid;
any other one of that name is not adopted.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from fairlead import errors
from fairlead.model.container import isolation
from fairlead.plan.pod import quota as podquota
from fairlead.plan.pod import tenantrule
from fairlead.plan.tenancy import export
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta, names

UID: Final = kind.UID
STATE: Final = kind.STATE
QUOTA: Final = "tenancy"
"""Name of the ResourceQuota, and of the LimitRange, in a tenancy's namespace."""
PULLS: Final = "tenancy-registries"
"""Name of the Secret with the tenancy's registry credentials, on a cluster."""
ACCOUNT: Final = "default"
"""Name of the ServiceAccount that pods have where they name none."""
LONGEST: Final = 53
_UID_LETTERS: Final = 6
_NAMESPACE: Final = re.compile(rf"t-.+-[0-9a-f]{{{_UID_LETTERS}}}")
_RESERVED: Final = ("default", "system")
_RESERVED_STARTS: Final = ("kube-", "user-", "fairlead-")
_READY_AFTER: Final = (kind.NAMESPACE_READY, kind.QUOTA_APPLIED, kind.NETWORK_ISOLATED)


def check(item: Tenancy) -> None:
    """Refuse a tenancy that cannot be carried out as written. Raises: Invalid (`TenancyInvalid`)."""
    name = item.metadata.name
    if problems := tuple(_problems(item)):
        text = "; ".join(problems)
        hint = "a name is a word like team-a; `fairlead tenancy create --help` lists the options"
        raise errors.Invalid(f'tenancy "{name}" is invalid: {text}', reason="TenancyInvalid", hint=hint)
    if (limits := quota(item)) is not None:
        podquota.check_limits(limits)


def _problems(item: Tenancy) -> Iterator[str]:
    name, spec = item.metadata.name, item.spec
    if not names.is_dns_label(name):
        yield f"metadata.name: {names.DNS_RULE}"
    elif len(name) > LONGEST:
        yield f"metadata.name: must be no more than {LONGEST} characters"
    if name in _RESERVED or name.startswith(_RESERVED_STARTS):
        yield "metadata.name: is reserved"
    yield from _network_problems(spec.network)
    if spec.storage.nfs is not None:
        yield from (f"spec.storage.nfs: {one}" for one in export.problems(spec.storage.nfs))
    if spec.isolation not in {"", *isolation.WORDS}:
        yield f'spec.isolation: "{spec.isolation}" is none of {", ".join(isolation.WORDS)}'
    for image in spec.images:
        if "," in image or not image.strip():
            yield f'spec.images: "{image}" is not an image'
    if len(spec.display_name) > 200 or not spec.display_name.isprintable():
        yield "spec.displayName: must be at most 200 printable characters"


def _network_problems(wanted: kind.TenancyNetwork) -> Iterator[str]:
    if wanted.mode not in {kind.BRIDGE, kind.NONE}:
        yield f'spec.network.mode: "{wanted.mode}" is neither bridge nor none'
    if wanted.internet not in {kind.ALLOW, kind.DENY}:
        yield f'spec.network.internet: "{wanted.internet}" is neither allow nor deny'
    for text in wanted.egress:
        if problem := cidr_problem(text):
            yield f'spec.network.egress: "{text}" {problem}'


def cidr_problem(text: str) -> str:
    """Return why a text does not name a network that may be allowed or denied; empty: it does."""
    try:
        found = ipaddress.ip_network(text)
    except ValueError:
        return "is not a network, such as 192.168.7.0/24"
    unusable = found.is_loopback or found.is_link_local or found.is_multicast or found.prefixlen == 0
    return "is the host's own, or everything" if unusable else ""


def namespace_name(item: Tenancy) -> str:
    """Return the namespace of a stored tenancy; at most 63 characters, a DNS label."""
    return f"t-{item.metadata.name[:LONGEST]}-{item.metadata.uid.replace('-', '')[:_UID_LETTERS]}"


def is_namespace_name(name: str) -> bool:
    """Return whether a namespace is called as a tenancy's is; the tenancy may be gone."""
    return _NAMESPACE.fullmatch(name) is not None


def find_by_namespace(namespace: str, tenancies: Sequence[Tenancy]) -> Tenancy | None:
    """Return the tenancy that a namespace belongs to; None: it is none's."""
    return next((one for one in tenancies if namespace_name(one) == namespace), None)


def namespace(item: Tenancy, state: str = kind.PENDING) -> core.Namespace:
    """Return the namespace as it must be: a tenant's, with the level of pod security that a cluster enforces there.

    Args: state: the phase that it says.
    """
    labels = {
        tenantrule.TENANCY: item.metadata.name,
        UID: item.metadata.uid,
        "pod-security.kubernetes.io/enforce": "baseline",
    }
    annotations = {STATE: state}
    if item.spec.images:
        annotations[tenantrule.ALLOWED_IMAGES] = ",".join(item.spec.images)
    if not item.spec.host_users:
        annotations[kind.HOST_USERS] = "false"
    if item.spec.isolation:
        annotations[kind.ISOLATION] = item.spec.isolation
    about = meta.ObjectMeta(name=namespace_name(item), labels=labels, annotations=annotations)
    return core.Namespace(metadata=about)


def is_own(item: Tenancy, found: core.Namespace) -> bool:
    """Return whether a namespace is this very tenancy's."""
    return found.metadata.labels.get(UID) == item.metadata.uid


def quota(item: Tenancy, *, pods: int = 0, volumes: int = 0) -> core.ResourceQuota | None:
    """Return the quota of the tenancy's namespace; None where it has none.

    Args: pods: how many may be there that have not ended, where the tenancy's own quota does not count them; 0: any.
          volumes: how many named volumes, likewise.
    """
    own = dict(item.spec.quota)
    hard = {"pods": str(pods), **own} if pods and not podquota.COUNTS.intersection(own) else own
    if volumes and not podquota.CLAIMS.intersection(own):
        hard = {"persistentvolumeclaims": str(volumes), **hard}
    if not hard:
        return None
    about = meta.ObjectMeta(name=QUOTA, namespace=namespace_name(item))
    return core.ResourceQuota(metadata=about, spec=core.ResourceQuotaSpec(hard=hard))


def limit_range(item: Tenancy) -> core.LimitRange | None:
    """Return the limits of each container in the tenancy's namespace; None where there are none."""
    wanted = item.spec.containers
    if wanted == kind.ContainerLimits():
        return None
    limits = core.LimitRangeItem(
        type="Container", max=wanted.max, min=wanted.min, default=wanted.default, default_request=wanted.default_request
    )
    about = meta.ObjectMeta(name=QUOTA, namespace=namespace_name(item))
    return core.LimitRange(metadata=about, spec=core.LimitRangeSpec(limits=(limits,)))


def account(item: Tenancy) -> core.ServiceAccount:
    """Return the account of the tenancy's pods: without a token, and with its registry credentials."""
    about = meta.ObjectMeta(name=ACCOUNT, namespace=namespace_name(item))
    pulls = (core.LocalObjectReference(name=PULLS),) if item.spec.registries else ()
    return core.ServiceAccount(metadata=about, automount_service_account_token=False, image_pull_secrets=pulls)


def with_registries(item: Tenancy, registries: tuple[str, ...]) -> Tenancy:
    """Return a tenancy that has credentials for these registries."""
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, registries=registries))


def condition(item: Tenancy, name: str, problem: errors.FairleadError | None, *, good: str) -> meta.Condition:
    """Return a condition: True with the reason `good`, or False with what is wrong."""
    return meta.Condition(
        type=name,
        status="True" if problem is None else "False",
        reason=good if problem is None else problem.reason,
        message="" if problem is None else errors.sentence(problem),
        last_transition_time=meta.now(),
        observed_generation=item.metadata.generation,
    )


def status(item: Tenancy, conditions: Mapping[str, meta.Condition], network: kind.NetworkStatus) -> kind.TenancyStatus:
    """Return the status that follows from the conditions of its parts; Ready where every one of them is True."""
    wanted = (*_READY_AFTER, *((kind.VOLUMES_MOUNTED,) if item.spec.storage.nfs is not None else ()))
    found = [conditions[name] for name in wanted if name in conditions]
    first = next((one for one in found if one.status != "True"), None)
    is_ready = first is None and len(found) == len(wanted)
    ready = meta.Condition(
        type=kind.READY,
        status="True" if is_ready else "False",
        reason=first.reason if first else "Isolated" if is_ready else "NotYet",
        message=first.message if first else "",
        last_transition_time=meta.now(),
        observed_generation=item.metadata.generation,
    )
    merged = item.status.conditions
    for one in (*found, ready):
        merged = meta.with_condition(merged, one)
    phase = kind.PENDING
    if item.metadata.deletion_timestamp is not None:
        phase = kind.TERMINATING
    elif is_ready:
        phase = kind.SUSPENDED if item.spec.suspended else kind.READY
    return kind.TenancyStatus(
        phase=phase,
        namespace=namespace_name(item),
        observed_generation=item.metadata.generation,
        network=network,
        first_user_id=item.status.first_user_id,
        conditions=merged,
    )


def is_ready(item: Tenancy) -> bool:
    """Return whether every part of the tenancy stands, for the spec as it is now."""
    found = meta.find_condition(item.status.conditions, kind.READY)
    return found is not None and found.status == "True" and item.status.observed_generation == item.metadata.generation


def refusal(item: Tenancy) -> errors.FairleadError | None:
    """Return why no container is accepted now; None: it is."""
    name = item.metadata.name
    if item.metadata.deletion_timestamp is not None:
        message = f'tenancy "{name}" is being deleted'
        return errors.Denied(message, reason="TenancyTerminating", hint="wait until it is gone, then create it again")
    if item.spec.suspended:
        hint = f"`fairlead tenancy resume {name}` lifts it"
        return errors.Denied(f'tenancy "{name}" is suspended', reason="TenancySuspended", hint=hint)
    return not_ready(item)


def not_ready(item: Tenancy) -> errors.FairleadError | None:
    """Return why no process of the tenancy may start now; None: it may."""
    if is_ready(item):
        return None
    name = item.metadata.name
    found = meta.find_condition(item.status.conditions, kind.READY)
    is_old = item.status.observed_generation != item.metadata.generation
    why = f": {found.message}" if found is not None and found.message and not is_old else " yet"
    hint = f"`fairlead tenancy show {name}` says how its parts stand"
    return errors.Unavailable(f'tenancy "{name}" is not ready{why}', reason="TenancyNotReady", hint=hint)


def unknown(name: str) -> errors.NotFound:
    """Return what is said of a tenancy that was never made: nothing would keep its containers apart."""
    hint = f"`fairlead tenancy list` lists those there are; `fairlead tenancy create {name}` makes it"
    return errors.NotFound(f'there is no tenancy "{name}"', reason="TenancyUnknown", hint=hint)


def find_owner(space: meta.ObjectMeta, tenancies: tuple[Tenancy, ...]) -> Tenancy | None:
    """Return the tenancy that a namespace belongs to; None where it is a plain one.

    Raises: Denied (`TenancyGone`): it belonged to one that is gone, by its label or, where it has none or is not there
            itself, by its name.
    """
    uid = space.labels.get(UID)
    if uid is None and not is_namespace_name(space.name):
        return None
    for one in tenancies:
        if one.metadata.uid == uid:
            return one
    raise gone(space.name)


def gone(namespace: str) -> errors.Denied:
    """Return the error for a namespace of a tenancy that does not exist any more."""
    message = f'namespace "{namespace}" belonged to a tenancy that is gone'
    hint = "name a tenancy that is there: `fairlead tenancy list`; if there is one of its name again, ask once more"
    return errors.Denied(message, reason="TenancyGone", hint=hint)


def with_limits(item: Tenancy, limits: Mapping[str, str | None], *, display_name: str | None = None) -> Tenancy:
    """Return a tenancy with other limits. Args: limits: by resource; None: none.   display_name: None: as it is."""
    merged = {**item.spec.quota, **limits}
    quota = {name: amount for name, amount in merged.items() if amount is not None}
    shown = item.spec.display_name if display_name is None else display_name
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, quota=quota, display_name=shown))


def with_suspended(item: Tenancy, *, suspended: bool) -> Tenancy:
    """Return a tenancy that is suspended, or is not."""
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, suspended=suspended))
