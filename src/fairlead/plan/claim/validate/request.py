"""Checks what claims request, and the parts that classes and allocations share with them.

Source: kubernetes 1.37 pkg/apis/resource/validation/validation.go, validateDeviceClaim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fairlead.plan.claim.gate import DEFAULTS, Gates
from fairlead.plan.claim.validate import field, name
from fairlead.wire.kubernetes.resource.device import DeviceToleration
from fairlead.wire.kubernetes.resource.request import (
    DeviceClaim,
    DeviceClaimConfiguration,
    DeviceConstraint,
    DeviceDerivedAttribute,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    ExactDeviceRequest,
    OpaqueDeviceConfiguration,
)

REQUESTS_MOST: Final = 32
CONSTRAINTS_MOST: Final = 32
CONFIG_MOST: Final = 32
SELECTORS_MOST: Final = 32
ALTERNATIVES_MOST: Final = 8
DERIVED_MOST: Final = 32
DERIVED_COST_MOST: Final = 1_000_000
"""What all derived attributes of a claim may cost together."""
EXPRESSION_LONGEST: Final = 10 * 1024
PARAMETERS_LONGEST: Final = 10 * 1024
TOO_COMPLEX: Final = "too complex, exceeds cost limit"
_TOO_COMPLEX_TOGETHER: Final = (
    "too complex, total cost of derived attribute CEL expressions in the claim exceeds cost limit"
)
"""What a check of an expression returns that would be too slow; the server words it in another way than errors."""

EFFECTS: Final = ("NoExecute", "NoSchedule", "None")
_MODES: Final = ("All", "ExactCount")
_UNUSED: Final = (
    "must be referenced by at least one matchAttribute or distinctAttribute constraint targeting this request"
)

Check = Callable[[str], str | None]
"""Returns what is wrong with a CEL expression, None: nothing."""
Names = Mapping[str, frozenset[str]]
"""Requests of a claim by name, with the names of their alternatives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the rules depend on beside the object."""

    check_selector: Check
    gates: Gates = DEFAULTS
    check_derived: Check | None = None
    """For the expressions of derived attributes; None: they are not judged."""
    derived_cost: Callable[[str], int] | None = None
    """Returns what one of them may cost, as an API server estimates; None: their sum is not judged."""


def names(claim: DeviceClaim) -> Names:
    """Return the names that constraints, configuration and allocations may refer to."""
    return {one.name: frozenset(choice.name for choice in one.first_available) for one in claim.requests or ()}


def problems(claim: DeviceClaim, path: str, rules: Rules) -> Iterator[str]:
    """Yield what is wrong with the requests, constraints and configuration of a claim."""
    known = names(claim)
    used = _constrained(claim.constraints)
    requests = claim.requests or ()
    yield from field.each(
        requests, f"{path}.requests", lambda one, where: _request(one, where, rules, used), most=REQUESTS_MOST
    )
    if len(requests) <= REQUESTS_MOST:
        yield from field.unique(requests, f"{path}.requests", lambda one: one.name, _as_is)
    yield from field.each(
        claim.constraints,
        f"{path}.constraints",
        lambda one, where: _constraint(one, where, known, rules.gates),
        most=CONSTRAINTS_MOST,
    )
    yield from field.each(
        claim.config, f"{path}.config", lambda one, where: _configuration(one, where, known), most=CONFIG_MOST
    )
    if rules.derived_cost is not None and sum(map(rules.derived_cost, _computed(requests))) > DERIVED_COST_MOST:
        yield field.forbidden(path, _TOO_COMPLEX_TOGETHER)


def _computed(requests: Sequence[DeviceRequest]) -> Iterator[str]:
    """Yield the expressions of derived attributes that are short enough to be compiled."""
    for request in requests:
        for one in (*((request.exactly,) if request.exactly else ()), *request.first_available):
            for each in one.derived_attributes:
                if each.expression and name.length(each.expression) <= EXPRESSION_LONGEST:
                    yield each.expression


def _as_is(item: object) -> object:
    return item


def _request(item: DeviceRequest, path: str, rules: Rules, used: Mapping[str, set[str]]) -> Iterator[str]:
    yield from name.dns_label(f"{path}.name", item.name)
    if item.exactly is None and not item.first_available:
        yield field.required(path, "exactly one of `exactly` or `firstAvailable` is required")
    elif item.exactly is not None and item.first_available:
        detail = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set"
        yield field.invalid(path, None, detail)
    elif item.exactly is not None:
        exactly = f"{path}.exactly"
        yield from _class(f"{exactly}.deviceClassName", item.exactly.device_class_name, "characters")
        yield from _devices(item.exactly, exactly, rules)
        yield from _derived(item.exactly.derived_attributes, exactly, rules, _used(used, item.name))
    else:
        where = f"{path}.firstAvailable"
        yield from field.each(
            item.first_available,
            where,
            lambda one, place: _alternative(one, place, rules, _used(used, item.name, one.name)),
            most=ALTERNATIVES_MOST,
        )
        if len(item.first_available) <= ALTERNATIVES_MOST:
            yield from field.unique(item.first_available, where, lambda one: one.name, _as_is)


def _alternative(item: DeviceSubRequest, path: str, rules: Rules, used: set[str]) -> Iterator[str]:
    yield from name.dns_label(f"{path}.name", item.name)
    yield from _class(f"{path}.deviceClassName", item.device_class_name, "bytes")
    yield from _devices(item, path, rules)
    yield from _derived(item.derived_attributes, path, rules, used)


def _class(path: str, text: str, unit: str) -> Iterator[str]:
    yield from name.dns_subdomain(path, text, unit) if text else [field.required(path)]


def _devices(item: ExactDeviceRequest | DeviceSubRequest, path: str, rules: Rules) -> Iterator[str]:
    yield from selectors(item.selectors, f"{path}.selectors", rules.check_selector)
    match item.allocation_mode:
        case "All":
            if item.count:
                detail = "must not be specified when allocationMode is 'All'"
                yield field.invalid(f"{path}.count", item.count, detail)
        case "ExactCount":
            if item.count <= 0:
                yield field.invalid(f"{path}.count", item.count, "must be greater than zero")
        case mode:
            yield field.unsupported(f"{path}.allocationMode", mode, _MODES)
    yield from field.each(item.tolerations, f"{path}.tolerations", toleration)


def _used(used: Mapping[str, set[str]], *request: str) -> set[str]:
    """Return the attributes that constraints compare of a request or of one of its alternatives."""
    return set().union(*(used.get(key, set()) for key in ("", request[0], "/".join(request))))


def _derived(items: Sequence[DeviceDerivedAttribute], path: str, rules: Rules, used: set[str]) -> Iterator[str]:
    where = f"{path}.derivedAttributes"
    if len(items) > DERIVED_MOST:
        yield field.too_many(where, len(items), DERIVED_MOST)
    yield from field.unique(items, where, lambda one: one.name, lambda one: one.name)
    for at, one in enumerate(items):
        place = f"{where}[{at}]"
        if one.name and one.name not in used:
            yield field.invalid(f"{place}.name", one.name, _UNUSED)
        if len(items) <= DERIVED_MOST:
            yield from (
                name.fully_qualified(f"{place}.name", one.name) if one.name else [field.required(f"{place}.name")]
            )
            yield from [] if one.expression else [field.required(f"{place}.expression")]
        if one.expression and rules.check_derived is not None:
            yield from expression(one.expression, f"{place}.expression", rules.check_derived)


def selectors(items: Sequence[DeviceSelector], path: str, check: Check | None) -> Iterator[str]:
    """Yield what is wrong with selectors.

    Args:    check: None: the expressions are stored and stay as they are.
    """
    yield from field.each(items, path, lambda one, where: _selector(one, where, check), most=SELECTORS_MOST)


def _selector(item: DeviceSelector, path: str, check: Check | None) -> Iterator[str]:
    if item.cel is None:
        yield field.required(f"{path}.cel")
    elif check is not None:
        yield from expression(item.cel.expression, f"{path}.cel.expression", check)


def expression(text: str, path: str, check: Check) -> Iterator[str]:
    """Yield what is wrong with a CEL expression; one that is too long is not compiled."""
    if name.length(text) > EXPRESSION_LONGEST:
        yield field.too_long(path, EXPRESSION_LONGEST)
        return
    fault = check(text)
    if fault is not None:
        yield field.forbidden(path, fault) if fault == TOO_COMPLEX else field.invalid(path, text, fault)


def toleration(item: DeviceToleration, path: str) -> Iterator[str]:
    """Yield what is wrong with a toleration."""
    if item.key:
        yield from name.label_key(f"{path}.key", item.key)
    match item.operator:
        case "Exists":
            if item.value:
                yield field.invalid(f"{path}.value", item.value, "must be empty for operator `Exists`")
        case "Equal":
            yield from name.label_value(f"{path}.value", item.value)
        case operator:
            yield field.unsupported(f"{path}.operator", operator, ("Equal", "Exists"))
    if item.effect and item.effect not in EFFECTS:
        yield field.unsupported(f"{path}.effect", item.effect, EFFECTS)


def _constrained(constraints: Sequence[DeviceConstraint]) -> dict[str, set[str]]:
    """Return the attributes that constraints compare, by request or `request/alternative`; empty: of all requests."""
    found: dict[str, set[str]] = {}
    for one in constraints:
        attribute = one.match_attribute if one.match_attribute is not None else one.distinct_attribute
        for request in (one.requests or ("",)) if attribute is not None else ():
            found.setdefault(request, set()).add(attribute or "")
    return found


def _constraint(item: DeviceConstraint, path: str, known: Names, gates: Gates) -> Iterator[str]:
    yield from references(item.requests, f"{path}.requests", known)
    for key, attribute in (("matchAttribute", item.match_attribute), ("distinctAttribute", item.distinct_attribute)):
        if attribute is not None:
            yield from name.fully_qualified(f"{path}.{key}", attribute)
    if item.match_attribute is None and item.distinct_attribute is None:
        # The words for several fields are the server's, though none is set.
        detail = 'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'
        yield field.required(path, detail) if gates.consumable_capacity else field.required(f"{path}.matchAttribute")


def references(items: Sequence[str], path: str, known: Names) -> Iterator[str]:
    """Yield what is wrong with the names of requests of a claim."""
    yield from field.each(items, path, lambda one, where: name.reference(where, one, known), most=REQUESTS_MOST)
    if len(items) <= REQUESTS_MOST:
        yield from field.unique(items, path, str, str)


def _configuration(item: DeviceClaimConfiguration, path: str, known: Names) -> Iterator[str]:
    yield from references(item.requests, f"{path}.requests", known)
    yield from opaque(item.opaque, f"{path}.opaque")


def opaque(item: OpaqueDeviceConfiguration | None, path: str, *, is_stored: bool = False) -> Iterator[str]:
    """Yield what is wrong with the parameters for a driver; those that are stored may be longer."""
    if item is None:
        yield field.required(path)
        return
    yield from name.declared_driver(f"{path}.driver", item.driver)
    yield from json_object(item.parameters, f"{path}.parameters", None if is_stored else PARAMETERS_LONGEST)


def json_object(value: Any, path: str, longest: int | None) -> Iterator[str]:
    """Yield what is wrong with a document of a driver: it must be a JSON object, and compact of at most `longest`."""
    if value is None:
        yield field.required(path)
    elif longest is not None and len(msgspec.json.encode(value)) > longest:
        yield field.too_long(path, longest)
    elif not isinstance(value, dict):
        yield field.invalid(path, "<value omitted>", "must be a valid JSON object")
