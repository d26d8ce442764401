"""Which hosts are containers', and where an opened port is found: pure."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.serve.opened import hosts

LABEL = "0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("host", "label"),
    [
        (f"{LABEL}.apps.example.org", LABEL),
        (f"{LABEL.upper()}.Apps.Example.ORG:8443", LABEL),
        (f"{LABEL}.apps.example.org.", LABEL),
        (f"{LABEL}.apps.localhost:1", LABEL),
        (f"{LABEL}.apps.example.org..", None),
        ("x.apps.example.org", ""),
        (f"a.{LABEL}.apps.example.org", ""),
        (f"{LABEL}x.apps.example.org", ""),
        (".apps.example.org", ""),
        (f"{LABEL}\x00.apps.example.org", ""),
        ("apps.example.org", None),
        (f"{LABEL}.notapps.example.org", None),
        (f"{LABEL}.apps.example.org.evil.example", None),
        (f"evil.example/{LABEL}.apps.example.org", ""),
        ("localhost", None),
        ("[::1]:8443", None),
        ("[::1", None),
        ("", None),
        (":", None),
    ],
)
def test_a_host_is_named_by_its_label_or_is_none_of_ours(host: str, label: str | None) -> None:
    assert hosts.label_of(host, ("apps.localhost", "apps.example.org")) == label


@pytest.mark.parametrize(
    ("text", "name", "port"),
    [("apps.gpu.lab.example", "apps.gpu.lab.example", None), ("Apps.Example:443", "apps.example", 443)],
)
def test_a_domain_is_read(text: str, name: str, port: int | None) -> None:
    assert hosts.parse_domain(text) == hosts.Domain(name=name, port=port)


@pytest.mark.parametrize(
    "text",
    [
        *("example", "*.example.org", ".example.org", "example.org.", "1.2.3.4", "a b.example", "a.example:0"),
        *("a.example:x", "a.example:99999", "a.example:", "https://a.example", "-a.example", "a_b.example"),
        *("a.example\n", "x." * 130 + "y"),
    ],
)
def test_what_is_no_domain_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        hosts.parse_domain(text)
    assert refused.value.reason == "OpenDomainInvalid"


def test_a_domain_above_the_service_s_own_names_is_refused() -> None:
    domain = hosts.Domain(name="lab.example")
    hosts.check_apart(domain, ("lab.example", "gpu.other.example", "127.0.0.1"))
    with pytest.raises(errors.Invalid, match=r"gpu\.lab\.example") as refused:
        hosts.check_apart(domain, ("lab.example", "gpu.lab.example"))
    assert refused.value.reason == "OpenDomainTaken"


@pytest.mark.parametrize(
    ("host", "port"),
    [("x", 443), ("x:1", 1), ("[::1]", 443), ("[::1]:9", 9), ("x:", 443), ("x:99999", 443), ("x:²", 443)],
)
def test_a_host_s_port_is_https_s_unless_it_says_so(host: str, port: int) -> None:
    assert hosts.port_of(host) == port
