"""Which GPUs were given away together: by one ResourceClaim, or by one device of several; one rule for all who ask."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.lease.row import Claim, Row, State, given_together

KEYS = ("a", "b", "c", "d")
claims = st.builds(
    Claim,
    device=st.sampled_from(["x4-1.2.3.4", "gpu-0", "gpu-0/s1", "gpu-0/s2", "GPU-1"]),
    resource=st.sampled_from(["nvidia.com/h100-x4", "nvidia.com/gpu", "gpu.nvidia.com"]),
    holder=st.sampled_from(["", "", "uid-1", "uid-2"]),
    pod=st.sampled_from(["", "one", "two"]),
)
ledgers = st.dictionaries(st.sampled_from(KEYS), st.lists(claims, max_size=3)).map(
    lambda found: {key: Row(key=key, state=State.HELD, claims=tuple(own)) for key, own in found.items()}
)


def slot(*names: str) -> Claim:
    return Claim(device="x2-1.3", resource="nvidia.com/h100-x2", pod=names[0] if names else "")


def test_a_slot_is_its_device_whether_its_pod_is_named_on_each_gpu_or_not() -> None:
    rows = {
        key: Row(key=key, claims=(one,)) for key, one in (("a", slot()), ("b", slot("pod")), ("c", Claim(device="d")))
    }
    assert given_together([slot()], rows) == ("a", "b")


def test_a_resource_claim_is_all_of_its_devices_and_no_share_that_another_has() -> None:
    def of(device: str, holder: str) -> Claim:
        return Claim(device=device, resource="gpu.nvidia.com", holder=holder)

    rows = {
        "a": Row(key="a", claims=(of("gpu-0/s1", "one"), of("gpu-0/s2", "two"))),
        "b": Row(key="b", claims=(of("gpu-1", "one"),)),
        "c": Row(key="c", claims=(of("gpu-2/s3", "two"),)),
    }
    assert given_together([of("gpu-1", "one")], rows) == ("a", "b")
    assert given_together(rows["a"].claims, rows) == ("a", "b", "c")
    assert given_together([of("gpu-1", "three")], rows) == ()


@given(ledgers)
def test_what_was_given_together_is_so_from_each_end_and_holds_the_gpu_itself(rows: dict[str, Row]) -> None:
    for key, row in rows.items():
        for one in row.claims:
            together = given_together([one], rows)
            assert key in together
            for other in together:
                (again,) = {given_together([own], rows) for own in rows[other].claims if own.giving == one.giving}
                assert again == together


@given(ledgers)
def test_a_holder_and_a_device_never_stand_for_each_other(rows: dict[str, Row]) -> None:
    for row in rows.values():
        for one in row.claims:
            for other in given_together([one], rows):
                assert any(
                    own.holder == one.holder
                    and (one.holder or (own.device, own.resource) == (one.device, one.resource))
                    for own in rows[other].claims
                )
