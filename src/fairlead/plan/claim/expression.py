"""Asks CEL whether a device meets an expression, and says whether an API server would store an expression.

A device is read for CEL once and kept at its candidate. The release says whose costs count.
Source: k8s.io/dynamic-resource-allocation v0.37.2 cel/compile.go; kubernetes 1.37 pkg/apis/resource/validation
(behaviour).
"""

from __future__ import annotations

from typing import Final

from fairlead import errors
from fairlead.plan.cel import compile as cel
from fairlead.plan.cel.device import DeviceView, Scalar, Version
from fairlead.plan.cel.problem import CELError
from fairlead.plan.cel.running.charge import LIMIT
from fairlead.plan.cel.semver import Semver
from fairlead.plan.claim.gate import DEFAULTS, Gates
from fairlead.plan.claim.pool.candidate import Candidate
from fairlead.plan.claim.selector import Derived, Derives, DeviceError, Matches, SelectorError
from fairlead.plan.claim.validate.request import TOO_COMPLEX, Check, Rules
from fairlead.wire.kubernetes.resource.device import Device, DeviceAttribute

LATEST: Final = cel.RELEASES[-1]


def matcher(release: str = LATEST) -> Matches:
    """Return what the search asks, with the costs of a release of Kubernetes."""

    def matches(expression: str, candidate: Candidate) -> bool:
        try:
            selector = cel.compile_selector(expression, release=release)
        except errors.Invalid as error:
            raise SelectorError(error.message, is_compile=True) from error
        device = view(candidate)
        try:
            return selector.matches(device)
        except CELError as error:
            raise SelectorError(error.message) from error

    return matches


def deriver(release: str = LATEST) -> Derives:
    """Return what computes attributes, with the costs of a release of Kubernetes."""

    def derives(expression: str, candidate: Candidate) -> Derived:
        try:
            made = cel.compile_selector(expression, release=release, result=cel.DERIVED)
        except errors.Invalid as error:
            raise SelectorError(error.message, is_compile=True) from error
        try:
            return _derived(made.evaluate(view(candidate)).value)
        except CELError as error:
            raise SelectorError(error.message) from error

    return derives


def _derived(value: object) -> Derived:
    """Return a value of CEL as that of an attribute. Raises: CELError: no attribute can have it."""
    items = value if isinstance(value, tuple) else (value,)
    found = tuple((_KINDS.get(type(one), ""), one.text if isinstance(one, Semver) else one) for one in items)
    kinds = {kind for kind, _ in found}
    if "" in kinds or len(kinds) > 1:
        raise CELError("unsupported type of a derived attribute", reason="CELFailed")
    return Derived(frozenset(found), is_list=isinstance(value, tuple))


_KINDS: Final = {bool: "bool", int: "int", str: "string", Semver: "version"}


def derived_cost(expression: str, release: str = LATEST) -> int:
    """Return the most that computing an attribute may cost by an API server's estimate; 0: it does not compile."""
    try:
        estimate = cel.compile_selector(expression, release=release, result=cel.DERIVED).estimate()
    except errors.Invalid:
        return 0
    return LIMIT + 1 if estimate is None else estimate


def checker(release: str = LATEST, *, result: str = cel.SELECTOR) -> Check:
    """Return what an API server asks of an expression before it stores it. Args: result: see `cel.compile`."""

    def check(expression: str) -> str | None:
        try:
            estimate = cel.compile_selector(expression, release=release, result=result).estimate()
        except errors.Invalid as error:
            return error.message
        return TOO_COMPLEX if estimate is None or estimate > LIMIT else None

    return check


def rules(gates: Gates = DEFAULTS) -> Rules:
    """Return what an API server of 1.37 asks of the expressions of claims and classes."""
    derived = cel.DERIVED if gates.list_type_attributes else cel.DERIVED_SCALAR
    return Rules(
        check_selector=checker(), gates=gates, check_derived=checker(result=derived), derived_cost=derived_cost
    )


def view(candidate: Candidate) -> DeviceView:
    """Return a device as selectors see it. Raises: DeviceError."""
    if not candidate.views:
        try:
            candidate.views.append(of_device(candidate.id.driver, candidate.device))
        except errors.FairleadError as error:
            raise DeviceError(error.message) from error
    return candidate.views[0]


def of_device(driver: str, device: Device) -> DeviceView:
    """Return a published device as selectors see it. Raises: CELError, Invalid."""
    return DeviceView(
        driver=driver,
        attributes={name: _value(name, one) for name, one in device.attributes.items()},
        capacity={name: str(one.value) for name, one in device.capacity.items()},
        allow_multiple_allocations=device.allow_multiple_allocations,
    )


def _value(name: str, attribute: DeviceAttribute) -> Scalar | tuple[Scalar, ...]:
    """Return the value of an attribute. Raises: CELError: it has none of a kind that is known."""
    scalars = (attribute.int_, attribute.bool_, attribute.string)
    for one in scalars:
        if one is not None:
            return one
    if attribute.version is not None:
        return Version(attribute.version)
    for items in (attribute.ints, attribute.bools, attribute.strings):
        if items:
            return tuple(items)
    if attribute.versions:
        return tuple(Version(one) for one in attribute.versions)
    raise CELError(f"attribute {name}: unsupported attribute value", reason="CELDevice")
