"""Lists the kinds that kubectl's verbs are about on one machine, with the words that people have for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairlead import errors
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimTemplate
from fairlead.wire.kubernetes.scheduling.policy import PodDisruptionBudget
from fairlead.wire.kubernetes.workloads.apps import Deployment, ReplicaSet, StatefulSet
from fairlead.wire.kubernetes.workloads.batch import CronJob, Job
from fairlead.wire.kubernetes.workloads.service import Service

_SHORT: Final[Mapping[type[meta.Object], tuple[str, ...]]] = {
    core.Pod: ("po",),
    Deployment: ("deploy",),
    ReplicaSet: ("rs",),
    StatefulSet: ("sts",),
    Job: (),
    CronJob: ("cj",),
    Service: ("svc",),
    PodDisruptionBudget: ("pdb",),
    core.ConfigMap: ("cm",),
    core.Secret: (),
    core.PersistentVolumeClaim: ("pvc",),
    ResourceClaim: (),
    ResourceClaimTemplate: (),
}
KINDS: Final = tuple(_SHORT)
ALL: Final = (core.Pod, Service, Deployment, ReplicaSet, StatefulSet, Job, CronJob)
"""What `get all` lists."""
_BY_WORD: Final[Mapping[str, type[meta.Object]]] = {
    word: kind for kind, short in _SHORT.items() for word in (kind.PLURAL, kind.KIND.lower(), *short)
}


def find(word: str) -> type[meta.Object]:
    """Return the kind that a word stands for: `deployments`, `deployment.apps`, `deploy`. Raises: RequestError."""
    plain = word.lower().partition(".")[0]
    if (found := _BY_WORD.get(plain)) is not None:
        return found
    shown = errors.readable(word[:80])
    close = errors.closest(plain, sorted(_BY_WORD)) if len(plain) < 64 else ""
    hint = f'did you mean "{close}"?' if close else f"known: {', '.join(kind.PLURAL for kind in KINDS)}"
    raise errors.RequestError(f'the server doesn\'t have a resource type "{shown}"', reason="KindUnknown", hint=hint)


def full_name(kind: type[meta.Object]) -> str:
    """Return a kind's name with its group as kubectl prints it: `deployment.apps`."""
    group = kind.API_VERSION.partition("/")[0] if "/" in kind.API_VERSION else ""
    return f"{kind.KIND.lower()}.{group}" if group else kind.KIND.lower()
