"""Checks claims, the templates that they are made from, and what is written to their status.

Source: kubernetes 1.37 pkg/apis/resource/validation/validation.go, ValidateResourceClaim and its siblings;
pkg/registry/resource/utils.go (admin access).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from fairlead.plan.claim.validate import device, field, metadata, name, request
from fairlead.wire.kubernetes.resource.request import DeviceClaim
from fairlead.wire.kubernetes.resource.resourceclaim import (
    ADMIN_ACCESS,
    AllocatedDeviceStatus,
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceRequestAllocationResult,
    NetworkDeviceData,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
    ResourceClaimTemplate,
)

RESULTS_MOST: Final = 32
RESERVED_MOST: Final = 256
CONDITIONS_MOST: Final = 8
DATA_LONGEST: Final = 10 * 1024
ADDRESSES_MOST: Final = 16
INTERFACE_LONGEST: Final = 256
HARDWARE_LONGEST: Final = 128
_SOURCES: Final = ("FromClaim", "FromClass")
_IPV4_BITS: Final = 32
_MAPPED_BITS: Final = 96
_ADDRESS_WRONG: Final = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"

DeviceKey = tuple[str, str, str, str | None]
"""Driver, pool, device and share id."""


def problems(claim: ResourceClaim, rules: request.Rules) -> Iterator[str]:
    """Yield what is wrong with a new claim; its status does not count, since a server takes none at this point."""
    yield from metadata.problems(claim.metadata, is_namespaced=True)
    yield from request.problems(claim.spec.devices, "spec.devices", rules)


def update_problems(new: ResourceClaim, old: ResourceClaim) -> Iterator[str]:
    """Yield what is wrong with a changed claim: its spec is immutable, and that is the only thing said of it."""
    yield from metadata.problems(new.metadata, is_namespaced=True)
    yield from _only_new(metadata.update_problems(new.metadata, old.metadata), new)
    if new.spec != old.spec:
        yield field.invalid("spec", None, metadata.IMMUTABLE)


def template_problems(template: ResourceClaimTemplate, rules: request.Rules) -> Iterator[str]:
    """Yield what is wrong with a new template."""
    yield from metadata.problems(template.metadata, is_namespaced=True)
    yield from metadata.template_problems(template.spec.metadata, "spec.metadata")
    yield from request.problems(template.spec.spec.devices, "spec.spec.devices", rules)


def template_update_problems(new: ResourceClaimTemplate, old: ResourceClaimTemplate) -> Iterator[str]:
    """Yield what is wrong with a changed template: its spec is immutable."""
    yield from metadata.update_problems(new.metadata, old.metadata)
    if new.spec != old.spec:
        yield field.invalid("spec", None, metadata.IMMUTABLE)


def admin_problems(claim: DeviceClaim, namespace_labels: Mapping[str, str]) -> Iterator[str]:
    """Yield the problem of a claim with admin access in a namespace that does not allow it; the first request only."""
    for at, one in enumerate(claim.requests or ()):
        if one.exactly is not None and one.exactly.admin_access:
            yield from _admin(f"spec.devices.requests[{at}].adminAccess", namespace_labels)
            return


def admin_status_problems(
    new: ResourceClaimStatus, old: ResourceClaimStatus, namespace_labels: Mapping[str, str]
) -> Iterator[str]:
    """Yield the problem of an allocation with admin access in a namespace that does not allow it."""
    if any(one.admin_access for one in (old.allocation.devices.results if old.allocation else ())):
        return
    for at, one in enumerate(new.allocation.devices.results if new.allocation else ()):
        if one.admin_access:
            yield from _admin(f"status.allocation.devices.results[{at}].adminAccess", namespace_labels)
            return


def _admin(path: str, namespace_labels: Mapping[str, str]) -> Iterator[str]:
    if namespace_labels.get(ADMIN_ACCESS) != "true":
        detail = f"admin access to devices requires the `{ADMIN_ACCESS}: true` label on the containing namespace"
        yield field.forbidden(path, detail)


def status_problems(new: ResourceClaim, old: ResourceClaim) -> Iterator[str]:
    """Yield what is wrong with a changed status; an allocation that is stored is not looked at again."""
    yield from metadata.update_problems(new.metadata, old.metadata)
    status, known = new.status, request.names(new.spec.devices)
    yield from _reserved(new, old)
    devices = "status.devices"
    allocated = _allocated(status.allocation)
    yield from field.each(status.devices, devices, lambda one, path: _device_status(one, path, allocated))
    yield from field.unique(status.devices, devices, _key, _as_go_shows)
    if status.allocation is None:
        return
    if old.status.allocation is None:
        yield from _allocation(status.allocation, "status.allocation", known)
    elif status.allocation != old.status.allocation:
        yield field.invalid("status.allocation", None, "field cannot be modified once set")


def without_deallocated(new: ResourceClaim, old: ResourceClaim) -> ResourceClaim:
    """Return a claim without the reports on devices that were allocated and no longer are, as a server drops them."""
    gone = _allocated(old.status.allocation) - _allocated(new.status.allocation)
    devices = tuple(one for one in new.status.devices if _key(one) not in gone)
    if devices == new.status.devices:
        return new
    return msgspec.structs.replace(new, status=msgspec.structs.replace(new.status, devices=devices))


def _as_go_shows(item: AllocatedDeviceStatus) -> dict[str, object]:
    """Return a report as the server writes it, which never leaves out its conditions."""
    given = {"conditions": None, **msgspec.to_builtins(item)}
    known = [one.encode_name for one in msgspec.structs.fields(item)]
    return {key: given[key] for key in known if key in given}


def _as_is(item: object) -> object:
    return item


def _only_new(found: Iterator[str], claim: ResourceClaim) -> Iterator[str]:
    """Yield the problems of an update that the rules for new objects do not say already."""
    said = set(metadata.problems(claim.metadata, is_namespaced=True))
    return (problem for problem in found if problem not in said)


def _reserved(new: ResourceClaim, old: ResourceClaim) -> Iterator[str]:
    users, path = new.status.reserved_for, "status.reservedFor"
    yield from field.each(users, path, _user, most=RESERVED_MOST)
    if len(users) <= RESERVED_MOST:
        yield from field.unique(users, path, lambda one: one.uid, _as_is)
    if users and new.status.allocation is None:
        yield field.forbidden(path, "may not be specified when `allocated` is not set")
    elif new.metadata.deletion_timestamp is not None and set(users) - set(old.status.reserved_for):
        detail = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        yield field.forbidden(path, detail)


def _user(item: ResourceClaimConsumerReference, path: str) -> Iterator[str]:
    for key, value in (("resource", item.resource), ("name", item.name), ("uid", item.uid)):
        if not value:
            yield field.required(f"{path}.{key}")


def _key(item: AllocatedDeviceStatus | DeviceRequestAllocationResult) -> DeviceKey:
    return item.driver, item.pool, item.device, item.share_id


def _allocated(allocation: AllocationResult | None) -> frozenset[DeviceKey]:
    return frozenset(_key(one) for one in allocation.devices.results) if allocation else frozenset()


def _allocation(item: AllocationResult, path: str, known: request.Names) -> Iterator[str]:
    devices = f"{path}.devices"
    yield from field.each(
        item.devices.results, f"{devices}.results", lambda one, where: _result(one, where, known), most=RESULTS_MOST
    )
    yield from field.each(
        item.devices.config,
        f"{devices}.config",
        lambda one, where: _configuration(one, where, known),
        most=2 * request.CONFIG_MOST,
    )
    if item.node_selector is not None:
        yield from metadata.node_selector(item.node_selector, f"{path}.nodeSelector")


def _result(item: DeviceRequestAllocationResult, path: str, known: request.Names) -> Iterator[str]:
    yield from name.reference(f"{path}.request", item.request, known)
    yield from name.declared_driver(f"{path}.driver", item.driver)
    yield from name.declared_pool(f"{path}.pool", item.pool)
    yield from name.dns_label(f"{path}.device", item.device)
    yield from device.binding_conditions(item.binding_conditions, item.binding_failure_conditions, path)
    yield from field.each(item.tolerations, f"{path}.tolerations", request.toleration)
    if item.share_id is not None:
        yield from name.uuid(f"{path}.shareID", item.share_id)
    yield from device.skip_node_operations(item.skip_node_operations, f"{path}.skipNodeOperations")


def _configuration(item: DeviceAllocationConfiguration, path: str, known: request.Names) -> Iterator[str]:
    if not item.source:
        yield field.required(f"{path}.source")
    elif item.source not in _SOURCES:
        yield field.unsupported(f"{path}.source", item.source, _SOURCES)
    yield from request.references(item.requests, f"{path}.requests", known)
    yield from request.opaque(item.opaque, f"{path}.opaque")


def _device_status(item: AllocatedDeviceStatus, path: str, allocated: frozenset[DeviceKey]) -> Iterator[str]:
    yield from name.driver(f"{path}.driver", item.driver)
    yield from name.pool(f"{path}.pool", item.pool)
    yield from name.dns_label(f"{path}.device", item.device)
    if item.share_id is not None:
        yield from name.uuid(f"{path}.shareID", item.share_id)
    if _key(item) not in allocated:
        shown = {"Driver": item.driver, "Pool": item.pool, "Device": item.device, "ShareID": item.share_id or ""}
        yield field.invalid(path, shown, "must be an allocated device in the claim")
    yield from metadata.conditions(item.conditions or (), f"{path}.conditions", CONDITIONS_MOST)
    if item.data is not None:
        yield from request.json_object(item.data, f"{path}.data", DATA_LONGEST)
    if item.network_data is not None:
        yield from _network(item.network_data, f"{path}.networkData")


def _network(item: NetworkDeviceData, path: str) -> Iterator[str]:
    if name.length(item.interface_name) > INTERFACE_LONGEST:
        yield field.too_long(f"{path}.interfaceName", INTERFACE_LONGEST)
    if name.length(item.hardware_address) > HARDWARE_LONGEST:
        yield field.too_long(f"{path}.hardwareAddress", HARDWARE_LONGEST)
    yield from field.each(item.ips, f"{path}.ips", _address, most=ADDRESSES_MOST)
    if len(item.ips) <= ADDRESSES_MOST:
        yield from field.unique(item.ips, f"{path}.ips", str, str)


def _address(text: str, path: str) -> Iterator[str]:
    canonical = canonical_address(text)
    if canonical is None:
        yield field.invalid(path, text, _ADDRESS_WRONG)
    elif canonical != text:
        yield field.invalid(path, text, f"must be in canonical form ({field.shown(canonical)})")


def canonical_address(text: str) -> str | None:
    """Return an address with its prefix length in the form that Go writes, None: it is not one."""
    address, slash, bits = text.partition("/")
    if not slash or "%" in address or not (bits.isascii() and bits.isdigit()) or len(bits) > len("128"):
        return None
    try:
        # Go reads leading zeros of IPv4 as nothing; Python refuses them.
        is_plain = ":" not in address
        read = ".".join(str(int(part)) for part in address.split(".")) if is_plain else address
        found = ipaddress.ip_address(read)
    except ValueError:
        return None
    size = int(bits)
    if size > found.max_prefixlen:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    if mapped is not None:
        return f"{mapped}/{size - _MAPPED_BITS if size > _IPV4_BITS else size}"
    return f"{found}/{size}"
