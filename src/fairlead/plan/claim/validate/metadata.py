"""Checks metadata, conditions and node selectors, which objects of other groups have too.

Source: apimachinery pkg/api/validation/objectmeta.go, pkg/apis/meta/v1/validation/validation.go; kubernetes
pkg/apis/core/validation/validation.go (ValidateObjectMeta, ValidateTemplateObjectMeta, ValidateNodeSelector).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from fairlead.plan.claim.validate import field, name
from fairlead.wire.kubernetes import core, meta

_ANNOTATIONS_LONGEST: Final = 256 * 1024
_ORPHAN: Final = "orphan"
_FOREGROUND: Final = "foregroundDeletion"
_STANDARD: Final = frozenset({"kubernetes", _ORPHAN, _FOREGROUND})
_STATUSES: Final = ("False", "True", "Unknown")
_REASON: Final = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
_REASON_WRONG: Final = (
    "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric "
    "characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or "
    f"'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '{_REASON}')"
)
_IS_REASON: Final = re.compile(_REASON)
_REASON_LONGEST: Final = 1024
_MESSAGE_LONGEST: Final = 32 * 1024
IMMUTABLE: Final = "field is immutable"
NOT_NEGATIVE: Final = "must be greater than or equal to 0"


def problems(item: meta.ObjectMeta, *, is_namespaced: bool, unit: str = "characters") -> Iterator[str]:
    """Yield what is wrong with the metadata of a new object, whose name is an RFC 1123 subdomain.

    Args:    unit: in which the server counts the name, `characters` or `bytes`.
    """
    # The server cuts two characters of a name that ends with a dash, since a suffix follows it.
    prefix = f"{item.generate_name[:-2]}a" if item.generate_name[1:].endswith("-") else item.generate_name
    for fault in name.dns_subdomain_faults(prefix) if prefix and unit == "characters" else ():
        yield field.invalid("metadata.generateName", item.generate_name, fault)
    if item.name:
        yield from name.dns_subdomain("metadata.name", item.name, unit)
    elif not item.generate_name:
        yield field.required("metadata.name", "name or generateName is required")
    if not is_namespaced and item.namespace:
        yield field.forbidden("metadata.namespace", "not allowed on this type")
    elif is_namespaced and not item.namespace:
        yield field.required("metadata.namespace")
    elif is_namespaced:
        yield from name.dns_label("metadata.namespace", item.namespace)
    if item.generation < 0:
        yield field.invalid("metadata.generation", item.generation, NOT_NEGATIVE)
    yield from _common(item)
    yield from _finalizers(item.finalizers)
    yield from _kube_finalizers(item.finalizers)


def update_problems(new: meta.ObjectMeta, old: meta.ObjectMeta) -> Iterator[str]:
    """Yield what is wrong with the metadata of a changed object."""
    added = sorted(set(new.finalizers) - set(old.finalizers))
    if old.deletion_timestamp is not None and added:
        listed = "[]string{" + ", ".join(field.shown(one) for one in added) + "}"
        detail = f"no new finalizers can be added if the object is being deleted, found new finalizers {listed}"
        yield field.forbidden("metadata.finalizers", detail)
    if not new.resource_version:
        yield field.invalid("metadata.resourceVersion", "", "must be specified for an update")
    for key, was, now in (
        ("name", old.name, new.name),
        ("namespace", old.namespace, new.namespace),
        ("uid", old.uid, new.uid or old.uid),
    ):
        if was != now:
            yield field.invalid(f"metadata.{key}", now, IMMUTABLE)
    yield from _common(new)
    yield from _kube_finalizers(new.finalizers)


def template_problems(item: meta.ObjectMeta, path: str) -> Iterator[str]:
    """Yield what is wrong with the metadata of a template: only labels and annotations may be set."""
    yield from _annotations(item, path)
    yield from name.labels(f"{path}.labels", item.labels)
    for one in msgspec.structs.fields(item):
        if one.name not in {"labels", "annotations"} and getattr(item, one.name) not in (None, "", 0, ()):
            yield field.forbidden(f"{path}.{one.encode_name}", "cannot be set")


def conditions(items: Sequence[meta.Condition], path: str, most: int) -> Iterator[str]:
    """Yield what is wrong with the conditions of a status; all are looked at, however many there are."""
    if len(items) > most:
        yield field.too_many(path, len(items), most)
    yield from field.unique(items, path, lambda one: one.type, lambda one: one.type)
    yield from field.each(items, path, _condition)


def _condition(item: meta.Condition, path: str) -> Iterator[str]:
    if item.type:
        yield from name.label_key(f"{path}.type", item.type)
    else:
        yield field.required(f"{path}.type", "is required")
    if not item.status:
        yield field.required(f"{path}.status")
    elif item.status not in _STATUSES:
        yield field.unsupported(f"{path}.status", item.status, _STATUSES)
    if (item.observed_generation or 0) < 0:
        detail = "must be greater than or equal to zero"
        yield field.invalid(f"{path}.observedGeneration", item.observed_generation, detail)
    if item.last_transition_time is None:
        yield field.required(f"{path}.lastTransitionTime")
    if not item.reason:
        yield field.required(f"{path}.reason")
    elif not _IS_REASON.fullmatch(item.reason):
        yield field.invalid(f"{path}.reason", item.reason, _REASON_WRONG)
    if name.length(item.reason) > _REASON_LONGEST:
        yield field.too_long(f"{path}.reason", _REASON_LONGEST)
    if name.length(item.message) > _MESSAGE_LONGEST:
        yield field.too_long(f"{path}.message", _MESSAGE_LONGEST)


def _common(item: meta.ObjectMeta) -> Iterator[str]:
    yield from name.labels("metadata.labels", item.labels)
    yield from _annotations(item, "metadata")
    yield from field.each(item.owner_references, "metadata.ownerReferences", _owner)
    controllers = [f"{one.kind}/{one.name}" for one in item.owner_references if one.controller]
    for other in controllers[1:]:
        yield field.invalid(
            "metadata.ownerReferences",
            item.owner_references,
            'Only one reference can have Controller set to true. Found "true" in references for '
            f"{controllers[0]} and {other}",
        )


def _annotations(item: meta.ObjectMeta, path: str) -> Iterator[str]:
    for key in item.annotations:
        yield from (field.invalid(f"{path}.annotations", key, fault) for fault in name.label_key_faults(key.lower()))
    size = sum(name.length(key) + name.length(value) for key, value in item.annotations.items())
    if size > _ANNOTATIONS_LONGEST:
        yield field.too_long(f"{path}.annotations", _ANNOTATIONS_LONGEST)


def _owner(item: meta.OwnerReference, path: str) -> Iterator[str]:
    for key, value in (
        ("apiVersion", item.api_version),
        ("kind", item.kind),
        ("name", item.name),
        ("uid", item.uid),
    ):
        if not value:
            yield field.required(f"{path}.{key}", "must not be empty")
    if item.api_version and (item.api_version.count("/") > 1 or item.api_version.endswith("/")):
        yield field.invalid(f"{path}.apiVersion", item.api_version, "must be <group>/<version> or <version>")
    if (item.api_version, item.kind) == ("v1", "Event"):
        yield field.invalid(path, item, "/v1, Kind=Event is disallowed from being an owner")


def _finalizers(items: Sequence[str]) -> Iterator[str]:
    for one in items:
        yield from name.label_key("metadata.finalizers", one)
    if _ORPHAN in items and _FOREGROUND in items:
        detail = f"finalizer {_ORPHAN} and {_FOREGROUND} cannot be both set"
        yield field.invalid("metadata.finalizers", items, detail)


def _kube_finalizers(items: Sequence[str]) -> Iterator[str]:
    for at, one in enumerate(items):
        if "/" not in one and one not in _STANDARD:
            detail = "name is neither a standard finalizer name nor is it fully qualified"
            yield field.invalid(f"metadata.finalizers[{at}]", one, detail)


def node_selector(item: core.NodeSelector, path: str) -> Iterator[str]:
    """Yield what is wrong with a selector of nodes."""
    terms = f"{path}.nodeSelectorTerms"
    if not item.node_selector_terms:
        yield field.required(terms, "must have at least one node selector term")
    yield from field.each(item.node_selector_terms, terms, _term)


def _term(item: core.NodeSelectorTerm, path: str) -> Iterator[str]:
    yield from field.each(item.match_expressions, f"{path}.matchExpressions", _expression)
    yield from field.each(item.match_fields, f"{path}.matchFields", _field)


def _expression(item: core.NodeSelectorRequirement, path: str) -> Iterator[str]:
    values = f"{path}.values"
    match item.operator:
        case "In" | "NotIn":
            if not item.values:
                yield field.required(values, "must be specified when `operator` is 'In' or 'NotIn'")
        case "Exists" | "DoesNotExist":
            if item.values:
                yield field.forbidden(values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
        case "Gt" | "Lt":
            if len(item.values) != 1:
                yield field.required(values, "must be specified single value when `operator` is 'Lt' or 'Gt'")
        case _:
            yield field.invalid(f"{path}.operator", field.Constant(item.operator), "not a valid selector operator")
    yield from name.label_key(f"{path}.key", item.key)
    yield from field.each(item.values, values, lambda value, where: name.label_value(where, value))


def _field(item: core.NodeSelectorRequirement, path: str) -> Iterator[str]:
    values = f"{path}.values"
    if item.operator not in {"In", "NotIn"}:
        yield field.invalid(f"{path}.operator", field.Constant(item.operator), "not a valid selector operator")
    elif len(item.values) != 1:
        yield field.required(
            values, "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        )
    if item.key != "metadata.name":
        yield field.invalid(f"{path}.key", item.key, "not a valid field selector key")
    else:
        yield from field.each(item.values, values, lambda value, where: name.dns_subdomain(where, value))
