"""Judges a pod's /etc/hosts and /etc/resolv.conf before it is stored, in the API server's words. Pure.

An engine has name servers and search domains of its own, which those of a pod replace: they are taken with
`dnsPolicy: None` alone, which says so. Options come beside the engine's under every policy.
Source: kubernetes pkg/apis/core/validation (validatePodDNSConfig, validateDNSPolicy, validateHostAliases).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from typing import Final

from fairlead import errors
from fairlead.wire.kubernetes import core, names

NONE: Final = "None"
_POLICIES: Final = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", NONE)
_MOST_SERVERS: Final = 3
_MOST_SEARCHES: Final = 32
_LONGEST_SEARCHES: Final = 2048
_SEARCH: Final = re.compile(
    r"\.|(?=.{1,253}\.?$)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?)*\.?"
)
_OPTION: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")
_VALUE: Final = re.compile(r"[A-Za-z0-9._-]{1,63}")


def problems(spec: core.PodSpec) -> Iterator[str]:
    """Yield what is wrong with the names that a pod's containers are to know."""
    yield from _aliases(spec)
    if spec.hostname_override is not None:
        yield from _override(spec)
    if spec.dns_policy not in {"", *_POLICIES}:
        shown, offered = errors.readable(spec.dns_policy[:80]), ", ".join(f'"{one}"' for one in _POLICIES)
        yield f'spec.dnsPolicy: Unsupported value: "{shown}": supported values: {offered}'
    config = spec.dns_config or core.PodDNSConfig()
    if spec.dns_policy == NONE and not config.nameservers:
        why = f"must provide at least one DNS nameserver when `dnsPolicy` is {NONE}"
        yield f"spec.dnsConfig.nameservers: Required value: {why}"
    if spec.machine is not None and spec.machine.no_network and spec.dns_config is not None:
        yield "spec.dnsConfig: Forbidden: a container without a network asks nobody for names"
    yield from _servers(spec, config)
    yield from _searches(spec, config)
    for index, one in enumerate(config.options):
        path = f"spec.dnsConfig.options[{index}]"
        if not _OPTION.fullmatch(one.name):
            yield f'{path}.name: Invalid value: "{errors.readable(one.name[:80])}": must be a word such as ndots'
        if one.value is not None and not _VALUE.fullmatch(one.value):
            yield f'{path}.value: Invalid value: "{errors.readable(one.value[:80])}": must be one word'


def options(config: core.PodDNSConfig) -> tuple[str, ...]:
    """Return the options of a resolver as resolv.conf(5) has them, `ndots:2`; of one name, the last counts."""
    given = {one.name: one.value for one in config.options}
    return tuple(name if not value else f"{name}:{value}" for name, value in given.items())


def _replaced(path: str, given: Sequence[str], policy: str, *, most: int) -> Iterator[str]:
    if given and policy != NONE:
        yield f"{path}: Forbidden: on one machine they replace the engine's own: write dnsPolicy: {NONE} beside them"
    if len(given) > most:
        yield f"{path}: Too many: {len(given)}: must have at most {most} items"


def _servers(spec: core.PodSpec, config: core.PodDNSConfig) -> Iterator[str]:
    path = "spec.dnsConfig.nameservers"
    yield from _replaced(path, config.nameservers, spec.dns_policy, most=_MOST_SERVERS)
    for index, text in enumerate(config.nameservers):
        if not _is_address(text):
            yield f'{path}[{index}]: Invalid value: "{errors.readable(text[:80])}": must be an IPv4 or IPv6 address'


def _searches(spec: core.PodSpec, config: core.PodDNSConfig) -> Iterator[str]:
    path = "spec.dnsConfig.searches"
    yield from _replaced(path, config.searches, spec.dns_policy, most=_MOST_SEARCHES)
    if len(" ".join(config.searches)) > _LONGEST_SEARCHES:
        yield f"{path}: Too long: may not be more than {_LONGEST_SEARCHES} characters"
    for index, text in enumerate(config.searches):
        if not _SEARCH.fullmatch(text):
            yield f'{path}[{index}]: Invalid value: "{errors.readable(text[:80])}": {names.DNS_RULE}'


def _override(spec: core.PodSpec) -> Iterator[str]:
    name = spec.hostname_override or ""
    if not names.is_dns_subdomain(name) or len(name) > 64:
        shown = errors.readable(name[:80])
        yield f'spec.hostnameOverride: Invalid value: "{shown}": must be a DNS name of at most 64 characters'
    if spec.host_network:
        yield "spec.hostnameOverride: Forbidden: may not be given beside hostNetwork"


def _aliases(spec: core.PodSpec) -> Iterator[str]:
    for index, one in enumerate(spec.host_aliases):
        path = f"spec.hostAliases[{index}]"
        if not _is_address(one.ip):
            yield f'{path}.ip: Invalid value: "{errors.readable(one.ip[:80])}": must be a valid IP address'
        for name in one.hostnames:
            if not names.is_dns_subdomain(name):
                yield f'{path}.hostnames: Invalid value: "{errors.readable(name[:80])}": {names.DNS_RULE}'


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text
