"""What a pod says of names: lines of /etc/hosts, a resolver, a host name of its own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.plan.pod.network import resolver
from fairlead.wire.kubernetes import core


def _problems(**spec: Any) -> list[str]:
    return list(resolver.problems(msgspec.convert(spec, core.PodSpec)))


def test_lines_of_etc_hosts_are_addresses_and_names() -> None:
    found = _problems(hostAliases=[{"ip": "x", "hostnames": ["A b"]}, {"ip": "fe80::1%eth0", "hostnames": ["a"]}])
    assert [text.partition(":")[0] for text in found] == [
        "spec.hostAliases[0].ip",
        "spec.hostAliases[0].hostnames",
        "spec.hostAliases[1].ip",
    ]


@pytest.mark.parametrize("policy", ["", "Default", "ClusterFirst", "ClusterFirstWithHostNet"])
def test_options_come_beside_the_engines_servers_and_nothing_else_does(policy: str) -> None:
    assert (
        _problems(dnsPolicy=policy, dnsConfig={"options": [{"name": "ndots", "value": "1"}, {"name": "rotate"}]}) == []
    )
    found = _problems(dnsPolicy=policy, dnsConfig={"nameservers": ["10.0.0.1"], "searches": ["lab"]})
    assert len(found) == 2
    assert all("write dnsPolicy: None beside them" in text for text in found)


def test_a_resolver_of_its_own_has_a_server() -> None:
    whole = {"nameservers": ["10.0.0.1", "fd00::1"], "searches": ["lab.local", "_tcp.lab.", "."]}
    assert _problems(dnsPolicy="None", dnsConfig=whole) == []
    (found,) = _problems(dnsPolicy="None", dnsConfig={"searches": ["lab"]})
    assert "must provide at least one DNS nameserver" in found
    (found,) = _problems(dnsPolicy="Nobody")
    assert 'supported values: "ClusterFirstWithHostNet"' in found


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"nameservers": ["dns.lab"]}, "nameservers[0]"),
        ({"nameservers": ["10.0.0.1\n--privileged"]}, "nameservers[0]"),
        ({"nameservers": ["10.0.0.1"] * 4}, "nameservers"),
        ({"searches": ["lab\nnameserver 9.9.9.9"]}, "searches[0]"),
        ({"searches": ["-lab"]}, "searches[0]"),
        ({"searches": ["lab"] * 33}, "searches"),
        ({"searches": ["a" * 63 + ".lab"] * 32}, "searches"),
        ({"options": [{"name": "ndots 5", "value": "1"}]}, "options[0].name"),
        ({"options": [{"name": "--init"}]}, "options[0].name"),
        ({"options": [{"name": "ndots", "value": "1\nnameserver 9.9.9.9"}]}, "options[0].value"),
    ],
)
def test_a_line_of_resolv_conf_is_one_line(config: dict[str, Any], path: str) -> None:
    (found,) = _problems(dnsPolicy="None", dnsConfig={"nameservers": ["10.0.0.1"], **config})
    assert found.startswith(f"spec.dnsConfig.{path}: ")


def test_a_container_without_a_network_asks_nobody() -> None:
    (found,) = _problems(machine={"noNetwork": True}, dnsConfig={"options": [{"name": "rotate"}]})
    assert found.startswith("spec.dnsConfig: Forbidden")


@pytest.mark.parametrize("name", ["", "A", "a_b", "x" * 65, "a b", "-a"])
def test_a_host_name_of_its_own_is_a_dns_name(name: str) -> None:
    (found,) = _problems(hostnameOverride=name)
    assert found.startswith("spec.hostnameOverride: ")


def test_a_host_name_of_its_own_may_have_dots_and_is_not_the_nodes() -> None:
    assert _problems(hostnameOverride="db.lab.local") == []
    (found,) = _problems(hostnameOverride="db.lab.local", hostNetwork=True)
    assert "may not be given beside hostNetwork" in found


def test_of_an_option_that_is_given_twice_the_last_counts() -> None:
    twice = core.PodDNSConfig(
        options=(
            core.PodDNSConfigOption(name="ndots", value="5"),
            core.PodDNSConfigOption(name="ndots", value="1"),
            core.PodDNSConfigOption(name="rotate"),
        )
    )
    assert resolver.options(twice) == ("ndots:1", "rotate")
