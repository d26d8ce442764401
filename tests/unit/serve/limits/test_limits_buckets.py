"""Token buckets: never more than the rate allows, in bounded memory, whatever names come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.serve.limits import address
from fairlead.serve.limits.bucket import Buckets, Rate
from fairlead.serve.limits.gate import Gate, Policy


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("not an address", "not an address"),
    ],
)
def test_a_client_is_an_ipv4_address_or_a_64_of_ipv6(one: str, same: str) -> None:
    assert address.network(one) == same


@given(
    st.lists(st.tuples(st.floats(0, 5), st.sampled_from("abcdefgh")), max_size=200),
    st.sampled_from([(1.0, 3), (0.5, 1), (10.0, 5)]),
)
def test_no_name_gets_more_than_its_burst_and_what_flowed_in_since(
    asked: list[tuple[float, str]], rate: tuple[float, int]
) -> None:
    clock, (per_s, burst) = Clock(), rate
    buckets = Buckets(Rate(per_s=per_s, burst=burst), now=clock, most=3)
    given_to: dict[str, int] = {}
    for pause, name in asked:
        clock.now += pause
        given_to[name] = given_to.get(name, 0) + (buckets.take(name).wait_s <= 0)
        assert len(buckets) <= 3
    passed = clock.now - 1000.0
    # One that came when all were taken may have drawn from the shared bucket and from one of its own.
    assert all(count <= 2 * (burst + passed * per_s) + 1e-6 for count in given_to.values())


def test_names_without_number_share_what_one_has_and_full_buckets_are_forgotten() -> None:
    clock = Clock()
    buckets = Buckets(Rate(per_s=1.0, burst=2), now=clock, most=10)
    taken = sum(buckets.take(f"n{at}").wait_s <= 0 for at in range(1000))
    assert (taken, len(buckets)) == (12, 10)
    clock.now += 2
    assert buckets.take("later").wait_s == 0
    assert len(buckets) == 1


def test_the_wait_that_is_named_is_enough_and_no_shorter_one_is() -> None:
    clock = Clock()
    buckets = Buckets(Rate(per_s=0.25, burst=1), now=clock)
    assert buckets.take("a").wait_s == 0
    wait_s = buckets.take("a").wait_s
    clock.now += wait_s - 0.01
    assert buckets.take("a").wait_s > 0
    clock.now += 0.02
    assert buckets.take("a").wait_s == 0


def _gate(clock: Clock) -> Gate:
    return Gate(Policy(key=Rate(per_s=1.0, burst=2), address=Rate(per_s=1.0, burst=2)), now=clock)


def test_an_address_that_is_held_back_is_open_to_keys_that_are_known_to_be_good() -> None:
    gate = _gate(Clock())
    gate.admit("ann", "k1", "right")
    for _ in range(5):
        gate.refused("192.0.2.1", "k1", "guessed")
    gate.check_address("192.0.2.1", "k1", "right")
    gate.check_address("192.0.2.2")
    for key, digest in (("", ""), ("k1", "guessed"), ("k2", "right")):
        with pytest.raises(errors.Throttled) as refused:
            gate.check_address("192.0.2.1", key, digest)
        assert (refused.value.reason, refused.value.context) == ("AddressThrottled", {"retry_after_s": 1})


def test_a_key_that_was_revoked_is_good_no_more() -> None:
    gate = _gate(Clock())
    gate.admit("ann", "k1", "right")
    for _ in range(3):
        gate.refused("192.0.2.1", "k1", "right")
    with pytest.raises(errors.Throttled):
        gate.check_address("192.0.2.1", "k1", "right")


def test_more_keys_give_an_account_four_times_as_much_and_no_more() -> None:
    gate, taken = _gate(Clock()), 0
    for at in range(100):
        try:
            gate.admit("ann", f"k{at}", "d")
            taken += 1
        except errors.Throttled as error:
            assert error.reason == "AccountThrottled"  # noqa: PT017 most of them are refused
    assert taken == 8
    gate.admit("ben", "b1", "d")
