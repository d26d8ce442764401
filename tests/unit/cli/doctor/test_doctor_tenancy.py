"""What doctor says of the packet filter that tenancies need, and of what ended services left in it."""

from __future__ import annotations

import pytest

from fairlead.cli.doctor import tenancy


def found(seen: tenancy.Facts) -> list[tuple[str, str]]:
    return [(one.level, one.what) for one in tenancy.check(seen)]


def test_nothing_is_said_where_nothing_may_be_read() -> None:
    assert found(tenancy.Facts()) == []


def test_a_host_that_cannot_filter_is_named_with_what_it_costs_and_how_to_mend_it() -> None:
    (one,) = tenancy.check(tenancy.Facts(problem="iptables is missing", is_read=True))
    assert (one.level, one.what) == ("warn", "iptables is missing")
    assert "no container of a tenancy with a network starts" in one.why
    assert "apt install iptables" in one.fix


@pytest.mark.parametrize(
    ("families", "words"),
    [
        ((4, 6), "packets of IPv4 and IPv6 can be filtered"),
        ((4,), "packets of IPv4 can be filtered; the kernel has no IPv6, so tenancies have IPv4 alone"),
    ],
)
def test_what_can_be_filtered_is_said_by_family(families: tuple[int, ...], words: str) -> None:
    assert found(tenancy.Facts(families=families, is_read=True)) == [("ok", words)]


def test_rules_of_a_service_that_is_gone_are_named_by_their_chains() -> None:
    warned, fine = found(tenancy.Facts(families=(4, 6), leftovers=("51def8c0",), is_read=True))
    assert warned[0] == "warn"
    assert "FL-51def8c0-FWD, FL-51def8c0-IN" in warned[1]
    assert fine[0] == "ok"


def test_folders_that_cannot_be_mounted_are_named() -> None:
    (one,) = tenancy.check_mounts(tenancy.Facts(mounts=("/home/ann is not root's alone to write",), is_read=True))
    assert (one.level, "/home/ann" in one.what, "root own the folders above" in one.fix) == ("warn", True, True)
    assert list(tenancy.check_mounts(tenancy.Facts(is_read=True))) == []


@pytest.mark.parametrize(
    ("held", "most", "warns"), [(40, 128, False), (96, 128, True), (96, 8192, False), (0, 0, False)]
)
def test_inotify_instances_that_run_out_are_said(held: int, most: int, warns: bool) -> None:
    findings = list(tenancy.check_inotify(tenancy.Facts(inotify=(held, most), is_read=True)))
    assert [one.what for one in findings] == [f"{held} inotify instances are held, and root may hold {most}"] * warns
