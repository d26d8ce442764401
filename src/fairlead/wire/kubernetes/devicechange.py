"""Declares what one machine is asked for beside Kubernetes' kinds: `DeviceChange`, `PodReplacement`.

A `DeviceChange` is a request to give a running container a device, or to take one, and its answer.

The API creates it, the kubelet of the pod's node carries it out and answers in its status, and the API removes it. It
has its pod's name, so a pod has one at a time, and its pod for an owner, so it goes with the pod. Only the embedded
kubelet acts on such requests; a real one knows nothing of them, so a cluster has no such CustomResourceDefinition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

import msgspec

from fairlead import errors
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.meta import ObjectMeta, OwnerReference, Wire

Action = Literal["attach", "detach"]
PAST: Final[dict[Action, str]] = {"attach": "Attached", "detach": "Detached"}
"""Reason of the step that says it was carried out."""
REFUSED: Final[dict[Action, str]] = {"attach": "AttachRefused", "detach": "DetachRefused"}
"""Reason of the step that says it was not."""

Phase = Literal["", "Done", "Refused"]


class DeviceChangeSpec(Wire, frozen=True):
    """The requested change."""

    pod_name: str
    pod_uid: str = msgspec.field(name="podUID")
    container: str
    action: Action
    resource: str
    device: str
    """Id of the device, as its plugin advertises it."""
    force: bool = False
    """End processes that have it open."""


class ChangedNode(Wire, frozen=True):
    """One device node in the container."""

    path: str
    done: str
    """`made`, `kept`, `replaced`, `removed` or `absent`."""


class EndedProcess(Wire, frozen=True):
    """A process that had the device open and was ended."""

    pid: int
    """On the host."""
    name: str


class Outcome(Wire, frozen=True):
    """Result of a change: what was done, and what was then read back from the kernel."""

    rules: tuple[str, ...] = ()
    """Device rules that were changed, in the kernel's words."""
    nodes: tuple[ChangedNode, ...] = ()
    opens: Mapping[str, str] = {}
    """What `open()` says of each node, by path."""
    ended: tuple[EndedProcess, ...] = ()
    unread: tuple[str, ...] = ()


class Problem(Wire, frozen=True):
    """Error that kept a change from being carried out, in a form from which the same error can be raised again."""

    kind: str
    """Class of the error table."""
    message: str
    reason: str
    hint: str | None = None


class DeviceChangeStatus(Wire, frozen=True):
    """The kubelet's answer."""

    phase: Phase = ""
    """Empty: there is none yet."""
    outcome: Outcome | None = None
    """Of a change that was carried out."""
    problem: Problem | None = None
    """Of one that was refused."""


class DeviceChange(Wire, frozen=True, kw_only=True):
    """One request."""

    API_VERSION: ClassVar[str] = "fairlead.dev/v1alpha1"
    KIND: ClassVar[str] = "DeviceChange"
    PLURAL: ClassVar[str] = "devicechanges"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceChangeSpec
    status: DeviceChangeStatus = DeviceChangeStatus()


def request(pod: core.Pod, spec: DeviceChangeSpec) -> DeviceChange:
    """Return the object that asks a pod's kubelet for a change."""
    about = pod.metadata
    owner = OwnerReference(api_version=pod.API_VERSION, kind=pod.KIND, name=about.name, uid=about.uid)
    return DeviceChange(
        metadata=ObjectMeta(name=about.name, namespace=about.namespace, owner_references=(owner,)), spec=spec
    )


def problem_of(error: errors.FairleadError) -> Problem:
    """Return the description of an error."""
    kind = next(kind for kind in type(error).__mro__ if kind in errors.TABLE)
    return Problem(kind=kind.__name__, message=error.message, reason=error.reason, hint=error.hint)


def error_of(problem: Problem) -> errors.FairleadError:
    """Return the error that a problem describes."""
    classes = {kind.__name__: kind for kind in errors.TABLE}
    return classes.get(problem.kind, errors.Unavailable)(problem.message, reason=problem.reason, hint=problem.hint)


class PodReplacementSpec(Wire, frozen=True):
    """Which pod goes, and which one comes."""

    pod_uid: str = msgspec.field(name="podUID")
    """Of the pod that goes."""
    pod: core.Pod
    """As it is submitted."""
    grace_period_seconds: int | None = None
    """Between SIGTERM and SIGKILL; None: the old pod's own."""
    is_tenants: bool = False
    """The new pod is a tenant's, in whatever namespace."""
    most_devices: int = 0
    """Of each resource in the namespace, where no quota there counts it; 0: no limit."""
    account: str = ""
    """Whose key asked for it."""


class PodReplacement(Wire, frozen=True, kw_only=True):
    """A pod that is to take the place of another one of its name, written before that one goes.

    The API of one machine creates it, carries it out and removes it. It has the pod's name, so a pod has one at a time.
    It has no owner, because it must outlive the pod that goes: a service that ends between the two leaves it to the
    next. A cluster has no such CustomResourceDefinition.
    """

    API_VERSION: ClassVar[str] = "fairlead.dev/v1alpha1"
    KIND: ClassVar[str] = "PodReplacement"
    PLURAL: ClassVar[str] = "podreplacements"
    NAMESPACED: ClassVar[bool] = True

    metadata: ObjectMeta = ObjectMeta()
    spec: PodReplacementSpec
