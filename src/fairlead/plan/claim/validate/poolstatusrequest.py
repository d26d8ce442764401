"""Checks ResourcePoolStatusRequests.

Source: kubernetes 1.37 pkg/apis/resource/v1alpha3/zz_generated.validations.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fairlead.plan.claim.validate import field, metadata, name
from fairlead.wire.kubernetes.resource.poolstatusrequest import ResourcePoolStatusRequest

LIMIT_MOST: Final = 1000


def problems(item: ResourcePoolStatusRequest) -> Iterator[str]:
    """Yield what is wrong with a new request; its status does not count."""
    yield from metadata.problems(item.metadata, is_namespaced=False)
    spec = item.spec
    yield from name.caseless("spec.driver", spec.driver) if spec.driver else [field.required("spec.driver")]
    if spec.pool_name is not None:
        yield from name.pool_parts("spec.poolName", spec.pool_name)
    if spec.limit is not None and spec.limit < 1:
        yield field.invalid("spec.limit", spec.limit, "must be greater than or equal to 1")
    if spec.limit is not None and spec.limit > LIMIT_MOST:
        yield field.invalid("spec.limit", spec.limit, f"must be less than or equal to {LIMIT_MOST}")
    if spec.default_partition_type_attribute is not None:
        path = "spec.defaultPartitionTypeAttribute"
        yield from name.fully_qualified(path, spec.default_partition_type_attribute)


def update_problems(new: ResourcePoolStatusRequest, old: ResourcePoolStatusRequest) -> Iterator[str]:
    """Yield what is wrong with a changed request: its spec is immutable."""
    yield from metadata.update_problems(new.metadata, old.metadata)
    if new.spec != old.spec:
        yield field.invalid("spec", None, metadata.IMMUTABLE)
