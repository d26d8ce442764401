from __future__ import annotations

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.tenancy import address, baseline
from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import meta


def tenancy(name: str = "alpha", uid: str = "90a1d2b3-0000-4000-8000-000000000000", **spec: object) -> Tenancy:
    about = meta.ObjectMeta(name=name, uid=uid, generation=1)
    return Tenancy(metadata=about, spec=kind.TenancySpec(**spec))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "Alpha", "a_b", "-a", "a.b", "kube-system", "user-1001", "default", "a" * 54])
def test_names_that_are_no_label_or_reserved_are_refused(name: str) -> None:
    with pytest.raises(errors.Invalid, match=r"metadata\.name"):
        baseline.check(tenancy(name))


@pytest.mark.parametrize(
    "network",
    [
        {"mode": "host"},
        {"internet": "maybe"},
        *({"egress": (one,)} for one in ("nonsense", "0.0.0.0/0", "127.0.0.0/8", "10.1.2.3/8")),
    ],
)
def test_networks_that_cannot_be_carried_out_are_refused(network: dict[str, object]) -> None:
    with pytest.raises(errors.Invalid, match=r"spec\.network"):
        baseline.check(tenancy(network=kind.TenancyNetwork(**network)))  # type: ignore[arg-type]


def test_a_quota_that_is_no_number_is_refused() -> None:
    with pytest.raises(errors.Invalid, match="pods"):
        baseline.check(tenancy(quota={"pods": "many"}))


def test_namespaces_of_one_name_made_twice_differ_and_fit() -> None:
    first, second = tenancy("a" * 53), tenancy("a" * 53, uid="ffffff00-0000-4000-8000-000000000000")
    assert baseline.namespace_name(first) != baseline.namespace_name(second)
    assert len(baseline.namespace_name(first)) <= 63


def test_a_namespace_of_another_uid_is_not_a_tenancys_own() -> None:
    mine = tenancy()
    assert baseline.is_own(mine, baseline.namespace(mine))
    assert not baseline.is_own(mine, baseline.namespace(tenancy(uid="ffffff00-0000-4000-8000-000000000000")))


def _conditions(item: Tenancy, **problems: errors.FairleadError) -> dict[str, meta.Condition]:
    names = (kind.NAMESPACE_READY, kind.NETWORK_ISOLATED, kind.QUOTA_APPLIED)
    return {name: baseline.condition(item, name, problems.get(name), good="Good") for name in names}


def test_a_tenancy_is_ready_when_every_part_is() -> None:
    item = tenancy()
    status = baseline.status(item, _conditions(item), kind.NetworkStatus())
    ready = Tenancy(metadata=item.metadata, spec=item.spec, status=status)
    assert status.phase == kind.READY
    assert baseline.refusal(ready) is None


def test_a_tenancy_whose_packets_are_not_filtered_accepts_nothing_and_says_why() -> None:
    item = tenancy()
    problem = errors.Unavailable("no iptables", reason="NetfilterUnusable")
    status = baseline.status(item, _conditions(item, NetworkIsolated=problem), kind.NetworkStatus())
    refused = baseline.refusal(Tenancy(metadata=item.metadata, spec=item.spec, status=status))
    assert status.phase == kind.PENDING
    assert refused is not None
    assert "no iptables" in refused.message


def test_conditions_of_an_older_spec_make_nothing_ready() -> None:
    item = tenancy()
    status = baseline.status(item, _conditions(item), kind.NetworkStatus())
    newer = meta.ObjectMeta(name="alpha", uid=item.metadata.uid, generation=2)
    refused = baseline.refusal(Tenancy(metadata=newer, spec=item.spec, status=status))
    assert refused is not None
    assert refused.reason == "TenancyNotReady"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"images": ("localhost/*", "a,b")}, 'spec.images: "a,b" is not an image'),
        ({"images": (" ",)}, "is not an image"),
        ({"display_name": "x" * 201}, "spec.displayName"),
        ({"display_name": "red\x1b[2J"}, "spec.displayName"),
        ({"storage": kind.TenancyStorage(nfs=kind.NFSExport(server="", path="relative"))}, "spec.storage.nfs"),
    ],
)
def test_what_else_cannot_be_carried_out_is_named_by_its_field(spec: dict[str, object], why: str) -> None:
    with pytest.raises(errors.Invalid, match=r"tenancy \"alpha\" is invalid") as caught:
        baseline.check(tenancy(**spec))  # type: ignore[arg-type]
    assert why in caught.value.message
    baseline.check(tenancy(images=("localhost/*",), display_name="Team A"))


def test_why_nothing_starts_is_said_by_what_keeps_it() -> None:
    item = tenancy()
    suspended = baseline.with_suspended(item, suspended=True)
    status = baseline.status(suspended, _conditions(suspended), kind.NetworkStatus())
    assert status.phase == kind.SUSPENDED
    going = msgspec.structs.replace(item.metadata, deletion_timestamp=meta.now())
    ending = Tenancy(metadata=going, spec=item.spec)
    assert baseline.status(ending, _conditions(ending), kind.NetworkStatus()).phase == kind.TERMINATING
    refused = [baseline.refusal(one) for one in (suspended, ending, item)]
    reasons = [error.reason for error in refused if error is not None]
    assert reasons == ["TenancySuspended", "TenancyTerminating", "TenancyNotReady"]


def test_a_namespace_is_found_by_its_tenancys_uid_and_a_plain_one_is_nobodys() -> None:
    mine = tenancy()
    space = baseline.namespace(mine).metadata
    other = tenancy("beta", uid="ffffff00-0000-4000-8000-000000000000")
    assert baseline.find_owner(space, (other, mine)) is mine
    assert baseline.find_owner(meta.ObjectMeta(name="default"), (mine,)) is None


def test_a_namespace_whose_tenancy_is_gone_accepts_nothing() -> None:
    with pytest.raises(errors.Denied, match="gone"):
        baseline.find_owner(baseline.namespace(tenancy()).metadata, ())


POOL = "10.213.0.0/16"


def test_a_new_subnet_meets_no_route_and_no_other_network() -> None:
    found = address.choose(POOL, "home", ["10.213.0.0/24", "10.213.1.128/25", "0.0.0.0/0", "fd00::/8"], ipv6=True)
    assert found[0] == "10.213.2.0/24"
    assert found[1].startswith("fd")
    assert found[1].endswith("/64")


def test_two_instances_have_prefixes_of_their_own() -> None:
    assert address.choose(POOL, "one", [], ipv6=True)[1] != address.choose(POOL, "two", [], ipv6=True)[1]


def test_a_pool_that_is_used_up_or_no_pool_is_said() -> None:
    with pytest.raises(errors.Insufficient, match="in use"):
        address.choose(POOL, "home", ["10.0.0.0/8"], ipv6=False)
    for pool in ("nonsense", "10.0.0.0/25", "fd00::/16"):
        with pytest.raises(errors.Invalid, match="tenancy_subnets"):
            address.choose(pool, "home", [], ipv6=False)
