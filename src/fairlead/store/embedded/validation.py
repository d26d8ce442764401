"""Validates metadata by the rules of every Kubernetes object, in Kubernetes' wording.

Specs are not looked at: what a kind allows is decided by the reader who acts on it.
Source: apimachinery `pkg/util/validation` and `pkg/api/validation/objectmeta.go`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fairlead import errors
from fairlead.store.embedded import document as documents
from fairlead.store.embedded import semantics
from fairlead.store.embedded.document import Document
from fairlead.wire.kubernetes import meta

_LARGEST_ANNOTATIONS_BYTES = 262_144

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_DNS_LABEL = re.compile(_LABEL)
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")

_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character"
)
_WORD_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)


def check(kind: str, document: Document, *, namespaced: bool) -> None:
    """Refuse metadata that a Kubernetes API server would refuse. Raises: Invalid."""
    about = documents.metadata(document)
    _check_name(kind, document, about)
    _check_namespace(document, str(about.get("namespace", "")), namespaced=namespaced)
    _check_labels(document, about.get("labels", {}))
    _check_annotations(document, about.get("annotations", {}))
    for name in about.get("finalizers", ()):
        if problem := _finalizer_problem(name):
            _refuse(document, "metadata.finalizers", name, problem)


def _finalizer_problem(name: str) -> str | None:
    if "/" not in name:
        return "name is neither a standard finalizer name nor is it fully qualified"
    return qualified_name_problem(name)


def _check_name(kind: str, document: Document, about: Document) -> None:
    name = about.get("name", "")
    if not name:
        _refuse(document, "metadata.name", name, "name or generateName is required")
    longest, pattern = (63, _DNS_LABEL) if kind == semantics.NAMESPACE else (253, _SUBDOMAIN)
    if len(name) > longest:
        _refuse(document, "metadata.name", name, f"must be no more than {longest} characters")
    if not pattern.fullmatch(name):
        _refuse(document, "metadata.name", name, _SUBDOMAIN_RULE)


def _check_namespace(document: Document, namespace: str, *, namespaced: bool) -> None:
    if namespaced and not namespace:
        _refuse(document, "metadata.namespace", namespace, "this kind lives in a namespace: name one")
    if not namespaced and namespace:
        _refuse(document, "metadata.namespace", namespace, "not allowed on this type: it is cluster-scoped")
    if namespace and not (len(namespace) <= 63 and _DNS_LABEL.fullmatch(namespace)):
        _refuse(
            document, "metadata.namespace", namespace, "must be a lowercase RFC 1123 label of at most 63 characters"
        )


def _check_labels(document: Document, labels: Mapping[str, str]) -> None:
    for name, value in labels.items():
        if problem := qualified_name_problem(name):
            _refuse(document, "metadata.labels", name, problem)
        if problem := label_value_problem(value):
            _refuse(document, f'metadata.labels["{name}"]', value, problem)


def _check_annotations(document: Document, annotations: Mapping[str, str]) -> None:
    for name in annotations:
        if problem := qualified_name_problem(name.lower()):
            _refuse(document, "metadata.annotations", name, problem)
    if sum(len(name) + len(value) for name, value in annotations.items()) > _LARGEST_ANNOTATIONS_BYTES:
        _refuse(document, "metadata.annotations", "…", f"must have at most {_LARGEST_ANNOTATIONS_BYTES} bytes")


def qualified_name_problem(name: str) -> str | None:
    """Return what is wrong with a label, annotation or finalizer name (`[prefix/]name`), None where nothing is."""
    prefix, slash, rest = name.rpartition("/")
    if slash and not (len(prefix) <= 253 and _SUBDOMAIN.fullmatch(prefix)):
        return f"prefix part {_SUBDOMAIN_RULE}"
    if not 1 <= len(rest) <= 63:
        return "name part must be non-empty and no more than 63 characters"
    return None if _WORD.fullmatch(rest) else f"name part {_WORD_RULE}"


def label_value_problem(value: str) -> str | None:
    """Return what is wrong with a label's value, None where nothing is."""
    if len(value) > 63:
        return "must be no more than 63 characters"
    return None if not value or _WORD.fullmatch(value) else f"a valid label must be an empty string or {_WORD_RULE}"


def check_size(document: Document, text: str) -> None:
    """Refuse objects that no cluster would store. Raises: Invalid."""
    if (size := len(text.encode())) > meta.LARGEST_BYTES:
        message = f"{semantics.describe(document)} is too large: {size} bytes, the limit is {meta.LARGEST_BYTES}"
        raise errors.Invalid(message, reason="ObjectTooLarge")


def _refuse(document: Document, path: str, value: str, problem: str) -> None:
    message = f'{semantics.describe(document)} is invalid: {path}: Invalid value: "{value}": {problem}'
    raise errors.Invalid(message, reason="InvalidMetadata", field=path)
