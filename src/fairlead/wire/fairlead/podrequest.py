"""Declares `PodRequest`: a request that made a pod, by the key that its client gave it.

It is stored in the same step as the pod, so there is never one without the other, and outlives it: a request that comes
again after its container was removed makes no second one. Only one machine keeps them; on a cluster the pod carries the
same as a label and an annotation, since an API server stores one object at a time.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from fairlead.wire.kubernetes.meta import ObjectMeta, Wire


class PodRequestSpec(Wire, frozen=True):
    """What was asked, what came of it, and what was answered."""

    digest: str
    """Of the request's body."""
    pod_namespace: str
    pod_name: str
    pod_uid: str = msgspec.field(name="podUID")
    answer: str
    """JSON, as it was sent."""


class PodRequest(Wire, frozen=True, kw_only=True):
    """One request; its name is a digest of who asked and of the key."""

    API_VERSION: ClassVar[str] = "fairlead.dev/v1alpha1"
    KIND: ClassVar[str] = "PodRequest"
    PLURAL: ClassVar[str] = "podrequests"
    NAMESPACED: ClassVar[bool] = False

    metadata: ObjectMeta = ObjectMeta()
    spec: PodRequestSpec
