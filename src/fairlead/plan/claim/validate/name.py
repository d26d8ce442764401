"""Checks the forms of names: DNS labels and subdomains, C identifiers, qualified names, labels, pools, UUIDs.

The functions whose name ends in `_faults` yield what is wrong with a text; the others yield whole problems of a field.
The server counts the length of the same forms in `characters` where its rules are written by hand and in `bytes` where
they are declared; it means bytes both times.
Source: apimachinery pkg/util/validation/validation.go, pkg/api/validate/content and pkg/api/validate/strfmt.go.
"""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from fairlead.plan.claim.validate import field

DOMAIN_LONGEST: Final = 63
"""Of a driver's name and of the domain of an attribute."""
IDENTIFIER_LONGEST: Final = 32
KEY_LONGEST: Final = DOMAIN_LONGEST + 1 + IDENTIFIER_LONGEST
LABEL_LONGEST: Final = 63
SUBDOMAIN_LONGEST: Final = 253

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_IDENTIFIER: Final = "[A-Za-z_][A-Za-z0-9_]*"
_KEY: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE: Final = f"({_KEY})?"
_LABEL_WRONG: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    f"an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_SUBDOMAIN_WRONG: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_CASELESS_WRONG: Final = (
    "an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', and must start and end with an "
    f"alphanumeric character (e.g. 'Example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_IDENTIFIER_WRONG: Final = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    f"or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '{_IDENTIFIER}')"
)
_KEY_WRONG: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_KEY}')"
)
_KEY_HINT: Final = " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
_VALUE_WRONG: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'{_VALUE}')"
)
_QUALIFIED_WRONG: Final = "a fully qualified name must be a domain and a name separated by a slash"
_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def _is(form: str, text: str) -> bool:
    return _pattern(form).fullmatch(text) is not None


def length(text: str) -> int:
    """Return the bytes of a text."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _too_long(text: str, most: int, unit: str) -> Iterator[str]:
    if length(text) > most:
        yield f"must be no more than {most} {unit}"


def dns_label_faults(text: str, unit: str = "characters") -> Iterator[str]:
    """Yield why a text is not an RFC 1123 label."""
    yield from _too_long(text, LABEL_LONGEST, unit)
    if not _is(_LABEL, text):
        yield "must not contain dots" if _is(_SUBDOMAIN, text) else _LABEL_WRONG


def dns_subdomain_faults(text: str, unit: str = "characters") -> Iterator[str]:
    """Yield why a text is not an RFC 1123 subdomain in lower case."""
    yield from _too_long(text, SUBDOMAIN_LONGEST, unit)
    if not _is(_SUBDOMAIN, text):
        yield _SUBDOMAIN_WRONG


def label_key_faults(text: str) -> Iterator[str]:
    """Yield why a text is not the key of a label: a name, with or without a domain before it."""
    *domains, name = text.split("/")
    if len(domains) > 1:
        yield f"a valid label key {_KEY_WRONG}{_KEY_HINT}"
        return
    for domain in domains:
        faults = dns_subdomain_faults(domain, "bytes") if domain else ["must be non-empty"]
        yield from (f"prefix part {fault}" for fault in faults)
    if not name:
        yield "name part must be non-empty"
    yield from (f"name part {fault}" for fault in _too_long(name, LABEL_LONGEST, "bytes"))
    if not _is(_KEY, name):
        yield f"name part {_KEY_WRONG}"


def label_value_faults(text: str) -> Iterator[str]:
    """Yield why a text is not the value of a label."""
    yield from _too_long(text, LABEL_LONGEST, "bytes")
    if not _is(_VALUE, text):
        yield _VALUE_WRONG


def dns_label(path: str, text: str, unit: str = "characters") -> Iterator[str]:
    """Yield the problems of a field that holds an RFC 1123 label."""
    yield from (field.invalid(path, text, fault) for fault in dns_label_faults(text, unit))


def dns_subdomain(path: str, text: str, unit: str = "characters") -> Iterator[str]:
    """Yield the problems of a field that holds an RFC 1123 subdomain."""
    yield from (field.invalid(path, text, fault) for fault in dns_subdomain_faults(text, unit))


def label_key(path: str, text: str) -> Iterator[str]:
    """Yield the problems of a field that holds the key of a label."""
    yield from (field.invalid(path, text, fault) for fault in label_key_faults(text))


def label_value(path: str, text: str) -> Iterator[str]:
    """Yield the problems of a field that holds the value of a label."""
    yield from (field.invalid(path, text, fault) for fault in label_value_faults(text))


def driver(path: str, text: str) -> Iterator[str]:
    """Yield the problems of a driver's name where the rule is written by hand: an RFC 1123 subdomain in any case."""
    if not text:
        yield field.required(path)
        return
    if length(text) > DOMAIN_LONGEST:
        yield field.too_long(path, DOMAIN_LONGEST)
    yield from (field.invalid(path, text, fault) for fault in dns_subdomain_faults(text.lower()))


def declared_driver(path: str, text: str) -> Iterator[str]:
    """Yield the problems of a driver's name where the rule is declared; it is the same rule in other words."""
    if not text:
        yield field.required(path)
        return
    if len(text) > DOMAIN_LONGEST:
        yield field.too_long(path, DOMAIN_LONGEST, "characters")
    yield from caseless(path, text)


def caseless(path: str, text: str) -> Iterator[str]:
    """Yield the problems of a field that holds an RFC 1123 subdomain in any case."""
    yield from (field.invalid(path, text, fault) for fault in _too_long(text, SUBDOMAIN_LONGEST, "bytes"))
    if not _is(_SUBDOMAIN, text.translate(_LOWER)):
        yield field.invalid(path, text, _CASELESS_WRONG)


def pool(path: str, text: str) -> Iterator[str]:
    """Yield the problems of a pool's name: RFC 1123 subdomains joined by `/`."""
    if not text:
        yield field.required(path)
        return
    if length(text) > SUBDOMAIN_LONGEST:
        yield field.too_long(path, SUBDOMAIN_LONGEST)
    for part in text.split("/"):
        yield from dns_subdomain(path, part)


def declared_pool(path: str, text: str) -> Iterator[str]:
    """Yield the problems of a pool's name where the rule is declared, with the number of the part that is wrong."""
    yield from pool_parts(path, text) if text else [field.required(path)]


def pool_parts(path: str, text: str) -> Iterator[str]:
    """Yield the problems of a pool's name that may be empty only where it is absent."""
    if length(text) > SUBDOMAIN_LONGEST:
        yield field.too_long(path, SUBDOMAIN_LONGEST)
    for at, part in enumerate(text.split("/")):
        if not part:
            yield field.invalid(path, text, f"segment {at}: must not be empty")
            continue
        faults = dns_subdomain_faults(part, "bytes")
        yield from (field.invalid(path, part, f"segment {at}: {fault}") for fault in faults)


def _identifier(path: str, text: str) -> Iterator[str]:
    if length(text) > IDENTIFIER_LONGEST:
        yield field.too_long(path, IDENTIFIER_LONGEST)
    if not _is(_IDENTIFIER, text):
        yield field.invalid(path, text, _IDENTIFIER_WRONG)


def qualified(path: str, text: str) -> Iterator[str]:
    """Yield the problems of the name of an attribute or capacity: a C identifier, with or without a domain.

    A name with more than one `/` passes, as it does on a server.
    """
    parts = text.split("/")
    if len(parts) == 1:
        yield from _identifier(path, text)
    elif len(parts) == 2:
        domain, name = parts
        yield from driver(path, domain) if domain else [field.invalid(path, "", "the domain must not be empty")]
        yield from _identifier(path, name) if name else [field.invalid(path, "", "the name must not be empty")]


def fully_qualified(path: str, text: str) -> Iterator[str]:
    """Yield the problems of the name of an attribute with its domain."""
    parts = text.split("/")
    if len(parts) == 1:
        yield from _identifier(path, text)
        yield field.invalid(path, text, _QUALIFIED_WRONG)
    elif len(parts) == 2:
        domain, name = parts
        if not domain:
            yield field.invalid(path, "", "prefix must not be empty")
        elif length(domain) > DOMAIN_LONGEST:
            yield field.too_long(path, DOMAIN_LONGEST)
        faults = dns_subdomain_faults(domain, "bytes") if domain else ()
        yield from (field.invalid(path, domain, f"prefix: {fault}") for fault in faults)
        yield from _identifier(path, name) if name else [field.invalid(path, "", "name must not be empty")]


def extended_resource(path: str, text: str) -> Iterator[str]:
    """Yield the problems of the name of an extended resource."""
    if "/" not in text:
        yield field.invalid(path, text, "a name must be a domain-prefixed path, such as 'example.com/my-prop'")
    elif "kubernetes.io/" in text:
        yield field.invalid(path, text, 'must not have "kubernetes.io/" domain')
    if text.startswith("requests."):
        yield field.invalid(path, text, 'must not have "requests." prefix')
    yield from (field.invalid(path, text, fault) for fault in label_key_faults(f"requests.{text}"))


def uuid(path: str, text: str) -> Iterator[str]:
    """Yield the problem of a share id that is not a UUID in lower case."""
    if not _UUID.fullmatch(text):
        yield field.invalid(path, text, "must be a lowercase UUID in 8-4-4-4-12 format")


def labels(path: str, given: Mapping[str, str]) -> Iterator[str]:
    """Yield the problems of labels; the server names the map, not the key."""
    for key, value in given.items():
        yield from label_key(path, key)
        yield from label_value(path, value)


def reference(path: str, text: str, known: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yield the problems of a name that names a request of the claim, or one of its alternatives.

    Args:    known: names of requests, with the names of their alternatives.
    """
    wrong = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
    parts = text.split("/")
    if len(parts) > 2:
        yield field.invalid(path, text, wrong)
        return
    for part in parts:
        yield from dns_label(path, part)
    if parts[0] not in known or (len(parts) > 1 and parts[1] not in known[parts[0]]):
        yield field.invalid(path, text, wrong)
