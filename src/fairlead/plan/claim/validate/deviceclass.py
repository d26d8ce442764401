"""Checks DeviceClasses.

Source: kubernetes 1.37 pkg/apis/resource/validation/validation.go, validateDeviceClassSpec.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.plan.claim.validate import field, metadata, name, request
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass, DeviceClassSpec


def problems(item: DeviceClass, rules: request.Rules) -> Iterator[str]:
    """Yield what is wrong with a new class."""
    yield from metadata.problems(item.metadata, is_namespaced=False, unit="bytes")
    yield from _spec(item.spec, None, rules)


def update_problems(new: DeviceClass, old: DeviceClass, rules: request.Rules) -> Iterator[str]:
    """Yield what is wrong with a changed class; selectors and configuration that stay are not judged again."""
    said = list(metadata.problems(new.metadata, is_namespaced=False, unit="bytes"))
    yield from said
    yield from (one for one in metadata.update_problems(new.metadata, old.metadata) if one not in said)
    yield from _spec(new.spec, old.spec, rules)


def _spec(spec: DeviceClassSpec, old: DeviceClassSpec | None, rules: request.Rules) -> Iterator[str]:
    is_judged = old is not None and spec.selectors == old.selectors
    yield from request.selectors(spec.selectors, "spec.selectors", None if is_judged else rules.check_selector)
    is_stored = old is not None and spec.config == old.config
    yield from field.each(
        spec.config,
        "spec.config",
        lambda one, path: request.opaque(one.opaque, f"{path}.opaque", is_stored=is_stored),
        most=request.CONFIG_MOST,
    )
    if spec.extended_resource_name is not None:
        yield from name.extended_resource("spec.extendedResourceName", spec.extended_resource_name)
